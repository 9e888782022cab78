"""The translator's memory of each session, computed from the events that the translator has produced.

A replay of the log rebuilds all of this memory, so the successor of a killed sidecar continues as if nothing had
happened. Updates that are not final cannot be rebuilt; the translator keeps them elsewhere, and they may be lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import PlainSerializer, TypeAdapter

from bridge.opencode.capture.shapes import beginning, is_aborted_shell, mapping
from bridge.opencode.capture.stored_map import Changes, Found, LazyMap, Rows
from bridge.opencode.capture.tokens import add_tokens
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.lineage import CREATED, ENDED, FORKED, LINKED, MOVED, RESUMED, RETRIED, TURN_STARTED, in_turn, traceparent

K = TypeVar("K")
V = TypeVar("V")

STATE_VERSION = 15
"""Version of the dumped state and of the fold. Increasing it invalidates older snapshots."""

INTERRUPTED = "interrupted"

SHELL = "shell"
"""The trigger of a turn that consists of one ``!`` command of a person. No model answers it."""

REMEMBERED = 256
"""How many inputs, turns and calls a session remembers. Older ones are still recorded only once, because the log has
their keys."""

BUSY_SESSIONS = 64
"""How many sessions remember ``REMEMBERED`` entries: the sessions that most recently began a turn or appeared. This
limit keeps the state of any log small, and with it the snapshot, the start-up time and the memory use."""

PROMPTS = 16
"""How many prompts a session remembers with their first words, so that an undone prompt can be named."""

PROMPT_LENGTH = 80

UNDONE = "opencode.message.removed"
RENAMED = "opencode.session.renamed"
REVERTED = "opencode.session.reverted"

REMEMBERED_AT_REST = 4
"""How many entries of each kind are remembered for a session that is not among the ``BUSY_SESSIONS``."""


# Equal states must dump to equal bytes. Sets have no order and the log reorders a payload's fields, so both are sorted.
Names = Annotated[set[str], PlainSerializer(sorted, return_type=list[str])]
Fields = Annotated[dict[str, Any], PlainSerializer(lambda found: orjson.loads(canonical(found)))]
# ``int`` comes first in the union, because a count loaded as 10.0 would change the payload of ``turn.ended``.
Sums = Annotated[dict[str, int | float], PlainSerializer(lambda found: dict(sorted(found.items())))]


@dataclass(slots=True)
class Turn:
    user_message: str
    assistant_message: str
    """The first answer. Later answers sort after this one, and answers of earlier turns sort before it."""
    event_id: str
    started_ms: int
    boot: str
    agent: str
    model: Fields | None
    trigger: str = ""
    place: tuple[str, int] = ("", 0)
    """The plugin instance that reported the start, and the number of its item."""
    pid: int | None = None
    """The OpenCode process that is running the turn; ``None`` if unknown."""
    host_seq: int | None = None
    """The number in its session of OpenCode 2's event that began the turn; ``None`` if unknown."""
    last_ms: int = 0
    finish: str | None = None
    error: str | None = None
    steps: int = 0
    cost: float = 0.0
    tokens: Sums = field(default_factory=dict)
    counted: Names = field(default_factory=set)
    """Keys of the steps that the sums include, so that a step that is sent again after a lost ack counts only once."""


