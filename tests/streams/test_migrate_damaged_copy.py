"""A damaged store that a migration began or left behind never becomes the log, and no good store is deleted."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from streams.errors import StoreUnavailable
from streams.log.log import Log
from streams.log.migrate import Migration, Progress, discard_old
from streams.stores.directory import Backend, read_manifest
from tests.streams.moves import BOTH, fill, open_log, plain
from tests.streams.opened import collect, faults
from tests.streams.sizes import size
from tests.streams.sqlite_logs import change


class Killed(BaseException):
    """Like a kill: nothing is tidied up, so the copy stays."""


STATEMENTS = {
    "row deleted": ("DELETE FROM records WHERE position = 10",),
    "payload changed": (
        """UPDATE records SET event = CAST(replace(event, '"n":"k', '"n":"q') AS BLOB) WHERE position = 10""",
    ),
    "column changed": ("UPDATE records SET actor = 'nobody' WHERE position = 10",),
}


def damage_with(what: str | int, file: Path) -> None:
    """Carry out statements, or flip the bit that a seed draws."""
    if isinstance(what, str):
        for statement in STATEMENTS[what]:
            change(file.parent, statement)
        return
    data, chance = bytearray(file.read_bytes()), random.Random(what)
    used = [place for place, byte in enumerate(data) if byte]  # most of a small database is empty
    data[chance.choice(used)] ^= 1 << chance.randrange(8)
    file.write_bytes(bytes(data))


async def check_moved(store: Path, log: Log, written: list[dict[str, object]]) -> None:
    """Move, refused or not, and check that nothing is lost and the log is sound wherever it is."""
    with suppress(StoreUnavailable):
        await Migration(log, "sqlite").run()
    assert plain(await collect(log.read_all())) == written
    assert await faults(store) == []
    await discard_old(store)
    assert await faults(store) == [] and plain(await collect(log.read_all())) == written
    log.reread_manifest()
    if log.backend == "jsonl":
        await Migration(log, "sqlite").run()
        assert await faults(store) == [] and plain(await collect(log.read_all())) == written
    await log.close()


@pytest.mark.parametrize("damage", [*STATEMENTS, *range(size("COPY_BITS", 4))])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "unfinished"])
async def test_a_damaged_store_never_becomes_the_log(tmp_path: Path, damage: str | int, kept: bool) -> None:
    """Neither one that a migration left, nor the copy of one that was killed."""
    log = await open_log(tmp_path, "sqlite" if kept else "jsonl")
    written = plain(await fill(log, 20))

    def stop(progress: Progress) -> None:
        if progress.copied == len(written):
            raise Killed

    if kept:
        await Migration(log, "jsonl").run()
    else:
        with pytest.raises(Killed):
            await Migration(log, "sqlite", stop).run()
    assert (tmp_path / "log.db").exists() and log.backend == "jsonl"
    damage_with(damage, tmp_path / "log.db")
    await check_moved(tmp_path, log, written)


async def test_an_unfinished_copy_of_another_log_never_becomes_the_log(tmp_path: Path) -> None:
    """It is whole and as long as the log, so only the hashes tell; a new copy is begun."""
    other = await open_log(tmp_path / "other", "sqlite")
    await fill(other, 20, "q")
    await other.close()
    log = await open_log(tmp_path / "store")
    written = plain(await fill(log, 20))
    for name in ("log.db", "sqlite-head"):
        shutil.copy(tmp_path / "other" / name, tmp_path / "store" / name)
    await Migration(log, "sqlite").run()
    assert log.backend == "sqlite" and plain(await collect(log.read_all())) == written
    await log.close()


@BOTH
async def test_the_kept_store_stays_while_the_log_is_damaged(tmp_path: Path, start: Backend, to: Backend) -> None:
    """It may be the only good store: neither `--discard-old` nor a rollback deletes it."""
    log = await open_log(tmp_path, start)
    written = plain(await fill(log, 20))
    await Migration(log, to).run()
    if to == "sqlite":
        damage_with("row deleted", tmp_path / "log.db")
    else:
        [segment] = (tmp_path / "log").glob("*.jsonl")
        segment.write_bytes(segment.read_bytes().replace(b"test:", b"tess:", 1))
    manifest = read_manifest(tmp_path)
    with pytest.raises(StoreUnavailable):
        await discard_old(tmp_path)
    with pytest.raises(StoreUnavailable):
        await Migration(log, start).run()
    await log.close()
    assert read_manifest(tmp_path) == manifest
    (tmp_path / "store.json").write_bytes(
        b'{"backend":"%s","format":%d,"log_id":"x"}' % (start.encode(), 1 if start == "jsonl" else 2)
    )
    log = await open_log(tmp_path)
    assert log.backend == start and plain(await collect(log.read_all())) == written
    await log.close()
    assert await faults(tmp_path) == []


async def test_a_move_back_is_a_new_copy(tmp_path: Path) -> None:
    log = await open_log(tmp_path, "sqlite")
    written = await fill(log, 20)
    await Migration(log, "jsonl").run()
    old = (tmp_path / "log.db").stat().st_ino
    with (tmp_path / "log.db").open("rb") as kept:  # so that its number is not given again
        written += await fill(log, 5, "since-")
        await Migration(log, "sqlite").run()
        assert (tmp_path / "log.db").stat().st_ino != old and kept.read(6) == b"SQLite"
    assert plain(await collect(log.read_all())) == plain(written)
    await log.close()
