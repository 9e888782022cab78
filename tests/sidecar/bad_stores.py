"""Stores in every bad state that a user may have, as functions that damage a sound one."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from sidecar.care.snapshots import CatalogSnapshot
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.streams.builders import events

Backend = Literal["jsonl", "sqlite"]

STREAM = "ses_a"


def make_store(store: Path, backend: Backend) -> str:
    """Make a sound log of three segments, or of one database, with a sidecar's catalog of it.

    Return the id of one of its events.
    """

    async def write() -> str:
        log = await Log.open(store, seeded_identity(1), backend=backend, segment_bytes=1500)
        made = [await log.append(events(2, prefix=f"{n}-", stream=f"ses_{'ab'[n % 2]}")) for n in range(6)]
        await CatalogSnapshot(log).keep_last()
        await log.close()
        return made[0][0].event.id

    return asyncio.run(write())


def segments(store: Path) -> list[Path]:
    return sorted((store / "log").glob("*.jsonl"))


def database(store: Path, *statements: str) -> None:
    connection = sqlite3.connect(store / "log.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def newer_manifest(store: Path) -> None:
    (store / "store.json").write_text('{"backend":"jsonl","format":99,"log_id":"x"}')


def foreign_manifest(store: Path) -> None:
    (store / "store.json").write_text('{"name":"an npm package"}')


def damaged_manifest(store: Path) -> None:
    (store / "store.json").write_text('{"backend":"jso')


def no_manifest(store: Path) -> None:
    (store / "store.json").unlink()


def pointer_to_sqlite(store: Path) -> None:
    (store / "store.json").write_text('{"backend":"sqlite","format":2,"log_id":"x"}')


def pointer_to_jsonl(store: Path) -> None:
    (store / "store.json").write_text('{"backend":"jsonl","format":1,"log_id":"x"}')


def middle_segment_gone(store: Path) -> None:
    segments(store)[1].unlink()


def first_segment_gone(store: Path) -> None:
    segments(store)[0].unlink()


def middle_segment_cut(store: Path) -> None:
    path = segments(store)[1]
    os.truncate(path, path.stat().st_size // 2)


def middle_segment_empty(store: Path) -> None:
    os.truncate(segments(store)[1], 0)


def last_segment_cut(store: Path) -> None:
    path = segments(store)[-1]
    os.truncate(path, path.stat().st_size - 1)


def last_segment_gone(store: Path) -> None:
    segments(store)[-1].unlink()


def all_segments_gone(store: Path) -> None:
    for segment in segments(store):
        segment.unlink()


def log_directory_gone(store: Path) -> None:
    shutil.rmtree(store / "log")


def head_gone(store: Path) -> None:
    for name in ("head", "sqlite-head"):
        (store / name).unlink(missing_ok=True)


def log_and_head_gone(store: Path) -> None:
    log_directory_gone(store)
    head_gone(store)


def database_gone(store: Path) -> None:
    for path in store.glob("log.db*"):
        path.unlink()


def database_of_another_program(store: Path) -> None:
    database(store, "PRAGMA application_id = 7")


def database_newer(store: Path) -> None:
    database(store, "PRAGMA user_version = 99")


def no_database(store: Path) -> None:
    (store / "log.db").write_bytes(b"not a database at all, but long enough to be read as one" * 20)


def database_empty(store: Path) -> None:
    (store / "log.db").write_bytes(b"")


def database_cut(store: Path) -> None:
    path = store / "log.db"
    os.truncate(path, path.stat().st_size // 2)


def wal_gone(store: Path) -> None:
    """The WAL of a killed sidecar is lost, and with it everything that was not yet in the database."""
    before = (store / "log.db").read_bytes()

    async def write() -> None:
        log = await Log.open(store, seeded_identity(2))
        await log.append(events(3, prefix="lost-", stream="ses_c"))
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


def log_linked(store: Path) -> None:
    _link(store / ("log.db" if (store / "log.db").exists() else "log"))


State = Callable[[Path], None]

LINKED: dict[State, str] = dict.fromkeys((store_linked, lock_linked, log_linked), "symbolic link")
"""Links, which every command refuses, ``repair`` too: somebody put them there."""


def only_head_left(store: Path) -> None:
    """Everything but the head file is deleted, including ``store.json``."""
    for path in (*store.glob("log.db*"), *store.glob("log/*"), store / "store.json"):
        path.unlink(missing_ok=True)


REFUSED: dict[Backend, dict[State, str]] = {
    "jsonl": {
        newer_manifest: "format 99.*upgrade durable-stream",
        foreign_manifest: "choose another home",
        damaged_manifest: r"store\.json.* `durable-stream repair`",
        no_manifest: r"store\.json.*is missing.* `durable-stream repair`",
        pointer_to_sqlite: r"log\.db is missing.* jsonl .*restore",
        middle_segment_gone: r"records \d+ to \d+ are missing.*restore",
        first_segment_gone: r"records 0 to \d+ are missing.*restore",
        middle_segment_cut: r"records \d+ to \d+ are missing.*restore",
        middle_segment_empty: r"records \d+ to \d+ are missing.*restore",
        last_segment_cut: "(record 11 .* missing|is incomplete).*restore",
        last_segment_gone: r"records \d+ to 11 .* missing.*restore",
        all_segments_gone: "records 0 to 11 .* missing.*restore",
        log_directory_gone: "records 0 to 11 .* missing.*restore",
        only_head_left: ": head .* position 11 .*restore",
        **LINKED,
        log_and_head_gone: "log/ and head are missing.*restore",
    },
    "sqlite": {
        newer_manifest: "format 99.*upgrade durable-stream",
        foreign_manifest: "choose another home",
        damaged_manifest: r"store\.json.* `durable-stream repair`",
        no_manifest: r"store\.json.*is missing.* `durable-stream repair`",
        pointer_to_jsonl: r"log/ and head are missing.* sqlite .*restore",
        only_head_left: r"sqlite-head .* position 1\d .*restore",
        **LINKED,
        database_gone: r"log\.db is missing.*restore",
        wal_gone: r"records 12 to 14 .* missing: log\.db-wal .*restore",
        database_empty: r"log\.db is missing.*restore",
        database_of_another_program: r"log\.db.* another program.*restore",
        database_newer: "schema 99.*upgrade durable-stream",
        no_database: r"log\.db.* damaged.*restore",
        database_cut: r"log\.db.* damaged.*restore",
    },
}
"""What a store is refused with, whatever is asked of it."""


def snapshot(store: Path) -> dict[str, tuple[int, bytes]]:
    """All directories, and all files but the lock with time and bytes, so that added files show, too."""
    return {
        str(path.relative_to(store)): (path.stat().st_mtime_ns, path.read_bytes()) if path.is_file() else (0, b"")
        for path in sorted(store.rglob("*"))
        if path.name != "lock"
    }


def without_shared_memory(files: dict[str, tuple[int, bytes]]) -> dict[str, tuple[int, bytes]]:
    """``snapshot`` without SQLite's files beside a log with a writer, which are not part of the log."""
    return {
        name: (time, data)
        for name, (time, data) in files.items()
        if not (name.endswith("-shm") or (name.endswith("-wal") and not data))
    }
