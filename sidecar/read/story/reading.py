"""Reading the story's tables as of one moment of the log, also while they are written.

What the log has above the tables is folded by the same rules into tables of the reader's own, which lie over those of
the log: a query sees the rows of both.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import orjson

from sidecar.read.story import tables
from sidecar.read.story.rules import Rules
from streams.errors import CorruptLog, ForeignStore
from streams.log.reader import DerivedTables, LogReader
from streams.store import NOTHING, Record

T = TypeVar("T")

MOST_ABOVE: Final = 5000
"""How many records above the tables are folded for an answer. If there are more, the answer says so: the tables are
being made, or no sidecar of this version has run yet."""

_SOME: Final = 2000


class Snapshot:
    """The tables at one moment of the log; nothing that is recorded meanwhile is in them. Its methods block.

    ``head`` is the position of the last record that counts, and ``behind`` how many records the tables do not know
    yet, because they are being made again. ``top`` is the last record of which they know: above a damaged one, or in
    a copy under way, they know more than counts.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        records: Callable[[Iterable[int]], dict[int, Record]],
        head: int,
        behind: int = 0,
        *,
        top: int | None = None,
        over: Collection[str] = (),
    ) -> None:
        """``records`` returns the records at some positions, by these. ``over``: the tables over which the reader's own
        lie."""
        self._db, self.records, self.head, self.behind, self._over = db, records, head, behind, over
        self.top = head if top is None else top
        self._value: Callable[[Any], Any] | None = None

    def changed(self, value: Callable[[Any], Any], record: Callable[[Record], Record]) -> Snapshot:
        """The same tables and records, with each value and each record changed by a function."""
        found = copy(self)
        found.records = lambda positions: {n: record(each) for n, each in self.records(positions).items()}
        found._value = value
        return found

    def record(self, position: int) -> Record:
        return self.records([position])[position]

    @property
    def is_here(self) -> bool:
        """Whether the log was recorded on this machine, whose processes may still run."""
        return isinstance(self._db, sqlite3.Connection)

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
        if table in self._over:
            key = tables.columns(table)[0].split()[0]
            is_new = f"{key} IN (SELECT {key} FROM new_{table})"  # noqa: S608
            counts.append(f"SELECT -count(*) FROM main.{table} WHERE {where} AND {is_new}")  # noqa: S608
            counts.append(f"SELECT count(*) FROM new_{table} WHERE {where}")  # noqa: S608
        return int(sum(self.sql(each, **given)[0][0] for each in counts))

    def newest(self, table: str, by: str, keys: Iterable[int], n: int) -> dict[int, Any]:
        """The last row up to record ``n`` for each key that has one, of a table with a row for each record."""
        row, given = tables.ROWS[table], {"keys": orjson.dumps([*keys]).decode(), "n": n}
        last = f"SELECT (SELECT max(n) FROM main.{table} WHERE {by} = value AND n <= :n) FROM json_each(:keys)"  # noqa: S608
        found = [row(*each) for each in self.sql(f"SELECT * FROM main.{table} WHERE n IN ({last})", **given)]  # noqa: S608
        if table in self._over:
            of = f"SELECT * FROM new_{table} WHERE {by} IN (SELECT value FROM json_each(:keys)) AND n <= :n ORDER BY n"  # noqa: S608
            found += [row(*each) for each in self.sql(of, **given)]
        return {getattr(each, by): each for each in found}

    def sql(self, text: str, **given: Any) -> list[tuple[Any, ...]]:
        """The rows of a query as tuples."""
        rows = self._db.execute(text, given).fetchall()
        return rows if self._value is None else [tuple(map(self._value, row)) for row in rows]

    def each(self, text: str, **given: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a query of many rows, as tuples, of which few are in memory at a time. Take all of them."""
        rows = self._db.execute(text, given)
        while some := rows.fetchmany(_SOME):
            yield from some if self._value is None else [tuple(map(self._value, row)) for row in some]


class _Nothing:
    """In place of the tables of a log that has none: empty ones in memory."""

    def __init__(self, head: int) -> None:
        self.db, self.position, self.head = sqlite3.connect(":memory:", check_same_thread=False), NOTHING, head
        self.top = NOTHING
        self.beside: dict[str, Any] = {}
        tables.create(self.db)

    def clear(self) -> None:
        """It has no other tables yet."""

    def records(self, _: Iterable[int]) -> dict[int, Record]:
        """None of the records is in the database."""
        return {}

    def checked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


_Tables = DerivedTables | _Nothing


class OpenSnapshot(Snapshot):
    """A snapshot that stays open, for a command, at whose end it closes: see ``let_go``.

    While it is open, a prune or forget does not end, so no process that waits for something may hold one.

    Raises:
        StreamError: the tables are damaged.
    """

    def __init__(self, found: _Tables, *about: Any, **more: Any) -> None:
        super().__init__(found.db, *about, **more)
        self._tables = found
        _OPEN.add(self)

    def sql(self, text: str, **given: Any) -> list[tuple[Any, ...]]:
        with self._tables.checked():
            return super().sql(text, **given)

    def each(self, text: str, **given: Any) -> Iterator[tuple[Any, ...]]:
        with self._tables.checked():
            yield from super().each(text, **given)

    def close(self) -> None:
        self._tables.close()


_OPEN: WeakSet[OpenSnapshot] = WeakSet()


def let_go() -> None:
    """Close the snapshots that are open, at the end of a command."""
    for snapshot in list(_OPEN):
        snapshot.close()
    _OPEN.clear()


async def ask(reader: LogReader, question: Callable[[Snapshot], T]) -> T:
    """What a question returns of the story as it is now. It runs on a thread.

    If a record that it reads is damaged, it is asked about the moment before that record, and the reader's ``damage``
    says so.

    Raises:
        CorruptLog: a record is damaged, and the reader does not read up to damage.
    """
    answer, fault = await ask_to_damage(reader, question)
    if fault is not None:
        reader.end_at(fault)
    return answer


async def ask_to_damage(reader: LogReader, question: Callable[[Snapshot], T]) -> tuple[T, CorruptLog | None]:
    """As ``ask``, but the damage is returned."""
    upto: int | None = None
    fault: CorruptLog | None = None
    without = False
    while True:
        opened = await _opened(reader, without=without)
        fault = fault or opened.fault
        try:
            answer = await asyncio.to_thread(_answer, opened, question, upto)
        except CorruptLog as error:
            fault = fault or error
            if error.position is None and not without:
                without = True  # the tables themselves are damaged: fold the records that can be read
                continue
            if error.position is None or (upto is not None and upto < error.position):
                raise
            upto = error.position - 1
            continue
        _BEHIND[reader] = opened.head, opened.behind
        return answer, fault


async def hold(reader: LogReader) -> tuple[OpenSnapshot, CorruptLog | None]:
    """The story as it is now, and the damage at which reading it ended."""
    opened = await _opened(reader)
    try:
        over = await asyncio.to_thread(opened.lay_over)
    except BaseException:
        opened.tables.db.close()
        raise
    _BEHIND[reader] = opened.head, opened.behind
    about = over.records, opened.head, opened.behind
    return OpenSnapshot(opened.tables, *about, top=opened.top, over=over.names), opened.fault


def behind_text(reader: LogReader) -> str | None:
    """Up to where the last question to the reader was answered; ``None`` if the answer knew the whole log."""
    head, behind = _BEHIND.get(reader, (NOTHING, 0))
    if not behind or reader.damage is not None:
        return None  # the command reports the damage
    upto = f"up to position {head} of the log" if head > NOTHING else "without any record"
    return (
        f"this is {upto}: {behind} later records are not in its tables yet; the sidecar reads them in while it runs, "
        "and `durable-stream doctor` shows how far it is"
    )


_BEHIND: WeakKeyDictionary[LogReader, tuple[int, int]] = WeakKeyDictionary()
"""For each reader, the last record that its last answer knew, and how many it lacked."""


def _open(reader: LogReader, *, without: bool) -> tuple[_Tables, Over]:
    """The tables of the log, and what is over them already."""
    found: _Tables | None = None
    with suppress(ForeignStore):  # reading the records of a damaged database reports the damage
        found = None if without else reader.derived(tables.STORY_VERSION)
    if found is None:
        found = _Nothing(reader.head)
    over: Over | None = found.beside.get("over")
    if over is None or over.position > found.head or found.head - found.position > MOST_ABOVE:
        found.clear()
        found.beside["over"] = over = Over(found.db, found.position, found.records)
    over.source = found.records
    return found, over


class Over:
    """The records above the tables, folded into tables of the reader's own, which lie over those of the log. They stay
    with the connection, so each record is folded once."""

    def __init__(
        self, db: sqlite3.Connection, position: int, source: Callable[[Iterable[int]], dict[int, Record]]
    ) -> None:
        """``position``: the last record that the tables have. ``source`` returns those of some records that the
        database has."""
        self._db, self.position, self.source = db, position, source
        self._above: dict[int, Record] = {}
        self.names: list[str] = []
        """The tables that have such rows."""

    @cached_property
    def _rules(self) -> Rules:
        return Rules(self._db, lambda n: self.records([n])[n], self._into)

    def records(self, positions: Iterable[int]) -> dict[int, Record]:
        wanted = {*positions}
        found = {n: self._above[n] for n in wanted & self._above.keys()}
        if wanted != found.keys():
            found |= self.source(wanted - found.keys())
        if wanted != found.keys():
            raise LookupError(f"the records at the positions {sorted(wanted - found.keys())} are gone")
        return found

    def lay(self, above: Collection[Record]) -> None:
        """Fold the next records."""
        if not above:
            return
        for record in above:
            self._above[record.position] = record
            self._rules.apply(record)
            self.position = record.position
        self._rules.write()

    def _into(self, name: str) -> str:
        first, *rest = tables.columns(name)
        key = first.split()[0]
        self._db.execute(f"CREATE TEMP TABLE new_{name} ({', '.join([first, *rest])})")
        self._db.execute(
            f"CREATE TEMP VIEW {name} AS SELECT * FROM main.{name} WHERE {key} NOT IN (SELECT {key} FROM new_{name})"  # noqa: S608
            f" UNION ALL SELECT * FROM new_{name}"
        )
        self.names.append(name)
        return f"temp.new_{name}"


class _Opened(NamedTuple):
    """The tables of a log and what is over them, and the records above both: all, unless there are too many or one is
    damaged."""

    tables: _Tables
    over: Over
    above: list[Record]
    head: int
    """The last record that the tables and these have."""
    fault: CorruptLog | None

    @property
    def behind(self) -> int:
        return self.tables.head - self.head

    @property
    def top(self) -> int:
        return max(self.head, self.tables.top)

    def lay_over(self) -> Over:
        self.over.lay(self.above)
        return self.over


async def _opened(reader: LogReader, *, without: bool = False) -> _Opened:
    found, over = await asyncio.to_thread(_open, reader, without=without)
    above = list[Record]()
    if over.position == found.head or found.head - found.position > MOST_ABOVE:
        return _Opened(found, over, above, over.position, None)
    fault = None
    try:
        async for record in reader.read_all(after=over.position):
            if record.position > found.head:
                break
            above.append(record)
    except CorruptLog as error:
        fault = error
    except BaseException:
        found.close()
        raise
    # If the last record was pruned, there is none at the head.
    is_whole = fault is None and reader.damage is None
    last = above[-1].position if above else over.position
    return _Opened(found, over, above, found.head if is_whole else last, fault)


def _answer(opened: _Opened, question: Callable[[Snapshot], T], upto: int | None) -> T:
    """The answer. Closes the tables."""
    with opened.tables:
        over = opened.lay_over()
        head = opened.head if upto is None else min(opened.head, upto)
        story = Snapshot(opened.tables.db, over.records, head, opened.behind, top=opened.top, over=over.names)
        return question(story)


def story_of(records: Iterable[Record]) -> Snapshot:
    """The story of some records alone, in memory."""
    known = {record.position: record for record in records}
    db = sqlite3.connect(":memory:", check_same_thread=False)
    tables.create(db)
    rules = Rules(db, known.__getitem__)
    for record in known.values():
        rules.apply(record)
    rules.write()
    return Snapshot(db, lambda positions: {n: known[n] for n in positions}, max(known, default=NOTHING))
