"""``prune`` and ``forget`` where the disk has no byte left: they are what a user makes room with."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.home import Home
from streams.errors import StreamError
from streams.identity import system_identity
from streams.log import Log
from streams.migrate import Migration
from streams.stores.directory import Backend
from streams.stores.reserve import RESERVE_FILE, free_bytes
from tests.mounts import can_mount, mounted
from tests.sidecar.bad_places import fill
from tests.sidecar.bad_stores import snapshot
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import HANG_SECONDS, running, start
from tests.streams.builders import event

pytestmark = pytest.mark.skipif(not can_mount(), reason="only root may mount a small disk, and nothing else is full")

DAY_MS = 86_400_000
SESSION_RECORDS = 500
BOTH = pytest.mark.parametrize("backend", ["jsonl", "sqlite"])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    place = tmp_path / "disk"
    place.mkdir()
    with mounted(place, "32m"):
        home = Home(place / "home")
        home.create()
        yield home


async def record(home: Home, backend: Backend, *, bytes_: int | None = None, first: int = 0) -> int:
    """Sessions of a day each, from long ago on, until the log takes so much or the disk is full; how many."""
    log = await Log.open(home.store_path, system_identity(), backend=backend, segment_bytes=1024 * 1024)
    now, number = system_identity().now_ms(), first
    try:
        await log.keep_reserve()
        while bytes_ is None or sum(size.bytes for size in await log.sizes()) < bytes_:
            for begin in range(0, SESSION_RECORDS, 100):
                name, ts = f"ses_{number:03}", now - (60 - number) * DAY_MS
                keys = [f"{number}-{begin + n}" for n in range(100)]
                await log.append(
                    [event(key, stream=name, ts=ts, payload={"text": os.urandom(200).hex()}) for key in keys]
                )
            number += 1
    except StreamError as full:
        assert bytes_ is None, full
    finally:
        await log.close()
    return number


def full(home: Home, backend: Backend) -> int:
    """Record until the disk is full, to its last byte."""
    home.config_path.write_text(f'[store]\nsegment_bytes = {1024 * 1024}\nbackend = "{backend}"\n')
    count = asyncio.run(record(home, backend, bytes_=3 * 1024 * 1024))
    fill(home.path)
    filler = home.path / "filler"
    # What is left for the last life of the log; a write-ahead file takes several times what it adds.
    os.truncate(filler, max(filler.stat().st_size - 3 * 1024 * 1024, 0))
    count = asyncio.run(record(home, backend, first=count))
    fill(home.path)
    assert free_bytes(home.store_path) == 0
    return count


def verified(home: Home) -> bool:
    return run(home.path, "verify").code == 0


@BOTH
def test_a_prune_makes_room_and_the_next_one_can_too(home: Home, backend: Backend) -> None:
    count = full(home, backend)
    for cut in (count // 2, count - 1):
        done = run(home.path, "prune", "--older-than", f"{60 - cut}d", "--yes", "--json")
        assert done.code == 0, done
        assert done.objects()[0]["done"]["streams"] and verified(home)
        assert (home.store_path / RESERVE_FILE).stat().st_size >= 1024 * 1024, "it is set aside again"
        assert free_bytes(home.store_path) > 256 * 1024
        asyncio.run(record(home, backend, first=count))
        fill(home.path)
    assert free_bytes(home.store_path) == 0 and verified(home)


@BOTH
def test_a_forget_needs_room_and_finds_it(home: Home, backend: Backend) -> None:
    full(home, backend)
    done = run(home.path, "forget", "ses_001", "--yes")
    assert done.code == 0 and f"forgot the payloads of {SESSION_RECORDS} records" in done.out, done
    assert verified(home)


@BOTH
def test_without_a_reserve_it_says_how_much_to_free_and_changes_nothing(home: Home, backend: Backend) -> None:
    count = full(home, backend)
    (home.store_path / RESERVE_FILE).unlink()
    fill(home.path)
    before = run(home.path, "query", "--json").out
    for command in (("prune", "--older-than", f"{60 - count // 2}d"), ("forget", "ses_001")):
        done = run(home.path, *command, "--yes")
        assert done.code == 1 and len(done.err.splitlines()) == 1, done
        assert "too little free space" in done.err and "MiB on that disk, then run the same command again" in done.err
        assert run(home.path, "query", "--json").out == before and verified(home)
    (home.path / "filler").unlink()
    assert run(home.path, "prune", "--older-than", f"{60 - count // 2}d", "--yes").code == 0 and verified(home)


@BOTH
def test_what_it_says_to_free_is_enough(home: Home, backend: Backend) -> None:
    home.config_path.write_text(f'[store]\nsegment_bytes = {1024 * 1024}\nbackend = "{backend}"\n')
    count = asyncio.run(record(home, backend, bytes_=3 * 1024 * 1024))
    (home.store_path / RESERVE_FILE).unlink(missing_ok=True)
    fill(home.path)
    prune = ("prune", "--older-than", f"{60 - count // 2}d", "--yes")
    done = run(home.path, *prune)
    assert done.code == 1 and len(done.err.splitlines()) == 1, done
    wanted = re.search(r"free (\d+) MiB on that disk, then run the same command again", done.err)
    assert wanted is not None, done
    filler = home.path / "filler"
    os.truncate(filler, filler.stat().st_size - int(wanted[1]) * 1024 * 1024)
    again = run(home.path, *prune)
    assert again.code == 0 and verified(home), again


def moved_and_full(home: Home, *, reserve: bool) -> None:
    """The log lies in sqlite, its old jsonl store is kept, and the disk is full to its last byte."""

    async def move() -> None:
        log = await Log.open(home.store_path, system_identity())
        await Migration(log, "sqlite").run()
        await log.close()

    asyncio.run(record(home, "jsonl", bytes_=3 * 1024 * 1024))
    asyncio.run(move())
    if not reserve:
        (home.store_path / RESERVE_FILE).unlink()
    fill(home.path)


SERVING = pytest.mark.parametrize("serving", [False, True], ids=["alone", "by-sidecar"])


@SERVING
def test_an_old_store_is_deleted_where_the_disk_is_full(home: Home, serving: bool) -> None:
    moved_and_full(home, reserve=True)
    with sidecar_of(home, serving):
        fill(home.path)
        done = run(home.path, "migrate", "--discard-old")
        assert done.code == 0 and done.out.startswith("deleted the old store: "), done
        assert not (home.store_path / "log").exists() and free_bytes(home.store_path) > 1024 * 1024
        assert (home.store_path / RESERVE_FILE).stat().st_size >= 1024 * 1024, "it is set aside again"
    assert verified(home)


@SERVING
def test_without_a_reserve_an_old_store_stays_and_it_says_how_much_to_free(home: Home, serving: bool) -> None:
    moved_and_full(home, reserve=False)
    filler = home.path / "filler"
    with sidecar_of(home, serving):
        (home.store_path / RESERVE_FILE).unlink(missing_ok=True)
        fill(home.path)
        kept = (home.store_path / "store.json").read_bytes()
        done = run(home.path, "migrate", "--discard-old")
        assert done.code == 1 and len(done.err.splitlines()) == 1, done
        assert f"the old store in {home.store_path} could not be deleted" in done.err, done
        assert "No space left on device" in done.err and "run the same command again" in done.err
        assert (home.store_path / "store.json").read_bytes() == kept and (home.store_path / "log").is_dir()
        wanted = re.search(r"free (\d+) MiB on that disk", done.err)
        assert wanted is not None, done
        os.truncate(filler, filler.stat().st_size - int(wanted[1]) * 1024 * 1024)
        assert run(home.path, "migrate", "--discard-old").code == 0
    assert not (home.store_path / "log").exists() and verified(home)


@SERVING
@BOTH
def test_a_move_says_how_much_to_free_and_that_is_enough(home: Home, backend: Backend, serving: bool) -> None:
    asyncio.run(record(home, backend, bytes_=3 * 1024 * 1024))
    fill(home.path)
    filler = home.path / "filler"
    move = ("migrate", "--to", "jsonl" if backend == "sqlite" else "sqlite")
    missing = 0
    with sidecar_of(home, serving):
        fill(home.path)
        for free in (0, 1024 * 1024):
            os.truncate(filler, filler.stat().st_size - free)
            before = snapshot(home.store_path)
            done = run(home.path, *move)
            assert serving or free or snapshot(home.store_path) == before, "nothing is begun where nothing can be"
            assert done.code == 1 and len(done.err.splitlines()) == 1 and "was not moved to" in done.err, done
            wanted = re.search(r"No space left on device; free (\d+) MiB on that disk, then run", done.err)
            assert wanted is not None, done
            missing = int(wanted[1])
            assert missing > 2
        os.truncate(filler, filler.stat().st_size - missing * 1024 * 1024)
        moved = run(home.path, *move)
        assert moved.code == 0, (moved, missing)
    assert verified(home)


@contextmanager
def sidecar_of(home: Home, serving: bool) -> Iterator[None]:
    """A sidecar with room for its first files, if it is ``serving``; the caller fills the disk again."""
    if not serving:
        yield
        return
    filler = home.path / "filler"
    os.truncate(filler, max(filler.stat().st_size - 2 * 1024 * 1024, 0))
    sidecar = start(home)
    try:
        running(home)
        yield
        assert run(home.path, "stop").code == 0
    finally:
        sidecar.kill()
        sidecar.wait(HANG_SECONDS)
