"""The translator: turns hooks into events. Pure, sans-I/O.

``feed`` takes hook items as they arrive. ``drain`` returns the events made from them, and the items that are finished
once those events are durable. The caller passes in a monotonic clock, so nothing here waits. An item whose counterpart
or parent is missing waits at most ``hold_s`` seconds and is then written without it.

Hooks of one session keep their order; a waiting session does not delay others.

There are three layers: ``Emitter`` makes events, ``Turns`` and ``Parts`` know what each hook means inside a session,
and ``Translator`` decides which session a hook belongs to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bridge.opencode.capture import shapes
from bridge.opencode.capture.emitter import (
    Asked,
    Drained,
    Entry,
    Means,
    Origin,
    Token,
    safe_stream,
)
from bridge.opencode.capture.hook_shapes import is_known
from bridge.opencode.capture.parts import Parts
from bridge.opencode.capture.shapes import mapping, present, text
from bridge.opencode.capture.state import CaptureState, SessionState
from bridge.opencode.capture.table import Rule, rule_for
from bridge.opencode.link.frames import HookItem
from streams.errors import InvalidEvent
from streams.identity import Identity
from streams.lineage import ENDED, traceparent

__all__ = ["Drained", "Origin", "Token", "Translator"]


@dataclass(slots=True)
class _Waiting:
    """A session that cannot be placed in a stream yet. Holds the session's hooks in order until the session's parent,
    or the call that started the session, is known.

    ``first`` is the hook that caused the wait. ``entries`` is empty if that hook
    belongs to a child of this session.
    """

    first: Entry
    deadline: float
    entries: deque[Entry] = field(default_factory=deque)
    info: dict[str, Any] | None = None
    asked: bool = False


class Translator(Parts):
    """Translates the hooks of all links of a sidecar.

    ``state`` must already be folded from the log.
    """

    def __init__(
        self,
        identity: Identity,
        state: CaptureState | None = None,
        means: Means = Means(),  # noqa: B008 - a tuple
    ) -> None:
        super().__init__(identity, state if state is not None else CaptureState(), means)
        self._waiting: dict[str, _Waiting] = {}

    # --- called by ``sidecar/record`` ---

    def feed(self, token: Token, item: HookItem, now: float) -> None:
        """Take one item. Items of one origin must come in order."""
        self.now = now
        source, event_id, properties = shapes.read(item)
        entry = Entry(token, item, source, event_id, properties)
        rule = rule_for(source)
        if rule is None:
            self.counts[f"dropped:{source[:60]}"] += 1
            self.finish(token)
            return
        if event_id is not None and self.is_seen(event_id):
            self.counts[f"duplicate:{source[:60]}"] += 1
            self.finish(token)
            return
        session_id = shapes.session_of(source, properties)
        if session_id is None:
            self._run(entry, None, rule)
            return
        waiting = self._waiting.get(session_id)
        if waiting is not None:
            waiting.entries.append(entry)
            waiting.info = shapes.session_info(source, properties) or waiting.info
        elif (session := self.state.sessions.get(session_id)) is not None or source == "session.deleted":
            self._run(entry, session, rule)
        else:
            info = shapes.session_info(source, properties)
            self._waiting[session_id] = _Waiting(entry, now + self.means.hold_s, deque([entry]), info)
        if self._waiting:
            self._place_waiting()

    def answer(self, session_id: str, info: dict[str, Any] | None, now: float) -> None:
        """Take OpenCode's answer about a session; ``info`` is ``None`` if there was none."""
        self.now = now
        waiting = self._waiting.get(session_id)
        if info is None or waiting is None:
            return
        waiting.info = waiting.info or info
        self._place_waiting()

    def tick(self, now: float) -> None:
        """Write the waiting items whose deadline has passed."""
        self.now = now
        for session_id, waiting in list(self._waiting.items()):
            if waiting.deadline <= now and self._waiting.get(session_id) is waiting:
                self._place(session_id, waiting, give_up=True)
        self._place_waiting()
        self.expire(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` next has something to do; ``None`` while nothing is waiting."""
        return min([waiting.deadline for waiting in self._waiting.values()] + self.deadlines(), default=None)

    def end_missing(self, session_id: str, now: float) -> None:
        """Record, once, the end of a session that OpenCode no longer has."""
        self.now = now
        session = self.state.sessions.get(session_id)
        if session is not None and not session.ended:
            self._end(None, session_id, {}, "gone")

    def end_dead(self, session_id: str, now: float, *, at_ms: int | None) -> None:
        self.now = now
        session = self.state.sessions.get(session_id)
        if session is not None:
            self.end_dead_turn(session, at_ms)

    # --- placing sessions ---

    def _place_waiting(self) -> None:
        progress = bool(self._waiting)
        while progress:
            progress = False
            for session_id, waiting in list(self._waiting.items()):
                progress = self._place(session_id, waiting, give_up=False) or progress

    def _place(self, session_id: str, waiting: _Waiting, *, give_up: bool) -> bool:
        """Write a session's first event, then its waiting hooks, if its place is known or ``give_up`` is set."""
        info = waiting.info
        parent_id = text(mapping(info).get("parentID"))
        parent = self.state.sessions.get(parent_id) if parent_id else None
        created = bool(waiting.entries) and waiting.first.source == "session.created"
        asked = self.spawn_asked(waiting.first, session_id, _mark_of(info)) if created else None
        if not give_up and not self._is_placeable(session_id, waiting, parent_id, parent, created):
            return False
        del self._waiting[session_id]
        if not waiting.entries and info is None:
            return True  # only hooks of the session's children came, and OpenCode did not describe the session
        is_root = info is not None and info.get("parentID") is None
        lineage = "child" if parent is not None else "root" if is_root else "unknown"
        if lineage == "unknown":
            self.counts["lineage_unknown"] += 1
        self._appear(waiting.first, {**(info or {}), "id": session_id}, lineage, created=created, asked=asked)
        for entry in waiting.entries:
            rule = rule_for(entry.source)
            assert rule is not None  # `feed` drops the others
            self._run(entry, self.state.sessions.get(session_id), rule)
        return True

    def _is_placeable(
        self,
        session_id: str,
        waiting: _Waiting,
        parent_id: str | None,
        parent: SessionState | None,
        created: bool,
    ) -> bool:
        if waiting.info is None:
            if not waiting.asked:
                waiting.asked = True
                self.ask(session_id, waiting.first.token.origin)
            return False
        if parent_id and parent is None:
            # The parent's hooks may still be coming, or the parent may be older than this log: ask about the parent
            # too.
            if parent_id not in self._waiting and parent_id != session_id:
                self._waiting[parent_id] = _Waiting(waiting.first, waiting.deadline)
            return False
        # The `task` call that created a child session is the child's cause, so that call must be recorded first.
        return not (created and parent is not None and parent.turn and self.state.spawned(session_id) is None)

    def _appear(
        self, entry: Entry, info: dict[str, Any], lineage: str, *, created: bool, asked: Asked | None = None
    ) -> None:
        session_id = info["id"]
        parent = self.state.sessions.get(text(info.get("parentID")) or "") if lineage == "child" else None
        self.put_appeared(entry, info, lineage, parent, asked, created=created)
        for orphan in [s for s in self.state.unknown() if s.parent == session_id]:
            self.link(orphan, session_id, entry)

    def _meet(self, session: SessionState, entry: Entry) -> None:
        boot = entry.token.origin.boot_id
        if session.known and boot in session.boots:
            return  # as for nearly every hook
        info = shapes.session_info(entry.source, entry.properties)
        if info is not None and not session.known:
            self.link(session, text(info.get("parentID")), entry)
        if boot in session.boots or session.ended or entry.source in ("session.created", "session.deleted"):
            return
        title = self._titles.get(session.id) or session.title
        known = {"id": session.id, "parentID": session.parent, "title": title, **mapping(info)}
        lineage = "unknown" if not session.known else "child" if session.parent else "root"
        self._appear(entry, known, lineage, created=False)

    # --- running the rules ---

    def _run(self, entry: Entry, session: SessionState | None, rule: Rule) -> None:
        waits = False
        try:
            if session is not None:
                self._meet(session, entry)
            if is_known(entry.item, entry.source):
                waits = getattr(self, rule.handle)(entry, session)
                if rule.kind == "state":
                    self.counts[f"not_final:{entry.source}"] += 1
            else:
                self.counts[f"kept_whole:{entry.source}"] += 1
                self.unknown_event(entry, session)
        except (InvalidEvent, LookupError, TypeError, ValueError, AttributeError, RecursionError) as fault:
            self._keep_unreadable(entry, session, fault)
        if not waits:
            self.finish(entry.token)

    def _keep_unreadable(self, entry: Entry, session: SessionState | None, fault: Exception) -> None:
        self.counts["unreadable"] += 1
        raw = {"hook": entry.item.hook, "input": entry.item.input, "output": entry.item.output}
        payload = {"fault": type(fault).__name__, "item": raw}
        self.put(entry, session, "opencode.unreadable", self.own_key(entry), payload)

    # --- rules for whole sessions (for the other rules, see turns.py and parts.py) ---

    def session_deleted(self, entry: Entry, session: SessionState | None) -> bool:
        info = shapes.session_info(entry.source, entry.properties) or {}
        session_id = text(info.get("id")) or shapes.session_of(entry.source, entry.properties)
        self._current.pop(session_id or "", None)
        self.settle_shell(session_id or "")
        if session_id is not None and not (session is not None and session.ended):
            self._end(entry, session_id, info, "deleted")
        return False

    def _end(self, entry: Entry | None, session_id: str, info: dict[str, Any], reason: str) -> None:
        session = self.state.sessions.get(session_id)
        if session is not None and session.turn is not None:
            self.end_turn(entry, session, "aborted")
        self.emit(
            entry,
            type_=ENDED,
            key=session_id,
            payload=present(
                session=session_id,
                reason=reason,
                title=text(info.get("title")),
                cost=info.get("cost"),
                tokens=info.get("tokens"),
            ),
            cause=(session.last_end or session.event_id) if session is not None else None,
            actor="opencode",
            stream=session.stream if session is not None else safe_stream(session_id),
            trace=session.traceparent() if session is not None else traceparent(session_id, session_id),
        )


def _mark_of(info: dict[str, Any] | None) -> str:
    return text(mapping(mapping(info).get("metadata")).get("intent")) or ""
