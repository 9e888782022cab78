"""A projection of a log's streams and sessions: counts, costs and lineage. Pure.

The catalog stays small for a log of any length, because turns are counted, not kept. So the sidecar stores snapshots of
the catalog, and commands read the last snapshot and the few records after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from typing import Any, Final, Self

import msgspec

from bridge.opencode.capture.table import STEP_STARTED
from bridge.opencode.capture.tokens import MOST_COST, add_tokens, can_be
from sidecar.read.asked import CHECKPOINT, asked_text
from sidecar.read.describe import call_text
from sidecar.read.fields import as_int, as_mapping, as_text, has_cut, is_forgotten
from sidecar.read.losses import GAP, SHOWN, Loss, loss_text
from sidecar.read.wording import cut_middle
from streams.event import StreamEvent
from streams.lineage import CREATED, ENDED, LINEAGE_VERSION, RESUMED, Lineage
from streams.store import NOTHING, Record

CATALOG: Final = "catalog"
"""The name of the catalog's snapshot."""

CATALOG_VERSION: Final = 100 * LINEAGE_VERSION + 9
"""Version of the dumped catalog and of the fold. Snapshots of another version are not used."""


def is_agents(stream_id: str) -> bool:
    """True for the stream of an agent, which holds no session."""
    return stream_id.startswith("agent/")


def repeats(event: StreamEvent) -> bool:
    """True for an event that says nothing that a session's other events do not say."""
    return is_agents(event.stream_id) or event.type == STEP_STARTED


class OpenAsk(msgspec.Struct):
    """A permission or a question that nobody has answered yet. ``since_ms`` is in ms since 1970."""

    request: str
    session: str
    event: str
    since_ms: int
    text: str


class OpenCall(msgspec.Struct):
    """A tool call that began to run and has not ended. ``since_ms`` is in ms since 1970."""

    since_ms: int
    text: str


class SessionView(msgspec.Struct):
    """One session: its title, agent, latest turn and open asks."""

    id: str
    stream: str
    agent: str = ""
    title: str = ""
    ended: str | None = None
    turn: str | None = None
    is_turn_open: bool = False
    turn_ms: int = 0
    pid: int = 0
    """The pid of the OpenCode process that began the turn; 0 if unknown."""
    asks: dict[str, OpenAsk] = {}
    calls: dict[str, OpenCall] = {}
    """The calls that have not ended, by part."""
    is_background: bool = False
    """Whether OpenCode started the session in the background by itself, so that it reports by itself."""

    @property
    def is_active(self) -> bool:
        """Whether a turn is open. Turns follow one another, so only the last one can be open."""
        return self.is_turn_open and self.ended is None

    @property
    def running(self) -> list[OpenCall]:
        """The calls that run now, oldest first; none while the session waits for a person."""
        return list(self.calls.values()) if self.is_active and not self.asks else []


class StreamView(msgspec.Struct):
    """One stream's figures. Times are the times of its events, in ms since 1970.

    ``directory`` is the directory in which OpenCode ran, and ``project`` is OpenCode's id of the project; both are
    empty if unknown.
    """

    id: str
    first_position: int
    records: int = 0
    forgotten: int = 0
    directory: str = ""
    project: str = ""
    last_position: int = NOTHING
    first_ts: int = 0
    last_ts: int = 0
    turns: int = 0
    cost: float = 0.0
    tokens: dict[str, int | float] = {}
    sessions: list[str] = []
    boot: str = ""
    """The plugin's boot id of the OpenCode process that recorded last."""


