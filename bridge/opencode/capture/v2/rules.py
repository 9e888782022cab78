"""Rules for inputs, turns, steps, errors and asks of OpenCode 2. Pure.

The rules table names these methods; each method emits the records of one event of the service.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bridge.opencode.capture.emitter import Emitter, Entry, PartTurn, whole_type
from bridge.opencode.capture.shapes import mapping, number, present, text, tool_started
from bridge.opencode.capture.state import INTERRUPTED, SHELL, UNDONE, SessionState, Turn
from bridge.opencode.capture.v2 import event_fields
from bridge.opencode.capture.v2.event_fields import HostEvent
from bridge.opencode.capture.v2.memory import Memory
from bridge.opencode.link.frames import HookItem
from streams.lineage import CREATED, RESUMED, RETRIED, STEP_STARTED

HOST = "opencode2"
"""The value of ``host`` in the metadata of every event of OpenCode 2."""


CANCELLED = "opencode.session.inbox.cancelled"
CUT = "text_cut"
"""The reason of the gap for an answer of which the service kept no word, because it was killed."""

_ANSWERED = frozenset({"stop", "length"})
_BY_PERSON = frozenset({"user", "superseded"})
"""The reasons of an interruption that came from a person, by a command or by a prompt that replaces the work."""


@dataclass(slots=True)
class HostEntry(Entry):
    """An event of a service, for the emitter. ``is_history``: it was made from the service's messages."""

    seq: int | None = None
    is_history: bool = False