@dataclass(slots=True)
class SessionState:
    """What the translator remembers about one session: its place in the log, how far it was read, and the events that
    may be the cause of its next event.
    """

    id: str
    stream: str
    root: str
    parent: str | None
    known: bool
    event_id: str
    spawned: str = ""
    """The id of the ``agent.spawned`` event that names the session."""
    trace: str = ""
    """The session's ``traceparent``, which never changes; empty if it follows from ``root``."""
    directory: str | None = None
    project: str | None = None
    boots: Names = field(default_factory=set)
    born: bool = False
    """True if the session's creation is in the log. In that case, none of the session's earlier turns can be
    missing."""
    first_message: str | None = None
    """The user message of the session's first input or turn. OpenCode's ids ascend, so a message with a lower id is
    from another session."""
    fork: str = ""
    """The session that this one was forked from, if OpenCode does not name it at the creation."""
    reverted: str | None = None
    """The message from which on a person has undone the session, until the next prompt makes that final."""
    misread: bool = False
    """True if an item of the session was not understood and was kept whole."""
    ended: bool = False
    host: str = ""
    """A short name for the OpenCode 2 service that has the session."""
    hosted_ms: int = 0
    """Since when OpenCode 2 has a session that OpenCode 1 began; 0 for any other session."""
    last_ms: int = 0
    title: str | None = None
    agent: str = ""
    """The OpenCode agent that answered last."""
    turn: Turn | None = None
    last_turn: Turn | None = None
    last_end: str | None = None
    ended_seq: int = 0
    """The highest number in its session of an event of OpenCode 2 that ended a turn."""
    compacted: str | None = None
    inputs: OrderedDict[str, str] = field(default_factory=OrderedDict)
    prompts: OrderedDict[str, str] = field(default_factory=OrderedDict)
    turns: OrderedDict[str, str] = field(default_factory=OrderedDict)
    calls: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Digests of the inputs of finished tool calls, each with its turn's, by the provider's call id, which may be
    empty."""
    asks: OrderedDict[str, str] = field(default_factory=OrderedDict)
    waiting: OrderedDict[str, tuple[int, str, str]] = field(default_factory=OrderedDict)
    """The requests that wait for an answer, each with the time since which it could be answered. If another permission
    was answered meanwhile so that OpenCode may answer this one, too: that permission and its answer."""
    errors: OrderedDict[str, str] = field(default_factory=OrderedDict)
    spawning: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Ids of ``agent.spawned`` events, by the task part that named the child."""

    def traceparent(self, type_: str = "", message: str | None = None) -> str:
        """The session's own, or that of the turn that answers ``message``, once the turn has begun."""
        own = self.trace or traceparent(self.root, self.id)
        has_begun = message in self.turns or type_ == TURN_STARTED
        return in_turn(own, message) if message is not None and has_begun else own

    def handed_from(self, agent: str, trigger: str) -> str | None:
        """The agent that had the session until now, if this turn hands the session to another agent."""
        return self.agent if self.agent and answers(agent, trigger) and agent != self.agent else None

    def rest(self) -> None:
        """Forget all but the newest entries, because other sessions are busier now."""
        for known in (self.inputs, self.prompts, self.turns, self.calls, self.asks, self.errors, self.spawning):
            while len(known) > REMEMBERED_AT_REST:
                known.popitem(last=False)


def answers(agent: str, trigger: str) -> bool:
    """Whether an agent answers in a turn: in every turn except a compaction and a person's ``!`` command."""
    return trigger not in ("compaction", SHELL) and agent not in ("", "compaction", "opencode")


def input_digest(value: Any) -> str:
    return sha256(canonical(value)).hexdigest()[:16]


def turn_digest(user: str | None) -> str:
    """Tells a session's turns apart in few letters; empty if the turn is unknown."""
    return sha256(user.encode("utf-8", "replace")).hexdigest()[:8] if user else ""


def remember(known: OrderedDict[K, V], key: K, value: V, most: int = REMEMBERED) -> None:
    """Add ``key``; if there are more than ``most`` entries, forget the oldest."""
    known[key] = value
    if len(known) > most:
        known.popitem(last=False)


def found_by(session: SessionState) -> Found:
    """What a session can be found by, wherever it rests."""
    return Found(
        session.stream,
        session.parent or "",
        not session.known,
        session.turn is not None,
        session.ended,
        session.directory or "",
        session.host,
        tuple(session.boots),
        tuple({session.first_message or "", *session.inputs}),
    )


