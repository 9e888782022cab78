"""A message: one thing that waits until somebody has heard it, and how each event of its life changes it. Pure.

A message is for the model of a session, or for a person. If it is a question, the person answers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.opencode.capture.emitter import Asked
from sidecar.agents.agent import Cause, Output
from sidecar.background.intents.lifecycle import after
from sidecar.background.intents.state import some_of
from sidecar.background.messages.signals import Signals
from streams.event import StreamEvent
from streams.trace import is_one_trace

KEPT: Final = 200
"""How many ended messages of each kind of id, and how many begun turns, stay in the state; the log has them all."""

QUESTIONS: Final = frozenset({"ask", "permission", "question", "effect"})

TOAST: Final = "toast"
"""The channel that is OpenCode's own screen."""

_ANSWERS: Final = {
    "message.answering": "answering",
    "message.answered": "answered",
    "message.expired": "expired",
    "message.withdrawn": "withdrawn",
}
_REACHED: Final = {"message.sent": "sent", "message.failed": "queued", "message.absent": "queued"}

MESSAGE: Final[dict[str, dict[str, str]]] = {
    "queued": {
        "message.postponed": "queued",
        "message.sending": "sending",
        **_REACHED,
        "message.returned": "returned",
        "message.seen": "seen",
        **_ANSWERS,
    },
    "sending": {
        **_REACHED,
        "message.postponed": "queued",
        "message.returned": "returned",
        "message.seen": "seen",
        **_ANSWERS,
    },
    "sent": {"message.sending": "sending", "message.postponed": "queued", "message.seen": "seen", **_ANSWERS},
    "returned": {"message.seen": "seen", "message.postponed": "queued"},
    "answering": {
        "message.answered": "answered",
        "message.unanswered": "queued",
        "message.withdrawn": "withdrawn",
    },
    "seen": {},
    "answered": {},
    "expired": {},
    "withdrawn": {"message.answered": "answered"},
}
"""The transitions of a message. A combination of state and event that is not in the table changes nothing.

``message.postponed``: it waits for others, for the end of quiet hours, or for another attempt.

To a session: ``sent`` means that OpenCode accepted it, but the session's history does not have it yet; only the history
proves that it was ``seen``. ``returned``: a tool call of the session returned its content; once OpenCode has saved that
result, it is seen.

To a person: ``message.sent``, ``failed`` and ``absent`` tell what became of it on one channel; after some time, or if
no channel reached anybody, the next ones are used. It is ``seen`` when there is a sign that somebody saw it. A question
ends with its answer. ``answering``: an answer was given and is on its way to OpenCode. If a sidecar dies after OpenCode
has accepted it, the next one sends it again, OpenCode refuses it, and the captured events show that it had arrived.
``withdrawn``: nobody waits for it any more.
"""

CLOSED: Final = frozenset({"seen", "answered", "expired", "withdrawn"})


