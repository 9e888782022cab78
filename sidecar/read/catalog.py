"""A projection of a log's streams and sessions: counts, costs and lineage. Pure.

The catalog stays small for a log of any length, because turns are counted, not kept. So the sidecar stores snapshots of
the catalog, and commands read the last snapshot and the few records after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Set
from typing import Any, Final

import msgspec

from sidecar.read.asked import CHECKPOINT, OpenAsk, OpenCall, asked_text
from sidecar.read.fields import as_directory, as_int, as_mapping, as_text, has_cut, is_forgotten, model_name
from sidecar.read.losses import GAP, SHOWN, Loss, loss_text
from sidecar.read.sums import add_step
from sidecar.read.views import Place, SessionView, StreamView, mark, place_of
from sidecar.read.wording import cut_middle
from streams.event import StreamEvent
from streams.lineage import (
    CREATED,
    ENDED,
    MARKS,
    MOVED,
    RESUMED,
    RETRIED,
    STEP_STARTED,
    TURN_STARTED,
    Lineage,
)
from streams.store import NOTHING, Record

CATALOG: Final = "catalog"
"""The name of the catalog's snapshot."""

CATALOG_VERSION: Final = 120
"""Version of the dumped catalog and of the fold. Snapshots of another version are not used."""

WORK, WORK_STARTED = "agent/intents", "intent.started"
"""Where it is recorded which session is background work, and for which directory."""


def is_agents(stream_id: str) -> bool:
    """True for the stream of an agent, which holds no session."""
    return stream_id.startswith("agent/")


def repeats(event: StreamEvent) -> bool:
    """True for an event that says nothing that a session's other events do not say."""
    return is_agents(event.stream_id) or event.type == STEP_STARTED


class Rest(msgspec.Struct):
    """A catalog without its streams and sessions: see the fields of ``Catalog``."""

    losses: list[Loss]
    launched: list[str]
    works: dict[str, str]
    records: int
    cut: int
    position: int
    last_ts: int | None
    agents: list[str]


