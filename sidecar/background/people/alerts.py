"""The built-in agent ``alerts``: notifies a person on one channel after another, until somebody has seen the alert.
Pure.

An alert is one fact that a person should know: background work ended or has nearly used up a budget, something is
waiting for an answer, the model called ``notify_user``, an agent is in trouble (see ``telling/agents``), a session
costs more than a limit, or an ordinary turn ended (see ``rings``). The stages of an alert are a toast in OpenCode, a
desktop notification, and the ``urls`` of ``[notify]``, such as a phone. After a stage that reached a screen, the next
stage begins after ``escalate_after_seconds``; after a stage that reached nobody, the next one begins at once. An alert
ends as soon as there is a sign that somebody saw it: the parent's terminal is in front when the parent's history gets
the result, the checkpoint is closed, or a person wrote in that session. The alert of a turn also ends when its terminal
is in front, or unknown if the rules say so.

An event names a channel by its scheme and a digest (``ntfy:1f3a9c2e``), never by its URL.

Besides alerts, a toast says at once that background work has started or ended. Nothing depends on anybody seeing this
toast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.intents.lifecycle import after
from sidecar.background.own_agent import OwnAgent
from sidecar.background.people import teller
from sidecar.background.people.channels import quiet_until
from sidecar.background.people.checkpoints import opened_as
from sidecar.background.people.rings import QUIET, Focus, cost_text, turn_text, why_not_raised, why_not_sent
from sidecar.notify_config import NotifyConfig
from sidecar.read.asked import on_one_line
from sidecar.read.sums import add_cost
from sidecar.read.telling.agents import TROUBLE
from sidecar.read.wording import cut_middle, visible
from streams.event import StreamEvent

NAME: Final = "alerts"
TOAST: Final = "opencode.toast"
SEND: Final = "notify.send"
LOOK: Final = "opencode.look"

KEPT: Final = 200
"""How many ended alerts, and how many begun turns, stay in the state. A turn that is forgotten does not ring."""

MAX_TEXT: Final = 500
MAX_TITLE: Final = 100

GATHER_MS: Final = 30_000
"""The minimum time between two messages on a channel. A message includes every alert that is due before the next
message. The first questions are not held back, because somebody is waiting for the answers."""

MOST_ALONE: Final = 3
"""How many questions within ``GATHER_MS`` get a message each. The next ones share a message."""

MOST_JOINED: Final = 20
"""Maximum number of alerts in one message."""

ALERT: Final[dict[str, dict[str, str]]] = {
    "raised": {"alert.toasting": "toasting", "alert.sending": "sending", "alert.seen": "seen"},
    "toasting": {"alert.toasted": "toasted", "alert.seen": "seen"},
    "toasted": {"alert.sending": "sending", "alert.seen": "seen"},
    "sending": {"alert.reached": "sent", "alert.failed": "failed", "alert.seen": "seen"},
    "sent": {"alert.sending": "sending", "alert.seen": "seen"},
    "failed": {"alert.sending": "sending", "alert.seen": "seen"},
    "seen": {},
}
"""The transitions of an alert. ``toasted``, ``sent`` and ``failed`` say how the last stage ended; only ``seen`` is
final."""


@dataclass(slots=True)
class Alert:
    """One fact that a person should know. Times are in ms UTC."""

    id: str
    session: str | None
    title: str
    text: str
    about: str
    raised: int
    state: str = "raised"
    due: int | None = None
    """When the next stage begins; ``None`` during a stage, and at the end."""
    stages: list[list[str]] = field(default_factory=list)
    """The remaining stages, each a list of channels."""
    channels: dict[str, str] = field(default_factory=dict)
    """The state of each channel that was used: ``sending``, ``sent`` or ``failed``; a toast that nobody could see is
    ``absent``."""
    closed: int | None = None
    leader: str = ""
    """The alert whose message includes this one, during a stage."""
    how: str = ""
    """How to answer it in the terminal; only the toast says so."""
    is_held: bool = False
    """Whether the next stage waits, so that its message can include other alerts."""

    @property
    def is_question(self) -> bool:
        """Whether somebody is waiting for an answer to this alert."""
        return self.about.startswith("chk_")

    @property
    def is_turn(self) -> bool:
        return self.about.startswith("turn:")


@dataclass(slots=True)
class State:
    alerts: dict[str, Alert] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """By channel, the time when the last message on it was sent, not counting questions."""
    asked: dict[str, list[int]] = field(default_factory=dict)
    """By channel, the times of its last ``MOST_ALONE`` messages with questions."""
    turns: dict[str, int] = field(default_factory=dict)
    """By session and user message, when a person began a turn that has not ended. A turn that continues after a
    compaction answers another message, so it is kept by its session alone."""
    costs: dict[str, float] = field(default_factory=dict)
    """By stream, what its sessions have cost together, if there is a limit."""
    troubles: dict[str, str] = field(default_factory=dict)
    """The troubles that last, each with its alert: a trouble rings once, until it is over."""


class AlertAgent(OwnAgent[State]):
    """An ``Agent``.

    Args:
        stages: the channels of each stage after the toast.
        config: ``[notify]``.
        zone: where its quiet hours are; local time if none is given.
    """

    events: Sequence[str] = (
        "intent.completed",
        "intent.failed",
        "budget.warning",
        "message.seen",
        "checkpoint.opened",
        "checkpoint.answered",
        "checkpoint.expired",
        "checkpoint.withdrawn",
        "human.input",
    )

    def __init__(self, stages: Sequence[Sequence[str]], config: NotifyConfig, zone: tzinfo | None = None) -> None:
        self._stages = [list(stage) for stage in stages if stage]
        self._config, self._zone = config, zone
        self._escalate_ms = round(config.escalate_after_seconds * 1000)
        self._rings_turns = config.turns != "off" and bool(self._stages)
        turns, steps = ("turn.ended",) * self._rings_turns, ("execution.step",) * bool(config.cost)
        self.events = (*self.events, *turns, *steps)
        super().__init__(NAME, State)

    def deadline(self) -> int | None:
        return min((a.due for a in self.data.alerts.values() if a.due is not None), default=None)

    # --- deciding ---

    def receive(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        match event.type:
            case "alert.raise":
                return self._raise(given["alert"], given.get("session"), given["title"], given["text"], "", event.ts)
            case "alert.troubles":
                return self._troubled(given["troubles"], event.ts)
            case "intent.completed" | "intent.failed":
                return self._intent_ended(event.type, given, event.ts)
            case "budget.warning":
                root, what = str(given["root"]), given["what"]
                text = f"{given['share']:.0%} of max_{what} is used ({root})"
                session = None if root.startswith("int_") else root
                return self._raise(f"alr_{root}_{what}", session, "OpenCode: background work", text, "", event.ts)
            case "checkpoint.opened":
                kind = str(given["kind"])
                title = {"ask": "OpenCode asks", "effect": "An agent asks"}.get(kind, f"OpenCode waits: {kind}")
                identifier = given["checkpoint"]
                known = opened_as({"session": "", **given, "ts": event.ts})
                text = teller.in_message(known, MAX_TEXT)
                # OpenCode itself shows what the user's own session asks, so send no toast; the other channels follow
                # after the escalation delay.
                shown = given.get("intent") is None and kind in ("permission", "question")
                session = None if shown else given.get("tell")
                how = teller.how(known)
                identifier = f"alr_{identifier[4:]}"
                return self._raise(identifier, session, title, text, known.id, event.ts, wait=shown, how=how)
            case "tick":
                return self._tick(given["now"], given.get("focus") or {})
            case "effect.completed" | "effect.failed":
                return self._effect_ended(event)
            case "human.input":
                session = given.get("session")
                open_ = [a for a in self.data.alerts.values() if a.session == session and a.state != "seen"]
                seen = _seen([a for a in open_ if not a.is_question], "a person wrote here", event.ts)
                return [*seen, *self._turn_began(given, event.ts)]
            case "turn.ended":
                return self._turn_ended(given, event.ts)
            case "execution.step" if not event.metadata.get("history"):
                return self._spent(event.stream_id, given, event.ts)
            case "message.seen":
                return self._in_history(f"int_{str(given.get('message'))[4:]}")
            case "checkpoint.answered" | "checkpoint.expired" | "checkpoint.withdrawn":
                return self._closed(str(given.get("checkpoint")), event.type, event.ts)
        return []

    def _raise(
        self,
        identifier: str,
        session: str | None,
        title: str,
        text: str,
        about: str,
        ts: int,
        wait: bool = False,
        how: str = "",
    ) -> list[Output]:
        """Raise an alert, but only once; ``wait`` leaves time for the result to reach the parent first. The end of a
        turn needs no toast, because OpenCode shows it."""
        is_turn = about.startswith("turn:")
        if identifier in self.data.alerts:
            return []
        stages = [["toast"], *self._stages] if session is not None and not is_turn else self._stages
        due = ts + self._escalate_ms * wait if stages else None
        raised = {
            "alert": identifier,
            "session": session,
            "title": cut_middle(visible(title), MAX_TITLE)[0],
            "text": cut_middle(visible(text), MAX_TEXT)[0],
            "about": about,
            "how": how,
            "stages": [list(stage) for stage in stages],
            "ts": ts,
            "due": due,
        }
        toast = [] if wait or session is None or is_turn else self._advance(_alert(raised), ts)
        return [Output("alert.raised", raised), *toast]

    def _troubled(self, troubles: Sequence[Mapping[str, Any]], ts: int) -> list[Output]:
        known, outputs = self.data.troubles, list[Output]()
        for about in known.keys() - {each["about"] for each in troubles}:
            outputs += [Output("alert.over", {"about": about}), *self._closed(about, "it is over", ts)]
        for each in troubles:
            if (about := each["about"]) not in known:
                identifier = f"alr_{sha256(f'{about} {ts}'.encode()).hexdigest()[:12]}"
                text = f"{each['text']}. {each['hint']}"
                outputs += self._raise(identifier, None, "Durable Stream", text, about, ts)
        return outputs[:90]

    def _intent_ended(self, type_: str, given: dict[str, Any], ts: int) -> list[Output]:
        reason = "" if type_ == "intent.completed" else str(given.get("reason") or "unknown")
        worker = teller.who(given.get("title") or "", given.get("directory") or "")
        told = teller.ended(worker, reason, given.get("gist") or "")
        toast, how = glance(given, told), "failed" if reason else "finished"
        shown = [Output("effect.requested", toast, effect=TOAST, node=f"{given['intent']} {how}")] if toast else []
        if "created" not in given or (given.get("child") and not self._config.children):
            return shown
        parent = given.get("parent")
        is_short = type_ == "intent.completed" and ts - given["created"] < self._config.min_seconds * 1000
        if is_short or (parent is None and not self._stages):
            return shown
        identifier, title = given["intent"], "OpenCode: background work"
        text = f"{cut_middle(told, MAX_TEXT - 50)[0]} ({identifier})"
        raised = self._raise(f"alr_{identifier[4:]}", parent, title, text, identifier, ts, wait=parent is not None)
        return [*shown, *raised]

    def _spent(self, stream: str, given: dict[str, Any], ts: int) -> list[Output]:
        """Count a step's cost; warn at the limit and at each doubling. A child session is in its root's stream."""
        before = self.data.costs.get(stream, 0.0)
        cost = add_cost(before, given)
        counted = [Output("cost.counted", {"stream": stream, "cost": cost})] if cost != before else []
        if (text := cost_text(self._config, before, cost, stream)) is None:
            return counted
        return [*counted, *self._raise(f"alr_{stream}_{cost}", stream, "OpenCode: cost", text, "", ts)]

    def _turn_began(self, given: dict[str, Any], ts: int) -> list[Output]:
        if not self._rings_turns or not given.get("message"):
            return []
        return [Output("ring.began", {"turn": f"{given.get('session')} {given['message']}", "ts": ts})]

    def _turn_ended(self, given: dict[str, Any], ts: int) -> list[Output]:
        session, outcome = str(given.get("session")), str(given.get("outcome"))
        turn = next((t for t in (f"{session} {given.get('message')}", session) if t in self.data.turns), None)
        if turn is None:
            return []
        began = self.data.turns[turn]
        over = Output("ring.over", {"turn": turn})
        if outcome == "continued":
            return [over, Output("ring.began", {"turn": session, "ts": began})]
        if why := why_not_raised(self._config, outcome, ts - began):
            return [Output("ring.over", {"turn": turn, "why": why})]
        error = given.get("error")
        name = str(error.get("name") or "") if isinstance(error, dict) else str(error or "")
        text = on_one_line(turn_text(outcome, name, str(given.get("title") or ""), session))
        identifier = f"alr_{given.get('message')}"
        return [over, *self._raise(identifier, session, "OpenCode", text, f"turn:{given.get('message')}", ts)]

    def _tick(self, now: int, focus: Mapping[str, Focus]) -> list[Output]:
        outputs: list[Output] = []
        sending: set[str] = set()
        asked = {channel: list(times) for channel, times in self.data.asked.items()}
        for alert in self.data.alerts.values():
            if alert.due is not None and alert.due <= now and alert.id not in sending and len(outputs) < 60:
                if why := self._why_not_sent(alert, now, focus):
                    outputs += _seen([alert], QUIET[why], now)
                    continue
                joined = [
                    each for each in self._joined(alert, now, sending) if not self._why_not_sent(each, now, focus)
                ]
                said = self._advance(alert, now, joined, asked)
                if said[0].type == "alert.sending":
                    sending.update(each.id for each in (alert, *joined))
                    asked |= _asked(asked, alert, now)
                outputs += said
        return outputs

    def _why_not_sent(self, alert: Alert, now: int, focus: Mapping[str, Focus]) -> str:
        shown = focus.get(str(alert.session), "unknown")
        return why_not_sent(self._config, shown, now - alert.raised) if alert.is_turn else ""

    def _joined(self, leader: Alert, now: int, sending: Collection[str]) -> list[Alert]:
        """The other alerts that the leader's message includes; those in ``sending`` have a message already."""
        if leader.stages[0] == ["toast"] or (leader.is_question and not leader.is_held):
            return []
        return [
            each
            for each in self.data.alerts.values()
            if each.id != leader.id and each.id not in sending and each.due is not None and each.due < now + GATHER_MS
            if each.stages[:1] == leader.stages[:1] and each.is_question == leader.is_question
        ][: MOST_JOINED - 1]

    def _advance(
        self,
        alert: Alert,
        now: int,
        joined: Sequence[Alert] = (),
        asked: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> list[Output]:
        """Begin the next stage of an alert, which must have one. ``asked`` is ``State.asked``, up to now."""
        stage = alert.stages[0]
        if stage == ["toast"]:
            args = {"session": alert.session, "title": alert.title, "text": f"{alert.text}\n{alert.how}".strip()}
            effect = Output("effect.requested", args, effect=TOAST, node=alert.id)
            return [Output("alert.toasting", {"alert": alert.id}), effect]
        later = quiet_until(self._config.quiet_hours, now, self._zone) or self._gathering(alert, now, asked)
        if later is not None:
            return [Output("alert.held", {"alert": alert.id, "due": later})]
        said: dict[str, Any] = {"title": alert.title, "text": alert.text}
        if joined:
            text = teller.joined(each.text for each in (alert, *joined))
            said = {"title": f"OpenCode: {len(joined) + 1} messages", "text": text}
        if alert.is_question:
            # The answer links are made while sending, so the log never contains them.
            said["checkpoints"] = [each.about for each in (alert, *joined)]
            said["since"] = min(each.raised for each in (alert, *joined))
        effects = [
            Output("effect.requested", {"channel": channel, **said}, effect=SEND, node=f"{alert.id} {channel}")
            for channel in stage
        ]
        about = {"channels": stage, "ts": now, "leader": alert.id}
        return [*(Output("alert.sending", {"alert": each.id, **about}) for each in (alert, *joined)), *effects]

    def _gathering(self, alert: Alert, now: int, asked: Mapping[str, Sequence[int]]) -> int | None:
        """The earliest time for the message if another message was sent just before; ``None`` if the message may be
        sent now."""
        if alert.is_question:
            full = [times[0] for channel in alert.stages[0] if len(times := asked.get(channel, ())) >= MOST_ALONE]
            return max(full) + GATHER_MS if full and now < max(full) + GATHER_MS else None
        last = max((self.data.sent.get(channel, 0) for channel in alert.stages[0]), default=0)
        return last + GATHER_MS if now < last + GATHER_MS else None

    def _effect_ended(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        identifier, _, channel = str(given.get("node")).partition(" ")
        if given.get("kind") == LOOK:
            result = given.get("result")
            looks = isinstance(result, dict) and result.get("looks") is True
            found = [a for a in self.data.alerts.values() if looks and a.id == identifier and a.state != "seen"]
            return _seen(found, "in the parent's history, in front", event.ts)
        if given.get("kind") == TOAST:
            alert = self.data.alerts.get(identifier)
            result = given.get("result") if event.type == "effect.completed" else None
            shown = isinstance(result, dict) and result.get("shown") is True
            if alert is None or alert.state != "toasting":
                return []
            return [self._staged(alert, "alert.toasted", shown, {"alert": identifier, "ts": event.ts, "shown": shown})]
        included = [each for each in self.data.alerts.values() if each.leader == identifier]
        return [output for each in included for output in self._answered(each, channel, event)]

    def _answered(self, alert: Alert, channel: str, event: StreamEvent) -> list[Output]:
        """Handle the result of a channel, which accepted the message of an alert or failed."""
        given = event.payload
        how = "sent" if event.type == "effect.completed" else "failed"
        about = {"alert": alert.id, "ts": event.ts}
        error = str(given.get("error", ""))[:300]
        outputs = [
            Output(f"alert.{how}_to", {**about, "channel": channel, "attempt": given.get("attempt"), "error": error})
        ]
        others = {name: state for name, state in alert.channels.items() if name != channel}
        if alert.state != "sending" or "sending" in others.values():
            return outputs
        # All channels of the stage have now succeeded or failed.
        reached = how == "sent" or any(others.get(name) == "sent" for name in (alert.stages or [[]])[0])
        return [*outputs, self._staged(alert, "alert.reached" if reached else "alert.failed", reached, about)]

    def _staged(self, alert: Alert, type_: str, reached: bool, about: dict[str, Any]) -> Output:
        """End the current stage. The next stage begins later if this stage reached somebody, otherwise at once."""
        due = about["ts"] + self._escalate_ms * reached
        return Output(type_, {**about, "due": due if len(alert.stages) > 1 else None})

    def _in_history(self, about: str) -> list[Output]:
        """Find out whether the terminal of the session whose history has got the fact is in front."""
        found = [a for a in self.data.alerts.values() if a.about == about and a.state != "seen"]
        return [Output("effect.requested", {"session": a.session}, effect=LOOK, node=f"{a.id} {LOOK}") for a in found]

    def _closed(self, about: str, why: str, ts: int) -> list[Output]:
        found = [a for a in self.data.alerts.values() if a.about == about and a.state != "seen"]
        return _seen(found, why, ts)

    # --- remembering ---

    def apply(self, event: StreamEvent) -> None:
        given = event.payload
        if event.type == "alert.raised":
            self.data.alerts[given["alert"]] = _alert(given)
            if given["about"].startswith(TROUBLE):
                self.data.troubles[given["about"]] = given["alert"]
            self._tidy()
            return
        if event.type == "alert.over":
            self.data.troubles.pop(given["about"], None)
        if event.type == "ring.began":
            self.data.turns[given["turn"]] = given["ts"]
            for old in list(self.data.turns)[:-KEPT]:
                del self.data.turns[old]
        elif event.type == "cost.counted":
            others = [each for each in self.data.costs.items() if each[0] != given["stream"]]
            self.data.costs = dict([*others, (given["stream"], given["cost"])][-KEPT:])
        elif event.type == "ring.over":
            self.data.turns.pop(given["turn"], None)
        alert = self.data.alerts.get(given.get("alert", "")) if event.type.startswith("alert.") else None
        if alert is None:
            return
        if event.type == "alert.held":
            alert.due, alert.is_held = given["due"], True
        elif event.type in ("alert.sent_to", "alert.failed_to"):
            alert.channels[given["channel"]] = event.type[6:-3]
        state = after(ALERT, alert.state, event.type)
        if state == alert.state:
            return
        alert.state = state
        if event.type == "alert.toasting":
            alert.due = None
        elif event.type == "alert.sending":
            alert.due, alert.leader, alert.is_held = None, given["leader"], False
            alert.channels |= dict.fromkeys(given["channels"], "sending")
            if not alert.is_question:
                self.data.sent |= dict.fromkeys(given["channels"], given["ts"])
            elif alert.leader == alert.id:
                self.data.asked |= _asked(self.data.asked, alert, given["ts"])
        elif event.type in ("alert.toasted", "alert.reached", "alert.failed"):
            alert.stages, alert.due = alert.stages[1:], given["due"]
            if event.type == "alert.toasted":
                alert.channels["toast"] = "sent" if given["shown"] else "absent"
        else:
            alert.due, alert.closed = None, given.get("ts")

    def _tidy(self) -> None:
        # Also drop old alerts that nobody has seen, once every channel has been tried.
        ended = [a.id for a in self.data.alerts.values() if a.state == "seen" or (not a.stages and a.due is None)]
        for old in ended[: max(len(ended) - KEPT, 0)]:
            del self.data.alerts[old]


def _asked(asked: Mapping[str, Sequence[int]], alert: Alert, now: int) -> dict[str, list[int]]:
    """``State.asked`` of an alert's channels after a message with its question."""
    if not alert.is_question:
        return {}
    return {channel: [*asked.get(channel, ()), now][-MOST_ALONE:] for channel in alert.stages[0]}


def glance(given: Mapping[str, Any], told: str) -> dict[str, str] | None:
    """A toast about background work that a person's session started, for anybody who is looking at that session right
    now; ``None`` if no such session did.
    """
    if given.get("child") or not isinstance(given.get("parent"), str) or not given.get("title"):
        return None
    return {"session": given["parent"], "title": "OpenCode: background work", "text": cut_middle(told, MAX_TEXT)[0]}


def _seen(alerts: list[Alert], why: str, ts: int) -> list[Output]:
    return [Output("alert.seen", {"alert": a.id, "why": why, "ts": ts}) for a in alerts[:90]]


def _alert(given: dict[str, Any]) -> Alert:
    same = {name: given[name] for name in ("session", "title", "text", "about", "due", "how") if name in given}
    stages = [list(stage) for stage in given["stages"]]
    return Alert(id=given["alert"], raised=given["ts"], stages=stages, **same)
