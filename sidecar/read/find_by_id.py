"""Finds the stream or event that a person named by its id, or by a unique prefix or suffix of the id."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from sidecar.processes import still_runs
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.reading import ask, ask_to_damage, behind_text, hold
from sidecar.read.views import SessionView
from sidecar.read.wording import local_time
from streams.errors import CorruptLog
from streams.event import ULID_TEXT
from streams.log.reader import LogReader, every_record
from streams.query import EVERYTHING, Filter
from streams.retention import StreamRemoval
from streams.store import NOTHING, Record

T = TypeVar("T")


class SelectError(Exception):
    """What the person named cannot be shown; the text says why, and names similar ones.

    ``code`` is stable: ``not-found``; ``no-log``: the log holds no stream yet; ``ambiguous``: several streams or events
    match; ``not-a-stream``: a child session was named where a stream is needed; ``same-session``: one session was named
    twice, where two are needed; ``pruned``: nothing of ``stream`` is left.
    """

    def __init__(self, code: str, text: str, stream: str = "") -> None:
        super().__init__(text)
        self.code, self.stream = code, stream


MISSED = frozenset({"not-found", "no-log"})
"""The codes of errors that say that a log does not have what was named; that of another machine may."""

_SHOWN = 5
"""How many near matches an error names."""


def open_reader(store: Path, *, to_damage: bool = False) -> LogReader:
    """A reader of the log, with or without a running sidecar; a missing log reads as empty."""
    return LogReader(store, to_damage=to_damage)


async def catalog_of(reader: LogReader) -> tuple[Catalog, CorruptLog | None]:
    """The catalog as it is now, and the damage up to which it knows the log, if any. See ``OpenSnapshot``.

    Records that the tables have are not read again, except what they open. ``verify`` reads everything.
    """
    known = _CATALOGS.get(reader)
    if known is not None and known.position >= reader.head:
        return known, None
    story, fault = await hold(reader)
    catalog = Catalog(story, still_runs=still_runs)
    try:
        catalog.read_open()
    except CorruptLog as error:
        with suppress(CorruptLog):
            reader.end_at(error)
        return Catalog(story, (error.position or 0) - 1, still_runs), fault or error
    if fault is None:
        _CATALOGS[reader] = catalog
    return catalog, fault


_CATALOGS: WeakKeyDictionary[LogReader, Catalog] = WeakKeyDictionary()
"""The catalog of each reader, so that a command that needs it twice opens it only once."""


async def ask_catalog(reader: LogReader, question: Callable[[Catalog], T]) -> T:
    """What a question returns of the catalog as it is now: see ``ask``."""
    return await ask(reader, lambda story: question(Catalog(story, still_runs=still_runs)))


def is_there(session: SessionView) -> bool:
    """False if the OpenCode that ran a session's turn has left; then no call of it runs."""
    return not session.pid or still_runs(session.pid, session.turn_ms)


def still_run(processes: Collection[tuple[int, int]]) -> bool:
    """Whether all of these OpenCodes run: see ``Catalog.processes``."""
    return all(still_runs(*each) for each in processes)


async def find_stream(reader: LogReader, given: str) -> str:
    """The stream that ``given`` names.

    Raises:
        SelectError: there is no match, or more than one.
        CorruptLog: the log is damaged, and nothing before the fault matches.
    """
    stream, session = await find_session(reader, given)
    if session is not None:
        raise SelectError("not-a-stream", f"{given!r} is a session in the stream {stream}; name that stream")
    return stream


async def find_session(reader: LogReader, given: str) -> tuple[str, str | None]:
    """(stream, child session) that ``given`` names; the session is ``None`` if ``given`` names a stream.

    A stream wins over a session. In a damaged log, only the records before the fault are searched.

    Raises:
        SelectError: there is no match, or more than one.
        CorruptLog: the log is damaged, and nothing before the fault matches.
    """
    given = given.lstrip("…")  # a narrow terminal shows the end of a stream's id after an ellipsis
    with suppress(CorruptLog):  # the question below meets the damage, too
        known = await first(reader.read(given))  # its records may not be in the tables yet
        if known is not None:
            return known.event.stream_id, None
    found, fault = await ask_to_damage(reader, lambda story: _match(Catalog(story), given))
    if isinstance(found, SelectError):
        raise found
    if not isinstance(found, set):
        return found
    if fault is not None:
        reader.end_at(fault)
        raise fault
    removed = await reader.removed()
    texts = {name: text for name, gone in removed.items() if (text := pruned_text(name, gone)) is not None}
    fitting = matching(given, texts)
    if len(fitting) == 1:
        raise SelectError("pruned", texts[fitting[0]], fitting[0])
    if fitting:
        text = f"{given!r} matches {len(fitting)} streams, all pruned: {_some(fitting)}; type more of the id"
        raise SelectError("ambiguous", text)
    if not found:
        raise SelectError("no-log", await empty_text(reader))
    near = get_close_matches(given, found, n=_SHOWN, cutoff=0.5) or [s for s in found if given.lower() in s.lower()]
    hint = f"did you mean {_some(near)}?" if near else "`durable-stream streams` lists all streams"
    raise SelectError("not-found", f"no stream or session matches {given!r}; {hint}")


