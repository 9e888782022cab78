"""NATS in a real sidecar: shown by ``status``, never blocking recording, and ended with the sidecar."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.nats.jetstream.client_errors import NOTHING_LISTENS
from sidecar.care.checks.asking import ask_sidecar
from sidecar.config import NatsConfig
from sidecar.home import Home
from sidecar.mirror.service import NatsService
from streams.identity import seeded_identity
from tests.nats_servers import HANG_SECONDS, program, real_server, servers_of, until
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import running, start, wait_for


class Served:
    """A sidecar with its own configuration."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        self.process: subprocess.Popen[str] | None = None

    def start(self, config: str) -> None:
        self.home.path.mkdir(mode=0o700, exist_ok=True)
        self.home.config_path.write_text(config)
        self.process = start(self.home)
        running(self.home)

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(HANG_SECONDS)

    def nats(self) -> dict[str, Any]:
        found: dict[str, Any] = asyncio.run(ask_sidecar(self.home, "status", seeded_identity(1).nonce))["nats"]
        return found

    def until(self, **wanted: Any) -> dict[str, Any]:
        """Wait until the status satisfies a condition."""

        def look() -> dict[str, Any] | None:
            found = self.nats()
            return found if wanted.items() <= found.items() else None

        found: dict[str, Any] = wait_for(look, f"NATS is {wanted}")
        return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "home")
    yield one
    if one.process is not None and one.process.poll() is None:
        one.end(signal.SIGKILL)
    wait_for(lambda: servers_of(one.home.nats_path) == [], "no server is left")


def test_embedded_it_is_shown_and_gone_with_the_sidecar(served: Served) -> None:
    served.start(f'[nats]\nmode = "embedded"\nexecutable = "{program("2.10")}"\n')
    found = served.until(connected=True)
    server = found["server"]
    assert (found["mode"], found["problem"], server["state"]) == ("embedded", "", "running")
    assert servers_of(served.home.nats_path) == [server["pid"]]
    line = next(line for line in run(served.home.path, "status").out.splitlines() if line.startswith("nats "))
    assert line.split(None, 1)[1] == (
        f"embedded server {server['version']} running, port {server['port']}, pid {server['pid']}"
    )
    assert served.end(signal.SIGTERM) == 0
    assert servers_of(served.home.nats_path) == []
    said = json.loads(run(served.home.path, "status", "--json").out)["nats"]
    assert (said["mode"], said["servers"], said["server"], said["mirror"]["state"]) == (
        "embedded",
        None,
        None,
        "stopped",
    )
    rows = status_rows(served.home)
    assert rows["nats"] == "embedded server, which starts with the sidecar" and rows["mirror"] == "nothing mirrored yet"


def status_rows(home: Home, *command: str) -> dict[str, str]:
    """The lines of `status` or `mirror status` on NATS."""
    lines = [line.split(None, 1) for line in run(home.path, *(command or ("status",))).out.splitlines()]
    return {name: words for name, words in (line for line in lines if len(line) == 2) if name in ("nats", "mirror")}


def test_what_is_recorded_is_mirrored_and_status_says_so(served: Served) -> None:
    served.start('[nats]\nmode = "embedded"\n')
    recording = Path(__file__).parents[2] / "recordings" / "chat.jsonl"
    run(served.home.path, "play", str(recording), "--speed", "max")
    mirror = wait_for(
        lambda: (m := served.nats()["mirror"])["position"] >= 0 and m["state"] == "idle" and not m["lag"] and m,
        "all is mirrored",
    )
    assert mirror["problem"] == "" and mirror["rebuild"] == 0 and mirror["published"] > mirror["head"]
    rows = status_rows(served.home)
    assert rows["mirror"] == f"the whole log, up to position {mirror['head']}"
    assert served.nats()["servers"] == f"127.0.0.1:{served.nats()['server']['port']}"
    assert status_rows(served.home, "mirror", "status") == rows, "the same words for the same"
    assert served.end(signal.SIGTERM) == 0
    rows = status_rows(served.home)
    last = f"the whole log, up to position {mirror['head']}, when the sidecar last ran"
    assert rows["mirror"] == last and rows["nats"].startswith("embedded server, which")
    assert status_rows(served.home, "mirror", "status") == rows


def test_a_wrong_setting_is_a_note_and_the_sidecar_serves_all_the_same(served: Served) -> None:
    served.start('[nats]\nmode = "external"\nservers = ["tls://ada:geheim@127.0.0.1:1"]\n')
    wait_for(lambda: NOTHING_LISTENS in served.nats()["problem"], "the problem is shown")
    shown = run(served.home.path, "status").out
    assert f"127.0.0.1:1: {NOTHING_LISTENS}" in " ".join(shown.split()) and "geheim" not in shown
    assert next(line for line in shown.splitlines() if line.startswith("nats ")).endswith("127.0.0.1:1, not connected")
    assert served.end(signal.SIGTERM) == 0
    assert "geheim" not in served.home.log_path.read_text()


async def test_an_external_server_is_shown_while_it_is_there(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with real_server(tmp_path / "other", "2.15", authorization={}) as other:
        config = NatsConfig(mode="external", servers=(f"nats://127.0.0.1:{other.port}",))
        service = NatsService(home, config, seeded_identity(1).nonce)
        service.open()
        await until(lambda: service.status()["connected"], "it is connected")
        found = service.status()
        assert found["servers"] == f"127.0.0.1:{other.port}" and found["version"].startswith("2.15")
        other.kill()
        await until(lambda: not service.status()["connected"], "it is not connected")
        other.start()
        await until(lambda: service.status()["connected"], "it is connected again")
        assert service.status()["problem"] == ""
        await service.close()
    assert not home.nats_path.exists()
