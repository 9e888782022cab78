"""One line for each event of agents, effects, intents, notices, checkpoints, alerts and signals. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from sidecar.read.fields import as_list
from sidecar.read.wording import one_line

Tone = Literal["input", "output", "good", "bad", "asks", "quiet", "plain"]
"""The kind of a line: a person's words, the model's words, success, failure, a question, or something of little
interest."""

Told = tuple[str, str, Tone]
"""The label, text and tone of a line, as in ``describe.Line``."""

_LONGEST: Final = 2000

NEWS: Final = frozenset(
    {
        "agent.correction",
        "agent.dead_letter",
        "agent.refused",
        "budget.warning",
        "checkpoint.answered",
        "checkpoint.expired",
        "checkpoint.opened",
        "effect.in_doubt",
        "intent.cancelled",
        "intent.completed",
        "intent.created",
        "intent.failed",
        "intent.interrupted",
        "intent.overlap",
        "intent.refused",
        "notice.observed",
        "signal.raised",
    }
)
"""The events in agents' streams that a person who follows everything wants to see; all other events there are
bookkeeping."""


def is_news(stream_id: str, type_: str) -> bool:
    """Whether an event is shown to a person who follows everything."""
    return not stream_id.startswith("agent/") or type_ in NEWS


def tell(type_: str, payload: dict[str, Any]) -> Told | None:
    """The line for an event; ``None`` if the event has a type that this module does not know."""
    teller = _TELLERS.get(type_)
    return teller(payload) if teller is not None else None


def _intent(label: str, tone: Tone, *names: str) -> Callable[[dict[str, Any]], Told]:
    return _said(label, tone, "intent", *names)


def _said(label: str, tone: Tone, *names: str) -> Callable[[dict[str, Any]], Told]:
    def teller(payload: dict[str, Any]) -> Told:
        said = [_text(payload.get(name)) for name in names]
        return label, " · ".join(filter(None, said)), tone

    return teller


def _effect(label: str, tone: Tone, *names: str) -> Callable[[dict[str, Any]], Told]:
    def teller(payload: dict[str, Any]) -> Told:
        attempt = payload.get("attempt")
        tried = f"attempt {attempt}" if isinstance(attempt, int) and attempt > 1 else ""
        said = [_text(payload.get("kind")), tried, *(_text(payload.get(name)) for name in names)]
        return label, " · ".join(filter(None, said)), tone

    return teller


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool | dict | list):
        return ""
    return one_line(str(value)[:_LONGEST])


_TELLERS: Final[dict[str, Callable[[dict[str, Any]], Told]]] = {
    "agent.installed": lambda payload: ("agent", "first start", "quiet"),
    "agent.received": lambda payload: ("received", _text(payload.get("type")), "quiet"),
    "agent.refused": lambda payload: (
        "refused",
        " · ".join(filter(None, (_text(payload.get("type")), _text(payload.get("error_code"))))),
        "bad",
    ),
    "agent.dead_letter": lambda payload: (
        "dead letter",
        " · ".join(filter(None, (_text(payload.get("type")), _text(payload.get("reason"))))),
        "bad",
    ),
    "effect.requested": _effect("effect", "plain", "node"),
    "effect.started": _effect("starts", "quiet"),
    "effect.completed": _effect("done", "quiet"),
    "effect.failed": _effect("failed", "bad", "error"),
    "effect.in_doubt": _effect("in doubt", "asks", "reason"),
    "intent.created": _intent("background", "plain", "title"),
    "intent.starting": _intent("starting", "quiet"),
    "intent.started": _intent("started", "quiet", "session"),
    "intent.output": _intent("answers", "output", "text"),
    "intent.interrupted": _intent("interrupted", "bad"),
    "intent.resumed": _intent("resumed", "quiet"),
    "intent.waiting": lambda payload: ("waits", f"{_text(payload.get('intent'))} · for an OpenCode", "asks"),
    "intent.unhosted": lambda payload: ("waits", f"{_text(payload.get('intent'))} · for its OpenCode", "asks"),
    "intent.paused": lambda payload: ("waits", f"{_text(payload.get('intent'))} · for a person", "asks"),
    "intent.continued": _said("goes on", "quiet", "checkpoint"),
    "intent.model": _intent("model", "quiet", "model"),
    "intent.erred": _intent("error", "bad", "reason"),
    "intent.fallback": _intent("next model", "quiet", "from"),
    "intent.isolated": _intent("worktree", "quiet"),
    "intent.overlap": _intent("edited twice", "bad", "file"),
    "intent.finishing": _intent("finishing", "quiet"),
    "intent.applied": _intent("changes applied", "good"),
    "intent.discarded": _intent("changes discarded", "quiet"),
    "intent.completed": _intent("done", "good"),
    "intent.failed": _intent("failed", "bad", "reason"),
    "intent.cancelling": _intent("cancelling", "quiet", "reason"),
    "intent.cancelled": _intent("cancelled", "bad", "reason"),
    "budget.warning": _said("budget", "bad", "what", "share", "root"),
    "budget.closed": _said("budget", "quiet", "root"),
    "notice.queued": lambda payload: ("notice", _text(payload.get("text")), "plain"),
    "notice.gathering": lambda payload: ("waits", "for the results of other work", "quiet"),
    "notice.sending": lambda payload: ("sending", _text(payload.get("notice")), "quiet"),
    "notice.sent": lambda payload: ("sent", _text(payload.get("notice")), "quiet"),
    "notice.held": lambda payload: ("waits", _text(payload.get("why")), "quiet"),
    "notice.returned": lambda payload: ("returned", _text(payload.get("notice")), "quiet"),
    "notice.observed": lambda payload: ("delivered", _text(payload.get("notice")), "good"),
    "checkpoint.opened": _said("asks", "asks", "checkpoint", "text"),
    "checkpoint.answering": _said("answering", "quiet", "checkpoint"),
    "checkpoint.answered": lambda payload: (
        "answered",
        " · ".join(filter(None, (_text(payload.get("checkpoint")), *map(_text, as_list(payload.get("answer")))))),
        "good",
    ),
    "checkpoint.unanswered": _said("failed", "bad", "checkpoint", "why"),
    "checkpoint.expired": _said("expired", "bad", "checkpoint"),
    "checkpoint.withdrawn": _said("withdrawn", "quiet", "checkpoint", "why"),
    "checkpoint.late": _said("too late", "bad", "checkpoint"),
    "alert.raised": _said("alert", "plain", "alert", "text"),
    "alert.toasted": _said("toast", "quiet", "alert"),
    "alert.sent_to": _said("told", "good", "alert", "channel"),
    "alert.failed_to": _said("failed", "bad", "alert", "channel", "error"),
    "alert.seen": _said("seen", "good", "alert", "why"),
    "agent.correction": lambda payload: (
        "correction",
        f"{payload.get('failed')} of {payload.get('steps')} steps failed in {_text(payload.get('session'))}",
        "bad",
    ),
    "gardener.watched": _said("watches", "quiet", "session"),
    "gardener.failed": _said("a step failed", "quiet", "session"),
    "gardener.turn": _said("turn", "quiet", "session"),
    "gardener.own": _said("own", "quiet", "id"),
    "signal.raised": _said("signal", "plain", "name"),
}
