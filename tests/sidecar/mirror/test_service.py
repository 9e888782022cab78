"""NATS in a real sidecar: shown by ``status``, bringing messages to agents, never blocking, and ended with it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.nats.jetstream.client_errors import NOTHING_LISTENS
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.wire import Message
from sidecar.agents.runtime import Runtime
from sidecar.care.checks.running_sidecar import ask_sidecar
from sidecar.config import NatsConfig
from sidecar.home import Home
from sidecar.link.launch import ensure_running
from sidecar.mirror.reaching import sessions_of
from sidecar.mirror.service import MirrorSource, NatsService
from streams.identity import seeded_identity, system_identity
from tests.memory import MemoryStore
from tests.nats_servers import HANG_SECONDS, OLDEST, program, real_server, servers_of, until
from tests.sidecar.cli.helpers import MAY_REMOVE, run
from tests.sidecar.mirror.test_commands import consumers_of
from tests.sidecar.support import running, start, wait_for


class Served:
    """A sidecar with its own configuration."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        self.process: subprocess.Popen[str] | None = None

    def start(self, config: str) -> None:
        self.home.path.mkdir(mode=0o700, exist_ok=True)
        self.home.config_path.write_text(MAY_REMOVE + config)
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
    served.start(f'[nats]\nmode = "embedded"\nexecutable = "{program(OLDEST)}"\n')
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
    assert (said["mode"], said["servers"], said["server"], said["mirror"]) == ("embedded", None, None, None)
    assert status_rows(served.home) == {"nats": "embedded server, which starts with the sidecar"}


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
    assert mirror["problem"] == "" and mirror["published"] > mirror["head"]
    rows = status_rows(served.home)
    assert rows["mirror"] == f"the whole log, up to position {mirror['head']}"
    assert served.nats()["servers"] == f"127.0.0.1:{served.nats()['server']['port']}"
    assert status_rows(served.home, "mirror", "status") == rows, "the same words for the same"
    assert served.end(signal.SIGTERM) == 0
    rows = status_rows(served.home, "mirror", "status")
    assert rows["nats"].startswith("embedded server, which") and "when a sidecar runs" in rows["mirror"]


def test_a_wrong_setting_is_a_note_and_the_sidecar_serves_all_the_same(served: Served) -> None:
    served.start('[nats]\nmode = "external"\nservers = ["tls://ada:geheim@127.0.0.1:1"]\n')
    wait_for(lambda: NOTHING_LISTENS in served.nats()["problem"], "the problem is shown")
    shown = run(served.home.path, "status").out
    assert f"127.0.0.1:1: {NOTHING_LISTENS}" in " ".join(shown.split()) and "geheim" not in shown
    assert next(line for line in shown.splitlines() if line.startswith("nats ")).endswith("127.0.0.1:1, not connected")
    assert served.end(signal.SIGTERM) == 0
    assert "geheim" not in served.home.log_path.read_text()


def _no_agents() -> Runtime:
    raise AssertionError("nobody takes commands")


