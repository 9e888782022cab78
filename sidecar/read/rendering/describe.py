"""How each type of event is shown to people: its line, and its content. Pure.

``KINDS`` is the one table. The line shows the content; the caller adds the actor and the time. Payloads come from other
programs, so any field may be missing or have another type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from sidecar.read.ask_text import CHECKPOINT, answered_with, asked_text, withdrawn_text
from sidecar.read.fields import (
    as_list,
    as_mapping,
    as_text,
    cut_text,
    exit_of,
    given_to,
    has_failed,
    is_forgotten,
    is_number,
    is_said,
    model_name,
    with_cuts_shown,
)
from sidecar.read.losses import GAP, lost_text
from sidecar.read.rendering import content
from sidecar.read.rendering.markup import inside, unwrapped
from sidecar.read.rendering.timing import LEAST_SHOWN_MS
from sidecar.read.wording import amount, lasted, money, one_line
from streams.event import StreamEvent
from streams.lineage import MOVED, RETRIED, STEP_STARTED
from streams.store import Record

LONGEST = 2000
"""Maximum number of characters of a text that are used for one line; no terminal is wider."""

LONGEST_ROW = 400
"""Maximum number of characters of the text in a row."""


Tone = Literal["input", "output", "good", "bad", "asks", "quiet", "plain"]
"""The kind of a line: a person's words, the model's words, success, failure, a question, or something of little
interest."""


@dataclass(frozen=True, slots=True)
class Line:
    """``label`` names in one or two words what happened, and ``text`` gives the content; ``text`` may be empty.
    ``end`` is the end of the text, which stays if the text is cut."""

    label: str
    text: str
    tone: Tone = "plain"
    end: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.text}" if self.text else self.label


def describe(event: StreamEvent, *, took_ms: int | None = None, waited_ms: int = 0) -> Line:
    """The line for an event of any type. An event of an unknown type is shown with the most useful field of its
    payload.

    ``took_ms`` is how long the turn that ends with this event took; ``waited_ms`` is how long the step waited for a
    person. The payload has neither of these durations; see ``Timing``.
    """
    payload = event.payload
    if is_forgotten(payload):
        return Line(short_type(event.type), "(payload forgotten)", "quiet")
    if event.type == "turn.ended":
        return _turn_ended(payload, took_ms)
    if event.type == "execution.step":
        return _step(payload, waited_ms)
    if event.type == RETRIED:
        return _retried(payload, event.ts)
    kind = KINDS.get(event.type)
    return kind.line(payload) if kind is not None else _other(event.type, payload)


def is_news(event: StreamEvent) -> bool:
    """Whether an event is shown to a person who follows everything. Most events of agents are bookkeeping. Of messages
    to a person, only the questions are news: the others tell what other events tell, too."""
    if not event.stream_id.startswith("agent/"):
        return True
    kind, given = KINDS.get(event.type), event.payload
    is_alert = (event.type == "message.queued" and given.get("kind") not in _ASKS) or "why" in given
    return kind is not None and kind.is_news and not (event.type.startswith("message.") and is_alert)


def row_of(record: Record) -> dict[str, Any]:
    """One record on one line, in the form that programs get."""
    line = describe(record.event)
    return {
        "id": record.event.id,
        "stream_id": record.event.stream_id,
        "position": record.position,
        "ts": record.event.ts,
        "type": record.event.type,
        "actor": one_line(record.event.actor),
        "label": line.label,
        "text": one_line(line.text)[:LONGEST_ROW],
        "tone": line.tone,
    }


def short_type(type_: str) -> str:
    """An event type without its general prefix: ``lifecycle.session.created`` → ``session.created``."""
    for prefix in ("lifecycle.", "execution.", "workflow.", "opencode."):
        if type_.startswith(prefix):
            return type_.removeprefix(prefix)
    return type_


def spent(payload: dict[str, Any]) -> str:
    """Tokens and cost of a step or turn: ``93.0k in (92.0k cached), 85 out, $0.0123``; empty if both are missing.

    OpenCode counts cached input apart: a step's in an object, a turn's as sums.
    """
    tokens = as_mapping(payload.get("tokens"))
    cache = as_mapping(tokens.get("cache"))
    counts = (tokens.get("input"), *(tokens.get(f"cache_{each}", cache.get(each)) for each in ("read", "write")))
    new, cached, written = (count if is_number(count) else 0 for count in counts)
    read = new + cached + written
    said = [f"{amount(read)} in" + (f" ({amount(cached)} cached)" if cached else "")] if read else []
    said += [f"{amount(tokens['output'])} out"] if _number(tokens.get("output")) else []
    return ", ".join(filter(None, (*said, _cost(payload))))


def _cost(payload: dict[str, Any]) -> str:
    return money(payload["cost"]) if _number(payload.get("cost")) else ""


def input_text(payload: dict[str, Any]) -> str:
    """The text of a prompt, with the names of its files and agents; for a command run with ``!``, the command."""
    if isinstance(payload.get("shell"), str):
        return f"!{_text(payload['shell'])}"
    said = []
    for part in map(as_mapping, as_list(payload.get("parts"))):
        if is_said(part):
            said.append(_text(unwrapped(as_text(part.get("text")), marks=False)))
        elif part.get("type") == "file":
            said.append(f"[{_text(part.get('filename')) or 'file'}]")
        elif part.get("type") == "agent":
            said.append(f"@{_text(part.get('name'))}")
    return " ".join(filter(None, said)) or "(no text of its own)"


def tool_text(payload: dict[str, Any]) -> str:
    """The title of a tool call, or the most useful field of its input."""
    title = _text(payload.get("title"))
    given = given_to(payload)
    if title:
        return title
    if isinstance(given, dict):
        for name in ("command", "filePath", "path", "pattern", "url", "query", "description", "prompt"):
            if said := _text(given.get(name)):
                return said
        asked = given.get("questions")
        if isinstance(asked, list) and (said := "; ".join(_text(as_mapping(each).get("question")) for each in asked)):
            return said
        return ", ".join(f"{name}={_text(value)}" for name, value in with_cuts_shown(given).items())
    return _text(given)


def call_text(payload: dict[str, Any]) -> str:
    """A tool call, such as ``bash: make test``."""
    return _joined(_text(payload.get("tool")) or "tool", tool_text(payload), ": ")


def _tool(payload: dict[str, Any], waited_ms: int) -> Line:
    label = _text(payload.get("tool")) or "tool"
    said, took = tool_text(payload), _duration(payload, waited_ms)
    cut = (cut_text(one) for one in as_mapping(given_to(payload)).values() if isinstance(one, dict))
    said = _joined(said, "" if "[cut: " in said else _text(next(filter(None, cut), None)), " ")
    if not has_failed(payload):
        return Line(label, _joined(said, took, " · "))
    failed = f"failed: {_text(payload.get('error')) or 'no reason given'}"
    why = failed if payload.get("status") == "error" else f"exit {exit_of(payload)}"
    return Line(label, _joined(_joined(said, why, " → "), took, " · "), "bad")


def _step(payload: dict[str, Any], waited_ms: int = 0) -> Line:
    if payload.get("kind") != "inference":
        return _tool(payload, waited_ms)
    return Line("model", _joined(_text(payload.get("finish")), spent(payload), " · "), "quiet", _cost(payload))


def _output(payload: dict[str, Any]) -> Line:
    thinks = payload.get("kind") == "reasoning"
    return Line("thinks" if thinks else "says", _text(payload.get("text")), "quiet" if thinks else "output")


def _prompt(payload: dict[str, Any]) -> Line:
    parts = map(as_mapping, as_list(payload.get("parts")))
    is_result = any(inside(as_text(part.get("text"))) for part in parts)
    return Line("prompt", input_text(payload), "output" if is_result else "plain")


def _turn_started(payload: dict[str, Any]) -> Line:
    trigger = _text(payload.get("trigger"))
    named = _text(model_name(payload.get("model")))
    return Line("turn", _joined("" if trigger == "prompt" else trigger, named, " · "), "quiet")


def _turn_ended(payload: dict[str, Any], took_ms: int | None = None) -> Line:
    outcome = _text(payload.get("outcome")) or "ended"
    steps = payload.get("steps")
    said = [outcome if not payload.get("error") else f"{outcome} ({_text(payload['error'])})"]
    if _number(steps):
        said.append(f"{steps} step{'s' if steps != 1 else ''}")
    if took_ms is not None:
        said.append(lasted(took_ms))
    said.append(spent(payload))
    tone: Tone = "good" if outcome == "completed" else "bad" if outcome == "failed" else "asks"
    return Line("turn end", " · ".join(filter(None, said)), tone, _cost(payload))


def _checkpoint(payload: dict[str, Any]) -> Line:
    state = _text(payload.get("state"))
    if state == "asked":
        return Line("asks", _text(asked_text(payload)), "asks")
    first = answered_with(payload)
    if state == "rejected" or payload.get("reply") == "reject":
        if first:
            return Line("answer", withdrawn_text(first), "quiet")
        return Line("answer", _joined("rejected", _text(payload.get("message")), ": "), "bad")
    answers = payload.get("answers")
    if isinstance(answers, list):
        said = "; ".join(", ".join(map(_text, a)) if isinstance(a, list) else _text(a) for a in answers)
        return Line("answer", said, "input")
    return Line("answer", _joined(_text(payload.get("reply")) or state, first, " with "), "input")


_ASKS: Final = ("ask", "permission", "question", "effect")


def _message(payload: dict[str, Any]) -> Line:
    if payload.get("kind") in _ASKS:
        return _said("asks", "asks", "message", "text")(payload)
    return _said("message", "plain", "text")(payload)


def _paths(label: str, tone: Tone, more: str) -> Callable[[dict[str, Any]], Line]:
    """Paths that a session reserved, with one more field."""

    def line(payload: dict[str, Any]) -> Line:
        paths = ", ".join(map(_text, as_list(payload.get("paths"))))
        return Line(label, _joined(paths, _text(payload.get(more)), " · "), tone)

    return line


def _retried(payload: dict[str, Any], ts: int = 0) -> Line:
    attempt, at_ms = payload.get("attempt"), payload.get("at_ms")
    label = f"retries ({amount(attempt - 1)})" if is_number(attempt) else "retries"
    pause = f"next in {lasted(max(at_ms - ts, 0))}" if ts and is_number(at_ms) else ""
    return Line(label, _joined(_error(payload).text, pause, ", "), "bad")


def _error(payload: dict[str, Any]) -> Line:
    status = f"HTTP {payload['status']}" if _number(payload.get("status")) else ""
    name = " ".join(filter(None, (_text(payload.get("name")), status)))
    return Line("error", _joined(name, _text(payload.get("reason")), ": "), "bad")


def _spawned(payload: dict[str, Any]) -> Line:
    return Line("spawns", _joined(_text(payload.get("agent")), _text(payload.get("description")), ": "))


def _handoff(payload: dict[str, Any]) -> Line:
    return Line("handoff", _joined(_text(payload.get("from")), _text(payload.get("to")), " → "))


def _session(label: str) -> Callable[[dict[str, Any]], Line]:
    def tell(payload: dict[str, Any]) -> Line:
        lineage = "parent unknown" if payload.get("lineage") == "unknown" else ""
        said = _joined(_text(payload.get("title")), lineage or _text(payload.get("reason")), " · ")
        said = _joined(said, _origin(payload), " · ")
        return Line(label, said or _text(payload.get("session")), "quiet")

    return tell


def _origin(payload: dict[str, Any]) -> str:
    """What a fork is a fork of."""
    origin = _text(as_mapping(payload.get("fork")).get("session"))
    return origin and f"fork of {origin}"


def _undone(payload: dict[str, Any]) -> Line:
    prompt = payload.get("prompt")
    return Line("undone", "an answer" if prompt is None else _text(prompt) or "a prompt", "quiet")


def _reverted(payload: dict[str, Any]) -> Line:
    is_undone = payload.get("message") is not None
    return Line("undone" if is_undone else "redone", _text(payload.get("prompt")) or "a prompt", "quiet")


def _command(payload: dict[str, Any]) -> Line:
    properties = as_mapping(payload.get("properties"))
    return Line(
        "command", _joined(f"/{_text(properties.get('name'))}", _text(properties.get("arguments")), " "), "input"
    )


def _other(type_: str, payload: dict[str, Any]) -> Line:
    inner = payload.get("properties")
    fields = inner if isinstance(inner, dict) else payload
    for name in ("text", "message", "reason", "title", "description", "file", "path", "name", "state", "status"):
        if said := _text(fields.get(name)):
            return Line(short_type(type_), said)
    flat = ", ".join(f"{k}={v}" for k, v in fields.items() if isinstance(v, str | int | float) and k != "sessionID")
    return Line(short_type(type_), _text(flat))


def _linked(payload: dict[str, Any]) -> Line:
    return Line("linked", f"to {_text(payload.get('parent')) or 'no parent: a root'}", "quiet")


def _correction(payload: dict[str, Any]) -> Line:
    said = f"{payload.get('failed')} of {payload.get('steps')} steps failed in {_plain(payload.get('session'))}"
    return Line("correction", one_line(said), "bad")


def _said(label: str, tone: Tone, *names: str) -> Callable[[dict[str, Any]], Line]:
    """A line with these fields of the payload; a name that begins with ``=`` is a text of its own."""

    def line(payload: dict[str, Any]) -> Line:
        said = (name[1:] if name[0] == "=" else _plain(payload.get(name), name) for name in names)
        return Line(label, " · ".join(filter(None, said)), tone)

    return line


def _plain(value: Any, name: str = "") -> str:
    """A value of an agent's event, which is ours: a text, a number or a list of them."""
    if name == "attempt":
        return f"attempt {value}" if isinstance(value, int) and value > 1 else ""
    if isinstance(value, list):
        return " · ".join(filter(None, map(_plain, value)))
    return "" if value is None or isinstance(value, bool | dict) else one_line(str(value)[:LONGEST])


