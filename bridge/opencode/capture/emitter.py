"""Makes events from hook items: the translator's bottom layer. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

from bridge.opencode.capture import shapes
from bridge.opencode.capture.history import HISTORY_INSTANCE
from bridge.opencode.capture.shapes import mapping, text
from bridge.opencode.capture.state import REVERTED, CaptureState, SessionState, Turn, remember
from bridge.opencode.link.frames import HookItem
from streams.event import StreamEvent, is_stream_id
from streams.identity import Identity
from streams.lineage import CREATED, LINKED, RESUMED, span_id, traceparent
from streams.trace import parse_traceparent

HOLD_S = 2.0
"""Maximum number of seconds that an item waits, unacknowledged, for its counterpart or its parent."""

_SEEN_EVENTS = 50_000

_ROOTS = frozenset({"human.input", CREATED, RESUMED, LINKED, "capture.gap", "opencode.unreadable"})
"""Event types that begin a causal chain; for all others a missing cause is counted."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The plugin instance that sent an item: the boot (one OpenCode process) and the instance in it.

    ``pid`` is the id of the process; 0 if unknown. ``service`` is a short name for the OpenCode 2 service whose
    database the process uses; empty in OpenCode 1.
    """

    boot_id: str
    instance: str
    pid: int = field(default=0, compare=False)
    service: str = field(default="", compare=False)


class Asked(NamedTuple):
    """What asked for background work: the ``cause`` and ``traceparent`` of what follows, and the work itself.

    ``parent`` is the session that asked, in the turn that answers the user message ``turn``, with the tool call
    ``call``; each is ``None`` if unknown.
    """

    cause: str
    traceparent: str
    parent: str | None = None
    turn: str | None = None
    call: str | None = None
    agent: str | None = None
    title: str | None = None


Asks = Callable[[str, str], Asked | None]
"""Finds what asked for a session, or for a message in the session. The arguments are the session's id, and the mark
with which the sidecar began the session or sent the message."""


Answered = Callable[[str, str, dict[str, Any]], str]
"""Finds who gave an answer that the sidecar sent to OpenCode; empty for an answer that was given in OpenCode. The
arguments are the session's id, the request's id, and the answer as it will be recorded."""

LEAST_PERSON_MS: Final = 100
"""A person needs at least this many ms to read and reject an ask. ``opencode run`` rejects one faster, and OpenCode
reports both rejections in the same way."""


class Token(NamedTuple):
    """Identifies one item of one origin. The item is finished when all events made from it are durable."""

    origin: Origin
    seq: int


@dataclass(slots=True)
class Drained:
    """What the caller must do: append ``events`` in order, then finish the items in ``done``; ask OpenCode about the
    sessions in ``asks``.
    """

    events: list[StreamEvent] = field(default_factory=list)
    done: list[Token] = field(default_factory=list)
    asks: list[tuple[str, Origin]] = field(default_factory=list)


@dataclass(slots=True)
class Entry:
    """An item, and what it tells (see ``shapes.read``)."""

    token: Token
    item: HookItem
    source: str = ""
    event_id: str | None = None
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Late:
    """An item that waits because another item is about to follow: an abort waits for idle, and idle waits for
    unfinished tools.
    """

    entry: Entry
    deadline: float


@dataclass(slots=True)  # not frozen, because creating a frozen dataclass takes four times as long
class PartTurn:
    """The turn that a part belongs to: the payload fields that name the turn, and the part's cause, agent, user message
    and model."""

    payload: dict[str, Any]
    cause: str | None
    agent: str
    user: str | None
    model: dict[str, Any] | None
    assistant: bool


Cleaned = Callable[[Any], tuple[Any, bytes]]
"""Redacts a value, and says its canonical form, or nothing if it was not written: see ``Redactor.cleaned``."""


def as_it_is(value: Any) -> tuple[Any, bytes]:
    """Redacts nothing."""
    return value, b""


class Means(NamedTuple):
    """What every translator of a sidecar works with: the redaction, how many seconds an item waits for its counterpart
    or its parent, and who knows why the sidecar asked a session or answered a request."""

    cleaned: Cleaned = as_it_is
    hold_s: float = HOLD_S
    asked: Asks = lambda session, mark: None
    answered: Answered = lambda session, request, answer: ""


class Emitter:
    """Stamps events, applies them to the state, and collects the results."""

    def __init__(self, identity: Identity, state: CaptureState, means: Means) -> None:
        self.identity, self.state, self.means = identity, state, means
        self.counts: Counter[str] = Counter()
        self.now = 0.0
        self._out = Drained()
        self._seen: OrderedDict[str, None] = OrderedDict()

    def clean(self, value: Any) -> Any:
        """``value`` without secrets."""
        return self.means.cleaned(value)[0]

    def drain(self) -> Drained:
        out, self._out = self._out, Drained()
        return out

    def finish(self, token: Token) -> None:
        """Mark an item as done: it is finished once the events emitted so far are durable."""
        self._out.done.append(token)

    def nothing(self, *_: object) -> bool:
        return False

    def is_seen(self, event_id: str) -> bool:
        """Whether an event of OpenCode came before, perhaps from a second copy of the plugin."""
        if event_id in self._seen:
            return True
        remember(self._seen, event_id, None, _SEEN_EVENTS)
        return False

    def ask(self, session_id: str, origin: Origin) -> None:
        self._out.asks.append((session_id, origin))

    def late(self, entry: Entry) -> Late:
        return Late(entry, self.now + self.means.hold_s)

    def own_key(self, entry: Entry) -> str:
        origin = entry.token.origin
        return f"{origin.boot_id}:{origin.instance}:{entry.token.seq}"

    def provenance(self, entry: Entry, type_: str) -> dict[str, Any]:
        """The metadata of an event made from this item, which say where the event comes from."""
        origin = entry.token.origin
        found: dict[str, Any] = {"boot": origin.boot_id, "seq": entry.token.seq, "hook": entry.item.hook}
        if entry.event_id is not None:
            found["event"] = entry.event_id
        if type_ == "turn.started":
            found["instance"] = origin.instance
            if origin.pid:
                found["pid"] = origin.pid
        if origin.instance == HISTORY_INSTANCE:
            found["history"] = True
        return found

    def emit(
        self,
        entry: Entry | None,
        *,
        type_: str,
        key: str,
        payload: dict[str, Any],
        cause: str | None,
        actor: str,
        stream: str,
        trace: str | None,
        correlation: str | None = None,
        at_ms: int | None = None,
    ) -> StreamEvent:
        """Make one event and apply it to the state, as a replay of the log would do.

        The event gets the time of the item; without an item, it gets ``at_ms``, or the current time.
        """
        payload, canonical = self.means.cleaned(payload)
        metadata = self.provenance(entry, type_) if entry is not None else {}
        if (project := self._project(type_, payload)) is not None:
            metadata["project"] = project  # everything that follows from the event has it, too
        if cause is None and type_ not in _ROOTS:
            self.counts["cause_unknown"] += 1
        event = self.identity.stamp(
            {
                "ts": shapes.moment(entry.item.t) if entry is not None else at_ms,
                "type": type_,
                "stream_id": stream,
                "idempotency_key": safe_key(f"{type_}:{key}"),
                "causation_id": cause,
                "correlation_id": correlation,
                "actor": actor,
                "source": {"agent": actor, "adapter": "opencode"},
                "traceparent": trace,
                "payload": payload,
                "metadata": metadata,
            },
            canonical,
        )
        if not self.is_recorded(event):
            self.state.apply(event)
            self._out.events.append(event)
        return event

    def _project(self, type_: str, payload: dict[str, Any]) -> str | None:
        """The project of the session that an event is about; ``None`` if unknown."""
        session = self.state.sessions.get(text(payload.get("session")) or "")
        known = session.project if session is not None else None
        return known or (text(payload.get("project")) if type_ in (CREATED, RESUMED) else None)

    def is_recorded(self, event: StreamEvent) -> bool:
        return False

    def put(
        self,
        entry: Entry | None,
        session: SessionState | None,
        type_: str,
        key: str,
        payload: dict[str, Any],
        *,
        cause: str | None = None,
        actor: str | None = None,
        correlation: str | None = None,
        turn: PartTurn | Turn | None = None,
        at_ms: int | None = None,
    ) -> StreamEvent:
        """Emit an event of a session (or of ``system``); the session's turn supplies missing values."""
        if isinstance(turn, PartTurn):
            cause, correlation = cause or turn.cause, correlation or turn.user
            actor = actor or turn.agent
        elif turn is not None:
            cause, correlation = cause or turn.event_id, correlation or turn.user_message
            actor = actor or turn.agent
        session_id = session.id if session is not None else "-"
        return self.emit(
            entry,
            type_=type_,
            key=f"{session_id}:{key}",
            payload={"session": session.id, **payload} if session is not None else payload,
            cause=cause,
            actor=actor or "opencode",
            stream=session.stream if session is not None else "system",
            trace=session.traceparent(type_, correlation) if session is not None else None,
            correlation=correlation,
            at_ms=at_ms,
        )

    def put_appeared(
        self,
        entry: Entry,
        info: dict[str, Any],
        lineage: str,
        parent: SessionState | None,
        asked: Asked | None,
        *,
        created: bool,
    ) -> None:
        """Record that a session was created or resumed. ``info`` has the fields of ``shapes.appeared``, and perhaps
        ``fork``."""
        session_id = str(info["id"])
        self.emit(
            entry,
            type_=CREATED if created else RESUMED,
            key=session_id if created else f"{session_id}:{entry.token.origin.boot_id}",
            payload={**shapes.appeared(info, lineage), **shapes.present(fork=info.get("fork"))},
            cause=self.state.spawned(session_id) or (asked and asked.cause) if created else None,
            actor=text(info.get("agent")) or "opencode",
            stream=parent.stream if parent is not None else safe_stream(session_id),
            trace=self.trace_at(session_id, parent, asked),
        )

    def put_input(
        self,
        entry: Entry,
        session: SessionState,
        message: str,
        payload: dict[str, Any],
        *,
        human: bool,
        cause: str | None,
    ) -> None:
        """Record an input. What a person wrote has no cause."""
        type_, actor = ("human.input", "user") if human else ("agent.input", "opencode")
        cause = None if human else cause
        self.put(entry, session, type_, message, payload, cause=cause, actor=actor, correlation=message)

    def put_turn_started(
        self, entry: Entry, session: SessionState, payload: dict[str, Any], cause: str | None, handed: Entry
    ) -> None:
        """Record the beginning of a turn, and before it, made from ``handed``, that another agent takes over."""
        message, agent = payload["message"], payload["agent"]
        about: dict[str, Any] = {"cause": cause, "actor": agent, "correlation": message}
        previous = session.handed_from(agent, payload["trigger"])
        if previous is not None:
            handoff = {"message": message, "from": previous, "to": agent}
            self.put(handed, session, "agent.handoff", message, handoff, **about)
        self.put(entry, session, "turn.started", message, payload, **about)

    def put_turn_ended(
        self,
        entry: Entry | None,
        session: SessionState,
        turn: Turn,
        outcome: str,
        title: str | None,
        at_ms: int | None = None,
    ) -> None:
        payload = shapes.present(
            message=turn.user_message,
            outcome=outcome,
            error=turn.error,
            steps=turn.steps,
            model=turn.model,
            tokens=turn.tokens or None,
            cost=turn.cost,
            title=title,
        )
        self.put(entry, session, "turn.ended", turn.user_message, payload, turn=turn, at_ms=at_ms)

    def put_checkpoint(
        self,
        entry: Entry,
        session: SessionState | None,
        turn: PartTurn | Turn | None,
        *,
        request: str,
        kind: str,
        state: str,
        content: dict[str, Any],
        call: str | None = None,
    ) -> None:
        """Record that OpenCode asks a person, or how the ask ended. The actor of an answer is who gave it."""
        if session is not None and f"{request}:{state}" in session.asks:
            self.counts["duplicate:workflow.checkpoint"] += 1
            return
        actor = None
        if state != "asked":
            content = {"state": state, **self.clean(content)}
            actor, first = self._who_answered(entry, session, request, content)
            content |= shapes.present(**{"with": first})
        user = turn.user if isinstance(turn, PartTurn) else turn.user_message if turn is not None else None
        self.put(
            entry,
            session,
            "workflow.checkpoint",
            f"{request}:{state}",
            {**shapes.present(kind=kind, state=state, request=request, call=call, turn=user), **content},
            cause=session.asks.get(f"{request}:asked") if state != "asked" and session is not None else None,
            actor=actor,
            turn=turn,
        )

    def _who_answered(
        self, entry: Entry, session: SessionState | None, request: str, answer: dict[str, Any]
    ) -> tuple[str, str | None]:
        """Who gave an answer, and the request whose answer it follows from, if OpenCode answered it together with that
        one: it rejects everything else that the session waits for, or allows what ``always`` allows, too."""
        if session is None:
            return "user", None
        if by := self.means.answered(session.id, request, answer):
            return by, None
        since, first, reply = session.waiting.get(request, (0, "", ""))
        is_prompt = 0 <= shapes.moment(entry.item.t) - since < LEAST_PERSON_MS
        is_rejected = "reject" in (answer.get("reply"), answer["state"][:6])
        if first and answer.get("reply") == reply and (is_rejected or is_prompt):
            return "opencode", first
        return "opencode" if is_rejected and is_prompt and not answer.get("message") else "user", None

    def link(self, session: SessionState, parent_id: str | None, entry: Entry | None) -> None:
        """Link a session of unknown lineage to its parent's root. A session without a parent becomes a root itself."""
        parent = self.state.sessions.get(parent_id) if parent_id else None
        if session.known or (parent_id and parent is None):
            return
        self.emit(
            entry,
            type_=LINKED,
            key=session.id,
            payload=shapes.present(
                session=session.id, parent=parent_id, root=parent.root if parent is not None else session.id
            ),
            cause=session.event_id,
            actor="opencode",
            stream=session.stream,
            trace=session.traceparent(),
        )

    def revert(self, entry: Entry, session: SessionState, key: str, message: str | None) -> None:
        """Record that a person has undone the session from ``message`` on; ``None``: nothing is undone any more."""
        first = message or session.reverted
        if first is not None and message != session.reverted:
            payload = shapes.present(message=message, prompt=session.prompts.get(first))
            cause = session.inputs.get(first) or session.event_id
            self.put(entry, session, REVERTED, key, payload, cause=cause, correlation=first)

    def spawn_asked(self, entry: Entry, session_id: str, mark: str) -> Asked | None:
        """What asked for a new session, if the sidecar began the session for background work. Record, before the
        session itself, that its parent started it."""
        asked = self.means.asked(session_id, mark)
        parent = self.state.sessions.get(asked.parent or "") if asked is not None else None
        if asked is not None and parent is not None and self.state.spawned(session_id) is None:
            payload = shapes.present(
                part=asked.call or session_id,
                turn=asked.turn,
                child=session_id,
                call=asked.call,
                agent=asked.agent,
                description=asked.title,
            )
            cause, turn = asked.cause, asked.turn
            self.put(entry, parent, "agent.spawned", session_id, payload, cause=cause, correlation=turn)
        return asked

    def trace_at(self, session_id: str, parent: SessionState | None, asked: Asked | None) -> str:
        """The ``traceparent`` of a session that appears: its own span in the trace of its parent, or of what asked for
        it."""
        if (known := self.state.sessions.get(session_id)) is not None:
            return known.traceparent()
        above = parent.traceparent() if parent is not None else asked.traceparent if asked is not None else ""
        found = parse_traceparent(above)
        if found is None:
            return traceparent(session_id, session_id)
        return str(replace(found, span_id=span_id(session_id)))

    def cause_of_input(self, session: SessionState, *metadata: Any) -> str | None:
        """The cause of an input that no person wrote: what asked for it, if the sidecar sent it with this metadata,
        else the call that started the session."""
        mark = next(filter(None, map(mark_of, metadata)), None)
        asked = self.means.asked(session.id, mark) if mark is not None else None
        return asked.cause if asked is not None else self.state.spawned(session.id)


def mark_of(metadata: Any) -> str:
    """The mark of a message that the sidecar sent, from the message's metadata; empty for any other message."""
    return text(mapping(mapping(metadata).get("durable_stream")).get("key")) or ""


def whole_type(name: str) -> str:
    """The type of the event that keeps something unknown whole; ``name`` is OpenCode's."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    return "opencode." + (".".join(part for part in plain.split(".") if part)[:120] or "event")


def safe_stream(session_id: str) -> str:
    """A valid stream id for any session id, even one that a foreign program made up."""
    if is_stream_id(session_id):
        return session_id
    return "x-" + sha256(session_id.encode("utf-8", "replace")).hexdigest()[:32]


def safe_key(key: str) -> str:
    """An idempotency key of bounded length, printable on one line."""
    if len(key) <= 400 and key.isprintable():
        return key
    scope = key.partition(":")[0]
    return f"{scope}:sha256:{sha256(key.encode('utf-8', 'replace')).hexdigest()}"
