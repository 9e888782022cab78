"""The facts that a person hears of without asking: background work ended, a budget is nearly used up, an agent is in
trouble (see ``rendering/agents``), a session costs more than a limit, or an ordinary turn ended (see ``turn_alerts``).
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from sidecar.agents.agent import Output
from sidecar.background.messages.message import Message, State
from sidecar.background.messages.person import MAX_TEXT, SHOW, Person, glance, seen
from sidecar.background.people import sentences
from sidecar.background.people.turn_alerts import cost_text, turn_text, why_not_raised
from sidecar.read.ask_text import on_one_line
from sidecar.read.rendering.agents import TROUBLE
from sidecar.read.sums import add_cost
from sidecar.read.wording import cut_middle
from streams.event import StreamEvent

WORK = "OpenCode: background work"


def work_ended(person: Person, state: State, event: StreamEvent) -> list[Output]:
    """Show a toast at once, and queue an alert, except for short work that succeeded."""
    given = event.payload
    is_done = event.type == "intent.completed" or given.get("state") == "completed"
    reason = "" if is_done else str(given.get("reason") or "unknown")
    worker = sentences.who(given.get("title") or "", given.get("directory") or "")
    sentence = sentences.ended(worker, reason, given.get("gist") or "")
    toast, how = glance(given, sentence), "finished" if is_done else "failed"
    shown = [Output("effect.requested", toast, effect=SHOW, node=f"{given['intent']} {how}")] if toast else []
    if "created" not in given or given.get("child"):
        return shown
    parent, identifier = given.get("parent"), given["intent"]
    is_short = is_done and event.ts - given["created"] < person.config.min_seconds * 1000
    if is_short or (parent is None and not person.stages):
        return shown
    text, alert = f"{cut_middle(sentence, MAX_TEXT - 50)[0]} ({identifier})", f"alr_{identifier[4:]}"
    wait = parent is not None
    return [*shown, *person.notify(state, alert, parent, WORK, text, event.ts, about=identifier, wait=wait)]


def unread(person: Person, state: State, event: StreamEvent, answer: Message) -> list[Output]:
    """Queue an alert: work ended before it read a person's answer, and no session above gets it."""
    given, asked = event.payload, state.messages.get(answer.about)
    worker = sentences.who(given.get("title") or "", given.get("directory") or "")
    text = sentences.unread(worker, given["intent"], asked.text if asked is not None else answer.about)
    return person.notify(state, f"alr_{answer.about[4:]}", None, WORK, text, event.ts, about=given["intent"])


def budget_used(person: Person, state: State, event: StreamEvent) -> list[Output]:
    root, what = str(event.payload["root"]), event.payload["what"]
    text = f"{event.payload['share']:.0%} of max_{what} is used ({root})"
    session = None if root.startswith("int_") else root
    return person.notify(state, f"alr_{root}_{what}", session, WORK, text, event.ts)


def spent(person: Person, state: State, event: StreamEvent) -> list[Output]:
    """Count a step's cost; warn at the limit and at each doubling. A child session is in its root's stream."""
    stream = event.stream_id
    before = state.costs.get(stream, 0.0)
    cost = add_cost(before, event.payload)
    counted = [Output("cost.counted", {"stream": stream, "cost": cost})] if cost != before else []
    if (text := cost_text(person.config, before, cost, stream)) is None:
        return counted
    return [*counted, *person.notify(state, f"alr_{stream}_{cost}", stream, "OpenCode: cost", text, event.ts)]


def turn_began(event: StreamEvent) -> list[Output]:
    given = event.payload
    if not given.get("message"):
        return []
    return [Output("ring.began", {"turn": f"{given.get('session')} {given['message']}", "ts": event.ts})]


def turn_ended(person: Person, state: State, event: StreamEvent) -> list[Output]:
    given = event.payload
    session, outcome, about = str(given.get("session")), str(given.get("outcome")), f"turn:{given.get('message')}"
    turn = next((t for t in (f"{session} {given.get('message')}", session) if t in state.turns), None)
    if turn is None:
        return []
    began, over = state.turns[turn], Output("ring.over", {"turn": turn})
    if outcome == "continued":
        return [over, Output("ring.began", {"turn": session, "ts": began})]
    if why := why_not_raised(person.config, outcome, event.ts - began):
        return [Output("ring.over", {"turn": turn, "why": why})]
    error = given.get("error")
    name = str(error.get("name") or "") if isinstance(error, dict) else str(error or "")
    text = on_one_line(turn_text(outcome, name, str(given.get("title") or ""), session))
    how: dict[str, Any] = {"kind": "turn", "about": about, "on_screen": False}  # OpenCode itself shows the end
    return [over, *person.notify(state, f"alr_{given.get('message')}", session, "OpenCode", text, event.ts, **how)]


def troubles(state: State) -> set[str]:
    """The troubles of agents that last. A trouble rings once, until it is over."""
    return {each.about for each in state.messages.values() if each.is_open and each.about.startswith(TROUBLE)}


def troubled(person: Person, state: State, found: Sequence[Mapping[str, Any]], ts: int) -> list[Output]:
    known, now = troubles(state), {each["about"] for each in found}
    over = [one for about in known - now for one in state.open_about(about)]
    outputs = seen(over, "it is over", ts)
    for each in found:
        if (about := each["about"]) not in known:
            identifier = f"alr_{sha256(f'{about} {ts}'.encode()).hexdigest()[:12]}"
            text = f"{each['text']}. {each['hint']}"
            outputs += person.notify(state, identifier, None, "Durable Stream", text, ts, about=about)
    return outputs[:90]
