"""Reading the story's tables as of one moment of the log, also while they are written.

What the log has above the tables is folded by the same rules into tables of the reader's own, which lie over those of
the log: a query sees the rows of both.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from sidecar.read.story import tables
from sidecar.read.story.rules import Rules
from streams.errors import CorruptLog, ForeignStore
from streams.log.reader import LogReader
from streams.store import NOTHING, Record

T = TypeVar("T")

MOST_ABOVE: Final = 5000
"""How many records above the tables are folded for an answer; if there are more, the tables are being made again."""

MOST_WITHOUT: Final = 100_000
"""The same for a log without tables, which no sidecar of this version has opened yet."""


class Snapshot:
    """The tables at one moment of the log; nothing that is recorded meanwhile is in them. Its methods block.

    ``head`` is the position of the last record that the tables know, and ``behind`` how many records they do not know
    yet, because they are being made again.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        record: Callable[[int], Record],
        head: int,
        behind: int = 0,
        *,
        is_over: bool = False,
    ) -> None:
        """``is_over``: tables of the reader's own lie over those of the log."""
        self._db, self.record, self.head, self.behind, self._is_over = db, record, head, behind, is_over
        self._value: Callable[[Any], Any] | None = None

    def changed(self, value: Callable[[Any], Any], record: Callable[[Record], Record]) -> Snapshot:
        """The same tables and records, with each value and each record changed by a function."""
        found = copy(self)
        found.record = lambda position: record(self.record(position))
        found._value = value
        return found

    def rows(self, table: str, where: str, **given: Any) -> list[Any]:
        """The rows of a table that fit, as objects of its row class in ``tables``."""
        row = tables.ROWS[table]
        return [row(*each) for each in self.sql(f"SELECT * FROM {table} WHERE {where}", **given)]  # noqa: S608

    def one(self, table: str, where: str, **given: Any) -> Any:
        """The first row that fits, or ``None``."""
        return next(iter(self.rows(table, f"{where} LIMIT 1", **given)), None)

    def count(self, table: str, where: str, **given: Any) -> int:
        """How many rows fit. Much quicker than to count the rows of two tables as one."""
        counts = [f"SELECT count(*) FROM main.{table} WHERE {where}"]  # noqa: S608
        if self._is_over:
            key = tables.columns(table)[0].split()[0]
            is_new = f"{key} IN (SELECT {key} FROM new_{table})"  # noqa: S608
            counts.append(f"SELECT -count(*) FROM main.{table} WHERE {where} AND {is_new}")  # noqa: S608
            counts.append(f"SELECT count(*) FROM new_{table} WHERE {where}")  # noqa: S608
        return int(sum(self.sql(each, **given)[0][0] for each in counts))

    def sql(self, text: str, **given: Any) -> list[tuple[Any, ...]]:
        """The rows of a query as tuples."""
        rows = self._db.execute(text, given).fetchall()
        return rows if self._value is None else [tuple(map(self._value, row)) for row in rows]


class _Tables(Protocol):
    """What ``LogReader.derived`` returns."""

    db: sqlite3.Connection
    position: int
    head: int

    def record(self, position: int) -> Record | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> object: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class _Nothing:
    """In place of the tables of a log that has none: empty ones in memory."""

    def __init__(self, head: int) -> None:
        self.db, self.position, self.head = sqlite3.connect(":memory:", check_same_thread=False), NOTHING, head
        tables.create(self.db)

    def record(self, position: int) -> None:
        """None of the records is in the database."""

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


async def ask(reader: LogReader, question: Callable[[Snapshot], T]) -> T:
    """What a question returns of the story as it is now. It runs on a thread.

    If a record that it reads is damaged, it is asked about the moment before that record, and the reader's ``damage``
    says so.

    Raises:
        CorruptLog: a record is damaged, and the reader does not read up to damage.
    """
    upto: int | None = None
    without = False
    while True:
        found = await asyncio.to_thread(_open, reader, without=without)
        try:
            above = await _above(reader, found)
        except BaseException:
            found.close()
            raise
        try:
            head, behind, answer = await asyncio.to_thread(_answer, found, above, question, upto)
        except CorruptLog as error:
            reader.end_at(error)
            if error.position is None and not without:
                without = True  # the tables themselves are damaged: fold the records that can be read
                continue
            if error.position is None or (upto is not None and upto < error.position):
                raise
            upto = error.position - 1
            continue
        _BEHIND[reader] = head, behind
        return answer


def behind_text(reader: LogReader) -> str | None:
    """Up to where the last question to the reader was answered; ``None`` if the answer knew the whole log."""
    head, behind = _BEHIND.get(reader, (NOTHING, 0))
    if not behind or reader.damage is not None:
        return None  # the command reports the damage
    upto = f"up to position {head} of the log" if head > NOTHING else "without any record"
    return (
        f"this is {upto}: {behind} later records are still being read into its tables; "
        "`durable-stream doctor` shows how far that is"
    )


_BEHIND: WeakKeyDictionary[LogReader, tuple[int, int]] = WeakKeyDictionary()
"""For each reader, the last record that its last answer knew, and how many it lacked."""


def _open(reader: LogReader, *, without: bool) -> _Tables:
    with suppress(ForeignStore):  # reading the records of a damaged database reports the damage
        if not without and (found := reader.derived(tables.STORY_VERSION)) is not None:
            return found
    return _Nothing(reader.head)


async def _above(reader: LogReader, found: _Tables) -> list[Record]:
    """The records above the tables; none if there are too many."""
    above: list[Record] = []
    if found.head - found.position <= (MOST_WITHOUT if isinstance(found, _Nothing) else MOST_ABOVE):
        async for record in reader.read_all(after=found.position):
            if record.position > found.head:
                break
            above.append(record)
    return above


def _answer(
    found: _Tables, above: list[Record], question: Callable[[Snapshot], T], upto: int | None
) -> tuple[int, int, T]:
    """Up to which record it answers, how many later ones there are, and the answer. Closes the tables."""
    new = {record.position: record for record in above}

    def source(position: int) -> Record:
        if (record := new.get(position) or found.record(position)) is None:
            raise LookupError(f"the record at position {position} is gone")
        return record

    with found:
        if above:
            lay_over(found.db, above, source)
        head = above[-1].position if above else found.position
        behind = found.head - head
        upto = head if upto is None else min(head, upto)
        return head, behind, question(Snapshot(found.db, source, upto, behind, is_over=bool(above)))


def lay_over(db: sqlite3.Connection, above: list[Record], source: Callable[[int], Record]) -> None:
    """Fold the records above the tables into tables of this connection, which lie over those of the log."""
    for name in tables.ROWS:
        first, *rest = tables.columns(name)
        key = first.split()[0]
        db.execute(f"CREATE TEMP TABLE new_{name} ({', '.join([first, *rest])})")
        db.execute(
            f"CREATE TEMP VIEW {name} AS SELECT * FROM main.{name} WHERE {key} NOT IN (SELECT {key} FROM new_{name})"  # noqa: S608
            f" UNION ALL SELECT * FROM new_{name}"
        )
    rules = Rules(db, source, "temp.new_")
    for record in above:
        rules.apply(record)
    rules.write()
