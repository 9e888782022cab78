"""Rules for inputs, turns, errors and asks. Pure.

The rules table names these methods. Each method emits events and returns true if the item must stay unfinished for now;
the method that ends the wait then finishes the item.

What a ``Turns`` object remembers may be lost in a crash, because everything that decides an event's content is also
in the state, or in a hook that is not acknowledged yet.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from bridge.opencode.capture import shapes
from bridge.opencode.capture.emitter import Entry, Late, Means, PartTurn, whole_type
from bridge.opencode.capture.shapes import mapping, present, text
from bridge.opencode.capture.shells import Shells
from bridge.opencode.capture.state import INTERRUPTED, SHELL, UNDONE, CaptureState, SessionState, Turn
from streams.identity import Identity
from streams.lineage import FORKED, RETRIED

_REMEMBERED_MESSAGES = 4000

_ID_BEFORE_MS = 100
"""At most so long before its message is an id made. The longest time measured was 4 ms."""

_ANSWERED = frozenset({"stop", "length"})
"""Finish reasons of a final answer; ``tool-calls`` means that the model wanted to continue."""


class Turns(Shells):
    def __init__(self, identity: Identity, state: CaptureState, means: Means) -> None:
        super().__init__(identity, state, means)
        self._messages: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._copied: OrderedDict[str, None] = OrderedDict()
        self._users: OrderedDict[str, None] = OrderedDict()
        self._current: dict[str, str] = {}
        self._titles: dict[str, str] = {}
        self._aborts: dict[str, Late] = {}
        self._aborted: set[str] = set()
        self._endings: dict[str, Late] = {}
        self._errors: dict[str, Late] = {}

    def open_tools(self, session_id: str) -> list[str]:
        return []

    def forget_tools(self, session_id: str) -> None:
        """Forget the session's open tools, because its turn is over."""

    # --- unknown items ---

    def unknown_event(self, entry: Entry, session: SessionState | None) -> bool:
        """Keep an item whole, because its type is unknown or no rule understands its shape."""
        type_, key = whole_type(entry.source), entry.event_id or self.own_key(entry)
        self.put(entry, session, type_, key, shapes.whole(entry.item, type_.removeprefix("opencode.")))
        return False

    def capture_gap(self, entry: Entry, session: SessionState | None) -> bool:
        self.counts["gaps"] += 1
        self.put(entry, None, "capture.gap", self.own_key(entry), mapping(entry.item.input))
        return False

    def session_updated(self, entry: Entry, session: SessionState | None) -> bool:
        info = shapes.session_info(entry.source, entry.properties) or {}
        title = text(info.get("title"))
        if title is not None and session is not None:
            self._titles[session.id] = title
        if session is not None:
            key = entry.event_id or self.own_key(entry)
            self.revert(entry, session, key, text(mapping(info.get("revert")).get("messageID")))
        return False

    def session_status(self, entry: Entry, session: SessionState | None) -> bool:
        status = mapping(entry.properties.get("status"))
        if status.get("type") == "retry" and session is not None:
            self._retried(entry, session, status)
        return self.session_idle(entry, session) if status.get("type") == "idle" else False

    def _retried(self, entry: Entry, session: SessionState, status: dict[str, Any]) -> None:
        """Record a failed attempt that will be repeated: the first of a chain, the second, the fourth, and so on,
        because a chain may last for days."""
        failed, turn = max(shapes.number(status.get("attempt")) or 1, 1), self.turn_at(session, entry)
        if failed & (failed - 1):
            return
        payload = present(
            turn=turn.user_message if turn is not None else None,
            attempt=failed + 1,
            at_ms=shapes.number(status.get("next")),
            reason=text(status.get("message")),
        )
        self.put(entry, session, RETRIED, entry.event_id or self.own_key(entry), payload, turn=turn)

    def session_compacted(self, entry: Entry, session: SessionState | None) -> bool:
        if self._is_recorded(entry):
            return False
        key = entry.event_id or self.own_key(entry)
        self.put(entry, session, "lifecycle.session.compacted", key, {}, turn=self.turn_at(session, entry))
        return False

    # --- inputs and turns ---

    def chat_message(self, entry: Entry, session: SessionState | None) -> bool:
        output = mapping(entry.item.output)
        message = mapping(output.get("message"))
        message_id, parts = message["id"], output["parts"]
        if session is None:
            return self.unknown_event(entry, session)
        if message_id in session.inputs:
            # A second copy of the plugin sent this message, or a prompt was repeated with the same id. Only the first
            # message counts.
            self.counts["duplicate:chat.message"] += 1
            return False
        human = session.known and session.parent is None and (not parts or shapes.is_human(parts))
        agent = text(message.get("agent")) or text(mapping(entry.item.input).get("agent"))
        payload = present(message=message_id, agent=agent, model=shapes.model_of(message), parts=parts)
        cause = self.cause_of_input(session, *(mapping(part).get("metadata") for part in parts))
        self.put_input(entry, session, message_id, payload, human=human, cause=cause)
        return False

    def message_removed(self, entry: Entry, session: SessionState | None) -> bool:
        """Record which message was undone, and the first words of the prompt for readers that see only this record."""
        message = entry.properties["messageID"]
        if session is None:
            return self.unknown_event(entry, session)
        self.put(
            entry,
            session,
            UNDONE,
            entry.event_id or self.own_key(entry),
            {**shapes.whole(entry.item, "message.removed"), **present(prompt=session.prompts.get(message))},
            cause=session.inputs.get(message),
            correlation=message if message in session.inputs else None,
        )
        return False

    def message_updated(self, entry: Entry, session: SessionState | None) -> bool:
        info = mapping(entry.properties.get("info"))
        message_id = info["id"]
        if session is None or info["role"] == "user":
            self._users[message_id] = None
            if session is not None and _is_copied(session, info, entry.item.t):
                self._copied_from(entry, session, int(info["time"]["created"]))
            return False
        answered = info["parentID"]
        completed = info["time"].get("completed") is not None
        expected = message_id in self._messages or answered in session.turns or answered in session.inputs
        if not expected and ((completed and not session.misread) or _is_copied(session, info, entry.item.t)):
            # A fork copies messages into a new session. Such copies are not recorded again.
            self._copied[message_id] = None
            self.drop_shell(session.id, answered)
            return False
        known = {"user": answered, "agent": text(info.get("agent")), "model": shapes.model_of(info)}
        self._messages[message_id] = known
        for remembered in (self._messages, self._copied, self._users):
            if len(remembered) > _REMEMBERED_MESSAGES:
                remembered.popitem(last=False)
        if not completed:
            self._current[session.id] = message_id
        error = mapping(info.get("error"))
        if answered not in session.turns:
            waits = self.shell_answer(entry, session, answered)
            if waits is not None and not error:
                return waits
            self.settle_shell(session.id)
        if answered not in session.turns:
            self.start_turn(entry, session, answered, message_id, info)
        if shapes.is_abort(error):
            self._aborted.add(answered)
        elif error:
            self.write_late_error(session.id, message_id)
            self._write_error(entry, session, message_id, error)
        return False

    def _copied_from(self, entry: Entry, session: SessionState, made: int) -> None:
        """Record whose message was copied into a session that has none of its own yet: OpenCode 1 names a fork's origin
        nowhere. A copy keeps the time ``made``, and the id of the original begins with nearly the same time."""
        low, high = (f"msg_{(made + ms) % 2**36:09x}" for ms in (-_ID_BEFORE_MS, 1))
        named = map(self.state.sessions.look, self.state.sessions.with_message(low, high))
        others = (each for each in named if each is not None and each is not session)
        found = [each.id for each in others if each.directory == session.directory]
        if len(found) == 1 and found[0] not in self._origins(session):
            self.put(entry, session, FORKED, found[0], {"fork": {"session": found[0]}}, cause=session.event_id)

    def _origins(self, session: SessionState) -> list[str]:
        """The session that a fork was made from, the origin of that session, and so on."""
        found: list[str] = []
        known: SessionState | None = session
        while known is not None and known.fork and known.fork not in found:
            found.append(known.fork)
            known = self.state.sessions.get(known.fork)
        return found

    def start_turn(
        self,
        entry: Entry,
        session: SessionState,
        user: str,
        message: str,
        info: dict[str, Any],
        trigger: str | None = None,
    ) -> None:
        agent = text(info.get("agent")) or "opencode"
        cause = session.inputs.get(user)
        if trigger is None:
            trigger = "prompt" if cause is not None else "compaction" if agent == "compaction" else "unknown"
        if session.turn is not None:
            goes_on = trigger == "compaction" and session.turn.finish not in _ANSWERED
            crashed = session.turn.boot != entry.token.origin.boot_id and session.turn.finish not in _ANSWERED
            self.end_turn(entry, session, INTERRUPTED if crashed else "continued" if goes_on else None)
        if trigger == "unknown" and session.compacted is not None:
            # After a compaction, OpenCode continues automatically, with a user message that OpenCode itself creates.
            trigger, cause = "continuation", session.compacted
        model = shapes.model_of(info) if trigger != SHELL else None  # a `!` command asks no model
        payload = present(message=user, assistant_message=message, trigger=trigger, agent=agent, model=model)
        self.put_turn_started(entry, session, payload, cause, entry)

    def session_idle(self, entry: Entry, session: SessionState | None) -> bool:
        """End the turn. After an abort or an error, wait, because the last parts follow and then another idle."""
        if session is None:
            return False
        self.settle_shell(session.id, until_ms=entry.item.t)
        turn = session.turn
        if turn is None:
            self._current.pop(session.id, None)
            return False
        if _is_before(entry, turn):
            # Another copy of the plugin reports the end of the previous turn late, which is a duplicate.
            self.counts["duplicate:session.idle"] += 1
            return False
        ending = self._endings.get(session.id)
        if ending is not None:
            if ending.entry.source == entry.source:
                self.finish_ending(session.id)
            return False
        if self.is_unsettled(session):
            self._endings[session.id] = self.late(entry)
            return True
        self.end_turn(entry, session, None)
        return False

    def is_unsettled(self, session: SessionState) -> bool:
        """True if more of the session's turn will follow, although OpenCode reports the session as idle."""
        turn = session.turn
        failed = turn is not None and (turn.error is not None or turn.user_message in self._aborted)
        return failed or bool(self.open_tools(session.id))

    def finish_ending(self, session_id: str) -> None:
        late = self._endings.pop(session_id, None)
        if late is None:
            return
        session = self.state.sessions.get(session_id)
        if session is not None and session.turn is not None:
            self.end_turn(late.entry, session, None)
        self.finish(late.entry.token)

    def end_turn(
        self, entry: Entry | None, session: SessionState, outcome: str | None, at_ms: int | None = None
    ) -> None:
        turn = session.turn
        if turn is None:
            return
        self.write_late_error(session.id, None)
        self.forget_tools(session.id)
        outcome = outcome or self._judge(session, turn)
        self._aborted.discard(turn.user_message)
        self._current.pop(session.id, None)
        self.put_turn_ended(entry, session, turn, outcome, self._titles.get(session.id) or session.title, at_ms)
        abort = self._aborts.pop(session.id, None)
        if abort is not None:
            self.finish(abort.entry.token)
        ending = self._endings.pop(session.id, None)
        if ending is not None and ending.entry is not entry:
            self.finish(ending.entry.token)

    def end_dead_turn(self, session: SessionState, at_ms: int | None) -> None:
        """End the open turn of an OpenCode process that is gone and can send nothing more.

        ``at_ms`` is the time when the process's link ended. If nobody saw the link end, ``at_ms`` is ``None``, and the
        time of the turn's last event is used.
        """
        turn = session.turn
        if turn is not None:
            outcome = None if turn.finish in _ANSWERED else INTERRUPTED
            self.end_turn(None, session, outcome, max(turn.last_ms, at_ms or 0))

    def _judge(self, session: SessionState, turn: Turn) -> str:
        if turn.user_message in self._aborted:
            return "aborted"
        if turn.error is not None:
            return "failed"
        if turn.finish is None:
            # The turn was aborted during the pause before a retry, for which OpenCode sends no error.
            return "aborted"
        return "stopped" if turn.finish == "tool-calls" else "completed"

    def turn_of_part(self, session: SessionState, part: dict[str, Any]) -> PartTurn:
        """The turn that a part belongs to. If a crash lost the message, the message's id decides, because a session's
        turns follow one another and OpenCode's ids ascend."""
        message = text(part.get("messageID"))
        known = self._messages.get(message or "")
        user = agent = model = None
        if known is not None:
            user, agent, model = known["user"], known["agent"], known["model"]
        for turn in (session.turn, session.last_turn):
            if turn is None:
                continue
            if turn.user_message == user if known is not None else message is None or message >= turn.assistant_message:
                user, agent, model = user or turn.user_message, agent or turn.agent, model or turn.model
                break
        payload = present(message=message, part=text(part.get("id")), turn=user)
        cause = session.turns.get(user) if user is not None else None
        # The parts of a user message are already recorded with the input, so only the parts of an answer are output.
        users = message in session.inputs or message in self._users or bool(part.get("synthetic"))
        assistant = known is not None or not users
        return PartTurn(payload, cause, agent or "opencode", user, model, assistant)

    # --- errors and asks ---

    def session_error(self, entry: Entry, session: SessionState | None) -> bool:
        if self._is_recorded(entry):
            return False
        error = mapping(entry.properties.get("error"))
        turn = self.turn_at(session, entry)
        is_open = session is not None and turn is not None and turn is session.turn
        if shapes.is_abort(error):
            if session is None or turn is None or not is_open:
                return False
            self._aborted.add(turn.user_message)
            replaced = self._aborts.pop(session.id, None)
            if replaced is not None:
                self.finish(replaced.entry.token)
            self._aborts[session.id] = self.late(entry)
            return True
        message = self._current.get(session.id) if session is not None and (is_open or turn is None) else None
        if message is None and session is not None and turn is not None:
            if is_open and turn.finish is not None:
                # After a crash, the translator no longer knows which answer failed. The next update of that answer's
                # message says so.
                self._errors[session.id] = self.late(entry)
                return True
            message = turn.assistant_message if turn.finish is None else None
        self._write_error(entry, session, message, error)
        return False

    def turn_at(self, session: SessionState | None, entry: Entry) -> Turn | None:
        """The turn that was open when an item was reported. The current turn may be another one, because an old item
        may be resent much later.
        """
        turns = (session.turn, session.last_turn) if session is not None else ()
        return next((turn for turn in turns if turn is not None and not _is_before(entry, turn)), None)

    def _is_recorded(self, entry: Entry) -> bool:
        """True if this bus event is already in the log, because a sidecar died after it recorded the event and before
        it sent the ack."""
        is_recorded = entry.event_id in self.state.bus_events
        if is_recorded:
            self.counts[f"duplicate:{entry.source}"] += 1
        return is_recorded

    def write_late_error(self, session_id: str, message: str | None) -> None:
        late = self._errors.pop(session_id, None)
        if late is not None:
            error = mapping(late.entry.properties.get("error"))
            self._write_error(late.entry, self.state.sessions.get(session_id), message, error)
            self.finish(late.entry.token)

    def _write_error(
        self, entry: Entry, session: SessionState | None, message: str | None, error: dict[str, Any]
    ) -> None:
        known = self._messages.get(message or "")
        user = known["user"] if known is not None else None
        turn = self.turn_at(session, entry)
        if user is None and turn is not None:
            user = turn.user_message
        key = message or entry.event_id or self.own_key(entry)
        if session is not None and key in session.errors:
            self.counts["duplicate:agent.error"] += 1
            return
        payload = present(message=message, turn=user, **shapes.error_of(error))
        cause = session.turns.get(user) if session is not None and user is not None else None
        actor = (known or {}).get("agent") or (turn.agent if turn is not None else None) or "opencode"
        self.put(entry, session, "agent.error", key, payload, cause=cause, actor=actor, correlation=user)

    def ask_checkpoint(self, entry: Entry, session: SessionState | None) -> bool:
        kind, _, state = entry.source.partition(".")
        properties = entry.properties
        self.put_checkpoint(
            entry,
            session,
            session.turn if session is not None else None,
            request=properties.get("requestID") or properties["id"],
            kind=kind,
            state=state,
            content={k: v for k, v in properties.items() if k not in ("sessionID", "requestID", "id", "tool")},
            call=text(mapping(properties.get("tool")).get("callID")),
        )
        return False


def _is_copied(session: SessionState, info: dict[str, Any], now_ms: int) -> bool:
    """True for a message that a fork copied before the fork got an input."""
    return session.born and not session.first_message and shapes.is_copy(info, now_ms)


def _is_before(entry: Entry, turn: Turn) -> bool:
    """Whether an item was reported before a turn began. The clock may step, so the numbers of the items decide if both
    come from one plugin instance."""
    origin, (instance, seq) = entry.token.origin, turn.place
    if (origin.boot_id, origin.instance) == (turn.boot, instance):
        return entry.token.seq < seq
    return entry.item.t < turn.started_ms
