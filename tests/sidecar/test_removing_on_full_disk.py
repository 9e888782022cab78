"""Commands that change the log where the disk has no byte left: one sentence, and nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.home import Home
from streams.identity import system_identity
from streams.log import Log
from streams.migrate import Migration
from streams.stores.directory import Backend
from tests.mounts import can_mount, mounted
from tests.sidecar import life
from tests.sidecar.bad_places import fill
from tests.sidecar.cli.helpers import run
from tests.streams.builders import event

pytestmark = pytest.mark.skipif(not can_mount(), reason="only root may mount a small disk, and nothing else is full")

COMMANDS = (
    ["prune", "--stream", "ses_1", "--yes"],
    ["forget", "ses_1", "--yes"],
    ["migrate", "--rollback"],
    ["migrate", "--discard-old"],
)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    place = tmp_path / "disk"
    place.mkdir()
    with mounted(place, "32m"):
        home = Home(place / "home")
        home.create()
        yield home
        life.end_sidecars(home)


async def record_and_move(home: Home, backend: Backend) -> None:
    """The log is in ``backend``, and the store that it was moved from is kept."""
    log = await Log.open(home.store_path, system_identity(), backend="jsonl" if backend == "sqlite" else "sqlite")
    for stream in ("ses_1", "ses_2"):
        await log.append([event(f"{stream}-{n}", stream=stream, payload={"text": f"{n:0500}"}) for n in range(500)])
    await Migration(log, backend).run()
    await log.close()


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
def test_they_are_refused_in_a_sentence_and_done_when_there_is_room(home: Home, backend: Backend) -> None:
    asyncio.run(record_and_move(home, backend))
    before = run(home.path, "query", "--json").out
    fill(home.path)
    for command in COMMANDS:
        done = run(home.path, *command)
        assert done.code == 1 and done.out == "" and len(done.err.splitlines()) == 1, done
        assert "No space left on device" in done.err or "MiB on that disk" in done.err, done
        assert run(home.path, "query", "--json").out == before
    (home.path / "filler").unlink()
    for command in (COMMANDS[3], COMMANDS[0]):
        done = run(home.path, *command)
        assert done.code == 0, done
    assert run(home.path, "verify").code == 0
