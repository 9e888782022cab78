"""How a person hears of a message: on one channel after another, until somebody has seen it. Pure.

The stages of a message are a toast in OpenCode, a desktop notification, and the ``urls`` of ``[notify]``, such as a
phone. After a stage that reached a screen, the next stage begins after ``escalate_after_seconds``; after a stage that
reached nobody, the next one begins at once. Quiet hours hold every stage except the toast.

A message ends as soon as there is a sign that somebody saw it: the parent's terminal is in front when the parent's
history gets the result, the question is closed, or a person wrote in that session. The end of a turn is also seen when
its terminal is in front, or unknown if the rules say so.

An event names a channel by its scheme and a digest (``ntfy:1f3a9c2e``), never by its URL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import tzinfo
from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.messages.message import MOST_ALONE, TOAST, Message, State, noted, queued
from sidecar.background.people import sentences
from sidecar.background.people.channels import quiet_until
from sidecar.background.people.turn_alerts import QUIET, Focus, why_not_sent
from sidecar.notify_config import NotifyConfig
from sidecar.read.wording import cut_middle, visible
from streams.event import StreamEvent

SHOW: Final = "opencode.toast"
SEND: Final = "notify.send"
LOOK: Final = "opencode.look"

MAX_TEXT: Final = 500
MAX_TITLE: Final = 100

GATHER_MS: Final = 30_000
"""The minimum time between two texts on a channel. A text includes every message that is due before the next one. The
first questions are not postponed, because somebody is waiting for the answers."""

NEWS_MS: Final = 86_400_000
"""An alert that is older, in ms, is not sent to a channel that is configured later."""

MOST_JOINED: Final = 20
"""Maximum number of messages in one text."""


class Person:
    """The rules of ``[notify]``.

    Args:
        stages: the channels of each stage after the toast.
        zone: where the quiet hours are; local time if none is given.
    """

    def __init__(self, stages: Sequence[Sequence[str]], config: NotifyConfig, zone: tzinfo | None = None) -> None:
        self.stages, self.config, self._zone = [list(stage) for stage in stages if stage], config, zone
        self._escalate_ms = round(config.escalate_after_seconds * 1000)

    def raised(
        self, state: State, about: Mapping[str, Any], ts: int, *, wait: bool = False, on_screen: bool = True
    ) -> list[Output]:
        """Queue a message for a person, but only once. ``wait`` leaves time for a result to reach its session first;
        ``on_screen`` says whether a toast in the session ``to`` is the first stage."""
        if about["message"] in state.messages:
            return []
        is_shown = on_screen and about.get("to") is not None
        stages = [[TOAST]] * is_shown + self.stages
        due = ts + self._escalate_ms * wait if stages else None
        raised = {**about, "title": cut_middle(visible(about["title"]), MAX_TITLE)[0], "stages": stages, "due": due}
        toast = self._advance(queued(raised, ts), ts, {}) if is_shown and not wait else []
        return [Output("message.queued", raised), *toast]

    def notify(
        self, state: State, message: str, to: str | None, title: str, text: str, ts: int, **more: Any
    ) -> list[Output]:
        """Queue an alert: a fact that a person should know."""
        how = {name: more.pop(name) for name in ("wait", "on_screen") if name in more}
        about = {"message": message, "kind": "alert", "to": to, "title": title, **more}
        return self.raised(state, {**about, "text": cut_middle(visible(text), MAX_TEXT)[0]}, ts, **how)

    def deadline(self, state: State) -> int | None:
        if self._unheard(state):
            return 0
        due = (each.due for each in state.messages.values() if each.is_for_person and each.is_open)
        return min((at for at in due if at is not None), default=None)

    def _unheard(self, state: State) -> list[Message]:
        """The alerts that had no way to a person until a channel was configured."""
        alerts = (each for each in state.messages.values() if each.kind == "alert" and each.is_open and self.stages)
        return [
            each for each in alerts if not (each.stages or each.channels or each.is_postponed or each.due is not None)
        ]

    def tick(self, state: State, now: int, focus: Mapping[str, Focus]) -> list[Output]:
        outputs: list[Output] = []
        if unheard := self._unheard(state)[:60]:
            about = {"why": "a channel is configured now", "stages": self.stages}
            due = [now if now - each.queued < NEWS_MS else None for each in unheard]
            alerts = zip(unheard, due, strict=True)
            return [Output("message.postponed", {"message": each.id, **about, "due": at}) for each, at in alerts]
        taken: set[str] = set()
        recent = dict(state.recent)
        late = [each for each in self._waiting(state) if (each.due or now) <= now]
        for each in late:
            if each.id in taken or len(outputs) >= 60:
                continue
            if why := self._why_not_sent(each, now, focus):
                outputs += seen([each], QUIET[why], now)
                continue
            joined = [one for one in self._joined(state, each, now, taken) if not self._why_not_sent(one, now, focus)]
            said = self._advance(each, now, recent, joined)
            if said[0].type == "message.sending":
                taken.update(one.id for one in (each, *joined))
                recent |= noted(recent, each, now)
            outputs += said
        return outputs

    def _waiting(self, state: State) -> list[Message]:
        return [
            each for each in state.messages.values() if each.is_for_person and each.is_open and each.due is not None
        ]

    def _why_not_sent(self, each: Message, now: int, focus: Mapping[str, Focus]) -> str:
        shown = focus.get(str(each.to), "unknown")
        return why_not_sent(self.config, shown, now - each.queued) if each.kind == "turn" else ""

    def _joined(self, state: State, leader: Message, now: int, taken: Collection[str]) -> list[Message]:
        """The others that the leader's text includes; those in ``taken`` are in a text already."""
        if leader.stages[0] == [TOAST] or (leader.is_question and not leader.is_postponed):
            return []
        return [
            each
            for each in self._waiting(state)
            if each.id != leader.id and each.id not in taken and (each.due or now) < now + GATHER_MS
            if each.stages[:1] == leader.stages[:1] and each.is_question == leader.is_question
        ][: MOST_JOINED - 1]

    def _advance(
        self, each: Message, now: int, recent: Mapping[str, Sequence[int]], joined: Sequence[Message] = ()
    ) -> list[Output]:
        """Begin the next stage of a message, which must have one. ``recent`` is ``State.recent``, up to now."""
        stage = each.stages[0]
        sending = [
            Output("message.sending", {"message": one.id, "channels": stage, "ts": now, "leader": each.id})
            for one in (each, *joined)
        ]
        if stage == [TOAST]:
            how = sentences.how(each) if each.is_question else ""
            args = {"session": each.to, "title": each.title, "text": f"{_text(each)}\n{how}".strip()}
            return [*sending, Output("effect.requested", args, effect=SHOW, node=f"{each.id} {TOAST}")]
        later = quiet_until(self.config.quiet_hours, now, self._zone) or _gathering(each, now, recent)
        if later is not None:
            return [Output("message.postponed", {"message": each.id, "due": later})]
        said: dict[str, Any] = {"title": each.title, "text": _text(each)}
        if joined:
            text = sentences.joined(_text(one) for one in (each, *joined))
            said = {"title": f"OpenCode: {len(joined) + 1} messages", "text": text}
        if each.is_question:
            # The answer links are made while sending, so the log never contains them.
            said["checkpoints"] = [one.id for one in (each, *joined)]
            said["since"] = min(one.queued for one in (each, *joined))
        effects = [
            Output("effect.requested", {"channel": channel, **said}, effect=SEND, node=f"{each.id} {channel}")
            for channel in stage
        ]
        return [*sending, *effects]

    def reached(self, state: State, event: StreamEvent) -> list[Output]:
        """Handle the result of a channel, which accepted the text of some messages or did not. The next stage begins
        later if this stage reached somebody, otherwise at once."""
        given, is_done = event.payload, event.type == "effect.completed"
        identifier, _, channel = str(given.get("node")).partition(" ")
        result = given.get("result")
        how = "sent" if is_done else "failed"
        if channel == TOAST:
            how = "sent" if is_done and isinstance(result, dict) and result.get("shown") is True else "absent"
        outputs = []
        for each in [m for m in state.messages.values() if m.leader == identifier and m.channels.get(channel)]:
            about = {"message": each.id, "channel": channel, "ts": event.ts}
            about |= {name: given[name] for name in ("attempt",) if name in given}
            about |= {"error": str(given.get("error", ""))[:300]} if how == "failed" else {}
            others = [each.channels.get(name, "") for name in (each.stages or [[]])[0] if name != channel]
            if each.stages and channel in each.stages[0] and "sending" not in others:
                due = event.ts + self._escalate_ms * ("sent" in (how, *others))
                about |= {"over": True, "due": due if len(each.stages) > 1 else None}
            outputs.append(Output(f"message.{how}", about))
        return outputs


