"""All sessions and streams of a log as they were after one record. Reads the tables, so it blocks.

A question about one session asks a few queries; one about all of them, one query for each table.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import orjson

from sidecar.read.ask_text import OpenAsk, OpenCall, asked_text
from sidecar.read.losses import GAP, SHOWN, Loss, loss_text
from sidecar.read.sessions import Sessions
from sidecar.read.story import tables
from sidecar.read.story.reading import Snapshot
from sidecar.read.story.tables import ALIVE
from sidecar.read.views import Place, SessionView, StreamView
from sidecar.read.wording import cut_middle
from streams.store import NOTHING

V = TypeVar("V")

TEXT_LENGTH: Final = 300
"""How many characters of an ask or a call are shown."""

AT_ONCE: Final = 200
"""How many streams are looked up at once, where only some are asked for."""


class Lazy(Mapping[str, V]):
    """Values by their names, each read when it is first asked for; all at once, if somebody goes through them."""

    def __init__(self, names: Callable[[], list[str]], read: Callable[[str | None], dict[str, V]]) -> None:
        """``read`` returns the value of a name, or all, in the order of ``names``."""
        self._names, self._read = names, read
        self._known: dict[str, V | None] = {}
        self.is_whole = False

    def __getitem__(self, name: str) -> V:
        if name not in self._known and not self.is_whole:
            self._known[name] = self._read(name).get(name)
        if (found := self._known.get(name)) is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._known) if self.is_whole else iter(self._names())

    def __len__(self) -> int:
        return len(self._known) if self.is_whole else len(self._names())

    def values(self) -> Any:
        return self._whole().values()

    def items(self) -> Any:
        return self._whole().items()

    def _whole(self) -> dict[str, Any]:
        if not self.is_whole:
            self._known, self.is_whole = dict(self._read(None)), True
        return self._known

    def know(self, found: Mapping[str, V]) -> list[V]:
        """Take values that were read together, and return them."""
        self._known |= {name: value for name, value in found.items() if name not in self._known}
        return [self[name] for name in found]


class Sums(NamedTuple):
    """How many records a log has, how many of them have a text that was too long to keep whole, and the latest time of
    an event, in ms since 1970; ``None`` without an event."""

    records: int
    cut: int
    last_ts: int | None


class Catalog(Sessions):
    """``position`` is the last record that counts. ``still_runs`` says of the pid of an OpenCode and the time of its
    turn whether it runs: the sidecar will record the end of the turns of a dead one, and until then they have ended
    all the same."""

    streams: Lazy[StreamView]
    sessions: Lazy[SessionView]

    def __init__(
        self, story: Snapshot, n: int | None = None, still_runs: Callable[[int, int], bool] | None = None
    ) -> None:
        self._story, self.position = story, story.head if n is None else n
        self._still_runs = still_runs if story.is_here else None
        self._is_now = self.position >= story.top
        self._alive = "died IS NULL" if self._is_now else ALIVE
        # The last record of each place.
        self._last = "next IS NULL" if self._is_now else "n <= :n AND (next IS NULL OR next > :n)"
        self._below: dict[str, list[SessionView]] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._open_texts: dict[int, Any] = {}
        super().__init__(Lazy(self._stream_names, self._streams_of), Lazy(self._session_names, self._sessions_of))

    @property
    def behind(self) -> int:
        """How many records the catalog does not know yet: see ``Snapshot``."""
        return self._story.behind

    def _sql(self, text: str, **given: Any) -> list[tuple[Any, ...]]:
        return self._story.sql(text, n=self.position, **given)

    def _rows(self, table: str, where: str, **given: Any) -> list[Any]:
        return self._story.rows(table, where, n=self.position, **given)

    # --- sessions ---

    def _session_names(self, where: str = "1 = 1", **given: Any) -> list[str]:
        query = f"SELECT name FROM session WHERE {where} AND named = 1 AND {self._alive} ORDER BY first"  # noqa: S608
        return [name for (name,) in self._sql(query, **given)]

    def _sessions_of(self, name: str | None) -> dict[str, SessionView]:
        return self.views(self._session_rows("1 = 1" if name is None else "name = :name", name=name))

    def _session_rows(self, where: str, **given: Any) -> list[tables.Session]:
        return self._rows("session", f"{where} AND named = 1 AND {self._alive} ORDER BY first", **given)

    def views(self, rows: Collection[tables.Session]) -> dict[str, SessionView]:
        """What is known of the sessions with these rows."""
        runs, used = self.runs(rows), self._story.newest("step", "session", [row.key for row in rows], self.position)
        open_, names = self.open(rows, runs), self._place_names({row.place for row in rows})
        self._read_texts((row.name, span) for row in rows for span in open_[row.key])
        return {
            row.name: self._view(row, names[row.place], runs.get(row.key), used.get(row.key), open_[row.key])
            for row in rows
        }

    def runs(self, rows: Iterable[tables.Session]) -> dict[int, tables.Span]:
        """The latest turn of each session that had one, by the session's key."""
        keys = _listed(row.run for row in rows if row.run is not None)
        spans = self._rows("span", f"key IN (SELECT value FROM json_each(:keys)) AND {self._alive}", keys=keys)  # noqa: S608
        return {span.session: span for span in spans}

    def open(self, rows: Iterable[tables.Session], runs: Mapping[int, tables.Span]) -> Mapping[int, list[tables.Span]]:
        """The asks, calls and pauses that are open, by session."""
        if self._is_now:
            return self._open_now
        # None outlives its turn, so none is older than the last one.
        where = f"""session = :s AND at >= :since AND at <= :n AND {ALIVE} AND (till IS NULL OR till > :n)
            AND kind <> 'turn' ORDER BY key"""
        since = {key: run.at for key, run in runs.items()}
        return {row.key: self._rows("span", where, s=row.key, since=since.get(row.key, 0)) for row in rows}

    @cached_property
    def _open_now(self) -> Mapping[int, list[tables.Span]]:
        found: defaultdict[int, list[tables.Span]] = defaultdict(list)
        rows = self._rows("span", "till IS NULL AND died IS NULL AND kind <> 'turn'")
        for span in sorted(rows, key=lambda span: span.key):
            found[span.session].append(span)
        return found

    def _place_names(self, keys: Set[int]) -> dict[int, str]:
        if new := keys - self._names.keys():
            where = "SELECT key, stream FROM place WHERE key IN (SELECT value FROM json_each(:keys))"
            self._names |= dict(self._sql(where, keys=_listed(new)))
        return self._names

    def _view(
        self, row: tables.Session, stream: str, run: tables.Span | None, used: Any, open_: Iterable[tables.Span]
    ) -> SessionView:
        view = SessionView(row.name, stream, row.parent, bool(row.known), bool(row.announced), row.ended)
        view.title, view.name, view.own_title = row.label or row.title, row.label, row.title if row.label else ""
        view.fork, view.agent, view.model, view.is_background = row.fork, row.agent, row.model, bool(row.background)
        view.pinned, view.begun_ms, view.pid = bool(row.pinned), row.begun, row.pid
        if used is not None:
            view.steps, view.cost, view.tokens = used.s_steps, used.s_cost, orjson.loads(used.s_tokens)
        if run is not None:
            view.turn, view.turns, view.turn_ms, view.ran_ms = run.turn, run.number, run.start, run.total
            if run.till is not None and run.till <= self.position:
                view.ran_ms += (run.end or run.start) - run.start
                view.outcome = "unknown"
                if run.result is not None and run.result <= self.position:
                    view.outcome, view.ended_ms = run.reply, run.end
        for span in open_:
            if span.kind == "pause":
                view.retries = self._pause(span)
            elif _is_ask(span):
                view.asks[span.request] = self._open_texts[span.key]
            elif _is_call(span):
                view.calls[span.call] = self._open_texts[span.key]
        if view.is_turn_open and view.pid and self._still_runs and not self._still_runs(view.pid, view.turn_ms):
            view.outcome = "unknown"
            view.asks.clear()
        return view

    def _read_texts(self, open_: Iterable[tuple[str, tables.Span]]) -> None:
        """Read what is asked and called, in one query: the database may be far away."""
        told = [(name, span) for name, span in open_ if _is_ask(span) or _is_call(span)]
        new = [(name, span) for name, span in told if span.key not in self._open_texts]
        records = self._story.records({span.at for _, span in new}) if new else {}
        for name, span in new:
            event = records[span.at].event
            if _is_ask(span):
                text = _cut(asked_text(event.payload))
                self._open_texts[span.key] = OpenAsk(span.request, name, event.id, span.start, text)
            else:
                from sidecar.read.rendering.describe import call_text  # which takes a while to import

                self._open_texts[span.key] = OpenCall(event.ts, _cut(call_text(event.payload)))

    def _pause(self, span: tables.Span) -> str:
        """Why the model is called again, unless something has happened since."""
        since = "SELECT 1 FROM moment WHERE session = :s AND n > :at AND n <= :n LIMIT 1"
        if self._sql(since, s=span.session, at=span.at):
            return ""
        from sidecar.read.rendering.describe import describe

        return _cut(str(describe(self._story.record(span.at).event)))

    def read_open(self) -> None:
        """Read the records that views are made from, so that damage in them is met now.

        Raises:
            CorruptLog: one of them is damaged.
        """
        if self._is_now:
            keys = [key for key, spans in self._open_now.items() if spans]
            self.views(
                self._rows(
                    "session", "key IN (SELECT value FROM json_each(:keys)) AND died IS NULL", keys=_listed(keys)
                )
            )

    # --- streams ---

    def _stream_names(self, where: str = "1 = 1", **given: Any) -> list[str]:
        query = f"SELECT stream FROM place WHERE {where} AND {self._alive} ORDER BY key"  # noqa: S608
        return [name for (name,) in self._sql(query, **given)]

    def _streams_of(self, name: str | None) -> dict[str, StreamView]:
        some = "1 = 1" if name is None else "stream = :name"
        rows = self._rows("place", f"{some} AND {self._alive} ORDER BY key", name=name)
        return self.stream_views(rows, is_all=name is None)

    def stream_views(self, rows: Collection[tables.Place], *, is_all: bool = False) -> dict[str, StreamView]:
        """What is known of the streams with these rows."""
        keys = [row.key for row in rows]
        if is_all:
            last = {row.place: row for row in self._rows("moment", self._last)}
        else:
            last = self._story.newest("moment", "place", keys, self.position)
        sessions: dict[int, list[str]] = {key: [] for key in keys}
        some = "" if is_all else "AND place IN (SELECT value FROM json_each(:keys))"
        where = f"SELECT place, name FROM session WHERE named = 1 AND {self._alive} {some} ORDER BY first"  # noqa: S608
        for key, name in self._sql(where, keys=_listed(() if is_all else keys)):
            sessions[key].append(name)
        found = {}
        for row in rows:
            at = last[row.key]
            view = found[row.stream] = StreamView(row.stream, row.first, at.number, at.forgotten)
            view.directory, view.project, view.boot, view.ran_in = row.directory, row.project, row.boot, row.ran_in
            view.last_position, view.first_ts, view.last_ts = at.news, at.since, at.until
            view.sessions, view.moved, self._names[row.key] = sessions[row.key], row.moved, row.stream
        return found

    def read(self, streams: Iterable[str]) -> None:
        """Read some streams and their sessions at once, because they will be asked for."""
        where = f"stream IN (SELECT value FROM json_each(:names)) AND {self._alive}"  # noqa: S608
        places = self._rows("place", where, names=_listed(streams))
        self.streams.know(self.stream_views(places))
        self._some("place IN (SELECT value FROM json_each(:keys))", keys=_listed(place.key for place in places))

    def newest_first(self) -> Iterator[str]:
        """The names of all streams, the one with the newest record first."""
        # The position tells which record is newest, also if a clock was set.
        before = self.position + 1
        where = f"SELECT place, news FROM moment WHERE {self._last} AND news < :before ORDER BY news DESC LIMIT :most"  # noqa: S608
        while some := self._sql(where, before=before, most=AT_ONCE):
            names = self._place_names({key for key, _ in some})
            yield from (names[key] for key, _ in some)
            before = some[-1][1]

    def places(self) -> set[Place]:
        """The places of all streams with a session."""
        query = f"SELECT DISTINCT directory, project FROM place WHERE used = 1 AND {self._alive}"  # noqa: S608
        return {Place(*row) for row in self._sql(query)}

    def streams_at(self, place: Place) -> list[str]:
        """The streams with a session whose own directory and project these are."""
        return self._stream_names("directory = :d AND project = :p AND used = 1", d=place.directory, p=place.project)

    def directory(self, stream_id: str, at: int | None = None) -> str:
        """As of ``Sessions``, but until the session was moved for the first time after the position ``at``."""
        stream = self._at_home(stream_id)
        if stream is None:
            return ""
        moves = self.moves(stream.id) if at is not None else []
        return next((until for moved, until in moves if at is not None and at < moved), stream.directory)

    def moves(self, stream_id: str) -> list[tuple[int, str]]:
        """The position of each move of the stream's session, and the directory until then."""
        if (stream := self.streams.get(stream_id)) is None or not stream.moved:
            return []
        first = "SELECT key FROM place WHERE stream = :stream LIMIT 1"
        versions = f"SELECT born, moved, directory FROM place WHERE key = ({first}) AND born <= :n ORDER BY born"  # noqa: S608
        pairs = pairwise(self._sql(versions, stream=stream_id))
        return [(born, until) for (_, before, until), (born, moved, _) in pairs if moved > before]

    def directories(self) -> list[str]:
        """The directories of all streams, the one with the newest record first."""
        query = f"""SELECT directory FROM (SELECT place, news FROM moment WHERE {self._last}) AS last
            JOIN (SELECT key, directory FROM place WHERE {self._alive} AND directory <> '') AS own
                ON own.key = last.place
            GROUP BY directory ORDER BY max(news) DESC"""  # noqa: S608
        return [name for (name,) in self._sql(query)]

    def with_times_outside(self, begin: int, end: int) -> list[StreamView]:
        """The streams with a record from before a time or after another, in the order of their first records."""
        where = f"""key IN (SELECT place FROM moment WHERE {self._last} AND (since < :begin OR until > :end))
            AND {self._alive} ORDER BY key"""  # noqa: S608
        return [*self.stream_views(self._rows("place", where, begin=begin, end=end)).values()]

    @cached_property
    def agents(self) -> list[str]:
        """The streams of agents, in the order of their first records."""
        return self._stream_names("stream >= 'agent/' AND stream < 'agent0'")

    # --- the whole log ---

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Two numbers for each stream, of which one is another one after every change of what is known of it, but for
        what joins sessions, what was lost, and whether its OpenCode still runs."""
        last = dict(self._sql(f"SELECT place, n FROM moment WHERE {self._last}"))  # noqa: S608
        rows = self._sql(f"SELECT stream, key, id FROM place WHERE {self._alive} ORDER BY key")  # noqa: S608
        return {stream: (last.get(key, NOTHING), version) for stream, key, version in rows}

    def first_prompt(self, session_id: str) -> str:
        """The first prompt of a session on one line, which can stand for its title; empty without one."""
        query = f"""SELECT asked FROM turn WHERE asked <> '' AND {self._alive}
            AND session = (SELECT key FROM session WHERE name = :name LIMIT 1) ORDER BY key LIMIT 1"""  # noqa: S608
        return next((_cut(asked) for (asked,) in self._sql(query, name=session_id)), "")

    @cached_property
    def sums(self) -> Sums:
        """What the records are together."""
        records, cut, latest = self._sql(f"SELECT sum(number), sum(cut), max(until) FROM moment WHERE {self._last}")[0]  # noqa: S608
        return Sums(records or 0, cut or 0, latest)

    # --- which sessions ---

    def children(self, session_id: str) -> list[SessionView]:
        if self.sessions.is_whole:
            return super().children(session_id)
        if session_id not in self._below:
            found = [each for each in self._some("parent = :s", s=session_id) if self.root(each.id) != each.id]
            self._below[session_id] = found
            self._numbers |= {child.id: number for number, child in enumerate(found, 1)}
        return self._below[session_id]

    def _number(self, session_id: str) -> int:
        if self.sessions.is_whole:
            return super()._number(session_id)
        self.children(self.sessions[session_id].parent or "")
        return self._numbers[session_id]

    def forks(self, session_id: str) -> list[SessionView]:
        """The sessions that were forked from a session."""
        return self._some("fork = :s", s=session_id)

    def background(self) -> list[SessionView]:
        """The sessions that OpenCode started in the background by itself."""
        return self._some("background = 1")

    def at_work(self) -> list[SessionView]:
        """The sessions with an open turn."""
        open_ = "key IN (SELECT session FROM span WHERE till IS NULL AND died IS NULL AND kind = 'turn')"
        found = self._some(open_) if self._is_now else self.sessions.values()
        return [session for session in found if session.is_turn_open]

    def processes(self) -> list[tuple[int, int]]:
        """The OpenCodes of this machine in which a turn is open: the pid of each and when the turn began, in ms since
        1970."""
        return [(each.pid, each.turn_ms) for each in self.at_work() if each.pid and self._still_runs]

    def _some(self, where: str, **given: Any) -> list[SessionView]:
        return self.sessions.know(self.views(self._session_rows(where, **given)))

    def _with_asks(self) -> list[str]:
        if not self._is_now:
            return super()._with_asks()
        keys = _listed(key for key, spans in self._open_now.items() if any(span.kind == "wait" for span in spans))
        return [each.id for each in self._some("key IN (SELECT value FROM json_each(:keys))", keys=keys)]

    def open_turns(self) -> set[str]:
        return {session.stream for session in self.at_work()}

    # --- what was lost ---

    @cached_property
    def _losses(self) -> list[Loss]:
        found: dict[tuple[str, str, tuple[str, ...]], Loss] = {}
        for gap in self._rows("gap", "n <= :n ORDER BY n"):
            if gap.place is not None:
                streams = [self._place_names({gap.place})[gap.place]]
            else:  # it is the loss of an OpenCode process: any of its sessions so far may lack something
                streams = self._recorded_by(gap.boot, gap.n)
            loss = found.setdefault(
                (gap.reason, "" if streams else gap.boot, tuple(streams)), Loss(gap.reason, gap.boot, streams)
            )
            loss.gaps, loss.lost, loss.last_ts = loss.gaps + 1, loss.lost + gap.lost, max(loss.last_ts, gap.ts)
        for loss in found.values():
            loss.streams = loss.streams or self._recorded_by(loss.boot, self.position)
        return [*found.values()]

    def _recorded_by(self, boot: str, n: int) -> list[str]:
        """The streams in which a process recorded last, as of a record."""
        where = f"SELECT stream FROM place WHERE boot = :boot AND {ALIVE} ORDER BY stream"  # noqa: S608
        return [name for (name,) in self._story.sql(where, boot=boot, n=n)] if boot else []

    @cached_property
    def _gaps(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for loss in self._losses:
            for stream in loss.streams:
                found[stream] = found.get(stream, 0) + loss.gaps
        return found

    def gaps(self, stream_id: str | None = None) -> int:
        """How many gaps were recorded; of one stream, only those that may concern it."""
        return sum(each.gaps for each in self._losses) if stream_id is None else self._gaps.get(stream_id, 0)

    def loss_texts(self, streams: Set[str] | None = None) -> list[str]:
        """A sentence for each loss, the newest first; if ``streams`` are given, only for losses that may concern them.

        The last sentence says how many more there are.
        """
        found = [each for each in self._losses if streams is None or not streams.isdisjoint(each.streams)]
        found.sort(key=lambda each: each.last_ts, reverse=True)
        more = f"{len(found) - SHOWN} more: see `durable-stream query --type {GAP}`"
        return [loss_text(each, each.streams) for each in found[:SHOWN]] + [more] * (len(found) > SHOWN)

    # --- as JSON ---

    def stream_json(self, stream_id: str) -> dict[str, Any]:
        """One stream in the form that ``streams --json`` prints; ``root`` is null unless the stream was joined to
        another stream."""
        stream = self.streams[stream_id]
        own = self.own_session(stream_id)
        root = self.root_stream(stream_id)
        return {
            "stream_id": stream_id,
            "records": stream.records,
            "first_ts": stream.first_ts,
            "last_ts": stream.last_ts,
            "status": self.status(stream_id),
            "title": own.title if own is not None else "",
            "pinned": own is not None and own.pinned,
            "directory": self.directory(stream_id),
            "project": stream.project,
            "asks": [msgspec.structs.asdict(ask) for ask in self.asks({stream_id})],
            "forgotten": stream.forgotten,
            "gaps": self.gaps(stream_id),
            "sessions": len(stream.sessions),
            **self.figures(stream.sessions),
            "root": root if root != stream_id else None,
            "fork": own.fork if own is not None else None,
        }


def _listed(values: Iterable[Any]) -> str:
    return json.dumps([*values])  # which takes any text that a person may have typed


def _is_ask(span: tables.Span) -> bool:
    return span.kind == "wait" and span.marked is None


def _is_call(span: tables.Span) -> bool:
    return span.kind == "tool" and span.at != span.about


def _cut(text: str) -> str:
    return cut_middle(text, TEXT_LENGTH)[0]