def _match(catalog: Catalog, given: str) -> tuple[str, str | None] | SelectError | set[str]:
    """What ``find_session`` returns or raises; the names of all streams if nothing matches."""
    seen, sessions = catalog.streams, catalog.sessions
    if given in seen:
        return given, None
    if given in sessions:
        return sessions[given].stream, given
    for what, names in {"streams": [*seen], "sessions": [*sessions]}.items():
        found = matching(given, names)
        if len(found) == 1:
            return (found[0], None) if found[0] in seen else (sessions[found[0]].stream, found[0])
        if found:
            text = f"{given!r} matches {len(found)} {what}: {_some(found)}; type more of the id"
            return SelectError("ambiguous", text)
    return {*seen}


def pruned_text(stream: str, gone: StreamRemoval) -> str | None:
    """What a stream no longer holds, and when that was pruned; ``None`` if nothing of the stream was pruned."""
    if gone.pruned_ms is None:
        return None
    day = local_time(gone.pruned_ms)
    count = gone.first_offset
    what = "its first record was" if count == 1 else f"its first {count} records were"
    return f"{stream}: {what} pruned, last on {day}"


async def find_event(reader: LogReader, given: str) -> Record:
    """The record whose event id is ``given``, or begins or ends with it; case does not matter.

    Raises:
        SelectError: there is no match, or more than one.
    """
    wanted = given.upper()
    if ULID_TEXT.fullmatch(wanted):
        record = await reader.find_event(wanted)
        if record is not None:
            return record
    found: list[str] = []
    if len(wanted) >= 3:
        found = matching(wanted, await _ids(reader, wanted, lambda each: bool(matching(wanted, [each]))))
    if len(found) == 1 and (record := await reader.find_event(found[0])) is not None:
        return record
    if found:
        count = "several" if len(found) > _SHOWN else str(len(found))
        raise SelectError("ambiguous", f"{given!r} matches {count} events: {_some(found)}; type more of the id")
    if reader.head == NOTHING:
        raise SelectError("no-log", await empty_text(reader))
    near = await _ids(reader, "", lambda each: _is_near(each, wanted))
    hint = f"did you mean {_some(near[:_SHOWN])}?" if near else "`durable-stream log STREAM` and `query` show ids"
    raise SelectError("not-found", f"no event matches {given!r}; {hint}")


async def _ids(reader: LogReader, part: str, fits: Callable[[str], bool]) -> list[str]:
    """The first event ids that contain ``part`` and fit: one more than an error names, at most."""
    found: dict[str, None] = {}
    async with aclosing(cast("AsyncGenerator[list[str], None]", reader.event_ids(part))) as source:
        async for some in source:
            found.update(dict.fromkeys(filter(fits, some)))
            if len(found) > _SHOWN:
                break
    return list(found)[: _SHOWN + 1]


async def first(records: AsyncIterator[Record]) -> Record | None:
    """The first record, or ``None``. Closes the files that were opened for the other records."""
    async with aclosing(cast("AsyncGenerator[Record, None]", records)) as source:
        async for record in source:
            return record
    return None


