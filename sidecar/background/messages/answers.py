"""Questions: what waits for a person's answer, and how each ends. The first answer wins. Pure.

There are four kinds: a ``permission`` and a ``question`` come from OpenCode and are captured as
``workflow.checkpoint``; an ``ask`` comes from the tool ``checkpoint_ask``, and an ``effect`` from ``effect.in_doubt``:
nobody but a person knows whether an agent's effect happened. Permissions and questions of background sessions always
become messages, because nobody would see them otherwise. Those of the user's own sessions do if a channel to a person
is configured, or else when somebody answers one through the sidecar. So a log without background work gets no events.

The answer to an ``ask`` is a message for the session that asked. A call that waits for it returns it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.intents.works import Asker
from sidecar.background.messages.deliver import notice_id
from sidecar.background.messages.message import ASKS, Message, State, queued
from sidecar.background.messages.person import Person
from sidecar.background.messages.tool_results import is_earlier
from sidecar.background.messages.wording import message, quoted
from sidecar.background.people import effects_in_doubt
from sidecar.background.people.consent import answer_of, asked
from sidecar.read.ask_text import answered_with, checkpoint_id
from sidecar.read.rendering.describe import input_text
from streams.event import StreamEvent

ANSWER: Final = "opencode.answer"

WORK_ENDED: Final = "the background work ended"
GOES_ON: Final = "the effect went on by itself"

TEAM: Final = "team"
"""What the effect of a question says of its log, if that is the team's."""

MOST_AT_ONCE: Final = 40
"""How many questions about the team's effects one command raises or withdraws at most."""

_TITLES: Final = {"ask": "OpenCode asks", "effect": "An agent asks"}


