"""Commands that change the log, interrupted or run twice at once: one sentence, and the log is intact."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.state import CaptureState
from sidecar.care.snapshots import CaptureSnapshot
from sidecar.care.upkeep import Upkeep
from sidecar.config import StoreConfig
from sidecar.home import Home
from sidecar.link.client import ControlClient
from streams.errors import StoreUnavailable
from streams.identity import system_identity
from streams.log.log import Log
from streams.log.verify import Verification
from tests.sidecar.cli.helpers import Done, command, run
from tests.sidecar.support import HANG_SECONDS, REPOSITORY, running, start, wait_for
from tests.streams.builders import event

DAY_MS = 86_400_000
SESSIONS, RECORDS = 4, 50


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments, all of it old."""

    async def record(store: Path) -> None:
        log = await Log.open(store, system_identity(), segment_bytes=32 * 1024)
        old = system_identity().now_ms() - 40 * DAY_MS
        for number in range(SESSIONS):
            made = [
                event(f"{number}-{n}", stream=f"ses_{number:03}", ts=old + number, payload={"text": f"{n:0400}"})
                for n in range(RECORDS)
            ]
            await log.append(made)
        await log.close()

    store = tmp_path_factory.mktemp("recorded") / "store"
    asyncio.run(record(store))
    return store


@pytest.fixture
def filled_home(home: Home, recorded: Path) -> Home:
    home.config_path.write_text("[store]\nsegment_bytes = 32768\n")
    shutil.copytree(recorded, home.store_path, dirs_exist_ok=True)
    return home


def begin(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)


HELD = """
import asyncio, sys, time
from pathlib import Path
from sidecar.cli import main
from streams.log.migrate import Migration
from streams.stores.sqlite.removal import SqliteRemover

held, go_on = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
work, compare = SqliteRemover._work, Migration._compare

def held_work(self, *given):
    held.touch()
    while not go_on.exists():
        time.sleep(0.005)
    return work(self, *given)

async def held_compare(self, *given):
    held.touch()
    while not go_on.exists():
        await asyncio.sleep(0.005)
    return await compare(self, *given)

SqliteRemover._work, Migration._compare = held_work, held_compare
main()
"""
"""A ``durable-stream`` that stops in the middle of a removal or a move, where it makes ``held``, until ``go_on`` is
there: whatever cuts it off comes in time."""


def stopping_half_way(home: Home, *arguments: str) -> list[str]:
    python, _, _, *words = command(home.path, *arguments)
    return [python, "-c", HELD, str(home.path / "held"), str(home.path / "go-on"), *words]


def wait_until_held(home: Home) -> None:
    wait_for((home.path / "held").exists, "it is in progress")


def verified(home: Home) -> bool:
    return run(home.path, "verify").code == 0


def one_sentence(text: str) -> bool:
    return len(text.splitlines()) == 1 and "Traceback" not in text


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
def test_a_prune_whose_sidecar_is_killed_says_so_and_is_run_again(filled_home: Home, backend: str) -> None:
    """With jsonl, the kill hits the preceding move to sqlite; with sqlite, the removal."""
    if backend == "sqlite":
        assert run(filled_home.path, "migrate", "--to", "sqlite").code == 0 and run(filled_home.path, "stop").code == 0
    sidecar = begin(stopping_half_way(filled_home, "serve"))
    running(filled_home)
    pruning = begin(command(filled_home.path, "prune", "--older-than", "1d", "--yes", "--json"))
    wait_until_held(filled_home)
    sidecar.kill()
    sidecar.communicate(timeout=HANG_SECONDS)
    out, err = pruning.communicate(timeout=HANG_SECONDS)
    assert pruning.returncode == 1 and out == "" and one_sentence(err), err
    assert "crashed before it finished" in err and "[cut-off]" in err
    assert "it is safe to run the same command again" in err
    assert run(filled_home.path, "prune", "--older-than", "1d", "--yes").code == 0
    assert verified(filled_home) and run(filled_home.path, "streams").out == ""