class Family:
    """The streams that belong to one root session, joined by ``lineage.linked``, as of the record at ``position``.

    With ``session``, the family has only the records of that session and its descendants. ``only`` leaves the joined
    streams out.
    """

    def __init__(self, stream: str, catalog: Catalog, *, only: bool = False, session: str | None = None) -> None:
        self.stream, self._only, self.session = stream, only, session
        self._take(catalog)

    def _take(self, catalog: Catalog) -> None:
        own = None if self._only else catalog.own_session(self.stream)
        self.position, self.root = catalog.position, catalog.root_stream(self.stream)
        self.streams = {self.stream, *(catalog.streams_of(own.id) if own is not None else ())}
        self._places = {name: catalog.place(name) for name in catalog.sessions_of(self.streams)}
        names = (name for name in self._places if self.session in catalog.above(name))
        self._inside = None if self.session is None else {*names}

    async def follow(self, reader: LogReader, record: Record) -> set[str]:
        """Take the next record in position order; return the streams that have joined the family."""
        before = self.streams
        if record.position > self.position and moves_sessions(record):
            await ask_catalog(reader, self._take)
        return self.streams - before

    def __contains__(self, record: Record) -> bool:
        if record.event.stream_id not in self.streams:
            return False
        return self._inside is None or record.event.payload.get("session") in self._inside

    def place_of(self, record: Record) -> str:
        """The place of a record's session in the family: ``2.1`` is the first child of the root's second child."""
        return self._places.get(str(record.event.payload.get("session")), "")

    def filter(self, wanted: Filter = EVERYTHING) -> Filter:
        """``wanted``, limited to the streams of the family."""
        return replace(wanted, streams=tuple(sorted(self.streams)))


class Families:
    """The family of each stream, for whoever follows the log. Asks again when a record moves sessions."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._position = NOTHING
        self._known: dict[str, Family] = {}

    async def of(self, record: Record) -> Family:
        """The family of the next record's stream."""
        if record.position > self._position and moves_sessions(record):
            self._known.clear()
        stream = record.event.stream_id
        if stream not in self._known:
            found = await family_of(self._reader, stream)
            self._position = min(self._position, found.position) if self._known else found.position
            self._known[stream] = found
        return self._known[stream]


def moves_sessions(record: Record) -> bool:
    """True if a record may say where a session belongs."""
    return record.event.type.startswith(("lifecycle.", "lineage."))


async def family_of(reader: LogReader, stream: str, *, only: bool = False, session: str | None = None) -> Family:
    """The family of ``stream``.

    In a damaged log, the family covers the records before the damage.
    """
    # Ignore the damage, because reading the family's records finds and reports it.
    found, _ = await ask_to_damage(reader, lambda story: Family(stream, Catalog(story), only=only, session=session))
    return found


async def records_of(
    reader: LogReader, family: Family, *, after: int = NOTHING, up_to: int | None = None
) -> AsyncIterator[Record]:
    """The family's records in position order, with positions above ``after`` and not above ``up_to``."""
    source = reader.read(family.stream) if len(family.streams) == 1 else reader.query(family.filter())
    async for record in source:
        if up_to is not None and record.position > up_to:
            return
        if record.position > after and record in family:
            yield record


async def newest(
    reader: LogReader,
    wanted: Filter,
    count: int,
    fits: Callable[[Record], bool] = every_record,
    *,
    after: int = NOTHING,
) -> tuple[list[Record], CorruptLog | None]:
    """The last ``count`` records of ``wanted`` that fit, oldest first, and the fault that ended reading early, if any.

    Reads from the end of the log. If the end is damaged, reads from the beginning up to the damage.
    """
    found = await reader.newest(wanted, count, after=after, fits=fits)
    if found is not None:
        return found, None
    last: deque[Record] = deque(maxlen=count)
    try:
        async for record in reader.query(wanted):
            if record.position > after and fits(record):
                last.append(record)
    except CorruptLog as error:
        return list(last), error
    return list(last), None


async def empty_text(reader: LogReader) -> str:
    """Why there is nothing to show: which home is empty, and what the user can do."""
    home = reader.store.parent
    if not home.is_dir():
        return (
            f"the home {home} does not exist yet; OpenCode creates it at its next start after "
            "`durable-stream install`. If it should exist, check `--home` and `DURABLE_STREAM_HOME`"
        )
    if (behind := behind_text(reader)) is not None:
        return behind
    if await reader.removed():  # no stream of an agent is ever removed
        return f"what was recorded in {home} has been pruned; `durable-stream verify` shows how much"
    if reader.head != NOTHING:
        return f"only agents have recorded in {home} so far; `durable-stream streams --all` lists them"
    return f"nothing was recorded in {home} yet; check `--home`, or run `durable-stream doctor` to see why"


def matching(given: str, names: Collection[str]) -> list[str]:
    """The name that ``given`` is, or else those that begin with it, or else those that end with it."""
    if given in names:
        return [given]
    all_ = list(names)
    return [n for n in all_ if n.startswith(given)] or [n for n in all_ if n.endswith(given)]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _is_near(identifier: str, wanted: str) -> bool:
    if len(wanted) < 3:
        return False
    return (
        wanted in identifier or identifier[-4:] == wanted[-4:] or (len(wanted) >= 12 and identifier[:12] == wanted[:12])
    )
