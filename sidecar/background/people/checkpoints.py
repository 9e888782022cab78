"""The built-in agent ``checkpoints``: what is waiting for a person's answer, and how each checkpoint ended. Pure.

There are four kinds: a ``permission`` and a ``question`` come from OpenCode and are captured as
``workflow.checkpoint``; an ``ask`` comes from the tool ``checkpoint_ask``, and an ``effect`` from ``effect.in_doubt``:
nobody but a person knows whether an agent's effect happened. Permissions and questions of background
sessions always become checkpoints, because nobody would see them otherwise. Those of the user's own sessions become
checkpoints if a channel to a person is configured, or else when somebody answers one through the sidecar. So a log
without background work gets no events of this agent.

The agent's inputs are commands (``checkpoint.ask``, ``.answer``, ``.later``, ``.told``, ``tick``), the results of its
effects, and what capture records. The first answer wins: a later answer is recorded as ``checkpoint.late``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.intents.lifecycle import after
from sidecar.background.intents.state import some_of
from sidecar.background.intents.works import Asker, user
from sidecar.background.messages.tool_results import WHOLE, is_earlier, keeps_result, loses_result
from sidecar.background.messages.wording import message, quoted
from sidecar.background.own_agent import OwnAgent
from sidecar.background.people import doubts
from sidecar.background.people.consent import answer_of, asked
from sidecar.read.asked import answered_with, checkpoint_id
from sidecar.read.telling.describe import input_text
from streams.event import StreamEvent

NAME: Final = "checkpoints"
ANSWER: Final = "opencode.answer"

KEPT_CLOSED: Final = 200
"""How many closed checkpoints stay in the state; the log has them all."""

CHECKPOINT: Final[dict[str, dict[str, str]]] = {
    "open": {
        "checkpoint.answering": "answering",
        "checkpoint.answered": "answered",
        "checkpoint.expired": "expired",
        "checkpoint.withdrawn": "withdrawn",
    },
    "answering": {
        "checkpoint.answered": "answered",
        "checkpoint.unanswered": "open",
        "checkpoint.withdrawn": "withdrawn",
    },
    "answered": {},
    "expired": {},
    "withdrawn": {"checkpoint.answered": "answered"},
}
"""The transitions of a checkpoint. ``answering``: an answer was given and is on its way to OpenCode. ``withdrawn``:
whoever asked is no longer waiting.

If a sidecar dies after OpenCode has accepted an answer, the next sidecar sends the answer again, and OpenCode refuses
it. The captured events then show that the answer had arrived.
"""

CLOSED: Final = frozenset({"answered", "expired", "withdrawn"})


@dataclass(slots=True)
class Checkpoint:
    """One question or request that is waiting for a person. ``opened``, ``closed`` and ``expires`` are in ms UTC."""

    id: str
    kind: str
    session: str
    text: str
    opened: int
    state: str = "open"
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
    tell: str | None = None
    """The user's session whose screen shows that something is waiting."""
    intent: str | None = None
    work: str = ""
    """The title of the background work that asks; empty for a session of the user's own."""
    directory: str = ""
    """The project's directory; empty if it is not known."""
    expires: int | None = None
    default: str = ""
    answer: list[str] = field(default_factory=list)
    by: str = ""
    """Who answered: ``user`` (in OpenCode or in a terminal), ``link``, ``process`` (a process without a terminal),
    ``agent`` (a process that an OpenCode started) or ``opencode`` (by itself). The actor of the captured answer is the
    same."""
    via: dict[str, Any] = field(default_factory=dict)
    """How the answer came: ``channel`` (``opencode``, ``list``, ``command-line`` or ``link``), and the ``pid`` and
    terminal (``tty``) of a command."""
    key: str = ""
    """The key of the answer that won, if that answer came through the sidecar."""
    said: str = ""
    """The digest of the answer's words, if redaction replaced some of them (see ``said.py``)."""
    why: str = ""
    """Why OpenCode did not accept the last answer."""
    closed: int | None = None
    waiting: bool = False
    """Whether a tool call is waiting for the answer. If not, the answer is sent to the session as a message."""
    turn: str = ""
    """The user message that the turn of the waiting call answers; empty if unknown."""
    since: int = 0
    """Since when that call has been waiting."""
    returned: str = ""
    """The tool call of ``session`` that returned the answer. Only the result of this call in the history of
    ``session`` proves that the answer was told. OpenCode may have died before it saved that result."""
    told: bool = False
    """Whether the session's history has the answer from that call."""


