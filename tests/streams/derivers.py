"""Tables that a test derives from a log, and what they must hold."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from streams.log.log import Log
from streams.log.reader import LogReader
from streams.store import Record
from tests.streams.opened import collect

Rows = tuple[list[Any], list[Any]]


class Texts:
    """The text of each record, and how many records each stream has. The counts are in memory, too, so that tables and
    memory can differ.

    ``before`` is called before each record is applied.
    """

    def __init__(self, version: int = 1, before: Callable[[Record], None] = lambda record: None) -> None:
        self.version, self.before = version, before
        self.applied = 0
        self._counts: dict[str, int] = {}

    def create(self, db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE texts (position INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT")
        db.execute("CREATE TABLE counts (stream TEXT PRIMARY KEY, count INTEGER NOT NULL) STRICT, WITHOUT ROWID")
        db.execute("CREATE INDEX texts_by_body ON texts (body)")

    def reset(self) -> None:
        self._counts.clear()

    def apply(self, db: sqlite3.Connection, records: Sequence[Record], record: Callable[[int], Record]) -> None:
        assert not records or record(records[-1].position) == records[-1]
        for each in records:
            self._apply(db, each)

    def _apply(self, db: sqlite3.Connection, record: Record) -> None:
        self.before(record)
        stream = record.event.stream_id
        if stream not in self._counts:
            row = db.execute("SELECT count FROM counts WHERE stream = ?", [stream]).fetchone()
            self._counts[stream] = row[0] if row is not None else 0
        self._counts[stream] += 1
        db.execute("INSERT OR REPLACE INTO counts VALUES (?, ?)", [stream, self._counts[stream]])
        db.execute("INSERT INTO texts VALUES (?, ?)", [record.position, _text(record)])
        self.applied += 1


def _text(record: Record) -> str:
    return orjson.dumps(record.event.payload).decode()


def rows_of(db: sqlite3.Connection) -> Rows:
    """Everything in the tables of ``Texts``."""
    return (
        db.execute("SELECT * FROM texts ORDER BY position").fetchall(),
        db.execute("SELECT * FROM counts ORDER BY stream").fetchall(),
    )


def rows_from(records: Sequence[Record]) -> Rows:
    """What the tables must hold."""
    db = sqlite3.connect(":memory:")
    texts = Texts()
    texts.create(db)
    by_position = {each.position: each for each in records}
    texts.apply(db, records, by_position.__getitem__)
    found = rows_of(db)
    db.close()
    return found


async def are_right(store: Path, version: int = 1) -> int:
    """Check that the tables hold what their records make of them; return the last record that they have."""
    reader = LogReader(store)
    tables = await asyncio.to_thread(reader.derived, version)
    assert tables is not None
    with tables:
        records = await collect(reader.read_all())
        assert rows_of(tables.db) == rows_from([each for each in records if each.position <= tables.position])
        assert tables.position <= tables.head
    await reader.close()
    return tables.position


async def caught_up(log: Log) -> None:
    """Wait until everything is moved, and the tables have it."""
    async with asyncio.timeout(60):
        while log.waiting()["records"] or log._stored.derives_in is not None:
            await asyncio.sleep(0.005)
    assert log.waiting()["derived"] == {"records": 0, "fault": None}