def test_a_sidecar_that_is_killed_before_it_is_asked_is_replaced(
    filled_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = start(filled_home)
    running(filled_home)
    connect = ControlClient.connect

    async def connect_late(*given: Any, **named: Any) -> ControlClient:
        sidecar.kill()
        sidecar.wait(HANG_SECONDS)
        return await connect(*given, **named)

    monkeypatch.setattr(ControlClient, "connect", connect_late)
    done = run(filled_home.path, "forget", "ses_000", "--yes")
    assert sidecar.poll() is not None and filled_home.running() is not None
    assert done.code == 0 and verified(filled_home), done


def test_a_migrate_that_is_interrupted_says_so_and_is_run_again(filled_home: Home) -> None:
    sidecar = begin(stopping_half_way(filled_home, "serve"))
    running(filled_home)
    arguments = ("migrate", "--to", "sqlite")
    moving = begin(command(filled_home.path, *arguments))
    wait_until_held(filled_home)
    moving.send_signal(signal.SIGINT)
    out, err = moving.communicate(timeout=HANG_SECONDS)
    assert moving.returncode == 130 and out == "" and one_sentence(err), err
    assert err.startswith("Interrupted: ") and "run the same command again" in err
    (filled_home.path / "go-on").touch()
    assert run(filled_home.path, *arguments).code == 0
    assert verified(filled_home)
    assert run(filled_home.path, "stop").code == 0
    sidecar.communicate(timeout=HANG_SECONDS)
    assert sidecar.returncode == 0


async def test_a_sidecar_neither_leaves_nor_removes_while_it_moves_the_log(filled_home: Home) -> None:
    log = await Log.open(filled_home.store_path, system_identity())
    upkeep = Upkeep(
        log, CaptureSnapshot(log, CaptureState()), lambda: True, system_identity().now_ms, config=StoreConfig()
    )
    assert not upkeep.owes()
    upkeep.migrate("sqlite")
    assert upkeep.owes(), "so it does not exit, however idle it is"
    with pytest.raises(StoreUnavailable, match="is migrating to another backend, so nothing was deleted"):
        await upkeep.discard()
    with pytest.raises(StoreUnavailable, match="nothing was forgotten"):
        await upkeep.forget(["ses_000"])
    await upkeep.close()
    await log.close()
    assert [finding async for finding in Verification(filled_home.store_path).run()] == []


def test_what_is_already_so_is_a_success_and_what_cannot_be_is_a_failure(filled_home: Home) -> None:
    already = run(filled_home.path, "migrate", "--to", "jsonl", "--json")
    assert already.objects() == [{"backend": "jsonl", "moved": False}]
    assert run(filled_home.path, "stop").code == 0
    segment = next((filled_home.store_path / "log").iterdir())
    segment.rename(filled_home.path / "aside")
    lost = run(filled_home.path, "migrate", "--to", "jsonl")
    assert lost.code == 1 and lost.out == "", "a damaged log is nowhere"
    (filled_home.path / "aside").rename(segment)
    assert run(filled_home.path, "migrate", "--discard-old", "--json").objects() == [{"freed": 0}]
    assert run(filled_home.path, "migrate", "--rollback").code == 1
    assert run(filled_home.path, "migrate", "--to", "sqlite").code == 0
    assert run(filled_home.path, "migrate", "--rollback").code == 0
    assert run(filled_home.path, "migrate", "--discard-old", "--json").objects()[0]["freed"] > 0
    assert run(filled_home.path, "migrate", "--rollback").code == 1 and verified(filled_home)


def test_an_old_store_is_not_deleted_under_who_writes_the_log(filled_home: Home) -> None:
    assert run(filled_home.path, "migrate", "--to", "sqlite").code == 0
    assert run(filled_home.path, "stop").code == 0

    async def refused() -> Done:
        log = await Log.open(filled_home.store_path, system_identity())
        try:
            return await asyncio.to_thread(run, filled_home.path, "migrate", "--discard-old")
        finally:
            await log.close()

    done = asyncio.run(refused())
    assert done.code == 1 and one_sentence(done.err) and f"process {os.getpid()}" in done.err
    assert (filled_home.store_path / "log").is_dir()
    back = run(filled_home.path, "migrate", "--rollback")
    assert back.code == 0 and verified(filled_home), back


def test_a_log_that_is_being_moved_is_not_called_where_it_was(
    filled_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def moving(*_: object) -> AsyncIterator[object]:
        class Client:
            async def request(self, method: str) -> dict[str, object]:
                assert method == "migration"
                return {"running": True, "progress": {"to": "sqlite"}}

        yield Client()

    monkeypatch.setattr("sidecar.cli.run.migrate.control", moving)
    done = run(filled_home.path, "migrate", "--to", "jsonl")
    assert done.code == 1 and "a migration to sqlite is in progress" in done.err