@dataclass(slots=True)
class Message:
    """One message. Times are in ms UTC."""

    id: str
    kind: str
    """For the model of a session: ``result`` (of background work), ``answer`` or ``signal``. For a person: ``alert``,
    ``turn`` (one has ended), or one of ``QUESTIONS``."""
    text: str
    queued: int
    to: str | None = None
    """The session that gets it, or whose screen shows it."""
    about: str = ""
    """What it is about: a checkpoint, an intent, a turn or a trouble."""
    title: str = ""
    state: str = "queued"
    intent: str | None = None
    """The background work that it is about, or that asks."""
    due: int | None = None
    """When it is sent next; ``None`` if something else decides that, or if it is on its way."""
    closed: int | None = None
    why: str = ""
    """Why it ended, or why OpenCode did not accept the last answer."""
    said: str = ""
    """The digest of an answer, if redaction replaced some of its words (see ``unredacted.py``)."""
    key: str = ""
    """The key that marks it in the session's history; of a question, the key of the answer that won, if that answer
    came through the sidecar."""
    cause: str = ""
    """The event that queued it, and its ``traceparent`` in ``trace``. What is done for it has this cause."""
    trace: str = ""
    call: str = ""
    """The tool call that returned its content."""
    turn: str = ""
    """The user message that the turn of that call, or of the call that waits for an answer, answers."""
    since: int = 0
    """When that call returned, or began to wait."""

    # --- to a session ---
    sent: int | None = None
    failures: int = 0
    heir: str | None = None
    """The session that gets it instead, if it must be sent again: the work of the first one has ended."""
    more: bool = False
    """Whether more results for the session may come in a moment."""
    nudged: bool = False
    """Whether the session became idle while it was on its way."""
    wake: bool = True
    """Whether the model should answer it."""

    # --- to a person ---
    stages: list[list[str]] = field(default_factory=list)
    """The remaining stages, each a list of channels."""
    channels: dict[str, str] = field(default_factory=dict)
    """The state of each channel that was used: ``sending``, ``sent``, ``failed``, or ``absent`` for a toast that nobody
    could see."""
    leader: str = ""
    """The one whose text includes this one, during a stage."""
    is_postponed: bool = False
    """Whether the next stage waits, so that its text can include others."""

    # --- a question ---
    session: str = ""
    """The session that asks."""
    request: str = ""
    """OpenCode's id of the request; for an ``effect``, the event that requested it; empty for an ``ask``."""
    effect: dict[str, Any] = field(default_factory=dict)
    """Which attempt of which effect is in doubt: ``agent``, ``kind``, ``run``, ``key``, ``attempt``, ``reason``."""
    questions: int = 1
    options: list[str] = field(default_factory=list)
    fixed: list[list[str]] = field(default_factory=list)
    """For each question, its only answers; empty if the person may answer in other words."""
    always: list[str] = field(default_factory=list)
    """What else the answer ``always`` would allow: OpenCode's patterns."""
    left_out: int = 0
    """How many characters were cut out of ``text`` and ``always``. Whoever sees only these cannot allow anything."""
    work: str = ""
    """The title of the background work that asks; empty for a session of the user's own."""
    directory: str = ""
    """The project's directory; empty if it is not known."""
    expires: int | None = None
    default: str = ""
    answer: list[str] = field(default_factory=list)
    by: str = ""
    """Who answered: ``user`` (in OpenCode or in a terminal), ``link``, ``process`` (a process without a terminal) or
    ``opencode`` (by itself). The actor of the captured answer is the same."""
    via: dict[str, Any] = field(default_factory=dict)
    """How the answer came: ``channel`` (``opencode``, ``list``, ``command-line`` or ``link``), and the ``pid`` and
    terminal (``tty``) of a command."""
    waiting: bool = False
    """Whether a tool call is waiting for the answer. If not, the answer is sent to the session as a message."""

    @property
    def is_open(self) -> bool:
        return self.state not in CLOSED

    @property
    def is_question(self) -> bool:
        return self.kind in QUESTIONS

    @property
    def is_for_person(self) -> bool:
        return self.is_question or self.kind in ("alert", "turn")

    @property
    def is_forgettable(self) -> bool:
        """Whether it has ended, or nobody has seen it although every channel was tried."""
        is_done = self.kind in ("alert", "turn") and not self.stages and self.due is None
        return not self.waiting and (not self.is_open or is_done)

    def change(self, type_: str, given: Mapping[str, Any]) -> None:
        """Fold one event about this message."""
        before, self.state = self.state, after(MESSAGE, self.state, type_)
        if channel := given.get("channel", ""):
            self.channels[channel] = type_.removeprefix("message.")
            if given.get("over"):
                self.stages, self.due = self.stages[1:], given.get("due") if self.is_open else None
        elif type_ == "message.sending":
            self.nudged, self.due, self.is_postponed = False, None, False
            self.key, self.leader = given.get("key", self.key), given.get("leader", "")
            self.channels |= dict.fromkeys(given.get("channels", ()), "sending")
        elif type_ == "message.postponed":
            self.due, self.is_postponed, self.stages = given.get("due"), True, given.get("stages", self.stages)
            self.failures = self.failures + 1 if self.due is not None and self.key else 0
        elif type_ == "message.sent":
            self.sent = given["ts"]
        elif type_ == "message.nudged":
            self.nudged = True
        elif type_ == "message.inherited":
            self.heir = given["to"]
        elif type_ in ("message.waiting", "message.returned"):
            self.waiting = type_ == "message.waiting"
            self.call, self.turn, self.since = given.get("call", ""), given.get("turn") or "", given.get("ts") or 0
        elif type_ == "message.left":
            self.waiting = False
        elif self.state != before:
            self._close(type_, given)
        if self.heir is not None and self.state == "queued":
            self.to, self.heir, self.key = self.heir, None, ""

    def _close(self, type_: str, given: Mapping[str, Any]) -> None:
        self.why = str(given.get("why") or "")
        if type_ not in ("message.seen", "message.withdrawn"):
            self.answer, self.by, self.via = (
                list(given.get("answer") or ()),
                given.get("by", ""),
                given.get("via") or {},
            )
            self.key = given.get("key") or ""
            self.said = given.get("said", "" if type_ == "message.unanswered" else self.said)
        if not self.is_open:
            self.due, self.closed = None, given.get("ts")