class Catalog(Lineage[SessionView]):
    """A fold over a whole log. Apply records in position order."""

    def __init__(self) -> None:
        super().__init__(SessionView)
        self.streams: MutableMapping[str, StreamView] = {}
        self.losses: list[Loss] = []
        self.launched: set[str] = set()
        """The background sessions of which nothing is recorded yet."""
        self.works: dict[str, str] = {}
        """The same for the work of ``spawn`` and ``agent_spawn``, and the directory that each works for."""
        self.records = 0
        self.cut = 0
        """How many records have a text that was too long to keep whole."""
        self.position = NOTHING
        """The position of the last record that was applied."""
        self.last_ts: int | None = None
        """The latest time of an event, in ms since 1970; ``None`` if there is none."""
        self.agents: list[str] = []
        """The streams of agents, in the order of their first records."""

    def rest(self) -> Rest:
        """The catalog without its streams and sessions."""
        launched = sorted(self.launched)
        return Rest(self.losses, launched, self.works, self.records, self.cut, self.position, self.last_ts, self.agents)

    def fill(self, rest: Rest) -> None:
        """Take over what ``rest`` returned."""
        self.losses, self.launched, self.records = rest.losses, set(rest.launched), rest.records
        self.works = rest.works
        self.cut, self.position, self.last_ts, self.agents = rest.cut, rest.position, rest.last_ts, rest.agents

    def apply(self, record: Record) -> None:
        """Apply one record. A record that was applied before changes nothing."""
        if record.position <= self.position:
            return
        self.records += 1
        self.position = record.position
        event, payload = record.event, record.event.payload
        stream = self.streams.get(event.stream_id)
        if stream is None:
            stream = self.streams[event.stream_id] = StreamView(event.stream_id, record.position, first_ts=event.ts)
            if is_agents(event.stream_id):
                self.agents.append(event.stream_id)
        stream.records += 1
        self.last_ts = event.ts if self.last_ts is None else max(self.last_ts, event.ts)
        # What a person says about a session makes it no newer: neither its age nor its place in a list changes.
        if event.type not in MARKS or stream.last_position == NOTHING:
            stream.last_position = record.position
            stream.first_ts = min(stream.first_ts, event.ts)
            stream.last_ts = max(stream.last_ts, event.ts)
        if event.type == GAP:
            self._gap(record)
        elif event.type in MARKS and (own := self.own_session(stream.id)) is not None:
            mark(own, event)
        if is_forgotten(payload):
            stream.forgotten += 1
        self.cut += has_cut(payload)
        session_id = payload.get("session")
        if not isinstance(session_id, str) or is_agents(event.stream_id):
            if (
                event.stream_id == WORK
                and event.type == WORK_STARTED
                and (given := as_directory(payload.get("directory")))
            ):
                self._work(as_text(session_id), given)
            return
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = SessionView(session_id, event.stream_id)
            session.is_background = session_id in self.launched
            self.launched.discard(session_id)
            stream.sessions.append(session_id)
            self._known_tree = None
        stream.boot = as_text(event.metadata.get("boot")) or stream.boot
        first_stream = session.stream
        super().apply(record)
        if session.stream != first_stream:
            self.streams[first_stream].sessions.remove(session_id)
            stream.sessions.append(session_id)
        self._session(record, stream, session)
        if session.name and session.title != session.name:
            session.told, session.title = session.title, session.name

    def _work(self, session: str, directory: str) -> None:
        """A session is background work for a directory. It may run in another one, and may not be recorded yet."""
        stream = self.streams[self.sessions[session].stream] if session in self.sessions else None
        if stream is None or not stream.directory:
            self.works[session] = directory
        elif stream.id == session:
            stream.ran_in, stream.directory = stream.ran_in or stream.directory, directory

    def _gap(self, record: Record) -> None:
        event, payload = record.event, record.event.payload
        reason, boot = as_text(payload.get("reason")), as_text(event.metadata.get("boot"))
        # A gap without a session is the loss of an OpenCode process: any of its sessions so far may lack something.
        streams = [event.stream_id] if "session" in payload else self._recorded_by(boot)
        same = (each for each in self.losses if (each.reason, each.streams) == (reason, streams))
        loss = next((each for each in same if streams or each.boot == boot), None)
        if loss is None:
            loss = Loss(reason, boot, streams)
            self.losses.append(loss)
        loss.gaps += 1
        loss.lost += as_int(payload.get("lost")) or 0
        loss.last_ts = max(loss.last_ts, event.ts)

    def _recorded_by(self, boot: str) -> list[str]:
        return sorted(stream.id for stream in self.streams.values() if boot and stream.boot == boot)

    def _session(self, record: Record, stream: StreamView, session: SessionView) -> None:
        event, payload = record.event, record.event.payload
        session.retries = ""
        if event.type in _ENDS_ASKS:
            # OpenCode keeps its asks only in memory, so they end when the turn or the process ends.
            session.asks.clear()
            session.calls.clear()
        if event.type == STEP_STARTED:
            # Imported here, because a command that folds no call from a snapshot on starts a tenth faster without it.
            from sidecar.read.telling.describe import call_text

            text, _ = cut_middle(call_text(payload), ASK_LENGTH)
            session.calls[as_text(payload.get("part"))] = OpenCall(event.ts, text)
        elif event.type == "execution.step":
            session.calls.pop(as_text(payload.get("part")), None)
            child, about = as_text(payload.get("child")), as_mapping(payload.get("metadata"))
            # OpenCode 1 marks such a call, and OpenCode 2 says that the child goes on after it.
            if child and (about.get("background") is True or about.get("status") == "running"):
                if child in self.sessions:
                    self.sessions[child].is_background = True
                else:
                    self.launched.add(child)
            add_step(session, payload)
        elif event.type == RETRIED:
            from sidecar.read.telling.describe import describe

            session.retries, _ = cut_middle(str(describe(event)), ASK_LENGTH)
        elif event.type in (CREATED, RESUMED):
            session.agent = session.agent or as_text(payload.get("agent"))
            stream.directory = stream.directory or as_directory(payload.get("directory"))
            if stream.directory and (given := self.works.pop(session.id, "")):
                self._work(session.id, given)
            stream.project = stream.project or as_text(payload.get("project"))
        elif event.type == MOVED and session.parent is None:
            stream.moves.append((record.position, stream.directory))
            stream.directory = as_directory(payload.get("directory")) or stream.directory
            stream.project = as_text(payload.get("project")) or stream.project
        elif event.type == CHECKPOINT:
            self._checkpoint(record, session)
        elif event.type == TURN_STARTED:
            # An earlier turn without an end is over too: its OpenCode died, and the session continued later.
            session.agent = session.agent or event.actor
            session.model = model_name(payload.get("model"))
            session.turn, session.outcome, session.ended_ms = as_text(payload.get("message")), None, None
            pid = event.metadata.get("pid")
            session.turn_ms, session.pid = event.ts, pid if isinstance(pid, int) else 0
            session.begun_ms = event.ts if session.begun_ms is None else session.begun_ms
        elif event.type == TURN_ENDED:
            session.title = as_text(payload.get("title")) or session.title
            if payload.get("message") == session.turn:
                session.outcome, session.ended_ms = as_text(payload.get("outcome")) or "ended", event.ts
                session.ran_ms += max(event.ts - session.turn_ms, 0)
                session.asks.clear()
                session.calls.clear()
        elif event.type == "opencode.session.renamed":
            session.title = as_text(payload.get("title")) or session.title

    def _checkpoint(self, record: Record, session: SessionView) -> None:
        payload = record.event.payload
        request = as_text(payload.get("request"))
        if payload.get("state") == "asked" and not record.event.metadata.get("history"):
            # Whoever asked in a session that was imported waits for nobody.
            text, _ = cut_middle(asked_text(payload), ASK_LENGTH)
            session.asks[request] = OpenAsk(request, session.id, record.event.id, record.event.ts, text)
        else:
            session.asks.pop(request, None)

    def end_dead(self, still_runs: Callable[[int, int], bool]) -> None:
        """Close the open turns whose OpenCode process has ended, and the asks of these turns.

        The sidecar will record the end of these turns. Until then, or while no sidecar is running, readers must not
        show these turns as active.
        """
        for session in self._with_open_turn():
            if session.pid and not still_runs(session.pid, session.turn_ms):
                session.outcome = "unknown"
                session.asks.clear()

    # --- queries ---

    def newest_first(self) -> Iterator[StreamView]:
        """Every stream, the one with the newest record first. Do not change them."""
        # The position tells which record is newest, also if a clock was set.
        yield from sorted(self.streams.values(), key=lambda stream: stream.last_position, reverse=True)

    def places(self) -> set[Place]:
        """The places of all streams with a session."""
        return {place_of(stream) for stream in self.streams.values() if stream.sessions}

    def streams_at(self, place: Place) -> list[str]:
        """The streams with a session whose own directory and project these are."""
        return [stream.id for stream in self.streams.values() if stream.sessions and place_of(stream) == place]

    def whole(self) -> Catalog:
        """This catalog with everything in memory, which is quicker for a caller that reads most sessions."""
        return self

    def part(self, streams: Set[str]) -> Catalog:
        """The part that is about some streams."""
        found = Catalog()
        found.streams = {name: self.streams[name] for name in self._in_order(self.streams, streams)}
        sessions = self._in_order(self.sessions, self.sessions_of(found.streams))
        found.sessions = {name: self.sessions[name] for name in sessions}
        found.records = sum(view.records for view in found.streams.values())
        return found

    def _in_order(self, all_: MutableMapping[str, Any], wanted: Collection[str]) -> list[str]:
        """Those of ``wanted`` that exist, in the order in which they first appeared."""
        chosen = set(wanted)
        return [name for name in all_ if name in chosen]

    def _with_open_turn(self) -> list[SessionView]:
        return [session for session in self.sessions.values() if session.is_turn_open]

    def _with_asks(self) -> list[str]:
        return [session.id for session in self.sessions.values() if session.asks]

    def open_turns(self) -> set[str]:
        return {session.stream for session in self._with_open_turn()}

    def gaps(self, stream_id: str | None = None) -> int:
        """How many gaps were recorded; of one stream, only those that may concern it."""
        return sum(each.gaps for each in self.losses if stream_id is None or stream_id in self._concerned(each))

    def loss_texts(self, streams: Set[str] | None = None) -> list[str]:
        """A sentence for each loss, the newest first; if ``streams`` are given, only for losses that may concern them.

        The last sentence says how many more there are.
        """
        found = [each for each in self.losses if streams is None or not streams.isdisjoint(self._concerned(each))]
        found.sort(key=lambda each: each.last_ts, reverse=True)
        more = f"{len(found) - SHOWN} more: see `durable-stream query --type {GAP}`"
        return [loss_text(each, self._concerned(each)) for each in found[:SHOWN]] + [more] * (len(found) > SHOWN)

    def _concerned(self, loss: Loss) -> list[str]:
        return loss.streams or self._recorded_by(loss.boot)

    def asks(self, streams: Collection[str] | None = None) -> list[OpenAsk]:
        """What is waiting for a person, oldest first; if ``streams`` are given, only in these streams."""
        names = self._with_asks() if streams is None else self.sessions_of(streams)
        found = [ask for name in names for ask in self.sessions[name].asks.values()]
        return sorted(found, key=lambda ask: ask.since_ms)

    def sessions_of(self, streams: Iterable[str]) -> list[str]:
        """The sessions of some streams."""
        return [name for stream in streams if stream in self.streams for name in self.streams[stream].sessions]

    def directory(self, stream_id: str, at: int | None = None) -> str:
        """The directory in which the stream's session ran, until it was moved for the first time after the position
        ``at``. For a joined stream without a directory, the directory of its root session."""
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.directory:
            stream = self.streams.get(self.root_stream(stream_id))
        if stream is None:
            return ""
        return next((until for moved, until in stream.moves if at is not None and at < moved), stream.directory)

    def ran_in(self, stream_id: str) -> str:
        """The directory to which the paths in a stream are relative: where its session ran, also in a worktree."""
        stream = self.streams.get(stream_id)
        return (stream.ran_in if stream is not None else "") or self.directory(stream_id)

    def own_session(self, stream_id: str) -> SessionView | None:
        """The session after which the stream is named; ``None`` for ``system`` and similar streams."""
        stream = self.streams.get(stream_id)
        if stream is None or not stream.sessions:
            return None
        return self.sessions.get(stream_id) or self.sessions[stream.sessions[0]]

    def place_of(self, record: Record) -> str:
        """The place of a record's session in its family; empty for a record without a session."""
        session = record.event.payload.get("session")
        return self.place(session) if isinstance(session, str) else ""

    def root_stream(self, stream_id: str) -> str:
        """The stream of the root session to which a stream belongs; the stream itself if no parent is known."""
        session = self.own_session(stream_id)
        return stream_id if session is None else self.sessions[self.root(session.id)].stream

    def status(self, stream_id: str) -> str:
        """The status of the stream's own session, but ``waiting`` or ``active`` if one of its sessions is."""
        found = {self.sessions[session].status for session in self.streams[stream_id].sessions}
        own = self.own_session(stream_id)
        return next(
            (each for each in ("waiting", "active") if each in found), own.status if own is not None else "idle"
        )

    def figures(self, sessions: Iterable[str]) -> dict[str, Any]:
        """What some sessions used together: ``turns, cost, tokens``."""
        found = [self.sessions[name] for name in sessions]
        tokens: dict[str, int | float] = {}
        for session in found:
            for kind, count in session.tokens.items():
                tokens[kind] = tokens.get(kind, 0) + count
        cost = round(sum(session.cost for session in found), 9)
        return {"turns": sum(session.turns for session in found), "cost": cost, "tokens": tokens}

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


TURN_ENDED: Final = "turn.ended"
_ENDS_ASKS: Final = frozenset({RESUMED, ENDED, TURN_STARTED})
ASK_LENGTH: Final = 300
"""How many characters of an ask or a call a snapshot keeps."""