class Questions:
    """With ``everywhere``, the permissions and questions of the user's own sessions become messages, too. ``asker``
    says who asks in a session. That is recorded when something is asked."""

    def __init__(self, person: Person, everywhere: bool, asker: Callable[[str], Asker]) -> None:
        self._person, self._everywhere, self._asker = person, everywhere, asker

    def _opened(self, state: State, given: dict[str, Any], ts: int) -> list[Output]:
        kind = given["kind"]
        # OpenCode itself shows what the user's own session asks, so send no toast; the other channels follow after the
        # escalation delay.
        is_shown = given.get("intent") is None and kind in ("permission", "question")
        about = {**given, "title": _TITLES.get(kind, f"OpenCode waits: {kind}")}
        return self._person.raised(state, about, ts, wait=is_shown, on_screen=not is_shown)

    def _asks(self, session: str) -> dict[str, Any]:
        asker = self._asker(session)
        return {"intent": asker.intent, "to": asker.tell, "work": asker.work, "directory": asker.directory}

    def ask(self, state: State, given: dict[str, Any], ts: int) -> list[Output]:
        """Handle a call that waits for an answer. If the session's question is known, the call joins it. A call of
        another session is no reason to keep the answer from the session that asked."""
        known, asks = state.messages.get(given["message"]), self._asks(given["session"])
        call = {"message": given["message"], "turn": given.get("turn") or "", "intent": asks["intent"], "ts": ts}
        waiting = Output("message.waiting", call)
        if known is not None:
            return [waiting] if known.session == given["session"] else []
        if "text" not in given:  # the call waits for a question that has been forgotten since
            return []
        about = {name: value for name, value in given.items() if name != "turn"}
        return [*self._opened(state, {**about, "kind": "ask", **asks}, ts), waiting]

    def typed(self, state: State, event: StreamEvent) -> list[Output]:
        """Handle a message that a person typed into a session whose call waits for an answer: the message is the
        answer, because OpenCode keeps the message back until the call has returned.

        If several calls wait, nobody knows which one the person means. A cut question takes no answer here.
        """
        session = str(event.payload.get("session"))
        mine = [c for c in state.questions() if c.session == session and c.kind == "ask" and c.waiting]
        mine = [c for c in mine if _takes_answers(c) and c.queued <= event.ts]
        if len(mine) != 1 or mine[0].left_out or "shell" in event.payload:
            return []
        about = {"answer": [input_text(event.payload)], "by": "user", "via": {"channel": "opencode"}, "key": ""}
        return self._ended(mine[0], "message.answered", event.ts, about)

    def answer(self, state: State, given: dict[str, Any], ts: int) -> list[Output]:
        outputs: list[Output] = []
        known = state.messages.get(given["message"])
        if known is None:
            # The user's own session asks, so only the log has it. The person answering found it there.
            about = {"message": given["message"], **given["ask"]}
            outputs, known = [Output("message.queued", about)], queued(about, ts)
        late = {"message": known.id, "by": given["by"], "via": given.get("via") or {}}
        if not _takes_answers(known):
            return [Output("message.late", {**late, "state": known.state})]
        if known.kind == "ask" and self._reader(known) is None:
            return [*withdrawn([known], WORK_ENDED, ts), Output("message.late", {**late, "state": "withdrawn"})]
        about = {name: given[name] for name in ("answer", "by", "via", "key", "said") if given.get(name) is not None}
        if known.kind == "ask":
            return [*outputs, *self._ended(known, "message.answered", ts, about)]
        args = {"session": known.session, "request": known.request, "kind": known.kind, "answer": given["answer"]}
        args |= {"said": given["said"]} if given.get("said") else {}
        args |= {"effect": known.effect, "by": given["by"]} if known.effect else {}
        act = Output(
            "effect.requested", args, effect=effects_in_doubt.RESOLVE if known.effect else ANSWER, node=known.id
        )
        return [*outputs, Output("message.answering", {"message": known.id, **about}), act]

    def _reader(self, known: Message) -> str | None:
        """The session that gets the answer to an ``ask``; ``None`` if none is left.

        Background work that still runs asks again with ``wait_for``, and no message wakes it. If it ended before the
        answer came, the session above gets the answer.
        """
        is_at_work = known.intent is None or self._asker(known.session).intent is not None
        return known.session if is_at_work else known.to

    def _ended(self, known: Message, type_: str, ts: int, about: dict[str, Any]) -> list[Output]:
        """The end of an ``ask``, and the answer as a message for the session that gets it."""
        to = self._reader(known)
        ended = Output(type_, {"message": known.id, **about, "ts": ts})
        if to is None:
            return [ended]
        came = answer_text(about["answer"], type_ == "message.expired", about.get("by", ""))
        text = message("checkpoint", {"id": known.id}, ["You asked:", quoted(known.text), came])
        notice: dict[str, Any] = {
            "message": notice_id(known.id),
            "kind": "answer",
            "about": known.id,
            "to": to,
            "text": text,
        }
        notice |= {"session": known.session, "intent": known.intent, "said": about.get("said")}
        return [ended, Output("message.queued", notice)]

    def tick(self, state: State, now: int) -> list[Output]:
        outputs = []
        for known in state.questions():
            if _takes_answers(known) and known.expires is not None and known.expires <= now:
                answer = [known.default] if known.default else []
                outputs += self._ended(known, "message.expired", now, {"answer": answer})
        return outputs[:90]

    def deadline(self, state: State) -> int | None:
        return min((c.expires for c in state.questions() if _takes_answers(c) and c.expires), default=None)

    def acted(self, state: State, event: StreamEvent) -> list[Output]:
        """Handle the end of an effect that carries an answer."""
        known = state.messages.get(str(event.payload.get("node")))
        if known is None or known.state != "answering":
            return []
        result = event.payload.get("result")
        status = result.get("status") if event.type == "effect.completed" and isinstance(result, dict) else "failed"
        about = {"message": known.id, "ts": event.ts}
        if status == "answered":
            return [Output("message.answered", {**about, "answer": known.answer, **_who(known)})]
        if status == "gone":
            over = "the effect ended by itself" if known.effect else "it was answered elsewhere, or its turn ended"
            return [Output("message.withdrawn", {**about, "why": over})]
        why = str(event.payload.get("error") or status)
        return [Output("message.unanswered", {**about, "why": why[:500]})]

    def doubted(self, state: State, event: StreamEvent) -> list[Output]:
        """Ask about an effect in doubt. All requests that share its key share the question."""
        asks = effects_in_doubt.doubted(event.actor, event.payload)
        identifier = effects_in_doubt.identifier_of(asks["effect"])
        if identifier in state.messages:
            return []
        return [*overtaken(state, event), *self._opened(state, {**asks, "message": identifier}, event.ts)]

    def doubts(self, state: State, given: list[dict[str, Any]], ts: int) -> list[Output]:
        """Ask about effects of the team's agents, which are not in this log: all those that are in doubt now. What was
        asked about another one is withdrawn."""
        outputs: list[Output] = []
        asked_now: set[str] = set()
        for each in given:
            asks = effects_in_doubt.doubted(each["agent"], each)
            asks["effect"]["log"] = TEAM
            identifier = effects_in_doubt.identifier_of(asks["effect"])
            asked_now.add(identifier)
            if len(outputs) < MOST_AT_ONCE:
                outputs += self._opened(state, {**asks, "message": identifier}, ts)
        over = [c for c in team_doubts(state) if c.id not in asked_now and _takes_answers(c)]
        return [*outputs, *withdrawn(over[:MOST_AT_ONCE], GOES_ON, ts)]

    # --- what capture saw ---

    def captured(self, state: State, event: StreamEvent) -> list[Output]:
        given = event.payload
        session, request = str(given.get("session")), str(given.get("request"))
        identifier = checkpoint_id(session, request)
        known = state.messages.get(identifier)
        if given.get("state") == "asked":
            asks = self._asks(session)
            if known is not None or not (self._everywhere or asks["intent"] is not None):
                return []
            return self._opened(state, {**asked(given), "message": identifier, **asks}, event.ts)
        if known is None or not (known.is_open or (known.state == "withdrawn" and known.key)):
            return []
        answer, about = answer_of(given), {"message": identifier, "ts": event.ts}
        if answer[:1] == ["reject"] and (first := answered_with(given)):
            return [Output("message.withdrawn", {**about, "why": f"rejected with {first}"})]
        who = _who(known) if is_own(known, given) else {"by": event.actor, "via": {"channel": "opencode"}, "key": ""}
        return [Output("message.answered", {**about, "answer": answer, **who})]


