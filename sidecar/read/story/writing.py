"""Keeps the story's tables beside the records of a log, in the transactions that move the records."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from sidecar.read.story import tables
from sidecar.read.story.rules import Rules
from streams.event import StreamEvent
from streams.store import Record

_EVENT: Final = "SELECT event, offset FROM records WHERE position = ?"


class StoryTables:
    """The story as a log's ``Derived``."""

    version: Final = tables.STORY_VERSION

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._new: dict[int, Record] = {}

    def create(self, db: sqlite3.Connection) -> None:
        tables.create(db)

    def reset(self) -> None:
        self._rules = None

    def apply(self, db: sqlite3.Connection, records: Sequence[Record]) -> None:
        if self._rules is None:
            self._rules = Rules(db, self._source(db))
        self._new = {record.position: record for record in records}
        for record in records:
            self._rules.apply(record)
        self._rules.write()
        self._rules.rest()
        self._new = {}

    def _source(self, db: sqlite3.Connection) -> Callable[[int], Record]:
        def source(position: int) -> Record:
            if (new := self._new.get(position)) is not None:
                return new
            event, offset = db.execute(_EVENT, (position,)).fetchone()
            return Record(StreamEvent.trusted(orjson.loads(event)), offset, position, "")

        return source
