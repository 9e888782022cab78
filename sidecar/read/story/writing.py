"""Keeps the story's tables beside the records of a log, in the transactions that move the records."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from sidecar.read.story import copying, tables
from sidecar.read.story.rules import READ_AGAIN, Rules
from streams.store import Record

BROKEN: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    sqlite3.Error,
)
"""The errors of a fold that a record may break."""


class StoryTables:
    """The story as a log's ``Derived``. If a second place copies it, ``making`` names it anew, and the place says in
    ``copied`` which making it has, and up to which change."""

    version: Final = tables.STORY_VERSION

    def __init__(self, making: Callable[[], str] | None = None) -> None:
        self._rules: Rules | None = None
        self._making = making
        self.copied = self._trimmed = ("", 0)
        self._new: dict[int, Record] = {}

    def create(self, db: sqlite3.Connection) -> None:
        tables.create(db)

    def reset(self) -> None:
        self._rules = None

    def apply(self, db: sqlite3.Connection, records: Sequence[Record], record: Callable[[int], Record]) -> None:
        if self._rules is None:
            if self._making is None:
                copying.unfollow(db)
            else:
                copying.follow(db, self._making())
            self._rules = Rules(db, lambda position: self._new.get(position) or record(position))
        self._new = {each.position: each for each in records}
        for each in records:
            self._rules.apply(each)
        self._rules.write()
        self._rules.rest()
        self._new = {}
        if (copied := self.copied) != self._trimmed:
            copying.trim(db, *copied)
            self._trimmed = copied


class Trial:
    """A story that is made only to see whether it can be, of any number of records."""

    def __init__(self) -> None:
        db, self._asked = sqlite3.connect(":memory:"), dict[int, Record]()
        tables.create(db)
        self._rules = Rules(db, self._asked.__getitem__)

    def apply(self, record: Record) -> None:
        """Raises one of ``BROKEN``."""
        if record.event.type in READ_AGAIN:
            self._asked[record.position] = record
        self._rules.apply(record)
        self._rules.write()
        self._rules.rest()