def over(state: State, event: StreamEvent, *, whole: bool = False) -> list[Output]:
    """Handle the end of a turn or of a session, with which OpenCode's asks end, too."""
    mine = [c for c in state.questions() if c.session == str(event.payload.get("session"))]
    # If a call still waits when its turn ends, the turn was stopped, and the call no longer takes an answer. A call of
    # a later turn goes on: this end was only handled late.
    left = [c for c in mine if c.waiting and (whole or not is_earlier(event.payload, event.ts, c.turn, c.since))]
    return [*withdrawn([c for c in mine if whole or c.kind != "ask"], "its turn ended", event.ts), *no_longer(left)]


def work_ended(state: State, event: StreamEvent) -> list[Output]:
    """Handle the end of background work: withdraw its asks, unless a session above gets the answers."""
    mine = [c for c in state.questions() if c.intent == event.payload.get("intent")]
    is_over = event.type != "intent.completed"
    gone = [c for c in mine if is_over or c.kind != "ask" or c.to in (None, c.session)]
    return withdrawn(gone, WORK_ENDED, event.ts)


def overtaken(state: State, event: StreamEvent) -> list[Output]:
    """Withdraw what was asked about an effect that has gone on without an answer."""
    effect = (event.payload.get("run"), event.payload.get("idempotency_key"))
    mine = [c for c in state.questions() if c.effect and (c.effect["run"], c.effect["key"]) == effect]
    return withdrawn([c for c in mine if _takes_answers(c)], GOES_ON, event.ts)


def team_doubts(state: State) -> list[Message]:
    """The open questions about effects of the team's agents."""
    return [c for c in state.questions() if c.effect and c.effect.get("log") == TEAM]


def withdrawn(mine: list[Message], why: str, ts: int) -> list[Output]:
    return [Output("message.withdrawn", {"message": c.id, "why": why, "ts": ts}) for c in mine if c.is_open]


def no_longer(mine: list[Message]) -> list[Output]:
    """Calls stopped waiting. An answer that arrived just then is sent as a message."""
    return [Output("message.left", {"message": c.id}) for c in mine if c.waiting]


def is_own(known: Message, given: dict[str, Any]) -> bool:
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


def as_row(known: Message) -> dict[str, Any]:
    """A question in the form that ``checkpoints --json`` prints."""
    names = ("id", *ASKS, "state", "answer", "by", "via", "key", "why", "closed", "waiting")
    row = asdict(known)
    return {**{name: row[name] for name in names if name != "to"}, "tell": known.to, "opened": known.queued}


def _takes_answers(known: Message) -> bool:
    return known.is_open and known.state != "answering"


def _who(known: Message) -> dict[str, Any]:
    return {"by": known.by, "via": known.via, "key": known.key}