class CaptureState:
    """All sessions, folded from capture events. Call ``apply`` in position order, at least once per event.

    Sessions that are not in use rest in ``rows``, which the caller fills with ``changes``.
    """

    def __init__(self, rows: Rows | None = None) -> None:
        self.sessions: LazyMap[SessionState] = LazyMap(_dumped, _loaded, found_by, rows)
        self.bus_events: OrderedDict[str, str] = OrderedDict()
        """Bus events that were recorded as an error or a compaction. Only the id of such an event shows that it was
        sent again."""
        self.spawns: OrderedDict[str, str] = OrderedDict()
        """Ids of ``agent.spawned`` events, by the sessions that have not appeared yet."""
        self.busy: OrderedDict[str, None] = OrderedDict()
        """The sessions with full memory, the least recently busy first."""

    def changes(self) -> tuple[bytes, Changes]:
        """What a snapshot of version ``STATE_VERSION`` must store: the state without its sessions, as JSON for
        ``load``; and the rows of the sessions that may have changed since ``sessions.saved``."""
        return _adapter(_Rest).dump_json(_Rest(self.bus_events, self.spawns, list(self.busy))), self.sessions.changes()

    @classmethod
    def load(cls, dumped: bytes, rows: Rows) -> CaptureState:
        """Restore the state from what ``changes`` returned. Raises ``ValueError`` if the bytes did not come from
        ``changes``."""
        found: _Rest = _adapter(_Rest).validate_json(dumped)
        state = cls(rows)
        state.bus_events, state.spawns = OrderedDict(found.bus_events), OrderedDict(found.spawns)
        # A removal deletes the rows of sessions, and leaves the rest as it was.
        state.busy = OrderedDict.fromkeys(each for each in found.busy if each in state.sessions)
        return state

    def unknown(self) -> list[SessionState]:
        return [found for each in self.sessions.having("unknown") if (found := self.sessions.look(each)) is not None]

    def open_turns(self) -> list[tuple[SessionState, Turn]]:
        """The sessions with an open turn according to the log. The OpenCode processes of these sessions may have
        died."""
        found = map(self.sessions.look, self.sessions.having("turn"))
        return [(each, each.turn) for each in found if each is not None and each.turn is not None]

    def turn_of(self, session_id: str) -> str | None:
        """The user message that a session is answering; ``None`` if unknown."""
        session = self.sessions.get(session_id)
        return session.turn.user_message if session is not None and session.turn is not None else None

    def spawned(self, session_id: str) -> str | None:
        """The id of the ``agent.spawned`` event that names a session. The session may not have appeared yet."""
        session = self.sessions.get(session_id)
        return (session.spawned if session is not None else self.spawns.get(session_id)) or None

    def drop(self, streams: Collection[str], sessions: Collection[str] = ()) -> set[str]:
        """Drop these sessions and the sessions in these streams, and return which they were. The result equals a fold
        over a log without the payloads of these sessions.

        A dropped session that sends another hook appears as resumed.
        """
        gone = {each for each in sessions if each in self.sessions}
        gone.update(self.sessions.having("stream", *streams) if streams else ())
        for session_id in gone:
            del self.sessions[session_id]
            self.busy.pop(session_id, None)
        return gone

    def apply(self, event: StreamEvent) -> None:
        payload = event.payload
        bus_id = event.metadata.get("event")
        if event.type in ("agent.error", "lifecycle.session.compacted") and isinstance(bus_id, str):
            remember(self.bus_events, bus_id, event.id)
        session_id = payload.get("session")
        if not isinstance(session_id, str):
            return
        if event.type in (CREATED, RESUMED):
            self._appeared(event, session_id)
            return
        session = self.sessions.get(session_id)
        if session is None:
            return
        if event.type == LINKED:
            session.known, session.parent = True, payload.get("parent")
        elif event.type == ENDED:
            session.ended, session.turn = True, None
        elif event.type in ("human.input", "agent.input"):
            session.first_message = session.first_message or payload["message"]
            remember(session.inputs, payload["message"], event.id)
            remember(session.prompts, payload["message"], beginning(payload, PROMPT_LENGTH), PROMPTS)
        elif event.type == "turn.started":
            self._turn_started(session, event)
        elif event.type == "turn.ended":
            session.waiting.clear()
            if session.turn is not None and session.turn.user_message == payload["message"]:
                session.turn.counted.clear()  # the sums are final, so the keys of counted steps are no longer needed
                newest = session.last_turn is None or session.last_turn.started_ms <= session.turn.started_ms
                session.last_turn, session.turn = session.turn if newest else session.last_turn, None
            session.last_end, session.title = event.id, payload.get("title") or session.title
            session.ended_seq = max(session.ended_seq, event.metadata.get("host_seq") or 0)
        elif event.type == "execution.step":
            self._step(session, event)
        elif event.type == "agent.error":
            if payload.get("message"):
                remember(session.errors, payload["message"], event.id)
            if session.turn is not None and payload.get("turn") == session.turn.user_message:
                session.turn.error = str(payload.get("name"))
        elif event.type == "agent.spawned":
            self._spawned_child(session, event)
        elif event.type == "workflow.checkpoint":
            remember(session.asks, f"{payload['request']}:{payload['state']}", event.id)
            self._asked(session, event)
        elif event.type == "lifecycle.session.compacted":
            session.compacted = event.id
        elif event.type == RENAMED:
            session.title = payload.get("title") or session.title
        elif event.type == MOVED:
            session.directory = payload.get("directory") or session.directory
            session.project = payload.get("project") or session.project
        elif event.type == FORKED:
            session.fork = payload["fork"]["session"]
        elif event.type == REVERTED:
            session.reverted = payload.get("message")
        elif event.type == UNDONE:
            undone = mapping(payload.get("properties")).get("messageID")
            session.inputs.pop(str(undone), None)
            session.reverted = None if undone == session.reverted else session.reverted
        elif event.type.startswith("opencode.") and event.type != RETRIED:
            session.misread = True
        self._hosted(session, event)
        if session.turn is not None:
            session.turn.last_ms = max(session.turn.last_ms, event.ts)

    def _asked(self, session: SessionState, event: StreamEvent) -> None:
        request, reply = event.payload["request"], event.payload.get("reply")
        if event.payload["state"] == "asked":
            remember(session.waiting, request, (event.ts, "", ""))
            return
        session.waiting.pop(request, None)
        if reply in ("reject", "always") and "with" not in event.payload:
            session.waiting.update(dict.fromkeys(session.waiting, (event.ts, request, reply)))

    def _appeared(self, event: StreamEvent, session_id: str) -> None:
        payload = event.payload
        session = self.sessions.get(session_id)
        if session is None:
            parent = self.sessions.get(payload.get("parent") or "")
            known = payload.get("lineage") != "unknown"
            session = self.sessions[session_id] = SessionState(
                id=session_id,
                stream=event.stream_id,
                root=parent.root if parent is not None and known else session_id,
                parent=payload.get("parent"),
                known=known,
                event_id=event.id,
                spawned=self.spawns.pop(session_id, ""),
                trace=event.traceparent or "",
                directory=payload.get("directory"),
                title=payload.get("title"),
                born=event.type == CREATED,
            )
            self._is_busy(session)
        session.ended, session.title = False, payload.get("title") or session.title
        session.project = session.project or payload.get("project")
        self._hosted(session, event)
        boot = event.metadata.get("boot")
        if isinstance(boot, str) and boot not in session.boots:
            session.boots.add(boot)
            self._is_busy(session)

    def _hosted(self, session: SessionState, event: StreamEvent) -> None:
        service = event.metadata.get("service")
        if isinstance(service, str):
            if not session.host and session.event_id != event.id:
                session.hosted_ms = event.ts
            session.host = service
        session.last_ms = max(session.last_ms, event.ts)

    def _is_busy(self, session: SessionState) -> None:
        self.busy[session.id] = None
        self.busy.move_to_end(session.id)
        if len(self.busy) > BUSY_SESSIONS:
            resting, _ = self.busy.popitem(last=False)
            # A snapshot that an older version saved may name a session that was removed since.
            if resting in self.sessions:
                self.sessions[resting].rest()

    def _turn_started(self, session: SessionState, event: StreamEvent) -> None:
        payload, current = event.payload, session.turn
        if event.metadata.get("history") and current is not None and event.ts < current.started_ms:
            remember(session.turns, payload["message"], event.id)
            return  # an older turn, which was recorded later
        session.turn = Turn(
            user_message=payload["message"],
            assistant_message=payload.get("assistant_message") or "",
            event_id=event.id,
            started_ms=event.ts,
            boot=str(event.metadata.get("boot")),
            agent=payload.get("agent") or "",
            model=payload.get("model"),
            trigger=str(payload.get("trigger")),
            place=(str(event.metadata.get("instance")), int(event.metadata.get("seq") or 0)),
            host_seq=event.metadata.get("host_seq"),
            pid=pid if type(pid := event.metadata.get("pid")) is int and pid > 0 else None,
        )
        if answers(session.turn.agent, session.turn.trigger):
            session.agent = session.turn.agent
        session.compacted = None
        session.first_message = session.first_message or payload["message"]
        if payload["message"] not in session.turns:
            self._is_busy(session)
        remember(session.turns, payload["message"], event.id)

    def _step(self, session: SessionState, event: StreamEvent) -> None:
        payload = event.payload
        if payload.get("kind") == "tool":
            # Prefer the input that `tool.execute.after` reported: call ids can repeat or be empty, so the input in the
            # part may belong to another call.
            call, ran = payload.get("call") or "", input_digest(payload.get("executed_input", payload.get("input")))
            in_turn = f"{session.calls.get(call, '')} {ran}{turn_digest(payload.get('turn'))}"
            remember(session.calls, call, in_turn[-4000:])
        turn = session.turn
        if turn is None or payload.get("turn") != turn.user_message or event.idempotency_key in turn.counted:
            return
        turn.counted.add(event.idempotency_key)
        turn.steps += 1
        if payload.get("kind") == "inference":
            turn.finish = payload.get("finish")
            turn.cost += payload.get("cost") or 0
            add_tokens(turn.tokens, payload.get("tokens"))
        elif turn.trigger == SHELL and payload.get("status") == "completed" and not is_aborted_shell(payload):
            turn.finish = "stop"

    def _spawned_child(self, session: SessionState, event: StreamEvent) -> None:
        child = event.payload["child"]
        remember(session.spawning, event.payload["part"], event.id)
        known = self.sessions.get(child)
        if known is not None:
            known.spawned = event.id
        else:
            remember(self.spawns, child, event.id)


@dataclass(slots=True)
class _Rest:
    bus_events: OrderedDict[str, str]
    spawns: OrderedDict[str, str]
    busy: list[str]


@cache
def _adapter(type_: type[Any]) -> TypeAdapter[Any]:
    """Built when first used: a sidecar starts sooner without it."""
    return TypeAdapter(type_)


def _dumped(session: SessionState) -> bytes:
    return _adapter(SessionState).dump_json(session)


def _loaded(body: bytes) -> SessionState:
    found: SessionState = _adapter(SessionState).validate_json(body)
    return found
