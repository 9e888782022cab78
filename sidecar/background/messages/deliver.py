"""What the agent ``messages`` decides about messages to sessions: one at a time, until each is seen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.hosts import v2_ids
from sidecar.background.messages.message import Message, State
from sidecar.background.messages.tool_results import WHOLE, is_earlier, loses_result, saves_result
from streams.event import StreamEvent

WAKE: Final = "opencode.wake"

UNSEEN_MS: Final = 60_000
"""If a sent message has not been seen for this many ms, the message is looked for and, if it is missing, sent again."""

AGAIN_MS: Final = 60_000
"""How many ms after a failed attempt the message is sent again. The pause doubles with each further failure."""

LONGEST_AGAIN_MS: Final = 3_600_000

GATHER_MS: Final = 3_000
"""How many ms a result waits for the results of its parent's other background work, so that one message has all."""


def notice_id(about: str) -> str:
    """The id of the message to a session about an intent or a checkpoint."""
    return f"ntc_{about[4:]}"


def deliver(state: State, session: str) -> list[Output]:
    """Send everything that is waiting for a session as one message, unless a message is on its way."""
    waiting = state.waiting_for(session)
    if not waiting or state.to_session(session, "sending", "sent"):
        return []
    key = f"{waiting[0].id}.{len(waiting)}.{waiting[-1].id}"
    # A message that was sent before keeps its key, so that it is recognised in the session's history.
    sending = [Output("message.sending", {"message": n.id, "key": n.key or key}) for n in waiting]
    texts = [{"key": n.key or key, "text": n.text, **({"said": n.said} if n.said else {})} for n in waiting]
    args = {"session": session, "texts": texts, "wake": any(n.wake for n in waiting), "last": waiting[-1].id}
    return [*sending, Output("effect.requested", args, effect=WAKE, node=session)]


def follow(state: State, said: Sequence[Output], now: int) -> list[Output]:
    """Send what may be sent after these outputs. Results wait for at most ``GATHER_MS`` if more may come."""
    frees = ("message.queued", "message.inherited", "message.seen")
    news = [o for o in said if o.type in frees or (o.type == "message.postponed" and o.payload.get("again"))]
    heard = [known for o in news if not (known := state.messages[o.payload["message"]]).is_for_person]
    left = {state.messages[o.payload["message"]].session for o in said if o.type == "message.left"}
    for session in sorted({each.to for each in heard if each.to is not None} | left):
        waiting = state.waiting_for(session)
        if any(not n.more or n.key for n in waiting):
            found = deliver(state, session)
        else:
            due = min((n.due for n in waiting if n.due is not None), default=now + GATHER_MS)
            about = {"why": "more results may come", "due": due}
            found = [Output("message.postponed", {"message": n.id, **about}) for n in waiting if n.due is None]
        if found:
            return found
    return []


def ended(given: Mapping[str, Any]) -> list[Output]:
    """The message with the result of background work, if somebody gets it."""
    if not given.get("notice"):
        return []
    about = {"message": notice_id(given["intent"]), "kind": "result", "intent": given["intent"], **given["notice"]}
    return [Output("message.queued", about)]


def inherited(state: State, given: Mapping[str, Any]) -> list[Output]:
    """Pass what waits for the session of work that has ended to the session above: ended work is not woken. Without
    a session above, an answer is withdrawn, and ``facts.unread`` tells the person."""
    mine = [n for n in state.messages.values() if n.is_open and n.intent is not None and not n.is_for_person]
    found = [n for n in mine if n.to == given.get("ends") or (n.to == n.session and n.intent == given["intent"])]
    if heir := given.get("heir"):
        return [Output("message.inherited", {"message": n.id, "to": heir}) for n in found]
    return [
        Output("message.withdrawn", {"message": n.id, "why": "the background work ended"})
        for n in found
        if n.kind == "answer"
    ]


def deliver_to(state: State, sessions: Sequence[str]) -> list[Output]:
    """Send what is waiting for these sessions, because an OpenCode that can reach the sessions has appeared."""
    return [output for session in sorted(set(sessions)) for output in deliver(state, session)]


def turn_ended(state: State, session: str, message: str) -> list[Output]:
    """React when a user's session has become idle, after the turn that answers a message."""
    sending = state.to_session(session, "sending")
    if any(n.sent is None and v2_ids.message_id(n.key) == message for n in sending):
        return []  # the session has just answered what is on its way, so it was idle
    return [Output("message.nudged", {"message": n.id}) for n in sending] or deliver(state, session)