class HostRules(Emitter):
    def provenance(self, entry: Entry, type_: str) -> dict[str, Any]:
        if not isinstance(entry, HostEntry):
            return super().provenance(entry, type_)
        origin, is_turn = entry.token.origin, type_ == "turn.started"
        return present(
            boot=origin.boot_id,
            host=HOST,
            host_seq=entry.seq,
            event=entry.event_id,
            pid=origin.pid if is_turn and origin.pid and not entry.is_history else None,
            service=origin.service if origin.service and (is_turn or type_ in (CREATED, RESUMED)) else None,
            history=entry.is_history or None,
        )

    def unknown(self, entry: HostEntry, session: SessionState | None, event: HostEvent, memory: Memory) -> None:
        """Keep an event whole, because its type is unknown or has no counterpart in OpenCode 1."""
        self.counts[f"kept_whole:{event.type[:60]}"] += 1
        turn = self._turn(session, memory) if session is not None else None
        cause = session.event_id if session is not None and turn is None else None
        payload = {"properties": event.data}
        self.put(entry, session, whole_type(event.type), event.key, payload, cause=cause, turn=turn)

    # --- inputs and turns ---

    def enqueued(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        message, given = event_fields.input_id(event), event_fields.read_input(event)
        if given.kind in ("compaction", "move"):
            return  # the compaction itself is recorded when it begins, and the move when it is done
        if message is None or given.kind not in ("user", "synthetic"):
            self.unknown(entry, session, event, memory)
            return
        if message in session.inputs:
            self.counts["duplicate:inbox.enqueued"] += 1
            return
        human = given.kind == "user" and session.known and session.parent is None
        human = human and "durable_stream" not in given.metadata
        payload = present(
            message=message,
            parts=given.parts,
            synthetic=(given.kind == "synthetic") or None,
            delivery=given.delivery,
            metadata=given.metadata or None,
        )
        cause = self._cause_of_input(session, given)
        self.put_input(entry, session, message, payload, human=human, cause=cause)

    def _cause_of_input(self, session: SessionState, given: event_fields.Input) -> str | None:
        child = text(given.metadata.get("childID"))
        known = self.state.sessions.get(child or "")
        if known is not None and known.last_end is not None:
            return known.last_end
        return self.state.spawned(child) if child else self.cause_of_input(session, given.metadata)

    def cancelled(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        message = event_fields.input_id(event) or ""
        self.put(
            entry,
            session,
            CANCELLED,
            message or event.key,
            present(message=message or None, prompt=session.prompts.get(message)),
            cause=session.inputs.get(message) or session.event_id,
            actor="user",
            correlation=message or None,
        )

    def step_started(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        answered, is_between = memory.answered, _is_between(session, memory)
        if answered is not None and (is_between or _begins(session, memory, answered.message)):
            self._start_turn(entry, session, event, memory, answered.message, "prompt", answered.t)
        elif is_between:
            message = event_fields.message_id(event) or event.key
            self._start_turn(entry, session, event, memory, message, "continuation")

    def compaction_started(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        asked, answered, is_between = event_fields.input_id(event), memory.answered, _is_between(session, memory)
        if asked is None and answered is not None and (is_between or _begins(session, memory, answered.message)):
            # An automatic compaction before the answer belongs to the turn of the prompt.
            self._start_turn(entry, session, event, memory, answered.message, "prompt", answered.t)
        elif is_between:
            self._start_turn(entry, session, event, memory, asked or event.message, "compaction")

    def _start_turn(
        self,
        entry: HostEntry,
        session: SessionState,
        event: HostEvent,
        memory: Memory,
        message: str,
        trigger: str,
        at_ms: int | None = None,
    ) -> None:
        memory.turn, memory.finish, memory.has_error = message, None, False
        is_over = trigger != "prompt" and entry.seq is not None and entry.seq < session.ended_seq
        if message in session.turns or is_over:
            return  # the turn is already recorded, and its events come a second time
        if session.turn is not None:
            over = replace_time(replace_seq(entry, None), session.turn.last_ms or entry.item.t)
            self.end_turn(over, session, None)
        # A compaction's event names no agent. In the turn of a prompt it is the session's agent, otherwise OpenCode.
        agent = text(event.data.get("agent")) or (session.agent if trigger == "prompt" else None) or "opencode"
        cause = session.inputs.get(message) or session.last_end or session.event_id
        begun, first, model = (
            replace_time(entry, at_ms or entry.item.t),
            event_fields.message_id(event),
            _model(event.data),
        )
        payload = present(message=message, assistant_message=first, trigger=trigger, agent=agent, model=model)
        self.put_turn_started(begun, session, payload, cause, replace_seq(begun, None))

    def execution_succeeded(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        self._end_execution(entry, session, memory, "completed")

    def execution_failed(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        self._start_unanswered(entry, session, event, memory)
        if not memory.has_error and (session.turn is None or session.turn.error is None):
            payload = event_fields.error_of(mapping(event.data.get("error")))
            self._error(replace_seq(entry, None), session, event, memory, payload)
        self._end_execution(entry, session, memory, "failed")

    def execution_interrupted(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        self._start_unanswered(entry, session, event, memory)
        reason = event.data.get("reason")
        if reason in _BY_PERSON:
            outcome = "aborted"
        elif memory.declined:
            outcome = "stopped"  # the service reports the end after a refused call as a shutdown
        else:
            outcome = "completed" if _finish(session, memory) in _ANSWERED else INTERRUPTED
        self._end_execution(entry, session, memory, outcome)

    def _end_execution(self, entry: HostEntry, session: SessionState, memory: Memory, outcome: str) -> None:
        turn = session.turn
        if turn is None or memory.turn not in (None, turn.user_message):
            return
        if entry.seq is not None and turn.host_seq is not None and entry.seq < turn.host_seq:
            self.counts["duplicate:end of a turn before"] += 1
            return
        self.end_turn(entry, session, outcome)

    def _start_unanswered(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        """Begin the turn of a prompt for which no step began, for example because the model does not exist."""
        answered = memory.answered
        if answered is not None and (_is_between(session, memory) or _is_again(session, memory, answered.message)):
            self._start_turn(replace_seq(entry, None), session, event, memory, answered.message, "prompt", answered.t)

    def end_turn(self, entry: HostEntry, session: SessionState, outcome: str | None) -> None:
        if (turn := session.turn) is not None:
            self.put_turn_ended(entry, session, turn, outcome or _judge(turn), session.title)

    # --- steps, outputs, errors ---

    def step_ended(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        self._inference(entry, session, event, memory, text(event.data.get("finish")))

    def step_failed(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        error = mapping(event.data.get("error"))
        aborted = event_fields.is_abort(error)
        if not aborted:
            self._error(entry, session, event, memory, event_fields.error_of(error))
        if mapping(event.data.get("tokens")):
            self._inference(entry, session, event, memory, "aborted" if aborted else "error")

    def _inference(
        self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory, finish: str | None
    ) -> None:
        data, message, turn = event.data, event_fields.message_id(event), self._turn(session, memory)
        part = f"{message}:inference" if message is not None else event.key
        payload = present(
            message=message,
            part=part,
            turn=self._message(session, memory),
            kind="inference",
            finish=finish,
            tokens=mapping(data.get("tokens")) or None,
            cost=data.get("cost"),
            snapshot=text(data.get("snapshot")),
            files=data.get("files") or None,
            model=memory.place(message).get("model") or (turn.model if turn is not None else None),
        )
        self._put_in_turn(entry, session, memory, "execution.step", part, payload)

    def output_ended(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        message, kind, said = event_fields.message_id(event), event.name.partition(".")[0], event.data["text"]
        if not isinstance(said, str):
            raise TypeError("not a text")  # the event is kept whole
        part = f"{message}:{kind}:{event.data.get('ordinal')}" if message is not None else event.key
        payload = present(
            message=message,
            part=part,
            turn=self._message(session, memory),
            kind=kind,
            text=said,
            started_ms=memory.begun.get(memory.start_key(event)),
            ended_ms=event.t or None,
            metadata=mapping(event.data.get("state")) or None,
        )
        self._put_in_turn(entry, session, memory, "execution.output", part, payload)

    def tool_called(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        call = memory.call_of(event)
        if entry.is_history or call.started_ms is not None:
            return  # its step is recorded already, or another call with the same id runs
        part, given = memory.part_of(call), self.clean(event.data.get("input"))
        about = present(message=call.message, part=part, turn=self._message(session, memory))
        payload = {**about, **tool_started(call.name, call.id, given)}
        self._put_in_turn(entry, session, memory, STEP_STARTED, part, payload)

    def tool_ended(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        call = memory.call_of(event)
        began, ended = call.started_ms, event.t or None
        child = event_fields.child_of(event)
        part = memory.part_of(call)
        cause = None
        if child is not None and not event_fields.is_launch(event):
            known = self.state.sessions.get(child)
            cause = known.last_end if known is not None and known.last_end else self.state.spawned(child)
        payload = present(
            message=call.message,
            part=part,
            turn=self._message(session, memory),
            kind="tool",
            tool=call.name,
            call=call.id or None,
            title=text(mapping(call.input).get("description")),
            input=call.input,
            started_ms=began,
            ended_ms=ended,
            duration_ms=ended - began if began is not None and ended is not None else None,
            child=child,
            **event_fields.tool_result(event),
        )
        self._put_in_turn(entry, session, memory, "execution.step", part, payload, cause)

    def shell_ended(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        """Record a person's ``!`` command: an input, and a turn of one step that no model answers."""
        shell, result = mapping(event.data.get("shell")), mapping(event.data.get("output"))
        command, message, code = text(shell.get("command")), text(shell.get("id")) or event.key, shell.get("exit")
        time = mapping(shell.get("time"))
        began = number(time.get("started")) or memory.begun.get(memory.start_key(event)) or entry.item.t
        ended = number(time.get("completed")) or entry.item.t
        begin = replace_time(replace_seq(entry, None), began)
        human = session.known and session.parent is None
        if message not in session.inputs:
            payload, cause = present(message=message, shell=command or ""), self.state.spawned(session.id)
            self.put_input(begin, session, message, payload, human=human, cause=cause)
        own = session.turn is None and memory.turn is None
        if own:
            payload = present(message=message, trigger=SHELL, agent="opencode")
            cause = session.inputs.get(message)
            self.put(begin, session, "turn.started", message, payload, cause=cause, correlation=message)
        payload = present(
            part=f"{message}:shell",
            turn=message if own else self._message(session, memory),
            kind="tool",
            tool="shell",
            call=message,
            status="completed" if shell.get("status") == "exited" else "error",
            input=present(command=command),
            output=result.get("output"),
            metadata=present(exit=code, truncated=result.get("truncated")) or None,
            started_ms=began,
            ended_ms=ended,
            duration_ms=ended - began,
        )
        self._put_in_turn(entry, session, memory, "execution.step", f"{message}:shell", payload)
        if own:
            self.end_turn(replace_seq(entry, None), session, None)

    def compaction_ended(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        message = memory.compaction or event_fields.input_id(event)
        payload = present(message=message, reason=text(event.data.get("reason")), text=event.data.get("text"))
        self._put_in_turn(entry, session, memory, "lifecycle.session.compacted", message or event.key, payload)

    def compaction_failed(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        self._error(
            entry, session, event, memory, event_fields.error_of(mapping(event.data.get("error"))), memory.compaction
        )

    def retried(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        """Record a failed attempt that will be repeated, so it is not an error of the turn."""
        payload = present(
            message=event_fields.message_id(event),
            turn=self._message(session, memory),
            attempt=number(event.data.get("attempt")),
            at_ms=number(event.data.get("at")),
            **event_fields.error_of(mapping(event.data.get("error"))),
        )
        self._put_in_turn(entry, session, memory, RETRIED, event.key, payload)

    def _error(
        self,
        entry: HostEntry,
        session: SessionState,
        event: HostEvent,
        memory: Memory,
        error: dict[str, Any],
        message: str | None = None,
    ) -> None:
        message = message or event_fields.message_id(event)
        payload = present(message=message, turn=self._message(session, memory), **error)
        self._put_in_turn(entry, session, memory, "agent.error", message or event.key, payload)

    def revert_staged(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        self.revert(entry, session, event.key, text(mapping(event.data.get("revert")).get("messageID")))

    def reverted(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        first = text(event.data.get("to")) or ""
        inputs = list(session.inputs)
        undone = inputs[inputs.index(first) :] if first in inputs else [first]
        for message in undone:
            properties = {"sessionID": session.id, "messageID": message}
            self.put(
                entry if message == undone[-1] else replace_seq(entry, None),
                session,
                UNDONE,
                f"{event.key}:{message}",
                present(properties=properties, prompt=session.prompts.get(message)),
                cause=session.inputs.get(message) or session.event_id,
                correlation=message if message in session.inputs else None,
            )

    def checkpoint(self, entry: HostEntry, session: SessionState, event: HostEvent, memory: Memory) -> None:
        found = event_fields.ask_of(event)
        if found is None:
            self.unknown(entry, session, event, memory)
            return
        request, kind, state, content = found
        turn = self._turn(session, memory)
        self.put_checkpoint(entry, session, turn, request=request, kind=kind, state=state, content=content)

    def _put_in_turn(
        self,
        entry: HostEntry,
        session: SessionState,
        memory: Memory,
        type_: str,
        key: str,
        payload: dict[str, Any],
        cause: str | None = None,
    ) -> None:
        turn = self._turn(session, memory)
        self.put(entry, session, type_, key, payload, cause=cause or (None if turn else session.event_id), turn=turn)

    def _turn(self, session: SessionState, memory: Memory) -> Turn | PartTurn | None:
        """The turn that an event belongs to: the one that runs, else the last one."""
        if memory.turn is None:
            return session.turn or session.last_turn
        known = [turn for turn in (session.turn, session.last_turn) if turn is not None]
        running = next((turn for turn in known if turn.user_message == memory.turn), None)
        cause = session.turns.get(memory.turn)
        return running or PartTurn({}, cause, session.agent or "opencode", memory.turn, None, assistant=True)

    def _message(self, session: SessionState, memory: Memory) -> str | None:
        turn = self._turn(session, memory)
        return turn.user if isinstance(turn, PartTurn) else turn.user_message if turn is not None else None


def replace_seq(entry: HostEntry, seq: int | None) -> HostEntry:
    return replace(entry, seq=seq)


def replace_time(entry: HostEntry, t: int) -> HostEntry:
    return replace(entry, item=HookItem(entry.item.hook, t))


def _begins(session: SessionState, memory: Memory, message: str) -> bool:
    return _finish(session, memory) in _ANSWERED or _is_again(session, memory, message)


def _is_again(session: SessionState, memory: Memory, message: str) -> bool:
    return message in session.turns and message != memory.turn


def _is_between(session: SessionState, memory: Memory) -> bool:
    return memory.is_new or (memory.turn is None and session.turn is None)


def _finish(session: SessionState, memory: Memory) -> str | None:
    if memory.turn is not None:
        return memory.finish
    return session.turn.finish if session.turn is not None else None


def _model(data: dict[str, Any]) -> dict[str, Any] | None:
    model = mapping(data.get("model"))
    provider, name = text(model.get("providerID")), text(model.get("id")) or text(model.get("modelID"))
    return present(provider=provider, model=name) if name else None


def _judge(turn: Turn) -> str:
    """The outcome of a turn that was followed by another one before the service said that it was idle."""
    if turn.error is not None and turn.finish not in _ANSWERED:
        return "failed"
    return "stopped" if turn.finish == "tool-calls" else "completed"