async def test_an_external_server_is_shown_while_it_is_there(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with real_server(tmp_path / "other", "2.15", authorization={}) as other:
        config = NatsConfig(mode="external", servers=(f"nats://127.0.0.1:{other.port}",))
        source = MirrorSource(MemoryStore(), "LOG", lambda: 1, lambda session: None, str, _no_agents)
        service = NatsService(home, config, seeded_identity(1).nonce, source)
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


@pytest.fixture
def nats_home(counter_home: Home) -> Path:
    with counter_home.config_path.open("a") as config:
        config.write('ui_allowed = ["signal"]\ninternal_allowed = ["signal"]\n')
        config.write('[nats]\nmode = "embedded"\nack_wait_seconds = 3\n')
    return counter_home.path


async def _send(home: Path, *messages: Message) -> None:
    """Publish as soon as the sidecar's consumer is there."""
    sessions = sessions_of(Home(home), NatsConfig(mode="embedded"), system_identity().nonce)
    try:
        session = await sessions.wait()
        async with asyncio.timeout(HANG_SECONDS):
            while not await consumers_of(session):
                await asyncio.sleep(0.02)
        for message in messages:
            await publish(session, message)
    finally:
        await sessions.close()


async def _ack_wait(home: Path) -> int:
    """What the sidecar asked the server for, in nanoseconds."""
    sessions = sessions_of(Home(home), NatsConfig(mode="embedded"), system_identity().nonce)
    try:
        found = await consumers_of(await sessions.wait())
        (config,) = [each for name, each in found.items() if name.endswith("_counter_consumer")]
        return int(config["ack_wait"])
    finally:
        await sessions.close()


def _status(home: Path) -> dict[str, Any]:
    return run(home, "status", "--json").objects()[0]


def test_a_message_reaches_an_agent_and_a_person_sees_what_is_wrong(nats_home: Path) -> None:
    asyncio.run(ensure_running(Home(nats_home)))
    by = json.dumps({"by": 3}).encode()
    reserved = json.dumps({"by": 4, "CG-Sender": "x"}).encode()
    messages = [
        Message("cmd.default.demo.counter.add", {"Nats-Msg-Id": "1"}, by),
        Message("cmd.default.demo.counter.add", {"Nats-Msg-Id": "2"}, reserved),
        Message("cmd.default.demo.counter.add", {}, b"{"),
        Message("cmd.default.demo.intents.intent.register", {}, b"{}"),
        Message("cg.v1.default.public.cmd.sys.ui.action", {}, b"\xff"),
        Message("cg.v1.default.public.cmd.sys.pmo.internal.signal", {}, b"\xff"),
        Message("cg.v1.default.public.cmd.agent.counter.wakeup", {}, b"\xff"),
    ]
    asyncio.run(_send(nats_home, *messages))
    end = time.monotonic() + HANG_SECONDS
    while True:  # the messages are handled side by side, so any of them can be the last
        found = _status(nats_home)
        (consumer,) = found["nats"]["commands"]
        if found["worker"] and all(consumer["counts"].get(name, 0) >= n for name, n in (("done", 2), ("poison", 1))):
            break
        assert time.monotonic() < end, found["nats"]
    assert (consumer["consumer"], consumer["subjects"]) == ("counter_consumer", ["cmd.*.*.counter.>"])
    assert consumer["counts"]["handled"] == 2
    while len(letters := run(nats_home, "dlq", "list", "--json").objects()) < 4:
        assert time.monotonic() < end, letters
    assert {(each["subject"].partition(".cmd.")[2], each["code"]) for each in letters} == {
        ("", "undecodable"),
        ("sys.ui.action", "undecodable"),
        ("sys.pmo.internal.signal", "undecodable"),
        ("agent.counter.wakeup", "undecodable"),
    }
    assert {each["agent"] for each in letters} == {"counter", "ui_worker", "cmd.sys.pmo.internal"}
    others = [each["id"] for each in letters if each["agent"] != "counter"]
    assert "[undecodable]" in run(nats_home, "dlq", "redrive", others[0]).err
    assert run(nats_home, "dlq", "drop", *others).code == 0
    assert {each["agent"] for each in run(nats_home, "dlq", "list", "--json").objects()} == {"counter"}
    while True:  # the mirror follows the log in its own time
        found = _status(nats_home)
        notes, lag = "\n".join(found["notes"]), found["nats"]["mirror"]["lag"]
        if "dlq list" in notes and not lag:
            break
        assert time.monotonic() < end, (notes, lag)
    assert "CG-*" in notes
    checks = {(each["name"], each["level"]) for each in run(nats_home, "doctor", "--json").objects()}
    assert {("agents", "note"), ("mirror", "note")} <= checks
    assert asyncio.run(_ack_wait(nats_home)) == 3 * 10**9
    added = run(nats_home, "query", "--type", "counter.added", "--json").objects()
    assert [each["event"]["payload"]["by"] for each in added] == [3, 4]
    trace = added[0]["event"]["traceparent"]
    chain = run(nats_home, "query", "--trace", trace, "--json").objects()
    assert [each["event"]["type"] for each in chain] == ["add", "counter.added"]
    assert chain == run(nats_home, "query", "--trace", trace[3:35], "--json").objects()
    assert run(nats_home, "query", "--trace", "nonsense").code == 2