def woken(state: State, event: StreamEvent) -> list[Output]:
    """Handle the end of an attempt to send a session its messages."""
    result = event.payload.get("result") if event.type == "effect.completed" else None
    result = result if isinstance(result, dict) else {}
    sending = state.to_session(str(event.payload.get("node")), "sending")
    if result.get("status") == "sent":
        # OpenCode reports a message before it saves the message, and may die in between. Only the history is proof.
        type_ = "message.seen" if result.get("saved") else "message.sent"
        return [Output(type_, {"message": n.id, "ts": event.ts}) for n in sending]
    # After an error, set a time for the next attempt. A busy session and an absent OpenCode need none, because an event
    # shows when the session becomes idle or OpenCode connects.
    status, again = result.get("status"), any(n.nudged for n in sending)
    about = {"why": str(status or event.payload.get("error", "")), "again": again}
    due = [None if status else event.ts + _pause(n.failures) for n in sending]
    return [
        Output("message.postponed", {"message": n.id, **about, "due": at}) for n, at in zip(sending, due, strict=True)
    ]


def _pause(failures: int) -> int:
    return min(AGAIN_MS << min(failures, 10), LONGEST_AGAIN_MS)


def returned(state: State, event: StreamEvent) -> list[Output]:
    """Handle the command ``message.return``: a tool call of the message's session returned the message's content."""
    given = event.payload
    known = state.messages.get(given["message"])
    if known is None or known.to != given["session"] or known.state not in ("queued", "sending"):
        return []
    about = {"call": given["call"], "turn": given.get("turn") or "", "ts": event.ts}
    return [Output("message.returned" if given["call"] else "message.seen", {"message": known.id, **about})]


def saved(state: State, event: StreamEvent) -> list[Output]:
    """React when OpenCode has saved or lost the result of a tool call, which may be the content of a message."""
    session, call = str(event.payload.get("session")), event.payload.get("call")
    found = [n for n in state.to_session(session, "returned") if n.call == call]
    if loses_result(event):
        return [Output("message.postponed", {"message": n.id, "why": "the call failed", "again": True}) for n in found]
    return [Output("message.seen", {"message": n.id, "ts": event.ts}) for n in found if saves_result(event)]


def over(state: State, event: StreamEvent, is_user: Callable[[str], bool]) -> list[Output]:
    """Handle the end of a turn. The session's history has the results of the turn's calls, unless OpenCode ended before
    it saved them. The session is idle, so it gets what waits, unless it is one of background work."""
    session, outcome = str(event.payload.get("session")), event.payload.get("outcome")
    found = turn_ended(state, session, str(event.payload.get("message"))) if is_user(session) else []
    if outcome == "continued":
        return found
    about = {"ts": event.ts} if outcome in WHOLE else {"why": outcome, "again": True}
    returns = state.to_session(session, "returned")
    mine = [n for n in returns if not is_earlier(event.payload, event.ts, n.turn, n.since)]
    type_ = "message.seen" if outcome in WHOLE else "message.postponed"
    return [*found, *(Output(type_, {"message": n.id, **about}) for n in mine)]


def tick(state: State, now: int) -> list[Output]:
    """Queue a session's sent messages again, under the same keys, if one was not seen within ``UNSEEN_MS``. Send what
    has waited for other results, and what failed some time ago."""
    sent = [n for n in state.messages.values() if n.state == "sent" and not n.is_for_person]
    lost = {n.to for n in sent if n.sent is not None and n.sent + UNSEEN_MS <= now}
    about = {"why": "not seen in the session", "again": True}
    postponed = [Output("message.postponed", {"message": n.id, **about}) for n in sent if n.to in lost]
    due = [n.to or "" for n in _waiting(state) if n.due is not None and n.due <= now]
    return [*postponed, *deliver_to(state, due)]


def deadlines(state: State) -> list[int]:
    """The times, in ms UTC, when ``tick`` has something to do."""
    known = [n for n in state.messages.values() if not n.is_for_person]
    on_its_way = {n.to for n in known if n.state in ("sending", "sent")}
    due = [n.due for n in _waiting(state) if n.due is not None and n.to not in on_its_way]
    return due + [n.sent + UNSEEN_MS for n in known if n.state == "sent" and n.sent is not None]


def waiting_sessions(state: State) -> set[str]:
    return {n.to for n in _waiting(state) if n.to is not None}


def _waiting(state: State) -> list[Message]:
    return [n for n in state.messages.values() if n.state == "queued" and not n.is_for_person]
