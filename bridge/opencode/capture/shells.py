"""Commands that a person runs with ``!``: their input and the start of their turn. Pure.

OpenCode calls no ``chat.message`` hook for these commands. OpenCode writes a user message with one synthetic note, then
an answer with one ``bash`` part, and only that part names the command. So the note and the answer wait, unacknowledged,
for the part.

A fork copies the same messages, but there the answer is already complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.opencode.capture.emitter import Emitter, Entry, Means
from bridge.opencode.capture.shapes import mapping, present, text
from bridge.opencode.capture.state import SHELL, CaptureState, SessionState
from streams.identity import Identity


@dataclass(slots=True)
class _Shell:
    user: str
    note: Entry
    deadline: float
    answer: Entry | None = None


class Shells(Emitter):
    def __init__(self, identity: Identity, state: CaptureState, means: Means) -> None:
        super().__init__(identity, state, means)
        self._shells: dict[str, _Shell] = {}

    def start_turn(
        self, entry: Entry, session: SessionState, user: str, message: str, info: dict[str, Any], trigger: str | None
    ) -> None:
        """Write ``turn.started``; implemented in ``Turns``."""

    def shell_note(self, entry: Entry, session: SessionState, part: dict[str, Any]) -> bool:
        """Hold the note of a command until the command is known. Returns false if the command's turn has already
        begun."""
        user = part["messageID"]
        known = self._shells.get(session.id)
        if user in session.turns or (known is not None and known.user == user):
            self.counts["duplicate:message.part.updated"] += 1
            return False
        self.settle_shell(session.id)
        self._shells[session.id] = _Shell(user, entry, self.now + self.means.hold_s)
        return True

    def shell_answer(self, entry: Entry, session: SessionState, user: str) -> bool | None:
        """Hold the first update of a command's answer, and skip its later updates."""
        waiting = self._shells.get(session.id)
        if waiting is None or waiting.user != user:
            self.settle_shell(session.id)
            return None
        if waiting.answer is not None:
            return False
        waiting.answer = entry
        return True

    def shell_tool(self, session: SessionState, part: dict[str, Any]) -> None:
        waiting = self._shells.get(session.id)
        if waiting is not None and waiting.answer is not None and _message(waiting.answer)["id"] == part["messageID"]:
            self.settle_shell(session.id, text(mapping(part["state"].get("input")).get("command")))

    def settle_shell(self, session_id: str, command: str | None = None, *, until_ms: int | None = None) -> None:
        """Stop waiting: write the command's input and the start of its turn, except for copies and unanswered commands.

        ``command`` is ``None`` if the part with the command never came. With ``until_ms``, only a wait that began
        before that time is ended.
        """
        waiting = self._shells.get(session_id)
        if waiting is None or (until_ms is not None and waiting.note.item.t > until_ms):
            return
        del self._shells[session_id]
        session = self.state.sessions.get(session_id)
        if session is not None and waiting.answer is not None:
            self._begin(waiting, waiting.answer, session, command)
        else:
            self.counts["not_final:message.part.updated"] += 1
        for entry in (waiting.note, waiting.answer):
            if entry is not None:
                self.finish(entry.token)

    def drop_shell(self, session_id: str, user: str) -> None:
        waiting = self._shells.get(session_id)
        if waiting is not None and waiting.user == user and waiting.answer is None:
            self.settle_shell(session_id)

    def expire_shells(self, now: float) -> None:
        for session_id, waiting in list(self._shells.items()):
            if waiting.deadline <= now:
                self.settle_shell(session_id)

    def _begin(self, waiting: _Shell, answer: Entry, session: SessionState, command: str | None) -> None:
        info, user = _message(answer), waiting.user
        if user not in session.inputs:
            human, cause = session.known and session.parent is None, self.state.spawned(session.id)
            payload = present(message=user, agent=text(info.get("agent")), shell=command or "")
            self.put_input(waiting.note, session, user, payload, human=human, cause=cause)
        self.start_turn(answer, session, user, info["id"], info, SHELL)


def _message(entry: Entry) -> dict[str, Any]:
    return mapping(entry.properties.get("info"))
