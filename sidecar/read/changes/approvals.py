"""Permissions and questions with their answers, joined by request and by call. Pure.

Payloads come from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import normpath
from typing import Any, Literal

from sidecar.read.ask_text import answered_with, what_is_asked, withdrawn_text
from sidecar.read.fields import as_list, as_mapping, as_strings, as_text, first_text
from sidecar.read.wording import lasted, one_line, rough_span
from streams.store import Record

AskState = Literal["waiting", "replied", "rejected", "withdrawn", "over"]
"""``withdrawn``: OpenCode rejected it together with another. ``over``: the turn or the process ended before anybody
answered."""


@dataclass(slots=True)
class Question:
    """One question of an agent, and the labels of the answers that the agent offered."""

    text: str
    options: list[str]


@dataclass(slots=True)
class Ask:
    """A permission or a question: exactly what was asked, who answered, what the answer was, and how long it took.

    ``wanted`` is the command, the path or the patterns. ``reply`` is ``once``, ``always`` or ``reject``. ``by`` is
    empty if there is no answer or a program rejected the ask. ``joined`` is the checkpoint whose answer also
    settled this one.
    """

    event: str
    ts: int
    actor: str
    request: str
    call: str
    turn: str
    permission: str
    wanted: list[str]
    always: list[str]
    questions: list[Question]
    state: AskState = "waiting"
    reply: str = ""
    message: str = ""
    answers: list[str] = field(default_factory=list)
    by: str = ""
    joined: str = ""
    waited_ms: int | None = None
    kind: Literal["ask"] = "ask"


@dataclass(slots=True)
class Approval:
    """An ask, the record that asks, and, once there is one, the record that answers."""

    ask: Ask
    asked: Record
    answer: Record | None = None

    @property
    def session(self) -> str:
        return as_text(self.asked.event.payload.get("session"))

    @property
    def kind(self) -> str:
        """``permission`` or ``question``."""
        return as_text(self.asked.event.payload.get("kind"))

    @property
    def what(self) -> str:
        """The subject of the ask, on one line."""
        return what_is_asked(self.asked.event.payload)

    @property
    def diff(self) -> str:
        """The diff that was shown with the request; empty if there was no diff."""
        return as_text(as_mapping(self.asked.event.payload.get("metadata")).get("diff"))

    @property
    def reply(self) -> str | None:
        """``once``, ``always``, ``reject``, ``withdrawn`` or ``answered``; ``None`` while nobody has answered."""
        if self.answer is None:
            return None
        if self.ask.state == "withdrawn":
            return "withdrawn"
        if self.ask.state == "rejected":
            return "reject"
        return self.ask.reply if self.ask.reply in ("once", "always") else "answered"

    @property
    def text(self) -> str:
        """The answer in words: ``approved once by user after 12.0s``; ``not answered`` if there is no answer."""
        return "not answered" if self.answer is None else one_line(answer_text(self.ask))

    def is_about(self, step: dict[str, Any]) -> bool:
        """False if the command, path or address in the call of ``step`` differs from the one in the ask.

        Parallel calls in one turn may have the same call id.
        """
        payload = self.asked.event.payload
        metadata, patterns = as_mapping(payload.get("metadata")), as_strings(payload.get("patterns"))
        inputs = [as_mapping(step.get(name)) for name in ("input", "executed_input")]
        for name, *names in _SAME_FIELDS:
            given = list(filter(None, (first_text(each, *names) for each in inputs)))
            if given and (asked := as_text(metadata.get(name))):
                return any(asked == text or (name == "filepath" and _may_be_same_file(asked, text)) for text in given)
        # An ask for a command lists parts of the command as its patterns, so look for a pattern within the command.
        given = list(filter(None, (as_text(each.get(_PATTERN_FIELDS.get(self.ask.permission, ""))) for each in inputs)))
        return not (given and patterns) or any(part in text or "*" in part for part in patterns for text in given)

    def as_json(self) -> dict[str, Any]:
        """The approval in the form that ``changes --json`` prints."""
        payload, answer = self.asked.event.payload, self.answer
        return {
            "request": self.ask.request,
            "kind": self.kind,
            "permission": as_text(payload.get("permission")),
            "asked": self.what,
            "reply": self.reply,
            "by": self.ask.by or None,
            "with": self.ask.joined or None,
            "message": one_line(self.ask.message) or None,
            "waited_ms": self.ask.waited_ms,
            "asked_event": self.asked.event.id,
            "answer_event": answer.event.id if answer is not None else None,
        }


def approval_of(asked: Record, answer: Record | None) -> Approval:
    """The approval that one record opens and another one answers."""
    approval = Approval(ask_of(asked), asked, answer)
    if answer is not None:
        add_answer(approval.ask, answer)
    return approval


def ask_of(record: Record) -> Ask:
    """Build the ask from a record: the permission and exactly what it is for, or the questions."""
    event, payload = record.event, record.event.payload
    exact = first_text(as_mapping(payload.get("metadata")), "command", "filepath", "url")
    questions = []
    for one in map(as_mapping, as_list(payload.get("questions"))):
        labels = [as_text(as_mapping(each).get("label")) for each in as_list(one.get("options"))]
        questions.append(Question(as_text(one.get("question")), list(filter(None, labels))))
    return Ask(
        event.id,
        event.ts,
        event.actor,
        as_text(payload.get("request")),
        as_text(payload.get("call")),
        as_text(payload.get("turn")),
        first_text(payload, "permission", "kind"),
        [exact] if exact else as_strings(payload.get("patterns")),
        as_strings(payload.get("always")),
        questions,
    )


def add_answer(ask: Ask, record: Record) -> None:
    payload = record.event.payload
    ask.reply, ask.message = as_text(payload.get("reply")), as_text(payload.get("message"))
    ask.state = "rejected" if "rejected" in (payload.get("state"), f"{ask.reply}ed") else "replied"
    ask.answers = [
        ", ".join(as_strings(one)) if isinstance(one, list) else as_text(one) for one in as_list(payload.get("answers"))
    ]
    ask.by, ask.joined = record.event.actor, answered_with(payload)
    if ask.by == "opencode":
        ask.by = ""
    if ask.joined and ask.state == "rejected":
        ask.state = "withdrawn"
    if record.event.id != ask.event:
        ask.waited_ms = max(record.event.ts - ask.ts, 0)


def answer_text(ask: Ask, now_ms: int = 0) -> str:
    """Who answered what and after how long: ``approved once by user after 12.0s``."""
    if ask.state == "waiting":
        return "waiting for you" + (f", {rough_span(now_ms - ask.ts)}" if now_ms else "")
    if ask.state == "over":
        return "not answered before the turn ended"
    if ask.state == "withdrawn":
        return withdrawn_text(ask.joined)
    by = f"by {one_line(ask.by)}" if ask.by else f"with {ask.joined}" if ask.joined else "automatically"
    after = by if ask.waited_ms is None else f"{by} after {lasted(ask.waited_ms)}"
    if ask.state == "rejected":
        return f"rejected {after}" + (f": {ask.message}" if ask.message else "")
    if ask.questions or ask.answers:
        return f"{'; '.join(ask.answers) or 'answered'} ({after})"
    how = {"always": "approved always", "once": "approved once"}.get(ask.reply, ask.reply or "answered")
    always = f": {' ; '.join(ask.always)}" if ask.reply == "always" and ask.always else ""
    return f"{how} {after}{always}"


_SAME_FIELDS = (("command", "command"), ("filepath", "filePath", "path", "file"), ("url", "url"))
"""In each row: a field of an ask's metadata, then the fields of a call's input that may have the same value."""

_PATTERN_FIELDS = {
    "bash": "command",
    "shell": "command",
    "webfetch": "url",
    "task": "subagent_type",
    "subagent": "agent",
}
"""For each permission, the field of a call's input from which the patterns are derived."""


def _may_be_same_file(asked: str, given: str) -> bool:
    """True if two paths may name the same file. The base directory of a relative path is not known."""
    whole, part = sorted(map(normpath, (asked, given)), key=lambda path: not path.startswith("/"))
    if part.startswith("/") or not whole.startswith("/"):
        return whole == part
    return part.startswith(".") or whole.endswith(f"/{part}")
