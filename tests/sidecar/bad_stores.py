"""Stores in every bad state that a user may have, as functions that damage a sound one."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sidecar.read.story.writing import StoryTables
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.streams.builders import events
from tests.streams.unmoved import nothing_moves

STREAM = "ses_a"

MOVED, HEAD = 5, 11
"""The last position that is in the database of a sound store, and the last position."""


def make_store(store: Path) -> str:
    """Make a sound log, half of it in the database, with the story's tables, and half in three segments of the
    journal.

    Return the id of one of its events.
    """

    async def write(numbers: range) -> str:
        log = await Log.open(store, seeded_identity(1 + numbers.start), segment_bytes=800, derived=StoryTables())
        made = [await log.append(events(2, prefix=f"{n}-", stream=f"ses_{'ab'[n % 2]}")) for n in numbers]
        await log.close()
        return made[0][0].event.id

    found = asyncio.run(write(range(3)))
    with nothing_moves():
        asyncio.run(write(range(3, 6)))
    return found


def segments(store: Path) -> list[Path]:
    """The segments of ``make_store`` whose records are not in the database."""
    return sorted(path for path in (store / "journal").glob("*.jsonl") if int(path.stem) > MOVED)


def database(store: Path, *statements: str) -> None:
    connection = sqlite3.connect(store / "log.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def newer_manifest(store: Path) -> None:
    (store / "store.json").write_text('{"format":99,"log_id":"x"}')


def older_manifest(store: Path) -> None:
    (store / "store.json").write_text('{"backend":"sqlite","format":2,"log_id":"x"}')


def foreign_manifest(store: Path) -> None:
    (store / "store.json").write_text('{"name":"an npm package"}')


def damaged_manifest(store: Path) -> None:
    (store / "store.json").write_text('{"format":3,"lo')


def no_manifest(store: Path) -> None:
    (store / "store.json").unlink()


def first_segment_gone(store: Path) -> None:
    segments(store)[0].unlink()


def middle_segment_gone(store: Path) -> None:
    segments(store)[1].unlink()


def middle_segment_cut(store: Path) -> None:
    path = segments(store)[1]
    os.truncate(path, path.stat().st_size // 2)


def middle_segment_empty(store: Path) -> None:
    os.truncate(segments(store)[1], 0)


def line_damaged(store: Path) -> None:
    path = segments(store)[1]
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])


def last_segment_cut(store: Path) -> None:
    path = segments(store)[-1]
    os.truncate(path, path.stat().st_size - 1)


def last_segment_gone(store: Path) -> None:
    segments(store)[-1].unlink()


def all_segments_gone(store: Path) -> None:
    for segment in segments(store):
        segment.unlink()


def journal_gone(store: Path) -> None:
    shutil.rmtree(store / "journal")


def head_gone(store: Path) -> None:
    (store / "head").unlink()


def database_gone(store: Path) -> None:
    for path in store.glob("log.db*"):
        path.unlink()


def database_of_another_program(store: Path) -> None:
    database(store, "PRAGMA application_id = 7")


def database_that_was_never_ours(store: Path) -> None:
    (store / "log.db").unlink()
    database(store, "CREATE TABLE mine (x)")


def database_newer(store: Path) -> None:
    database(store, "PRAGMA user_version = 99")


def no_database(store: Path) -> None:
    (store / "log.db").write_bytes(b"not a database at all, but long enough to be read as one" * 20)


def database_empty(store: Path) -> None:
    (store / "log.db").write_bytes(b"")


def database_cut(store: Path) -> None:
    path = store / "log.db"
    os.truncate(path, path.stat().st_size // 2)


def database_older(store: Path) -> None:
    """Somebody put an older copy in its place, and the journal no longer has what that copy lacks."""
    before = (store / "log.db").read_bytes()

    async def write() -> None:
        log = await Log.open(store, seeded_identity(9), segment_bytes=800)
        await log.append(events(3, prefix="lost-", stream="ses_c"))
        await log.close()
        log = await Log.open(store, seeded_identity(10), segment_bytes=800)
        with nothing_moves():
            await log.append(events(1, prefix="kept-", stream="ses_c"))
            await log.close()

    asyncio.run(write())
    (store / "log.db").write_bytes(before)


def lock_alone(store: Path) -> None:
    for path in store.iterdir():
        if path.name != "lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _link(path: Path) -> None:
    """Move it elsewhere and leave a symbolic link in its place."""
    elsewhere = path.parents[0 if path.name == "store" else 1] / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def store_linked(store: Path) -> None:
    _link(store)


def lock_linked(store: Path) -> None:
    (store / "lock").touch()
    _link(store / "lock")


def database_linked(store: Path) -> None:
    _link(store / "log.db")


def journal_linked(store: Path) -> None:
    _link(store / "journal")


State = Callable[[Path], None]

LINKED: dict[State, str] = dict.fromkeys((store_linked, lock_linked, database_linked, journal_linked), "symbolic link")
"""Links, which every command refuses: somebody put them there."""


def only_head_left(store: Path) -> None:
    """Everything but the head file is deleted, including ``store.json``."""
    for path in (*store.glob("log.db*"), *store.glob("journal/*"), store / "store.json"):
        path.unlink(missing_ok=True)


LOST: dict[State, str] = {
    first_segment_gone: "records 6 to 7 are missing before it",
    middle_segment_gone: "records 8 to 9 are missing before it",
    middle_segment_cut: "record 9 is missing before it|the batch is incomplete",
    middle_segment_empty: "records 8 to 9 are missing before it",
    line_damaged: r"position 8\): wrong checksum",
    last_segment_cut: "record 11 was written and is missing|the batch is incomplete|the last line is incomplete",
    last_segment_gone: "records 10 to 11 were written and are missing",
    all_segments_gone: "records 6 to 11 were written and are missing",
    journal_gone: "records 6 to 11 were written and are missing",
    database_older: "records 6 to 11 are missing before it",
}
"""What is damaged or missing of what is to be in the journal, and how that is told."""

REFUSED: dict[State, str] = {
    **LOST,
    newer_manifest: "format 99.*upgrade durable-stream",
    older_manifest: "format 2.*export the log",
    foreign_manifest: "choose another home",
    damaged_manifest: r"store\.json.*restore it from a backup",
    no_manifest: r"log\.db, journal, head is left of a log.*restore",
    only_head_left: "head is left of a log.*restore",
    **LINKED,
    database_gone: r"log\.db is missing.*restore",
    database_empty: r"log\.db is missing.*restore",
    database_of_another_program: r"log\.db.* another program.*restore",
    database_that_was_never_ours: r"log\.db.* another program.*restore",
    database_newer: "schema 99.*upgrade durable-stream",
    no_database: r"log\.db.* damaged.*restore",
    database_cut: r"log\.db.* damaged.*restore",
}
"""What a store is refused with, whatever is asked of it."""

NOT_OURS = (newer_manifest, older_manifest, foreign_manifest, database_newer, store_linked, lock_linked, journal_linked)
"""What is no damage."""


def damage_in_database(store: Path, place: float) -> int:
    """Overwrite 8 bytes of a record that far into a log at rest, all in the database; the number of records before
    it."""
    path = store / "log.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (count,) = connection.execute("SELECT count(*) FROM records").fetchone()
        before = int(count * place)
        (event,) = connection.execute("SELECT event FROM records WHERE position = ?", (before,)).fetchone()
    data = path.read_bytes()
    at = data.index(bytes(event)[:100]) + 60
    path.write_bytes(data[:at] + bytes(8) + data[at + 8 :])
    return before


def damage_in_journal(store: Path, place: float) -> int:
    """The same for a log whose records are all in the one segment of the journal."""
    (path,) = (store / "journal").glob("*.jsonl")
    data = path.read_bytes()
    at = int(len(data) * place)
    path.write_bytes(data[:at] + bytes(8) + data[at + 8 :])
    return data[:at].count(b"\n")


def snapshot(store: Path) -> dict[str, tuple[int, bytes]]:
    """All directories, and all files with time and bytes, so that added files show, too; but not the lock, nor SQLite's
    files beside a database that somebody read, which hold nothing."""
    return {
        str(path.relative_to(store)): (path.stat().st_mtime_ns, path.read_bytes()) if path.is_file() else (0, b"")
        for path in sorted(store.rglob("*"))
        if path.name != "lock" and not is_empty_beside(path)
    }


def is_empty_beside(path: Path) -> bool:
    return path.name.endswith("-shm") or (path.name.endswith("-wal") and not path.stat().st_size)
