"""Reading the story's tables as of one moment of the log, also while they are written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from sidecar.read.story import tables
from streams.store import Record


class Snapshot:
    """The tables at one moment of the log; nothing that is recorded meanwhile is in them. Its methods block.

    ``head`` is the position of the last record that the tables know, and ``behind`` how many records they do not know
    yet, because they are being made again.
    """

    def __init__(self, db: sqlite3.Connection, record: Callable[[int], Record], head: int, behind: int = 0) -> None:
        self._db, self.record, self.head, self.behind = db, record, head, behind

    def rows(self, table: str, where: str, **given: Any) -> list[Any]:
        """The rows of a table that fit, as objects of its row class in ``tables``."""
        row = tables.ROWS[table]
        return [row(*each) for each in self._db.execute(f"SELECT * FROM {table} WHERE {where}", given)]

    def one(self, table: str, where: str, **given: Any) -> Any:
        """The first row that fits, or ``None``."""
        return next(iter(self.rows(table, f"{where} LIMIT 1", **given)), None)

    def sql(self, text: str, **given: Any) -> list[tuple[Any, ...]]:
        """The rows of a query as tuples."""
        return self._db.execute(text, given).fetchall()