class Kind(NamedTuple):
    """How events of one type read: ``line`` makes their line, ``content`` takes the parts of their content out of a
    copy of the payload, and ``is_news`` says that an event in an agent's stream is more than bookkeeping."""

    line: Callable[[dict[str, Any]], Line]
    content: Callable[[dict[str, Any]], list[content.Part]] | None = None
    is_news: bool = False


KINDS: dict[str, Kind] = {
    "human.input": Kind(lambda payload: Line("input", input_text(payload), "input"), content.of_input),
    "agent.input": Kind(_prompt, content.of_input),
    "turn.started": Kind(_turn_started),
    "turn.ended": Kind(_turn_ended),
    "execution.step": Kind(_step, content.of_step),
    STEP_STARTED: Kind(lambda payload: Line("runs", call_text(payload), "quiet")),
    "execution.output": Kind(_output, content.of_output),
    "agent.spawned": Kind(_spawned),
    "agent.handoff": Kind(_handoff),
    RETRIED: Kind(_retried),
    "agent.error": Kind(_error, content.of_error),
    CHECKPOINT: Kind(_checkpoint, content.of_checkpoint),
    GAP: Kind(lambda payload: Line("gap", lost_text(payload), "bad")),
    "lifecycle.session.created": Kind(_session("session")),
    "lifecycle.session.resumed": Kind(_session("resumed")),
    "lifecycle.session.ended": Kind(_session("ended")),
    "lifecycle.session.compacted": Kind(_said("compacted", "quiet", "=older messages were summed up")),
    "opencode.message.removed": Kind(_undone),
    "opencode.command.executed": Kind(_command),
    "opencode.session.reverted": Kind(_reverted),
    MOVED: Kind(_said("moved", "quiet", "directory")),
    "lineage.forked": Kind(lambda payload: Line("session", _origin(payload), "quiet")),
    "lineage.linked": Kind(_linked),
    "stream.pinned": Kind(_said("pinned", "quiet", "=prune spares it")),
    "stream.unpinned": Kind(_said("unpinned", "quiet")),
    "stream.named": Kind(_said("named", "quiet", "name")),
    "agent.installed": Kind(_said("agent", "quiet", "=first start")),
    "agent.owned": Kind(_said("agent", "quiet", "=this home owns it", "epoch")),
    "agent.turn_stopped": Kind(_said("stopped", "bad", "reason"), is_news=True),
    "tool.reported": Kind(_said("report", "plain", "status", "tool_name")),
    "tool.refused": Kind(_said("report refused", "bad", "error_code", "status"), is_news=True),
    "agent.received": Kind(_said("received", "quiet", "type")),
    "agent.refused": Kind(_said("refused", "bad", "type", "error_code"), is_news=True),
    "agent.dead_letter": Kind(_said("dead letter", "bad", "type", "reason"), is_news=True),
    "effect.requested": Kind(_said("effect", "plain", "kind", "attempt", "node")),
    "effect.started": Kind(_said("starts", "quiet", "kind", "attempt")),
    "effect.completed": Kind(_said("done", "quiet", "kind", "attempt")),
    "effect.failed": Kind(_said("failed", "bad", "kind", "attempt", "error")),
    "effect.in_doubt": Kind(_said("in doubt", "asks", "kind", "attempt", "reason"), is_news=True),
    "intent.created": Kind(_said("background", "plain", "intent", "title"), is_news=True),
    "intent.refused": Kind(_said("refused", "bad", "intent", "reason"), is_news=True),
    "intent.starting": Kind(_said("starting", "quiet", "intent")),
    "intent.started": Kind(_said("started", "quiet", "intent", "session")),
    "intent.output": Kind(_said("answers", "output", "intent", "text")),
    "intent.interrupted": Kind(_said("interrupted", "bad", "intent"), is_news=True),
    "intent.hung": Kind(_said("hangs", "bad", "intent", "=OpenCode did not answer any more"), is_news=True),
    "intent.resumed": Kind(_said("resumed", "quiet", "intent")),
    "intent.waiting": Kind(_said("waits", "asks", "intent", "=for an OpenCode")),
    "intent.unhosted": Kind(_said("waits", "asks", "intent", "=for its OpenCode")),
    "intent.paused": Kind(_said("waits", "asks", "intent", "=for a person")),
    "intent.continued": Kind(_said("goes on", "quiet", "checkpoint")),
    "intent.model": Kind(_said("model", "quiet", "intent", "model")),
    "intent.erred": Kind(_said("error", "bad", "intent", "reason")),
    "intent.fallback": Kind(_said("next model", "quiet", "intent", "from")),
    "intent.isolated": Kind(_said("copy", "quiet", "intent")),
    "intent.overlap": Kind(_said("edited twice", "bad", "intent", "file"), is_news=True),
    "intent.finishing": Kind(_said("finishing", "quiet", "intent")),
    "intent.applied": Kind(_said("changes applied", "good", "intent")),
    "intent.undone": Kind(_said("changes taken back", "quiet", "intent")),
    "intent.discarded": Kind(_said("changes discarded", "quiet", "intent")),
    "intent.completed": Kind(_said("done", "good", "intent"), is_news=True),
    "intent.failed": Kind(_said("failed", "bad", "intent", "reason"), is_news=True),
    "intent.cancelling": Kind(_said("cancelling", "quiet", "intent", "reason")),
    "intent.cancelled": Kind(_said("cancelled", "bad", "intent", "reason"), is_news=True),
    "budget.warning": Kind(_said("budget", "bad", "what", "share", "root"), is_news=True),
    "budget.closed": Kind(_said("budget", "quiet", "root")),
    "message.queued": Kind(_message, is_news=True),
    "message.sending": Kind(_said("sending", "quiet", "message", "channels")),
    "message.sent": Kind(_said("sent", "quiet", "message", "channel")),
    "message.failed": Kind(_said("failed", "bad", "message", "channel", "error")),
    "message.absent": Kind(_said("not shown", "quiet", "message", "channel")),
    "message.postponed": Kind(_said("waits", "quiet", "why")),
    "message.returned": Kind(_said("returned", "quiet", "message")),
    "message.seen": Kind(_said("seen", "good", "message", "why"), is_news=True),
    "message.answering": Kind(_said("answering", "quiet", "message")),
    "message.answered": Kind(_said("answered", "good", "message", "answer", "by"), is_news=True),
    "message.unanswered": Kind(_said("failed", "bad", "message", "why")),
    "message.expired": Kind(_said("expired", "bad", "message"), is_news=True),
    "message.withdrawn": Kind(_said("withdrawn", "quiet", "message", "why")),
    "message.late": Kind(_said("too late", "bad", "message")),
    "cost.counted": Kind(_said("cost", "quiet", "stream", "cost")),
    "agent.correction": Kind(_correction, is_news=True),
    "gardener.watched": Kind(_said("watches", "quiet", "session")),
    "gardener.failed": Kind(_said("a step failed", "quiet", "session")),
    "gardener.turn": Kind(_said("turn", "quiet", "session")),
    "gardener.own": Kind(_said("own", "quiet", "id")),
    "reservation.granted": Kind(_paths("reserved", "plain", "title"), is_news=True),
    "reservation.refused": Kind(_paths("not reserved", "bad", "code"), is_news=True),
    "reservation.released": Kind(_paths("released", "quiet", "by")),
    "signal.raised": Kind(_said("signal", "plain", "name"), is_news=True),
}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return one_line((as_text(value) or ("" if value == "" else _json(value)))[:LONGEST])


def _json(value: Any) -> str:
    import orjson

    return orjson.dumps(value, default=str).decode()


def _number(value: Any) -> bool:
    """True for a number that is worth showing, that is, any number except 0."""
    return is_number(value) and bool(value)


def _joined(first: str, second: str, between: str) -> str:
    return between.join(filter(None, (first, second)))


def _duration(payload: dict[str, Any], waited_ms: int) -> str:
    took = payload.get("duration_ms")
    if not is_number(took) or took < LEAST_SHOWN_MS:
        return ""
    return lasted(took) + (f" (waited {lasted(waited_ms)} for you)" if waited_ms else "")
