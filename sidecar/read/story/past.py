"""The records of a session and of everything that it started, by their numbers. Reads the tables, so it blocks.

A record's number counts from 0 in the order of positions, so ``at`` records are those with a number below ``at``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple, TypeVar

import orjson

from sidecar.processes import still_runs
from sidecar.read.find_by_id import Family, family_of, find_session
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.moment import MARKS, Moment
from sidecar.read.story.reading import Snapshot, ask
from streams.errors import CorruptLog
from streams.log.reader import LogReader
from streams.store import NOTHING, Record

FIRST, CHUNK = 16, 500
"""How many records are read at once: a few at first, because two runs may differ from the beginning on."""


T = TypeVar("T")


class Named(NamedTuple):
    """A session that somebody named, and the streams of everything that it started."""

    session: str
    family: Family


async def named(reader: LogReader, given: str) -> Named:
    """The session that ``given`` names.

    Raises:
        SelectError: there is no match, or more than one.
    """
    stream, session = await find_session(reader, given)
    return Named(session or stream, await family_of(reader, stream, session=session))


async def asked(reader: LogReader, question: Callable[..., T], *of: str | Named) -> T:
    """What ``question`` returns for these sessions, each as a ``Past``, all as of one state of the log.

    It runs on a thread, and may run again if the log changed in a way that makes the answer wrong.

    Raises:
        SelectError: a name has no match, or more than one.
    """

    def answer_of(story: Snapshot) -> tuple[T] | None:
        catalog = Catalog(story, still_runs=still_runs)
        every = (Past(story, *each) if isinstance(each, Named) else _past_of(story, catalog, each) for each in of)
        pasts = [past for past in every if past is not None]
        return (question(*pasts),) if len(pasts) == len(of) else None

    # A page has whole names, which are found where the answer is; it takes as long to open the log as to ask it.
    found = await ask(reader, answer_of)
    if found is not None:
        return found[0]
    return await asked(
        reader, question, *[each if isinstance(each, Named) else await named(reader, each) for each in of]
    )


def _past_of(story: Snapshot, catalog: Catalog, name: str) -> Past | None:
    """The past of the stream or session with exactly this name."""
    if name in catalog.streams:
        family = Family(name, catalog)
    elif name in catalog.sessions:
        family = Family(catalog.sessions[name].stream, catalog, session=name)
    else:
        return None
    past = Past(story, name, family)
    past.catalog = catalog
    return past


class Past:
    """``session`` is the session whose page it is, and ``stream`` its stream. ``fault`` is the damage that ended
    reading, if any."""

    def __init__(self, story: Snapshot, session: str, family: Family) -> None:
        self.story, self.session, self.stream, self.family = story, session, family.stream, family
        self._moments: dict[int, Moment] = {}
        self.fault: CorruptLog | None = None

    @cached_property
    def catalog(self) -> Catalog:
        """The whole log as it is now."""
        return Catalog(self.story, still_runs=still_runs)

    def of(self, session: str) -> Past | None:
        """The past of another session of the log; ``None`` if nothing of it is left."""
        return _past_of(self.story, self.catalog, session)

    @cached_property
    def _now(self) -> Moment:
        return self._moment(self.story.head)

    @cached_property
    def _rows(self) -> tuple[str, str, list[int]]:
        """The columns of ``moment`` by which the records are found and counted, and the keys that they have."""
        if self.family.session is None:
            return "place", "number", [*self._now.places.values()]
        return "session", "count", [*self._now.all]

    def _until(self, position: int) -> int:
        """How many of the records come up to a position."""
        by, count, keys = self._rows
        newest = f"SELECT n, {count} FROM moment WHERE {by} = :key AND n <= :n ORDER BY n DESC LIMIT 1"  # noqa: S608
        found = [self.story.sql(newest, key=key, n=position) for key in keys]
        return sum(rows[0][1] for rows in found if rows)

    @cached_property
    def count(self) -> int:
        """How many records there are."""
        return self._until(self.story.head)

    def upto(self, at: int | None) -> int:
        """How many records count: all without ``at``, never more than there are."""
        return self.count if at is None else max(0, min(at, self.count))

    def position(self, at: int | None = None) -> int:
        """The position of the last of the first ``at`` records; ``NOTHING`` if there is none."""
        wanted = self.upto(at)
        low, high = NOTHING, self.story.head if wanted else NOTHING
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._until(middle) >= wanted else (middle + 1, high)
        return high

    def number(self, position: int) -> int | None:
        """The number of the record at a position; ``None`` if it is none of these."""
        before = self._until(position - 1)
        return before if self._until(position) > before else None

    def at(self, at: int | None = None) -> Moment:
        """What was known after ``at`` records."""
        return self._moment(self.position(at))

    def _moment(self, position: int) -> Moment:
        if position not in self._moments:
            self._moments[position] = Moment(self.story, self.family.streams, position, self.family.session)
        return self._moments[position]

    def last_ts(self, at: int | None = None) -> int:
        """When the last of the first ``at`` records was made, in ms since 1970; 0 if there is none."""
        last = self.last(at)
        return last.event.ts if last is not None else 0

    def last(self, at: int | None = None) -> Record | None:
        """The last of the first ``at`` records."""
        position = self.position(at)
        return self.story.records([position])[position] if position > NOTHING else None

    def records(self, begin: int = 0, end: int | None = None, *, calls: bool = False) -> Iterator[Record]:
        """The records from number ``begin`` up to ``end``, which does not count; by default, all. With ``calls``, only
        those with the result of a tool, which is much quicker.

        Ends before a damaged one.
        """
        by, _, keys = self._rows
        table, some = "moment", f"{by} = :key"
        if calls:
            table, some, keys = "step", "session = :key AND kind <> 'inference'", [*self._now.all]
        query = f"SELECT n FROM {table} WHERE {some} AND n > :after AND n <= :until ORDER BY n LIMIT :most"  # noqa: S608
        after, until, most = self.position(begin), self.position(end), FIRST
        while True:
            given = {"after": after, "until": until, "most": most}
            found = sorted(n for key in keys for (n,) in self.story.sql(query, key=key, **given))[:most]
            if not found:
                return
            try:
                known = self.story.records(found)
            except CorruptLog:
                known = {}  # those before the damaged one are read alone
            for after in found:
                try:
                    yield known.get(after) or self.story.record(after)
                except CorruptLog as error:
                    self.fault = self.fault or error
                    return
            most = min(2 * most, CHUNK)

    def marks(self, first: int = 0) -> list[tuple[int, str]]:
        """The number of each record that a person may want to jump to, and what it is, without the ``first`` ones."""
        wanted = sum(self._now.counts().values()) - first
        newest = (
            "SELECT n, kind FROM mark WHERE session = :s AND kind = :kind AND n <= :head ORDER BY n DESC LIMIT :most"
        )
        given = [{"s": session, "kind": kind} for session in self._now.sessions for kind in MARKS if wanted > 0]
        found = [row for each in given for row in self.story.sql(newest, head=self.story.head, most=wanted, **each)]
        found = sorted(found)[-wanted:] if wanted > 0 else []
        _, count, keys = self._rows
        if len(keys) > 1:
            return [(self._until(n) - 1, kind) for n, kind in found]
        here = f"SELECT n, {count} FROM moment WHERE n IN (SELECT value FROM json_each(:marks))"  # noqa: S608
        numbers = dict(self.story.sql(here, marks=orjson.dumps([n for n, _ in found]).decode()))
        return [(numbers[n] - 1, kind) for n, kind in found]
