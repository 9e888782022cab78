"""The translator of OpenCode 2: turns a service's events into the events of the log. Pure, sans-I/O.

``feed`` takes the events of a session's durable log in the order of their ``seq``, and the asks, which the service only
announces. A session is placed by ``appear`` before its first event. ``drain`` returns the resulting events of the log.

Keys come from the service's own ids, so an event that is read twice is recorded once. After a restart, a reader
continues each session from the ``host_seq`` and ``host_turn`` that ``CaptureState`` holds for it.

For the same activity, this translator makes the same events as OpenCode 1's translator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.opencode.capture.emitter import safe_stream
from bridge.opencode.capture.shapes import appeared, mapping, number, present, text
from bridge.opencode.capture.state import RENAMED, CaptureState, SessionState
from bridge.opencode.capture.v2 import shapes
from bridge.opencode.capture.v2.memory import Memory
from bridge.opencode.capture.v2.rules import HostEntry, HostRules, Service, entry_of, replace_seq
from bridge.opencode.capture.v2.shapes import HostEvent
from bridge.opencode.capture.v2.table import BY_NAME
from streams.errors import InvalidEvent
from streams.identity import Identity
from streams.lineage import CREATED, ENDED, RESUMED, traceparent

__all__ = ["HostTranslator", "Service"]


class HostTranslator(HostRules):
    """Translates the sessions of OpenCode 2 services, on the same state as OpenCode 1's translator."""

    def __init__(
        self, identity: Identity, state: CaptureState, *, clean: Callable[[Any], Any] = lambda value: value
    ) -> None:
        super().__init__(identity, state, clean, 0.0)
        self._memories: dict[str, Memory] = {}
        self._called: dict[str, tuple[str | None, str]] = {}

    # --- called by ``sidecar/opencode2`` ---

    def appear(self, service: Service, info: dict[str, Any], at_ms: int | None = None) -> None:
        """Place a session that the log does not have. The session's parent must be placed first.

        ``info`` is the service API's description of the session, or the data of its ``session.created``.
        """
        info = shapes.session_info(info)
        session_id = text(info.get("id"))
        if session_id is None or session_id in self.state.sessions:
            return
        parent_id = text(info.get("parentID"))
        parent = self.state.sessions.get(parent_id) if parent_id else None
        at = number(mapping(info.get("time")).get("created")) or at_ms or self._identity.now_ms()
        entry = entry_of(service, at, f"{session_id}:created", seq=0)
        if parent is not None and session_id not in self.state.spawns:
            self._spawn(entry, parent, session_id, info)
        lineage = "child" if parent is not None else "unknown" if parent_id else "root"
        self._appear(entry, {"version": service.version or None, **info}, lineage, CREATED)

    def hint(self, event: HostEvent) -> None:
        """If this event says which call created a session that is not placed yet, note the call."""
        child = shapes.child_of(event)
        if child is not None and child not in self.state.sessions:
            self._called[child] = shapes.message_id(event), shapes.call_id(event)

    def feed(self, service: Service, event: HostEvent, *, known: bool = False) -> None:
        """Take one event. If ``known`` is set, the event is only remembered, because its records are already in the
        log."""
        memory = self._memories.setdefault(event.session or "", Memory())
        session = self.state.sessions.get(event.session or "")
        rule = BY_NAME.get(event.name)
        if known or (rule is None and event.seq is None):
            self.counts["known" if known else f"dropped:{event.type[:60]}"] += 1
        elif session is None:
            self.counts[f"unplaced:{event.type[:60]}"] += 1
        elif rule is not None and rule.kind == "state":
            self.counts[f"not_final:{event.type}"] += 1
        else:
            entry = entry_of(service, event.t or self._identity.now_ms(), event.id, seq=event.seq)
            handle = self.unknown if rule is None else getattr(self, rule.handle)
            try:
                self._meet(session, entry, event)
                handle(entry, session, event, memory)
            except (InvalidEvent, LookupError, TypeError, ValueError, AttributeError, RecursionError) as fault:
                self.counts["unreadable"] += 1
                payload = {"fault": type(fault).__name__, "item": {"type": event.type, "data": event.data}}
                self.put(entry, session, "opencode.unreadable", event.key, payload)
        if event.seq is not None:
            memory.note(event)
        if memory.is_empty:
            self._memories.pop(event.session or "", None)

    def end_missing(self, service: Service, session_id: str) -> None:
        """Record, once, the end of a session that the service no longer has."""
        session = self.state.sessions.get(session_id)
        if session is not None and not session.ended:
            self._end(entry_of(service, self._identity.now_ms(), None), session, "gone")

    def end_dead(self, service: Service, session_id: str) -> None:
        """Record the end of a session's turn that no process is running any more."""
        session = self.state.sessions.get(session_id)
        if session is not None and session.turn is not None:
            self.end_dead_turn(service, session)

    def gap(self, service: Service, session_id: str, after: int, until: int, reason: str) -> None:
        """Record that the events between ``after`` and ``until`` are lost, with the time of the last event before the
        gap. Reading continues after the gap."""
        session = self.state.sessions.get(session_id)
        self.counts["gaps"] += 1
        payload = {"reason": reason, "lost": until - after, "first_seq": after + 1, "last_seq": until}
        last_ms = session.turn.last_ms if session is not None and session.turn is not None else 0
        entry = entry_of(service, last_ms or self._identity.now_ms(), None, seq=until)
        self.put(entry, session, "capture.gap", f"{session_id}:{after + 1}", {**payload, "session": session_id})

    def forget(self, session_id: str) -> None:
        """Forget what is remembered about a session, because OpenCode's log of the session will be read again."""
        self._memories.pop(session_id, None)

    # --- what a session is ---

    def _appear(self, entry: HostEntry, info: dict[str, Any], lineage: str, type_: str) -> None:
        session_id = str(info["id"])
        parent = self.state.sessions.get(text(info.get("parentID")) or "") if lineage == "child" else None
        self.emit(
            entry,
            type_=type_,
            key=session_id if type_ == CREATED else f"{session_id}:{entry.service.id}",
            payload=appeared(info, lineage),
            cause=self.state.spawns.get(session_id) if type_ == CREATED else None,
            actor=text(info.get("agent")) or "opencode",
            stream=parent.stream if parent is not None else safe_stream(session_id),
            trace=traceparent(parent.root if parent is not None else session_id, session_id),
        )

    def _meet(self, session: SessionState, entry: HostEntry, event: HostEvent) -> None:
        """Record that a known session continues in another process of the service."""
        if entry.service.is_history or entry.service.id in session.boots or session.ended or event.name == "deleted":
            return
        known = {"id": session.id, "parentID": session.parent, "title": session.title, "directory": session.directory}
        lineage = "unknown" if not session.known else "child" if session.parent else "root"
        self._appear(replace_seq(entry, None), known, lineage, RESUMED)

    def _spawn(self, entry: HostEntry, parent: SessionState, child: str, info: dict[str, Any]) -> None:
        memory = self._memories.get(parent.id, Memory())
        agent, title = text(info.get("agent")), text(info.get("title"))
        called = self._called.pop(child, None)
        call = memory.calls.get(called) if called is not None else memory.spawning(title, agent)
        turn = parent.turn or parent.last_turn
        payload = present(
            message=call.message if call is not None else None,
            part=call.id if call is not None else child,
            turn=turn.user_message if turn is not None else None,
            child=child,
            call=call.id if call is not None else None,
            agent=agent,
            description=title,
        )
        self.put(replace_seq(entry, None), parent, "agent.spawned", child, payload, turn=turn)

    def created(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        """Does nothing, because the event was written when the session was placed."""

    def forked(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        """Does nothing, for the same reason as ``created``. The numbers that a fork inherits do not count as a gap."""

    def deleted(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        if not session.ended:
            self._end(entry, session, "deleted")
        self.forget(session.id)

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
            trace=traceparent(session.root, session.id),
        )

    def renamed(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        self.put(entry, session, RENAMED, event.key, {"title": event.data["title"]}, cause=session.event_id)
