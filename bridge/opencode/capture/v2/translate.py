"""The translator of OpenCode 2: turns the events of a service, as the plugin in it hands them on, into events of the
log. Pure, sans-I/O.

``feed`` takes the items in order. ``drain`` returns the resulting events, the items that are finished once those events
are durable, and the sessions to ask about. A session is asked about when an event of it comes from a process for the
first time: the caller then reads the session's messages, records what lacks (``place``, ``fill``) and calls ``open``.
Until then the events of the session wait.

Keys come from the service's own ids, so an event that comes twice is recorded once, also if it was first rebuilt from
the messages (``history``). For the same activity, this translator makes the same events as OpenCode 1's translator.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from bridge.opencode.capture.emitter import Means, Origin, Token
from bridge.opencode.capture.shapes import mapping, number, present, text
from bridge.opencode.capture.state import RENAMED, CaptureState, SessionState, remember
from bridge.opencode.capture.v2 import event_fields
from bridge.opencode.capture.v2.event_fields import HostEvent
from bridge.opencode.capture.v2.memory import Memory
from bridge.opencode.capture.v2.rules import CUT, HostEntry, replace_seq
from bridge.opencode.capture.v2.table import BY_NAME
from bridge.opencode.capture.v2.waiting_events import MET, Called, Gate, Gates
from bridge.opencode.link.frames import HookItem
from streams.errors import InvalidEvent
from streams.event import StreamEvent
from streams.identity import Identity
from streams.lineage import CREATED, ENDED, MOVED, RESUMED

HOOK = "service"
"""The hook name of an item that is an event of a service."""

SESSION_HOOK = "service.session"
"""The hook name of an item that describes a session which began before the plugin was loaded."""

_REBUILT = 50_000
_FAULTS = (InvalidEvent, LookupError, TypeError, ValueError, AttributeError, RecursionError)


def is_of_service(item: HookItem) -> bool:
    return item.hook in (HOOK, SESSION_HOOK)


class HostTranslator(Gates):
    """Translates the sessions of OpenCode 2 services, on the same state as OpenCode 1's translator.

    ``excludes`` is true for a directory whose sessions are not recorded.
    """

    def __init__(
        self,
        identity: Identity,
        state: CaptureState,
        means: Means = Means(),  # noqa: B008 - a tuple
        excludes: Callable[[str], bool] = lambda directory: False,
    ) -> None:
        super().__init__(identity, state, means)
        self._excludes = excludes
        self._memories: dict[tuple[str, str], Memory] = {}
        """By session and process: the events of another process may come in between, and earlier or later than they
        happened."""
        self._infos: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._rebuilt: OrderedDict[str, None] = OrderedDict()
        """The keys of what was rebuilt: the plugin's events of it may come later, and then add nothing."""
        self._excluded: set[str] = set()

    # --- called by ``sidecar/record`` ---

    def feed(self, token: Token, item: HookItem, now: float) -> None:
        """Take one item. Items of one origin must come in order."""
        self.now = now
        if item.hook == SESSION_HOOK:
            self._describe(token, mapping(item.input))
            return
        event = read_event_of(item)
        entry = HostEntry(token, HookItem(item.hook, event.t or item.t), event_id=event.id, seq=event.seq)
        if event.id is not None and self.is_seen(event.id):
            self.counts[f"duplicate:{event.type[:60]}"] += 1
            self.finish(token)
        elif event.session is None:
            self._of_no_session(entry, event)
            self.finish(token)
        else:
            self._of_session(entry, event, event.session)

    def end_missing(self, session_id: str, origin: Origin) -> None:
        """Record, once, the end of a session that the service no longer has."""
        session = self.state.sessions.get(session_id)
        if session is not None and not session.ended:
            self._end(self._own_entry(origin, self.identity.now_ms()), session, "gone")

    def record_ask(self, origin: Origin, event: HostEvent) -> None:
        if event.session in self.state.sessions:
            entry = self._own_entry(origin, event.t or self.identity.now_ms())
            self.run(replace(entry, is_history=False), event)

    # --- history, see ``sidecar/record/opencode2`` ---

    def place(self, info: dict[str, Any], origin: Origin, *, is_new: bool) -> bool:
        """Place a session that the log does not have; its parent must have been placed, if there is one.

        ``is_new``: the log has the session from its beginning, so that its creation is recorded. Returns false for a
        session that is excluded.
        """
        info = event_fields.session_info(info)
        session_id = text(info.get("id"))
        if session_id is None or self._is_excluded(session_id, info):
            return False
        session = self.state.sessions.get(session_id)
        if session is None:
            at = number(mapping(info.get("time")).get("created")) or self.identity.now_ms()
            entry = self._own_entry(origin, at if is_new else self.identity.now_ms())
            entry.is_history = not self.waiting(session_id, origin)
            self._appear(entry, info, CREATED if is_new else RESUMED)
        elif not session.known and (text(info.get("parentID")) in self.state.sessions or not info.get("parentID")):
            self.link(session, text(info.get("parentID")), None)
        return True

    def rebuild(
        self, session_id: str, events: Iterable[HostEvent], origin: Origin, *, is_whole: bool
    ) -> tuple[list[StreamEvent], Memory | None]:
        """Translate events that were made from a placed session's messages, as if nothing of them were recorded.

        Return the records, marked as history, and what is remembered after the last event. Nothing is recorded yet: see
        ``fill``. ``is_whole``: the events begin with the session's first message.
        """
        session = self.state.sessions[session_id]
        state = CaptureState()
        for child in self.state.sessions.having("parent", session_id):
            state.sessions[child] = self.state.sessions[child]
        state.sessions[session_id] = SessionState(
            id=session_id,
            stream=session.stream,
            root=session.root,
            spawned=session.spawned,
            trace=session.trace,
            parent=session.parent,
            known=session.known,
            event_id=session.event_id,
            directory=session.directory,
            project=session.project,
            boots={origin.boot_id},
            host=session.host,
            title=session.title,
            agent="" if is_whole else session.agent,
        )
        scratch = HostTranslator(self.identity, state, Means(self.means.cleaned, asked=self.means.asked))
        for event in events:
            scratch.run(replace(scratch._own_entry(origin, event.t), event_id=event.id), event)
        return scratch.drain().events, scratch._memories.get((session_id, origin.boot_id))

    def fill(self, rebuilt: Iterable[StreamEvent], known: Mapping[str, str]) -> int:
        """Record the rebuilt events whose keys are not ``known``; return how many.

        ``known`` maps an idempotency key of the log to the id of its event.
        """
        ids: dict[str, str] = {}
        count = 0
        for event in rebuilt:
            remember(self._rebuilt, event.idempotency_key, None, _REBUILT)
            if (there := known.get(event.idempotency_key)) is not None:
                ids[event.id] = there
                continue
            # A new id, because ids ascend in the order of the log.
            id_ = ids[event.id] = self.identity.ulid()
            cause = ids.get(event.causation_id or "", event.causation_id)
            made = StreamEvent.trusted({**event.fields(), "id": id_, "causation_id": cause})
            self.state.apply(made)
            self._out.events.append(made)
            count += 1
            self.counts["gaps"] += event.type == "capture.gap"
        return count

    def is_recorded(self, event: StreamEvent) -> bool:
        return event.idempotency_key in self._rebuilt

    def adopt(self, session_id: str, memory: Memory | None, origin: Origin) -> None:
        """Remember what was rebuilt, if nothing is remembered of the session in this process, or if events of it wait:
        what was rebuilt is what precedes them."""
        key = session_id, origin.boot_id
        if key not in self._memories or self.waiting(session_id, origin):
            self._memories[key] = memory or Memory()

    def inherit(self, session_id: str, boot: str) -> None:
        known = [memory for (each, _), memory in self._memories.items() if each == session_id]
        if known and (session_id, boot) not in self._memories:
            self._memories[session_id, boot] = deepcopy(known[-1])

    def recall(self, session_id: str, origin: Origin, begun: Iterable[StreamEvent]) -> None:
        """Remember the calls that began in the open turn of a session, from their records, if nothing is remembered of
        the session: no service could be asked."""
        if all(known != session_id for known, _ in self._memories):
            turn = self.state.sessions[session_id].turn
            self._memories[session_id, origin.boot_id] = Memory.of_calls(
                begun, turn.counted if turn is not None else ()
            )

    def note_call(self, child: str, message: str | None, call: str, turn: str | None) -> None:
        """Note the call that created a session which is not placed yet."""
        if child not in self.state.sessions and child not in self._called:
            remember(self._called, child, Called(message, call, turn), MET)

    def rename(self, session_id: str, title: str, origin: Origin) -> None:
        """Record a title that was given while the plugin was not loaded."""
        session = self.state.sessions[session_id]
        entry = self._own_entry(origin, self.identity.now_ms())
        self.put(entry, session, RENAMED, f"title:{title[:200]}", {"title": title}, cause=session.event_id)

    # --- one event ---

    def _describe(self, token: Token, info: dict[str, Any]) -> None:
        session_id = text(info.get("id"))
        if session_id is not None:
            remember(self._infos, session_id, info, MET)
            for (waiting, boot), gate in list(self._gates.items()):
                if waiting == session_id:
                    gate.info = info
                    if gate.is_compared:
                        self._open_compared(session_id, boot)
        self.finish(token)

    def _of_no_session(self, entry: HostEntry, event: HostEvent) -> None:
        if not event.type:
            self.counts["unreadable"] += 1
            self.put(entry, None, "opencode.unreadable", self.own_key(entry), event.data)
        elif event.seq is None and event_fields.ask_of(event) is None:
            self.counts[f"dropped:{event.type[:60]}"] += 1
        else:
            self.unknown(entry, None, event, Memory())

    def _of_session(self, entry: HostEntry, event: HostEvent, session_id: str) -> None:
        origin = entry.token.origin
        key = session_id, origin.boot_id
        child = event_fields.child_of(event)
        if child is not None and child not in self.state.sessions:
            session = self.state.sessions.get(session_id)
            turn = session.turn if session is not None else None
            message = turn.user_message if turn is not None else None
            self.note_call(child, event_fields.message_id(event), event_fields.call_id(event), message)
        if session_id in self._excluded:
            self.counts["excluded"] += 1
            self.finish(entry.token)
        elif (gate := self._gate_for(key, event)) is not None:
            gate.entries.append((entry, event))
        elif key in self._met and session_id in self.state.sessions and not self._is_jump(*key, event):
            self.run(entry, event)
            self.finish(entry.token)
        else:
            self._gates[key] = Gate(self.now + self.means.hold_s, deque([(entry, event)]), self._infos.get(session_id))
        if event.seq is not None:
            self._note_reached(*key, event.seq)
        self._try_gate(session_id, origin)
        if child is not None:
            self._open_children(session_id)

    def run(self, entry: HostEntry, event: HostEvent) -> None:
        session = self.state.sessions[event.session or ""]
        key = session.id, entry.token.origin.boot_id
        memory = self._memories.setdefault(key, Memory())
        rule = BY_NAME.get(event.name)
        was_open = session.turn is not None
        if rule is not None and rule.kind != "event":
            kind = "not_final" if rule.kind == "state" else "dropped"
            self.counts[f"{kind}:{event.type[:60]}"] += 1
        else:
            handle = self.unknown if rule is None else getattr(self, rule.handle)
            try:
                self._meet(session, entry, event)
                handle(entry, session, event, memory)
            except _FAULTS as fault:
                self.counts["unreadable"] += 1
                payload = {"fault": type(fault).__name__, "item": {"type": event.type, "data": event.data}}
                self.put(entry, session, "opencode.unreadable", event.key, payload)
        try:
            memory.note(event, is_open=was_open)
        except _FAULTS:
            self.counts["unreadable"] += 1
        if memory.is_empty:
            self._memories.pop(key, None)

    # --- what a session is ---

    def is_placed_by(self, session_id: str, gate: Gate) -> bool:
        """Place a session by its first event, or by the plugin's description of it; the lineage is unknown without
        either. Returns false if there is nothing to place, or the session is excluded."""
        if not gate.entries:
            return False
        entry, first = gate.entries[0]
        if first.name == "deleted":
            return False
        is_first = first.name in ("created", "forked")
        info = event_fields.session_info(gate.info or (first.data if is_first else {"id": session_id}))
        if self._is_excluded(session_id, info):
            return False
        is_known = is_first or gate.info is not None
        # A session whose first number after its creation comes from this process began in this process.
        is_new = is_first or (first.seq is not None and first.seq <= 1)
        created = number(mapping(info.get("time")).get("created"))
        own = replace_seq(entry, None) if not is_first else entry
        if is_new and created is not None:
            own = replace(own, item=HookItem(own.item.hook, created))
        self._appear(own, {**info, "id": session_id}, CREATED if is_new else RESUMED, is_known=is_known)
        return True

    def _is_excluded(self, session_id: str, info: dict[str, Any]) -> bool:
        directory = text(info.get("directory"))
        if directory is not None and self._excludes(directory):
            self._excluded.add(session_id)
        return session_id in self._excluded

    def _appear(self, entry: HostEntry, info: dict[str, Any], type_: str, *, is_known: bool = True) -> None:
        session_id, parent_id = str(info["id"]), text(info.get("parentID"))
        parent = self.state.sessions.get(parent_id or "")
        if parent is not None and type_ == CREATED and self.state.spawned(session_id) is None:
            self._spawn(entry, parent, session_id, info)
        asked = self.spawn_asked(replace_seq(entry, None), session_id, "") if type_ == CREATED else None
        lineage = "child" if parent is not None else "root" if is_known and parent_id is None else "unknown"
        if lineage == "unknown":
            self.counts["lineage_unknown"] += 1
        info = {**info, "fork": event_fields.origin_of(info)}
        self.put_appeared(entry, info, lineage, parent, asked, created=type_ == CREATED)

    def _meet(self, session: SessionState, entry: HostEntry, event: HostEvent) -> None:
        boot = entry.token.origin.boot_id
        if entry.is_history or boot in session.boots or session.ended or event.name in ("created", "deleted"):
            return
        known = {"id": session.id, "parentID": session.parent, "title": session.title, "directory": session.directory}
        self._appear(replace_seq(entry, None), known, RESUMED, is_known=session.known)

    def _spawn(self, entry: HostEntry, parent: SessionState, child: str, info: dict[str, Any]) -> None:
        agent, title = text(info.get("agent")), text(info.get("title"))
        called = self._called.pop(child, None)
        memory = self._memories.get((parent.id, entry.token.origin.boot_id), Memory())
        if called is None and (call := memory.spawning(title, agent)) is not None:
            called = Called(call.message, call.id, None)
        turn = parent.turn or parent.last_turn
        message = called.turn if called is not None and called.turn is not None else None
        message = message or (turn.user_message if turn is not None else None)
        payload = present(
            message=called.message if called is not None else None,
            part=called.call if called is not None else child,
            turn=message,
            child=child,
            call=called.call if called is not None else None,
            agent=agent,
            description=title,
        )
        cause = parent.turns.get(message or "")
        self.put(replace_seq(entry, None), parent, "agent.spawned", child, payload, cause=cause, turn=turn)

    def deleted(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        if not session.ended:
            self._end(entry, session, "deleted")
        self._memories.pop((session.id, entry.token.origin.boot_id), None)

    def _end(self, entry: HostEntry, session: SessionState, reason: str) -> None:
        if session.turn is not None:
            self.end_turn(replace_seq(entry, None), session, "aborted")
        self.emit(
            entry,
            type_=ENDED,
            key=session.id,
            payload=present(session=session.id, reason=reason, title=session.title),
            cause=session.last_end or session.event_id,
            actor="opencode",
            stream=session.stream,
            trace=session.traceparent(),
        )

    def renamed(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        self.put(entry, session, RENAMED, event.key, {"title": event.data["title"]}, cause=session.event_id)

    def moved(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        directory = event_fields.session_info(event.data)["directory"]
        payload = present(directory=directory, project=text(event.data.get("projectID")))
        self.put(entry, session, MOVED, event.key, payload, cause=session.event_id)

    def text_cut(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        """Record that the service has an answer of which it kept no word. Only the messages tell this."""
        message = event_fields.message_id(event)
        payload = {"reason": CUT, "lost": 1, "session": session.id, "message": message}
        self.put(entry, session, "capture.gap", f"{CUT}:{message}", payload, turn=self._turn(session, memory))

    def _own_entry(self, origin: Origin, t: int) -> HostEntry:
        return HostEntry(Token(origin, 0), HookItem(HOOK, t), is_history=True)


def read_event_of(item: HookItem) -> HostEvent:
    """The event in an item; one without a session and a number, of the type ``unreadable``, if there is none."""
    event = event_fields.read_event(item.input)
    if event is not None:
        return event
    return HostEvent("", "", None, item.t, None, None, {"item": item.input})