def looks(state: State, heard: Sequence[Output]) -> list[Output]:
    """Find out whether the terminal of a session is in front whose history has just got a result."""
    results = [state.messages[each.payload["message"]] for each in heard if each.type == "message.seen"]
    found = [one for each in results if each.kind == "result" for one in state.open_about(each.intent or "-")]
    return [Output("effect.requested", {"session": a.to}, effect=LOOK, node=f"{a.id} {LOOK}") for a in found]


def looked(state: State, event: StreamEvent) -> list[Output]:
    result = event.payload.get("result")
    known = state.messages.get(str(event.payload.get("node")).partition(" ")[0])
    is_seen = known is not None and known.is_open and isinstance(result, dict) and result.get("looks") is True
    return seen([known], "in the parent's history, in front", event.ts) if is_seen and known is not None else []


def seen(found: Sequence[Message], why: str, ts: int) -> list[Output]:
    return [Output("message.seen", {"message": each.id, "why": why, "ts": ts}) for each in found[:90]]


def wrote(state: State, session: str, ts: int) -> list[Output]:
    """A person wrote in a session, and so saw what was shown there."""
    shown = [each for each in state.messages.values() if each.to == session and each.is_for_person and each.is_open]
    return seen([each for each in shown if not each.is_question], "a person wrote here", ts)


def glance(given: Mapping[str, Any], sentence: str) -> dict[str, str] | None:
    """A toast about background work that a person's session started, for anybody who is looking at that session right
    now; ``None`` if no such session did. Nothing depends on anybody seeing it.
    """
    if given.get("child") or not isinstance(given.get("parent"), str) or not given.get("title"):
        return None
    return {"session": given["parent"], "title": "OpenCode: background work", "text": cut_middle(sentence, MAX_TEXT)[0]}


def _gathering(each: Message, now: int, recent: Mapping[str, Sequence[int]]) -> int | None:
    """The earliest time for a text if others were sent just before; ``None`` if it may be sent now."""
    known = [recent.get(channel + "?" * each.is_question, ()) for channel in each.stages[0]]
    full = [times[0] + GATHER_MS for times in known if len(times) >= MOST_ALONE[each.is_question]]
    return max(full) if full and now < max(full) else None


def _text(each: Message) -> str:
    return sentences.in_message(each, MAX_TEXT) if each.is_question else each.text
