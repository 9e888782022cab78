"""Commands that change the log, interrupted or run twice at once: one sentence, and the log is intact."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.state import CaptureState
from sidecar.care.snapshots import CaptureSnapshot
from sidecar.care.upkeep import Upkeep
from sidecar.config import StoreConfig
from sidecar.home import Home
from sidecar.link.client import ControlClient
from streams.identity import system_identity
from streams.log.log import Log
from streams.retention import Removed
from tests.sidecar import life
from tests.sidecar.cli.helpers import MAY_REMOVE, command, run
from tests.sidecar.support import HANG_SECONDS, REPOSITORY, running, start, wait_for
from tests.streams.builders import event
from tests.streams.opened import faults

DAY_MS = 86_400_000
SESSIONS, RECORDS = 4, 50


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, all of it old."""

    async def record(store: Path) -> None:
        log = await Log.open(store, system_identity())
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
    shutil.copytree(recorded, home.store_path, dirs_exist_ok=True)
    home.config_path.write_text(MAY_REMOVE)
    return home


def begin(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)


HELD = """
import sys, time
from pathlib import Path
from sidecar.cli import main
from streams.stores.journal.store import LogStore
from streams.stores.sqlite.removal import SqliteRemover

held, go_on = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
where = sys.argv.pop(1)
owner, name = {"moving": (LogStore, "_move_everything"), "removing": (SqliteRemover, "_work")}[where]
work = getattr(owner, name)

def held_work(self, *given):
    held.touch()
    while not go_on.exists():
        time.sleep(0.005)
    return work(self, *given)

setattr(owner, name, held_work)
main()
"""
"""A ``durable-stream`` that stops in the middle of a removal, where it makes ``held``, until ``go_on`` is there:
whatever cuts it off comes in time."""


def stopping_half_way(home: Home, where: str, *arguments: str) -> list[str]:
    python, _, _, *words = command(home.path, *arguments)
    return [python, "-c", HELD, str(home.path / "held"), str(home.path / "go-on"), where, *words]


def wait_until_held(home: Home) -> None:
    wait_for((home.path / "held").exists, "it is in progress")


def verified(home: Home) -> bool:
    return run(home.path, "verify").code == 0


def one_sentence(text: str) -> bool:
    return len(text.splitlines()) == 1 and "Traceback" not in text


@pytest.mark.parametrize("where", ["moving", "removing"])
def test_a_prune_whose_sidecar_is_killed_says_so_and_is_run_again(filled_home: Home, where: str) -> None:
    """The kill hits the removal, or before it the move of the journal to the database."""
    sidecar = begin(stopping_half_way(filled_home, where, "serve"))
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


def test_a_prune_that_is_interrupted_says_so_and_goes_on(filled_home: Home) -> None:
    sidecar = begin(stopping_half_way(filled_home, "removing", "serve"))
    running(filled_home)
    pruning = begin(command(filled_home.path, "prune", "--older-than", "1d", "--yes"))
    wait_until_held(filled_home)
    pruning.send_signal(signal.SIGINT)
    out, err = pruning.communicate(timeout=HANG_SECONDS)
    assert pruning.returncode == 130 and out == "" and one_sentence(err), err
    assert err.startswith("Interrupted: ") and "run the same command again" in err
    (filled_home.path / "go-on").touch()
    wait_for(lambda: "pruned 200 records" in life.logged(filled_home), "the sidecar does all of it")
    assert run(filled_home.path, "prune", "--older-than", "1d", "--yes").code == 0
    assert verified(filled_home) and run(filled_home.path, "streams").out == ""
    assert run(filled_home.path, "stop").code == 0
    sidecar.communicate(timeout=HANG_SECONDS)
    assert sidecar.returncode == 0


async def test_a_sidecar_does_not_leave_while_it_removes(filled_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await Log.open(filled_home.store_path, system_identity())
    upkeep = Upkeep(
        log, CaptureSnapshot(log, CaptureState()), lambda: True, system_identity().now_ms, config=StoreConfig()
    )
    owed: list[bool] = []
    forget = log.forget

    async def noted(*given: Any, **named: Any) -> Removed:
        owed.append(upkeep.owes())
        return await forget(*given, **named)

    monkeypatch.setattr(log, "forget", noted)
    assert not upkeep.owes()
    assert (await upkeep.forget(["ses_000"])).records == RECORDS
    assert owed == [True], "so it does not exit, however idle it is"
    assert not upkeep.owes()
    await upkeep.close()
    await log.close()
    assert await faults(filled_home.store_path) == []
