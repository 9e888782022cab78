"""What the agent ``intents`` decides about notices: messages for sessions, one at a time, until each is seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.hosts import v2_ids
from sidecar.background.intents.intent_effects import WAKE, effect
from sidecar.background.intents.state import Notice, State
from sidecar.background.tool_results import WHOLE, is_earlier, keeps_result, loses_result
from streams.event import StreamEvent

UNSEEN_MS: Final = 60_000
"""If a sent message has not been observed for this many ms, the message is looked for and, if it is missing, sent
again."""

AGAIN_MS: Final = 60_000
"""How many ms after a failed attempt the message is sent again. The pause doubles with each further failure."""

LONGEST_AGAIN_MS: Final = 3_600_000


GATHER_MS: Final = 3_000
"""How many ms a result waits for the results of its parent's other background work, so that one message has all."""


def notice_id(intent: str) -> str:
    return f"ntc_{intent[4:]}"


def queued(state: State, event: StreamEvent) -> list[Output]:
    given = event.payload
    if given["notice"] in state.notices:
        return []
    payload = {key: given.get(key) for key in ("notice", "session", "text", "intent")}
    payload |= {"said": given["said"]} if given.get("said") else {}
    return [Output("notice.queued", {**payload, "wake": bool(given.get("wake", True))})]


def deliver(state: State, session: str) -> list[Output]:
    """Send everything that is waiting for a session as one message, unless a message is on its way."""
    mine = [n for n in state.notices.values() if n.session == session]
    waiting = [n for n in mine if n.state == "queued"]
    if not waiting or any(n.state in ("sending", "sent") for n in mine):
        return []
    key = f"{waiting[0].id}.{len(waiting)}.{waiting[-1].id}"
    # A message that was sent before keeps its key, so that it is recognised in the session's history.
    steps: list[list[Any]] = [["notice.sending", {"notice": n.id, "key": n.key or key}] for n in waiting]
    texts = [{"key": n.key or key, "text": n.text, **({"said": n.said} if n.said else {})} for n in waiting]
    args = {"session": session, "texts": texts, "wake": any(n.wake for n in waiting)}
    return [effect(WAKE, session, args, *steps)]


def inherited(state: State) -> list[Output]:
    """Queue the results for sessions whose own work has ended again, for those above: ended work is not woken."""
    found = []
    for notice in state.notices.values():
        intent = state.intents.get(notice.intent or "")
        heir = state.heir(intent) if intent is not None and notice.state == "queued" else None
        if heir not in (None, notice.session):
            about = {"notice": notice.id, "session": heir, "text": notice.text, "intent": notice.intent}
            found.append(Output("notice.queued", about | {"wake": notice.wake}))
    return found


def gather(state: State, session: str, now: int) -> list[Output] | None:
    """Let the results for a session wait for more results, for at most ``GATHER_MS``. ``None`` if nothing more can
    come, or if something else waits that must not be late."""
    waiting = [n for n in state.notices.values() if n.session == session and n.state == "queued"]
    if any(n.intent is None or n.key for n in waiting) or all(i.parent != session for i in state.unfinished()):
        return None
    due = min((n.due for n in waiting if n.due is not None), default=now + GATHER_MS)
    return [Output("notice.gathering", {"notice": n.id, "due": due}) for n in waiting if n.due is None]


def deliver_to(state: State, sessions: Any) -> list[Output]:
    """Send what is waiting for these sessions, because an OpenCode that can reach the sessions has appeared."""
    waiting = {n.session for n in state.notices.values() if n.state == "queued"}
    return [output for session in sorted(waiting & set(sessions)) for output in deliver(state, session)]


def to_deliver(state: State, said: Sequence[Output]) -> list[str]:
    """The sessions for which something may be sent after these outputs."""
    sessions = {o.payload["session"] for o in said if o.type == "notice.queued"}
    sessions |= {
        state.notices[o.payload["notice"]].session
        for o in said
        if o.type == "notice.observed" or (o.type == "notice.held" and o.payload.get("again"))
    }
    return sorted(sessions)


def turn_ended(state: State, session: str, message: str) -> list[Output]:
    """React when a user's session has become idle, after the turn that answers a message."""
    waiting = [n for n in state.notices.values() if n.session == session and n.state in ("queued", "sending")]
    sending = [n for n in waiting if n.state == "sending"]
    if any(n.sent is None and v2_ids.message_id(n.key) == message for n in sending):
        return []  # the session has just answered what is on its way, so it was idle
    if sending:
        return [Output("notice.nudged", {"session": session})]
    return deliver(state, session) if waiting else []