@dataclass(slots=True)
class State:
    messages: dict[str, Message] = field(default_factory=dict)
    signals: Signals = field(default_factory=Signals)
    recent: dict[str, list[int]] = field(default_factory=dict)
    """When a channel got its last messages; those with questions count under the channel's name and ``?``."""
    turns: dict[str, int] = field(default_factory=dict)
    """By session and user message, when a person began a turn that has not ended. A turn that continues after a
    compaction answers another message, so its session alone names it alone."""
    costs: dict[str, float] = field(default_factory=dict)
    """By stream, what its sessions have cost together, if there is a limit."""

    def to_session(self, session: str, *states: str) -> list[Message]:
        found = [each for each in self.messages.values() if each.to == session and each.state in states]
        return [each for each in found if not each.is_for_person]

    def waiting_for(self, session: str) -> list[Message]:
        """What may be sent to a session. An answer waits while a call waits for it, and from background work,
        which asks again."""
        found = []
        for each in self.to_session(session, "queued"):
            asked = self.messages.get(each.about)
            if not (asked is not None and asked.waiting) and (each.to != each.session or each.intent is None):
                found.append(each)
        return found

    def questions(self) -> list[Message]:
        return [each for each in self.messages.values() if each.is_question]

    def unheard(self) -> int:
        """How many messages to sessions were not seen there yet."""
        return sum(each.is_open and not each.is_for_person for each in self.messages.values())

    def open_about(self, about: str) -> list[Message]:
        """What tells a person about something, and was not seen yet."""
        return [each for each in self.messages.values() if each.about == about and each.is_for_person and each.is_open]

    def fold(self, event: StreamEvent) -> None:
        given = event.payload
        if event.type == "message.queued":
            self.messages[given["message"]] = queued(given, event.ts, event.id, event.traceparent or "")
            self._tidy()
        elif event.type.startswith("signal."):
            self.signals.fold(event.type, given)
        elif event.type.startswith(("ring.", "cost.")):
            self._count(event.type, given)
        elif (known := self.messages.get(given.get("message", ""))) is not None:
            known.change(event.type, given)
            if given.get("leader") == known.id:
                self.recent |= noted(self.recent, known, given["ts"])

    def _count(self, type_: str, given: Mapping[str, Any]) -> None:
        if type_ == "ring.began":
            self.turns[given["turn"]] = given["ts"]
        elif type_ == "ring.over":
            self.turns.pop(given["turn"], None)
        else:
            self.costs.pop(given["stream"], None)
            self.costs[given["stream"]] = given["cost"]
        for known in (self.turns, self.costs):
            for old in list(known)[:-KEPT]:
                del known[old]

    def asked(self, mark: str) -> Asked | None:
        """What asked for an input of a session, if it is a message that the sidecar sent; see ``Asks``."""
        found = (each for each in self.messages.values() if mark and each.key == mark and each.cause)
        return next((Asked(each.cause, each.trace) for each in found), None)

    def _tidy(self) -> None:
        ended: dict[str, list[str]] = {}
        for each in self.messages.values():
            if each.is_forgettable:
                ended.setdefault(each.id[:4], []).append(each.id)
        for ids in ended.values():
            for old in ids[: max(len(ids) - KEPT, 0)]:
                del self.messages[old]

    def in_their_chains(self, event: StreamEvent, outputs: Sequence[Output]) -> list[Output]:
        """The outputs for an input. What another chain sets off still belongs to the chain of its own message."""
        return list(self._in_their_chains(event, outputs))

    def _in_their_chains(self, event: StreamEvent, outputs: Sequence[Output]) -> Iterator[Output]:
        for output in outputs:
            known = self.messages.get(output.payload.get("message") or output.payload.get("last") or "")
            is_own = known is None or not known.cause or is_one_trace(known.trace, event.traceparent)
            yield output if known is None or is_own else output._replace(cause=Cause(known.cause, known.trace))


def queued(given: Mapping[str, Any], ts: int, cause: str = "", trace: str = "") -> Message:
    """The message that a ``message.queued`` from ``ts`` tells of. A question that is answered late was asked before."""
    about = {"kind": "result", **some_of(given, *_QUEUED), "queued": given.get("ts") or ts}
    return Message(given["message"], **about, cause=cause, trace=trace)


ASKS: Final = (
    *("kind", "session", "text", "request", "effect", "questions", "options", "fixed", "always", "left_out"),
    *("to", "intent", "work", "directory", "expires", "default"),
)
"""The fields that say what a question asks."""

_QUEUED: Final = (*ASKS, "about", "title", "stages", "due", "more", "wake", "said")


MOST_ALONE: Final = {True: 3, False: 1}
"""How many messages in a short time get a text each, for questions and for others. The next ones share a text."""


def noted(recent: Mapping[str, Sequence[int]], known: Message, now: int) -> dict[str, list[int]]:
    """``State.recent`` of the channels of a message's next stage, once that is sent."""
    is_question = known.is_question
    return {
        name: [*recent.get(name, ()), now][-MOST_ALONE[is_question] :]
        for channel in known.stages[0]
        if (name := channel + "?" * is_question) and channel != TOAST
    }
