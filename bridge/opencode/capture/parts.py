"""Rules for message parts: steps, outputs, child sessions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.opencode.capture import shapes
from bridge.opencode.capture.emitter import Entry, Means, PartTurn
from bridge.opencode.capture.history import HISTORY_INSTANCE
from bridge.opencode.capture.shapes import mapping, present, text
from bridge.opencode.capture.state import CaptureState, SessionState, input_digest, turn_digest
from bridge.opencode.capture.table import FINAL_PARTS
from bridge.opencode.capture.turns import Turns
from streams.identity import Identity
from streams.lineage import STEP_STARTED


@dataclass(slots=True)
class _Open:
    session: str
    part: str
    call: str
    inputs: set[str] = field(default_factory=set)
    """Digests of the part's inputs. There are two if OpenCode merges two calls with the same id into one part."""


@dataclass(slots=True)
class _After:
    entry: Entry
    session: str
    call: str
    turn: PartTurn
    deadline: float


class Parts(Turns):
    def __init__(self, identity: Identity, state: CaptureState, means: Means) -> None:
        super().__init__(identity, state, means)
        self._open: dict[str, _Open] = {}
        self._afters: list[_After] = []

    def open_tools(self, session_id: str) -> list[str]:
        return [part for part, tool in self._open.items() if tool.session == session_id]

    def forget_tools(self, session_id: str) -> None:
        """Nothing follows for the session's tools: write what only a hook reported, as for two calls with one id."""
        for after in [after for after in self._afters if after.session == session_id]:
            self._afters.remove(after)
            self._write_after(after)
        for part in self.open_tools(session_id):
            del self._open[part]

    def deadlines(self) -> list[float]:
        late = [*self._aborts.values(), *self._endings.values(), *self._errors.values()]
        waiting = [after.deadline for after in self._afters] + [shell.deadline for shell in self._shells.values()]
        return waiting + [one.deadline for one in late]

    def expire(self, now: float) -> None:
        self.expire_shells(now)
        for after in [a for a in self._afters if a.deadline <= now]:
            self._afters.remove(after)
            self._write_after(after)
        for session_id, late in list(self._errors.items()):
            if late.deadline <= now:
                self.write_late_error(session_id, None)
        for session_id, late in list(self._endings.items()):
            if late.deadline <= now:
                self.finish_ending(session_id)
        for session_id, late in list(self._aborts.items()):
            if late.deadline <= now:
                del self._aborts[session_id]
                self.finish(late.entry.token)

    # --- parts: steps, outputs, child sessions ---

    def part_updated(self, entry: Entry, session: SessionState | None) -> bool:
        part = entry.properties["part"]
        kind = part["type"]
        if session is None or kind not in FINAL_PARTS:
            self.counts[f"not_final:part.{kind}"] += 1
            return False
        part_id = part["id"]
        if kind == "text" and shapes.is_shell_note(part):
            return self.shell_note(entry, session, part)
        if kind == "tool":
            return self._tool_part(entry, session, part, part_id)
        turn = self.turn_of_part(session, part)
        is_over = mapping(part.get("time")).get("end") is not None
        ended = kind == "step-finish" or (is_over and turn.assistant)
        if not ended:
            self.counts[f"not_final:part.{kind}"] += 1
        elif self._is_copied(session, part["messageID"]):
            self.counts["copied:message.part.updated"] += 1
        elif kind == "step-finish":
            payload = {**turn.payload, **shapes.inference_step(part), **present(model=turn.model)}
            self.put(entry, session, "execution.step", part_id, payload, turn=turn)
        else:
            payload = {**turn.payload, **shapes.output_of(part)}
            self.put(entry, session, "execution.output", part_id, payload, turn=turn)
        return False

    def _is_copied(self, session: SessionState, message: str) -> bool:
        if session.misread:
            return False
        if message in self._copied:
            return True
        first = session.first_message
        return session.born and (first is None or (message[:4] == first[:4] and message < first))

    def _tool_part(self, entry: Entry, session: SessionState, part: dict[str, Any], part_id: str) -> bool:
        state, call = part["state"], part["callID"]
        self.shell_tool(session, part)
        is_over = state["status"] in ("completed", "error")
        if is_over and self._is_copied(session, part["messageID"]):
            self.counts["copied:message.part.updated"] += 1
            return False
        turn = self.turn_of_part(session, part)
        if not is_over:
            opened = self._open.setdefault(part_id, _Open(session.id, part_id, call))
            if state["status"] == "running":
                if not opened.inputs and not self._is_past(entry, session, part):
                    about = shapes.tool_started(part["tool"], call, self.clean(state.get("input")))
                    self.put(entry, session, STEP_STARTED, part_id, {**turn.payload, **about}, turn=turn)
                opened.inputs.add(input_digest(state.get("input")))
        child = text(mapping(state.get("metadata")).get("sessionId"))
        if child is not None and part_id not in session.spawning:
            self._write_spawn(entry, session, part, part_id, child, turn)
        if not is_over:
            self.counts["not_final:part.tool"] += 1
            return False
        self._open.pop(part_id, None)
        payload = {**turn.payload, **shapes.tool_step(part)}
        afters = self._take_afters(session, call, state, turn.user)
        given = afters[0].entry.item.input.get("args") if afters else None
        if given is not None and given != payload.get("input"):
            payload["executed_input"] = given
        cause = None
        if child is not None:
            known = self.state.sessions.get(child)
            cause = known.last_end if known is not None and known.last_end else session.spawning.get(part_id)
            payload["child"] = child
        self.put(entry, session, "execution.step", part_id, payload, cause=cause, turn=turn)
        for after in afters:
            self.finish(after.entry.token)
        if session.id in self._endings and not self.is_unsettled(session):
            self.finish_ending(session.id)
        return False

    def _is_past(self, entry: Entry, session: SessionState, part: dict[str, Any]) -> bool:
        """True if the part stopped because its OpenCode died."""
        return entry.token.origin.instance == HISTORY_INSTANCE or self._is_copied(session, part["messageID"])

    def _write_spawn(
        self,
        entry: Entry,
        session: SessionState,
        part: dict[str, Any],
        part_id: str,
        child: str,
        turn: PartTurn,
    ) -> None:
        asked = mapping(mapping(part.get("state")).get("input"))
        payload = {
            **turn.payload,
            **present(
                child=child,
                call=text(part.get("callID")),
                agent=text(asked.get("subagent_type")),
                description=text(asked.get("description")),
            ),
        }
        self.put(entry, session, "agent.spawned", part_id, payload, turn=turn)

    def tool_after(self, entry: Entry, session: SessionState | None) -> bool:
        call = entry.item.input["callID"]
        if session is None:
            return self.unknown_event(entry, session)
        at = self.turn_at(session, entry)
        user = at.user_message if at is not None else None
        is_open = any(t.session == session.id and t.call == call for t in self._open.values())
        if not is_open and self._is_echo(session, call, entry.item.input.get("args"), user):
            self.counts["duplicate:tool.execute.after"] += 1
            return False
        cause, agent = session.turns.get(user or ""), at.agent if at is not None else ""
        turn = PartTurn(present(turn=user), cause, agent or "opencode", user, None, True)
        self._afters.append(_After(entry, session.id, call, turn, self.now + self.means.hold_s))
        return True

    def _is_echo(self, session: SessionState, call: str, given: Any, user: str | None) -> bool:
        """True if the turn has a step of such a call. If the turn is unknown, all of the session's steps count."""
        ran, turn = input_digest(self.clean(given)), turn_digest(user)
        steps = [each for each in session.calls.get(call, "").split() if each.startswith(ran)]
        return any(not turn or each in (ran, ran + turn) for each in steps)

    def _take_afters(self, session: SessionState, call: str, state: dict[str, Any], user: str | None) -> list[_After]:
        """Take the waiting hooks of a tool part that has ended: one hook from each plugin copy."""
        waiting = [after for after in self._afters if after.session == session.id and after.call == call]
        taken = [after for after in waiting if _given(after.entry) == input_digest(state.get("input"))]
        if not taken and state["status"] == "completed" and not self._is_echo(session, call, state.get("input"), user):
            rest = [one for one in waiting if not self._is_echo(session, call, one.entry.item.input.get("args"), user)]
            taken = rest if len({_given(after.entry) for after in rest}) == 1 else []
        self._afters = [after for after in self._afters if after not in taken]
        return taken

    def _write_after(self, after: _After) -> None:
        session = self.state.sessions.get(after.session)
        if session is None:  # the session was pruned or forgotten while the hook waited
            self.counts["session_removed:tool.execute.after"] += 1
            self.finish(after.entry.token)
            return
        opened = [t for t in self._open.values() if t.session == after.session and t.call == after.call]
        # If two calls share a part, its step belongs to the call that ends the part. Which call that is, is not known
        # yet.
        part = next((one.part for one in opened if len(one.inputs) < 2), None)
        turn = after.turn
        if part is None and self._is_echo(session, after.call, after.entry.item.input.get("args"), turn.user):
            self.counts["duplicate:tool.execute.after"] += 1
        else:
            payload = {**turn.payload, **present(part=part), **shapes.tool_step_from_after(after.entry.item)}
            key = part or f"{turn.user}:{after.call}:{input_digest(self.clean(payload.get('input')))}"
            self.put(after.entry, session, "execution.step", key, payload, turn=turn)
            if part is not None:
                self._open.pop(part, None)
        self.finish(after.entry.token)


def _given(entry: Entry) -> str:
    return input_digest(entry.item.input.get("args"))
