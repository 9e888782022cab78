"""What was asked of a person, and the answer: permissions and questions, joined by request. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sidecar.views.wording import one_line
from streams.query import describe_span
from streams.store import Record

CHECKPOINT = "workflow.checkpoint"


@dataclass(slots=True)
class Approval:
    """One ask, and its answer once there is one.

    ``reply`` is ``once``, ``always``, ``reject`` or ``answered``; ``None`` while nobody has answered.
    ``asked_id`` and ``answer_id`` are event ids; times are in ms since 1970.
    """

    request: str
    session: str
    turn: str
    call: str
    kind: str
    permission: str
    what: str
    asked_id: str
    asked_ms: int
    diff: str = ""
    reply: str | None = None
    by: str = ""
    message: str = ""
    answer_id: str | None = None
    answered_ms: int | None = None

    @property
    def waited_ms(self) -> int | None:
        """How long the answer took; ``None`` while there is none."""
        return None if self.answered_ms is None else max(self.answered_ms - self.asked_ms, 0)

    @property
    def text(self) -> str:
        """The answer in words: ``approved once by user after 12.0s``; ``not answered`` without one."""
        if self.reply is None or self.waited_ms is None:
            return "not answered"
        did = {"once": "approved once", "always": "approved always", "reject": "rejected"}.get(self.reply, "answered")
        said = f": {self.message}" if self.message else ""
        return f"{did} by {one_line(self.by)} after {describe_span(self.waited_ms)}{said}"

    def as_json(self) -> dict[str, Any]:
        """The approval as ``changes --json`` prints it."""
        return {
            "request": self.request,
            "kind": self.kind,
            "permission": self.permission,
            "asked": self.what,
            "reply": self.reply,
            "by": self.by or None,
            "message": self.message or None,
            "waited_ms": self.waited_ms,
            "asked_event": self.asked_id,
            "answer_event": self.answer_id,
        }


class Approvals:
    """Fold of ``workflow.checkpoint`` records, in position order; records of other types change nothing."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], Approval] = {}
        self._calls: dict[tuple[str, str, str], list[Approval]] = {}

    def apply(self, record: Record) -> Approval | None:
        """Take one record; returns the ask that it makes or answers."""
        event, payload = record.event, record.event.payload
        if event.type != CHECKPOINT:
            return None
        session, request = _string(payload.get("session")), _string(payload.get("request"))
        if payload.get("state") == "asked":
            return self._ask(record, session, request)
        ask = self._requests.get((session, request))
        if ask is None or ask.reply is not None:
            return None
        ask.reply = _reply(payload)
        ask.by, ask.answer_id, ask.answered_ms = event.actor, event.id, event.ts
        ask.message = one_line(_string(payload.get("message")))
        return ask

    def of(self, session: str, turn: str, call: str) -> list[Approval]:
        """What one call asked for, the oldest first; call ids repeat, so the turn counts too."""
        return self._calls.get((session, turn, call), [])

    def answered_by(self, event_id: str) -> Approval | None:
        """The ask that an event answers."""
        return next((ask for ask in self._requests.values() if ask.answer_id == event_id), None)

    def of_step(self, payload: dict[str, Any]) -> list[Approval]:
        """What the call asked for that an ``execution.step`` tells of."""
        session, turn, call = (_string(payload.get(name)) for name in ("session", "turn", "call"))
        return self.of(session, turn, call) if call else []

    def waited_ms(self, payload: dict[str, Any]) -> int:
        """How long the call of a step waited for answers; 0 if it asked nothing."""
        return sum(ask.waited_ms or 0 for ask in self.of_step(payload))

    def _ask(self, record: Record, session: str, request: str) -> Approval:
        payload = record.event.payload
        known = self._requests.get((session, request))
        if known is not None and known.asked_id == record.event.id:
            return known
        metadata = payload.get("metadata")
        ask = Approval(
            request,
            session,
            turn=_string(payload.get("turn")),
            call=_string(payload.get("call")),
            kind=_string(payload.get("kind")),
            permission=_string(payload.get("permission")),
            what=what_is_asked(payload),
            asked_id=record.event.id,
            asked_ms=record.event.ts,
            diff=_string(metadata.get("diff")) if isinstance(metadata, dict) else "",
        )
        self._requests[session, request] = ask
        if ask.call:
            self._calls.setdefault((session, ask.turn, ask.call), []).append(ask)
        return ask


def what_is_asked(payload: dict[str, Any]) -> str:
    """What an ask is about, on one line: the command, else the patterns; the questions.

    The patterns of a command are its parts, so only the command itself shows how they are joined.
    """
    questions = payload.get("questions")
    if isinstance(questions, list) and questions:
        return one_line("; ".join(_string(q.get("question")) for q in questions if isinstance(q, dict)))
    metadata, patterns = payload.get("metadata"), payload.get("patterns")
    command = _string(metadata.get("command")) if isinstance(metadata, dict) else ""
    return one_line(command or (" ; ".join(map(_string, patterns)) if isinstance(patterns, list) else ""))


def _reply(payload: dict[str, Any]) -> str:
    if payload.get("state") == "rejected" or payload.get("reply") == "reject":
        return "reject"
    reply = payload.get("reply")
    return reply if reply in ("once", "always") else "answered"


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