class Catalog:
    """A fold over a whole log, or over the streams of one root session. Apply records in position order."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.streams: dict[str, StreamView] = {}
        self.sessions: dict[str, SessionView] = {}
        self.losses: list[Loss] = []
        self.records = 0
        self.cut = 0
        """How many records have a text that was too long to keep whole."""
        self.position = NOTHING
        """The position of the last record that was applied."""
        self._below: dict[str, list[SessionView]] | None = None

    def dump(self) -> bytes:
        """The whole catalog as JSON for ``load``; the content of a snapshot of version ``CATALOG_VERSION``."""
        streams, sessions = list(self.streams.values()), list(self.sessions.values())
        lineage = msgspec.Raw(self.lineage.dump())
        dump = _Dump(lineage, streams, sessions, self.losses, self.records, self.cut, self.position)
        return msgspec.json.encode(dump)

    @classmethod
    def load(cls, dumped: bytes) -> Self:
        """The catalog from ``dump``. Raises ``ValueError`` if the content is invalid."""
        found = _DECODER.decode(dumped)
        catalog = cls()
        catalog.lineage = Lineage.load(bytes(found.lineage))
        catalog.streams = {stream.id: stream for stream in found.streams}
        catalog.sessions = {session.id: session for session in found.sessions}
        catalog.losses, catalog.records, catalog.position = found.losses, found.records, found.position
        catalog.cut = found.cut
        return catalog

    def apply(self, record: Record) -> None:
        """Apply one record."""
        self.lineage.apply(record)
        self.records += 1
        self.position = record.position
        event, payload = record.event, record.event.payload
        stream = self.streams.get(event.stream_id)
        if stream is None:
            stream = self.streams[event.stream_id] = StreamView(event.stream_id, record.position, first_ts=event.ts)
        stream.records += 1
        stream.last_position = record.position
        stream.first_ts = min(stream.first_ts, event.ts)
        stream.last_ts = max(stream.last_ts, event.ts)
        if event.type == GAP:
            self._gap(record)
        if is_forgotten(payload):
            stream.forgotten += 1
        self.cut += has_cut(payload)
        session_id = payload.get("session")
        if not isinstance(session_id, str) or is_agents(event.stream_id):
            return
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = SessionView(session_id, event.stream_id)
            stream.sessions.append(session_id)
        stream.boot = as_text(event.metadata.get("boot")) or stream.boot
        if event.type in _LINEAGE:
            self._below = None
        self._session(record, stream, session)

    def state(self) -> dict[str, Any]:
        """The streams' figures and the tree of sessions, as JSON."""
        return {
            "streams": [self.stream_json(stream_id) for stream_id in self.streams],
            "lineage": self.lineage.state(),
            "gaps": self.gaps(),
        }

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
        return [stream.id for stream in self.streams.values() if boot and stream.boot == boot]

    def _session(self, record: Record, stream: StreamView, session: SessionView) -> None:
        event, payload = record.event, record.event.payload
        if event.type in _TITLED:
            session.title = as_text(payload.get("title")) or session.title
        if event.type in _ENDS_ASKS:
            # OpenCode keeps its asks only in memory, so they end when the turn or the process ends.
            session.asks.clear()
            session.calls.clear()
        if event.type in (CREATED, RESUMED):
            session.agent = session.agent or as_text(payload.get("agent"))
            session.ended = None
            stream.directory = stream.directory or as_text(payload.get("directory"))
            stream.project = stream.project or as_text(payload.get("project"))
        elif event.type == ENDED:
            session.ended = as_text(payload.get("reason")) or "ended"
        elif event.type == CHECKPOINT:
            self._checkpoint(record, session)
        elif event.type == "turn.started":
            # An earlier turn without an end is over too: its OpenCode died, and the session continued later.
            stream.turns += 1
            session.agent = session.agent or event.actor
            session.turn, session.is_turn_open = as_text(payload.get("message")), True
            pid = event.metadata.get("pid")
            session.turn_ms, session.pid = event.ts, pid if isinstance(pid, int) else 0
        elif event.type == "turn.ended" and payload.get("message") == session.turn:
            session.is_turn_open = False
            session.asks.clear()
            session.calls.clear()
        elif event.type == STEP_STARTED:
            text, _ = cut_middle(call_text(payload), _ASK_LENGTH)
            session.calls[as_text(payload.get("part"))] = OpenCall(event.ts, text)
        elif event.type == "execution.step":
            session.calls.pop(as_text(payload.get("part")), None)
            child = self.sessions.get(as_text(payload.get("child")))
            about = as_mapping(payload.get("metadata"))
            # OpenCode 1 marks such a call, and OpenCode 2 says that the child goes on after it.
            if child is not None and (about.get("background") is True or about.get("status") == "running"):
                child.is_background = True
            stream.cost = add_cost(stream.cost, payload)
            add_tokens(stream.tokens, payload.get("tokens"))

    def _checkpoint(self, record: Record, session: SessionView) -> None:
        payload = record.event.payload
        request = as_text(payload.get("request"))
        if payload.get("state") == "asked" and not record.event.metadata.get("history"):
            # Whoever asked in a session that was imported waits for nobody.
            text, _ = cut_middle(asked_text(payload), _ASK_LENGTH)
            session.asks[request] = OpenAsk(request, session.id, record.event.id, record.event.ts, text)
        else:
            session.asks.pop(request, None)

    def end_dead(self, still_runs: Callable[[int, int], bool]) -> None:
        """Close the open turns whose OpenCode process has ended, and the asks of these turns.

        The sidecar will record the end of these turns. Until then, or while no sidecar is running, readers must not
        show these turns as active.
        """
        for session in self.sessions.values():
            if session.is_turn_open and session.pid and not still_runs(session.pid, session.turn_ms):
                session.is_turn_open = False
                session.asks.clear()

    # --- queries ---

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
        found = [
            ask
            for session in self.sessions.values()
            if session.asks and (streams is None or session.stream in streams)
            for ask in session.asks.values()
        ]
        return sorted(found, key=lambda ask: ask.since_ms)

    def directory(self, stream_id: str) -> str:
        """The directory in which the stream's session ran. For a joined stream without a directory, the directory of
        its root session."""
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.directory:
            stream = self.streams.get(self.root_stream(stream_id))
        return stream.directory if stream is not None else ""

    def own_session(self, stream_id: str) -> SessionView | None:
        """The session after which the stream is named; ``None`` for ``system`` and similar streams."""
        stream = self.streams.get(stream_id)
        return self.sessions[stream.sessions[0]] if stream is not None and stream.sessions else None

    def fork(self, session_id: str) -> str | None:
        """The session from which a session was forked, if any."""
        known = self.lineage.sessions.get(session_id)
        return known.fork if known is not None else None

    def root_stream(self, stream_id: str) -> str:
        """The stream of the root session to which a stream belongs; the stream itself if no parent is known."""
        session = self.own_session(stream_id)
        if session is None:
            return stream_id
        root = self.lineage.sessions.get(self.lineage.root(session.id))
        return root.stream if root is not None else stream_id

    def status(self, stream_id: str) -> str:
        """``waiting`` for a person, or ``active`` while a turn is open; otherwise ``ended``, ``idle`` or ``unknown``.

        The parent of an ``unknown`` session is not known.
        """
        stream = self.streams[stream_id]
        if any(self.sessions[session].asks for session in stream.sessions):
            return "waiting"
        if any(self.sessions[session].is_active for session in stream.sessions):
            return "active"
        own = self.own_session(stream_id)
        if own is not None and own.ended is not None:
            return "ended"
        known = self.lineage.sessions.get(own.id) if own is not None else None
        return "unknown" if known is not None and not known.known else "idle"

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
            "directory": self.directory(stream_id),
            "project": stream.project,
            "asks": [msgspec.structs.asdict(ask) for ask in self.asks({stream_id})],
            "forgotten": stream.forgotten,
            "gaps": self.gaps(stream_id),
            "sessions": len(stream.sessions),
            "turns": stream.turns,
            "cost": stream.cost,
            "tokens": stream.tokens,
            "root": root if root != stream_id else None,
            "fork": self.fork(own.id) if own is not None else None,
        }

    def children(self, session_id: str) -> list[SessionView]:
        """Child sessions in the order they first appeared."""
        if self._below is None:
            self._below = {}
            for one in self.lineage.sessions.values():
                # A root is not a child here, even if sessions wrongly name each other as parents.
                if one.parent is not None and one.id in self.sessions and self.lineage.root(one.id) != one.id:
                    self._below.setdefault(one.parent, []).append(self.sessions[one.id])
        return self._below.get(session_id, [])

    def roots(self) -> list[SessionView]:
        """Sessions without a known parent, in the order they first appeared."""
        return [self.sessions[s.id] for s in self.lineage.roots() if s.id in self.sessions]


def add_cost(total: float, payload: dict[str, Any]) -> float:
    """``total`` plus the cost of a step, unless it is a number that no step can cost."""
    cost = payload.get("cost")
    # Round the sum, so that it does not depend on the order in which the costs are added.
    return round(total + cost, 9) if can_be(cost, MOST_COST) else total


_TITLED: Final = frozenset({CREATED, RESUMED, ENDED, "turn.ended", "opencode.session.renamed"})
_ENDS_ASKS: Final = frozenset({RESUMED, ENDED, "turn.started"})
_ASK_LENGTH: Final = 300
"""How many characters of an ask or a call a snapshot keeps."""
_LINEAGE: Final = frozenset({CREATED, RESUMED, "lineage.linked"})


class _Dump(msgspec.Struct):
    lineage: msgspec.Raw
    streams: list[StreamView]
    sessions: list[SessionView]
    losses: list[Loss]
    records: int
    cut: int
    position: int


_DECODER: Final = msgspec.json.Decoder(_Dump)