def woken(state: State, event: StreamEvent, session: str, result: dict[str, Any]) -> list[Output]:
    sending = [n for n in state.notices.values() if n.session == session and n.state == "sending"]
    if result.get("status") == "sent":
        # OpenCode reports a message before it saves the message, and may die in between. Only the history is proof.
        type_ = "notice.observed" if result.get("kept") else "notice.sent"
        return [Output(type_, {"notice": n.id, "ts": event.ts}) for n in sending]
    why = str(result.get("status") or event.payload.get("error", ""))
    about = {"why": why, "again": bool(state.nudged.get(session))}
    # After an error, set a time for the next attempt. A busy session and an absent OpenCode need none, because an event
    # shows when the session becomes idle or OpenCode connects.
    failed = not result.get("status")
    return [
        Output("notice.held", {"notice": n.id, **about, "due": event.ts + _pause(n.failures) if failed else None})
        for n in sending
    ]


def _pause(failures: int) -> int:
    return min(AGAIN_MS << min(failures, 10), LONGEST_AGAIN_MS)


def returned(state: State, event: StreamEvent) -> list[Output]:
    """Handle the command ``notice.told``: a tool call of the notice's session returned the notice's content."""
    given = event.payload
    notice = state.notices.get(given["notice"])
    if notice is None or notice.session != given["session"] or notice.state not in ("queued", "sending"):
        return []
    about = {"call": given["call"], "turn": given.get("turn") or "", "ts": event.ts}
    return [Output("notice.returned", {"notice": notice.id, **about})]


def kept(state: State, event: StreamEvent) -> list[Output]:
    """React when OpenCode has saved or lost the result of a tool call, which may be the content of a notice."""
    session, call = str(event.payload.get("session")), event.payload.get("call")
    found = [n for n in _returned(state, session) if n.call == call]
    if loses_result(event):
        return [Output("notice.held", {"notice": n.id, "why": "the call failed", "again": True}) for n in found]
    if not keeps_result(event):
        return []
    return [Output("notice.observed", {"notice": n.id, "message": event.payload.get("message")}) for n in found]


def over(state: State, event: StreamEvent) -> list[Output]:
    """Handle the end of a turn. The session's history has the results of the turn's calls, unless OpenCode ended before
    it saved them."""
    session, outcome = str(event.payload.get("session")), event.payload.get("outcome")
    if outcome == "continued":
        return []
    type_, about = ("notice.observed", {}) if outcome in WHOLE else ("notice.held", {"why": outcome, "again": True})
    mine = [n for n in _returned(state, session) if not is_earlier(event.payload, event.ts, n.turn, n.returned)]
    return [Output(type_, {"notice": n.id, **about}) for n in mine]


def _returned(state: State, session: str) -> list[Notice]:
    return [n for n in state.notices.values() if n.session == session and n.state == "returned"]


def unseen(state: State, now: int) -> list[Output]:
    """Queue a session's sent messages again, under the same keys, if one was not observed within ``UNSEEN_MS``."""
    sent = _sent(state)
    lost = {n.session for n in sent if n.sent is not None and n.sent + UNSEEN_MS <= now}
    about = {"why": "not seen in the session", "again": True}
    return [Output("notice.held", {"notice": n.id, **about}) for n in sent if n.session in lost]


def again(state: State, now: int) -> list[Output]:
    """Send the results that have waited for others, and resend the messages whose last attempt failed some time
    ago."""
    due = {n.session for n in state.notices.values() if n.state == "queued" and n.due is not None and n.due <= now}
    return [output for session in sorted(due) for output in deliver(state, session)]


def deadlines(state: State) -> list[int]:
    """The times, in ms UTC, when ``unseen`` or ``again`` has something to do."""
    on_its_way = {n.session for n in state.notices.values() if n.state in ("sending", "sent")}
    due = [n.due for n in state.notices.values() if n.due is not None and n.session not in on_its_way]
    return due + [n.sent + UNSEEN_MS for n in _sent(state) if n.sent is not None]


def _sent(state: State) -> list[Notice]:
    return [n for n in state.notices.values() if n.state == "sent"]