@dataclass(slots=True)
class State:
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)


class CheckpointAgent(OwnAgent[State]):
    """An ``Agent``. With ``everywhere``, the permissions and questions of the user's own sessions become checkpoints,
    too. ``asker`` says who asks in a session. That is recorded when something is asked."""

    events: Sequence[str] = (
        "workflow.checkpoint",
        "human.input",
        "execution.step",
        "turn.ended",
        "lifecycle.session.ended",
        "intent.completed",
        "intent.failed",
        "intent.cancelled",
        "effect.in_doubt",
        "effect.completed",
        "effect.failed",
    )

    def __init__(self, everywhere: bool = False, asker: Callable[[str], Asker] = user) -> None:
        self._everywhere, self._asker = everywhere, asker
        super().__init__(NAME, State)

    def deadline(self) -> int | None:
        return min((c.expires for c in self.data.checkpoints.values() if c.state == "open" and c.expires), default=None)

    # --- deciding ---

    def receive(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        match event.type:
            case "checkpoint.ask":
                return self._ask(given, event.ts)
            case "checkpoint.answer":
                return self._answer(given, event.ts)
            case "checkpoint.later" | "checkpoint.told":
                return self._no_longer_waits(given, told=event.type == "checkpoint.told")
            case "tick":
                return self._tick(given["now"])
            case "effect.in_doubt":
                return self._doubted(event)
            case "effect.completed" | "effect.failed":
                is_own, known = event.actor == NAME, self.data.checkpoints.values()
                return self._effect_ended(event) if is_own else doubts.overtaken(event, known)
            case "workflow.checkpoint":
                return self._captured(given, event.actor, event.ts)
            case "human.input":
                return self._typed(event)
            case "execution.step" if keeps_result(event) or loses_result(event):
                return self._kept(event, is_lost=loses_result(event))
            case "turn.ended":
                return [] if given.get("outcome") == "continued" else self._over(given, event.ts)
            case "lifecycle.session.ended":
                return self._over(given, event.ts, whole=True)
            case "intent.completed" | "intent.failed" | "intent.cancelled":
                return self._intent_ended(str(given.get("intent")), event.type, event.ts)
        return []

    def _ask(self, given: dict[str, Any], ts: int) -> list[Output]:
        """Handle a call that waits for an answer. If the session's question already has a checkpoint, the call joins
        that checkpoint. A call of another session is no reason to keep the answer from the session that asked.
        """
        known = self.data.checkpoints.get(given["checkpoint"])
        if known is not None:
            waiting = {"checkpoint": known.id, "turn": given.get("turn") or "", "ts": ts}
            return [Output("checkpoint.waiting", waiting)] if _is_asker(known, given) else []
        if "text" not in given:  # the call waits for a checkpoint that has been forgotten since
            return []
        opened = {**given, "kind": "ask", **self._asker(given["session"])._asdict(), "ts": ts}
        waiting = {"checkpoint": given["checkpoint"], "turn": given.get("turn") or "", "ts": ts}
        return [Output("checkpoint.opened", opened), Output("checkpoint.waiting", waiting)]

    def _typed(self, event: StreamEvent) -> list[Output]:
        """Handle a message that a person typed into a session whose call waits for an answer: the message is the
        answer, because OpenCode keeps the message back until the call has returned.

        If several calls wait, nobody knows which one the person means. A cut question takes no answer here.
        """
        session = str(event.payload.get("session"))
        mine = [c for c in self.data.checkpoints.values() if c.session == session and c.kind == "ask" and c.waiting]
        mine = [c for c in mine if c.state == "open" and c.opened <= event.ts]
        if len(mine) != 1 or mine[0].left_out or "shell" in event.payload:
            return []
        about = {"answer": [input_text(event.payload)], "by": "user", "via": {"channel": "opencode"}, "key": ""}
        return [Output("checkpoint.answered", {"checkpoint": mine[0].id, **about, "ts": event.ts})]

    def _answer(self, given: dict[str, Any], ts: int) -> list[Output]:
        outputs: list[Output] = []
        known = self.data.checkpoints.get(given["checkpoint"])
        if known is None:
            # The ask belongs to the user's own session, so only the log has it. The person answering found it there.
            payload = {**given["ask"], "ts": given["ask"].get("ts") or ts}
            outputs.append(Output("checkpoint.opened", payload))
            known = opened_as(payload)
        if known.state != "open":
            who = {"by": given["by"], "via": given.get("via") or {}}
            return [Output("checkpoint.late", {"checkpoint": known.id, **who, "state": known.state})]
        about = {"checkpoint": known.id, **{name: given.get(name) for name in ("answer", "by", "via", "key")}}
        known = replace(known, said=str(given.get("said") or ""), by=given["by"])
        about |= {"said": known.said} if known.said else {}
        if known.kind == "ask":
            return [
                *outputs,
                Output("checkpoint.answered", {**about, "ts": ts}),
                *self._message(known, given["answer"]),
            ]
        args = {"session": known.session, "request": known.request, "kind": known.kind, "answer": given["answer"]}
        args |= {"said": known.said} if known.said else {}
        args |= {"effect": known.effect, "by": given["by"]} if known.effect else {}
        act = Output("effect.requested", args, effect=doubts.RESOLVE if known.effect else ANSWER, node=known.id)
        return [*outputs, Output("checkpoint.answering", about), act]

    def _no_longer_waits(self, given: dict[str, Any], *, told: bool) -> list[Output]:
        outputs = []
        for identifier in given["checkpoints"]:
            known = self.data.checkpoints.get(identifier)
            if known is None or not known.waiting or not _is_asker(known, given):
                continue
            if told and given.get("call"):
                about = {"checkpoint": known.id, "session": known.session, "call": given["call"]}
                outputs.append(Output("checkpoint.returned", about))
                continue
            outputs.append(Output("checkpoint.told" if told else "checkpoint.left", {"checkpoint": known.id}))
            # The answer arrived just as the call stopped waiting for it, so send the answer as a message.
            if not told and known.kind == "ask" and known.state in ("answered", "expired"):
                outputs += self._message(known, known.answer, left=True)
        return outputs

    def _tick(self, now: int) -> list[Output]:
        outputs = []
        for known in self.data.checkpoints.values():
            if known.state == "open" and known.expires is not None and known.expires <= now:
                answer = [known.default] if known.default else []
                expired = {"checkpoint": known.id, "answer": answer, "ts": now}
                outputs += [Output("checkpoint.expired", expired), *self._message(known, answer, expired=True)]
        return outputs[:90]

    def _effect_ended(self, event: StreamEvent) -> list[Output]:
        known = self.data.checkpoints.get(str(event.payload.get("node")))
        if known is None or known.state != "answering":
            return []
        result = event.payload.get("result")
        status = result.get("status") if event.type == "effect.completed" and isinstance(result, dict) else "failed"
        about = {"checkpoint": known.id, "ts": event.ts}
        if status == "answered":
            return [Output("checkpoint.answered", {**about, "answer": known.answer, **_who(known)})]
        if status == "gone":
            over = "the effect ended by itself" if known.effect else "it was answered elsewhere, or its turn ended"
            return [Output("checkpoint.withdrawn", {**about, "why": over})]
        why = str(event.payload.get("error") or status)
        return [Output("checkpoint.unanswered", {**about, "why": why[:500]})]

    def _doubted(self, event: StreamEvent) -> list[Output]:
        """Ask about an effect in doubt. All requests that share its key share the question."""
        asks, known = doubts.doubted(event.actor, event.payload), self.data.checkpoints
        identifier = checkpoint_id(str(asks["effect"]["run"]), "{key} {attempt}".format_map(asks["effect"]))
        opened = Output("checkpoint.opened", {**asks, "checkpoint": identifier, "ts": event.ts})
        return [] if identifier in known else [*doubts.overtaken(event, known.values()), opened]

    # --- what capture saw ---

    def _captured(self, given: dict[str, Any], actor: str, ts: int) -> list[Output]:
        session, request = str(given.get("session")), str(given.get("request"))
        identifier = checkpoint_id(session, request)
        known = self.data.checkpoints.get(identifier)
        if given.get("state") == "asked":
            asker = self._asker(session)
            if known is not None or not (self._everywhere or asker.intent is not None):
                return []
            about = {"checkpoint": identifier, **asker._asdict(), "ts": ts}
            return [Output("checkpoint.opened", {**asked(given), **about})]
        if known is None or (known.state in CLOSED and not (known.state == "withdrawn" and known.key)):
            return []
        answer, about = answer_of(given), {"checkpoint": identifier, "ts": ts}
        if answer[:1] == ["reject"] and (first := answered_with(given)):
            return [Output("checkpoint.withdrawn", {**about, "why": f"rejected with {first}"})]
        who = _who(known) if is_own(known, given) else {"by": actor, "via": {"channel": "opencode"}, "key": ""}
        return [Output("checkpoint.answered", {**about, "answer": answer, **who})]

    def _over(self, given: dict[str, Any], ts: int, *, whole: bool = False) -> list[Output]:
        """Handle the end of a turn or of a session, with which OpenCode's asks end, too."""
        mine = [c for c in self.data.checkpoints.values() if c.session == str(given.get("session"))]
        withdrawn = [
            Output("checkpoint.withdrawn", {"checkpoint": c.id, "why": "its turn ended", "ts": ts})
            for c in mine
            if c.state not in CLOSED and (whole or c.kind != "ask")
        ]
        # What a call of a later turn waits for, or returned, is not over: this end was only handled late.
        mine = [c for c in mine if whole or not is_earlier(given, ts, c.turn, c.since)]
        # If a call is still waiting when its turn ends, the turn was stopped, and the call no longer accepts an answer.
        outputs = withdrawn + self._no_longer_waits({"checkpoints": [c.id for c in mine]}, told=False)
        for known in mine:
            if not known.returned or known.told:
                continue
            if given.get("outcome") in WHOLE:
                outputs.append(Output("checkpoint.told", {"checkpoint": known.id}))
            else:  # OpenCode died or was stopped before it saved the call's result
                outputs += self._unreturned(known)
        return outputs

    def _unreturned(self, known: Checkpoint) -> list[Output]:
        """Send an answer as a message, because the session never got the answer that a call returned."""
        return [Output("checkpoint.left", {"checkpoint": known.id}), *self._message(known, known.answer, left=True)]

    def _kept(self, event: StreamEvent, *, is_lost: bool) -> list[Output]:
        """React when OpenCode has saved the result of a tool call, or has lost the result because the call failed."""
        session, call = str(event.payload.get("session")), str(event.payload["call"])
        mine = [c for c in self.data.checkpoints.values() if c.session == session and c.returned == call and not c.told]
        if is_lost:
            return [output for known in mine for output in self._unreturned(known)]
        return [Output("checkpoint.told", {"checkpoint": c.id}) for c in mine]

    def _intent_ended(self, intent: str, type_: str, ts: int) -> list[Output]:
        """Handle the end of background work: if the work was stopped, withdraw its asks."""
        stopped = type_ != "intent.completed"
        outputs = [
            Output("checkpoint.withdrawn", {"checkpoint": c.id, "why": "the background work ended", "ts": ts})
            for c in self.data.checkpoints.values()
            if c.intent == intent and c.state not in CLOSED and (stopped or c.kind != "ask")
        ]
        for known in self.data.checkpoints.values():
            untold = known.kind == "ask" and known.state in ("answered", "expired") and not known.told
            if known.intent == intent and untold and known.tell is not None:
                outputs.append(_notify(known, known.tell, known.answer))
        return outputs

    def _message(
        self, known: Checkpoint, answer: list[str], *, left: bool = False, expired: bool = False
    ) -> list[Output]:
        """The answer as a message for the session that asked, unless a tool call is waiting for the answer.

        Background work that is still running asks again with ``wait_for``. If that work ended before the answer came,
        its parent session gets the answer.
        """
        if known.waiting and not left:
            return []
        if known.intent is None:
            return [_notify(known, known.session, answer, expired)]
        if self._asker(known.session).intent is not None or known.tell is None:
            return []
        return [_notify(known, known.tell, answer, expired)]

    # --- remembering ---

    def apply(self, event: StreamEvent) -> None:
        given = event.payload
        if event.type == "checkpoint.opened":
            self.data.checkpoints[given["checkpoint"]] = opened_as(given)
            self._tidy()
        elif event.type.startswith("checkpoint.") and given.get("checkpoint") in self.data.checkpoints:
            self._apply(event.type, given, self.data.checkpoints[given["checkpoint"]])

    def _apply(self, type_: str, given: dict[str, Any], known: Checkpoint) -> None:
        if type_ in ("checkpoint.waiting", "checkpoint.left", "checkpoint.returned", "checkpoint.told"):
            known.waiting = type_ == "checkpoint.waiting"
            if known.waiting:
                known.turn, known.since = str(given.get("turn") or ""), given.get("ts") or 0
            known.returned = given.get("call", "") if type_ == "checkpoint.returned" else ""
            known.told = known.told or type_ == "checkpoint.told"
            return
        state = after(CHECKPOINT, known.state, type_)
        if state == known.state:
            return
        known.state, known.why = state, str(given.get("why") or "")
        if type_ == "checkpoint.unanswered":
            known.answer, known.by, known.via, known.key, known.said = [], "", {}, "", ""
        elif type_ != "checkpoint.withdrawn":
            known.answer = list(given.get("answer") or ())
            known.by, known.via, known.key = given.get("by", ""), given.get("via") or {}, given.get("key", "")
            known.said = given.get("said", known.said)
        known.closed = given.get("ts") if state in CLOSED else None

    def _tidy(self) -> None:
        closed = [c.id for c in self.data.checkpoints.values() if c.state in CLOSED and not c.waiting]
        for old in closed[: max(len(closed) - KEPT_CLOSED, 0)]:
            del self.data.checkpoints[old]


def is_own(known: Checkpoint, given: dict[str, Any]) -> bool:
    """Whether a captured answer is the one that the sidecar sent. We know who gave it, but OpenCode does not."""
    answer = answer_of(given)
    return bool(known.key) and (answer == known.answer or answer[:1] == known.answer[:1] == ["reject"])


def answer_text(answer: list[str], expired: bool, by: str = "user") -> str:
    """The text that tells the model about an answer; with ``expired``, the answer is the default."""
    said = "\n".join(map(quoted, answer))
    if answer and not expired:
        return f"{'A process of the user' if by == 'process' else 'The user'} answered:\n{said}"
    if answer:
        return f"Nobody answered in time, so the default applies:\n{said}"
    return "Nobody answered in time. Decide yourself, or leave it."


def how_it_stands(known: Checkpoint) -> str:
    """The state in words: ``answered, in OpenCode``, ``withdrawn: its turn ended``."""
    if known.state == "answered" and known.via.get("channel") == "opencode":
        return "answered, in OpenCode"
    return f"{known.state}: {known.why}" if known.state == "withdrawn" and known.why else known.state


def as_row(known: Checkpoint) -> dict[str, Any]:
    """A checkpoint in the form that ``checkpoints --json`` prints."""
    return asdict(known)


def opened_as(given: dict[str, Any]) -> Checkpoint:
    return Checkpoint(id=given["checkpoint"], opened=given["ts"], **some_of(given, *_OPENED))


_OPENED: Final = (
    *("kind", "session", "text", "request", "effect", "questions", "options", "fixed", "always", "left_out"),
    *("tell", "intent", "work", "directory", "expires", "default"),
)


def _who(known: Checkpoint) -> dict[str, Any]:
    return {"by": known.by, "via": known.via, "key": known.key}


def _notify(known: Checkpoint, session: str, answer: list[str], expired: bool = False) -> Output:
    came = answer_text(answer, expired or known.state == "expired", known.by)
    text = message("checkpoint", {"id": known.id}, ["You asked:", quoted(known.text), came])
    payload = {"message": f"ntc_{known.id[4:]}", "kind": "answer", "to": session, "text": text}
    payload |= {"said": known.said} if known.said else {}
    return Output("message.queue", payload, to="messages")


def _is_asker(known: Checkpoint, given: dict[str, Any]) -> bool:
    """Whether a command is about the session that asked; the sidecar's own commands name no session."""
    return bool(given.get("session", known.session) == known.session)
