"""The mirror's commands while a sidecar runs its embedded server."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.stream_plan import EVENTS
from sidecar.config import load_config
from sidecar.home import Home
from sidecar.mirror.reaching import sessions_of
from streams.identity import seeded_identity
from tests.nats_servers import HANG_SECONDS, servers_of
from tests.sidecar.cli.helpers import MAY_REMOVE, RECORDINGS, run
from tests.sidecar.support import running, start, wait_for


@pytest.fixture(scope="module")
def mirrored_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A sidecar with an embedded server and a recorded session, shared by the tests."""
    home = Home(tmp_path_factory.mktemp("mirrored") / "home")
    home.path.mkdir(mode=0o700)
    home.config_path.write_text(f'{MAY_REMOVE}[nats]\nmode = "embedded"\n')
    process = start(home)
    try:
        running(home)
        assert run(home.path, "play", str(RECORDINGS / "chat.jsonl"), "--speed", "max").code == 0
        level(home)
        yield home
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(HANG_SECONDS)
    assert servers_of(home.nats_path) == []


def status(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(home.path, "mirror", "status", "--json").out)
    return found


def level(home: Home) -> dict[str, Any]:
    """Wait until all is mirrored."""

    def look() -> dict[str, Any] | None:
        found = status(home)
        return found if found["state"] == "idle" and not found["lag"] and found["head"] >= 0 else None

    found: dict[str, Any] = wait_for(look, "all is mirrored")
    return found


def delete_message(home: Home, sequence: int) -> None:
    """Delete one message from the server's stream, as any process of the user may."""

    async def work() -> None:
        sessions = sessions_of(home, load_config(home.config_path).nats, seeded_identity(1).nonce)
        try:
            session: JetStream = await sessions.get()
            await session.api(f"STREAM.MSG.DELETE.{EVENTS}", {"seq": sequence})
        finally:
            await sessions.close()

    asyncio.run(work())


def test_the_mirrors_commands_ask_the_sidecar(mirrored_home: Home) -> None:
    found = level(mirrored_home)
    assert found["problem"] == "" and found["position"] == found["head"] >= 5
    assert re.search(
        r"^nats +embedded server .* running, port \d+.*\nmirror +the whole log, up to position \d+$",
        run(mirrored_home.path, "mirror", "status").out,
        re.M,
    )
    done = run(mirrored_home.path, "mirror", "verify")
    assert done.code == 0 and re.match(
        r"the copy equals the log: \d+ messages of \d+ records compared( \(and \d+ expired\))?$", done.out
    )
    delete_message(mirrored_home, 3)
    done = run(mirrored_home.path, "mirror", "verify")
    assert done.code == 1 and "missing: MESHFORGE_EVENTS: record 2:" in done.out and "rebuild" in done.out
    done = run(mirrored_home.path, "mirror", "rebuild")
    assert done.code == 0 and "would remove" in done.out and "--yes" in done.err
    assert run(mirrored_home.path, "mirror", "verify").code == 1
    done = run(mirrored_home.path, "mirror", "rebuild", "--yes", "--json")
    assert done.code == 0 and done.objects()[0]["done"]["rebuilt"] == 1, done
    assert run(mirrored_home.path, "mirror", "verify").code == 0
