"""Describes a message received from NATS: as one line for people, and as JSON for programs. Pure.

Messages come from anybody who may publish on the server, so every part may be missing, malformed, or crafted to control
a terminal.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson

from bridge.nats import headers as h
from bridge.nats.subjects import CATEGORIES, COMPONENTS, L0Subject, RecordSubject
from sidecar.read.fields import as_mapping
from sidecar.read.telling.describe import KINDS, LONGEST, Line, Tone, describe, short_type, spent
from sidecar.read.wording import counted, iso_time, lasted, one_line
from streams.bus.subjects import REST, SubjectError, check_pattern
from streams.errors import StreamError
from streams.event import StreamEvent

PLACE_CHARACTERS: Final = 10
"""How many of the last characters of a stream's or session's id are shown. The earlier characters are the same for many
ids."""

_LONGEST_STAMP: Final = 15


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """The shown parts of a message: ``place`` is the end of the id of the message's stream or session."""

    ts: int
    place: str
    type: str
    actor: str
    line: Line


def expanded(text: str) -> str:
    """The full pattern of the subjects that a person means.

    Completes the short forms of L0 subjects, which lack project and channel.

    ``evt.agent.*.step`` and ``str.>`` are such forms; ``evt.>``, which means every record, stays unchanged.

    Raises:
        SubjectError: ``text`` is not a pattern.
    """
    tokens = check_pattern(text).split(".")
    short = tokens[0] == "str" or (tokens[0] in CATEGORIES and len(tokens) > 1 and tokens[1] in COMPONENTS)
    # Match any version, because users of `listen` should not need to know the protocol version.
    return check_pattern(f"cg.*.*.*.{text}") if short else text


def is_internal(subject: str, pattern: str) -> bool:
    """Whether this is an internal message of the server or its clients, which ``listen '>'`` should not show."""
    return pattern.split(".")[0] in ("*", REST) and subject.startswith(("$", "_"))


def shown_message(subject: str, headers: Mapping[str, str], body: bytes, now_ms: int) -> ShownMessage:
    """The content of a message. ``now_ms``, the time when it was received, replaces a missing time of sending."""
    stamp = headers.get(h.TIMESTAMP, "")
    ts = int(stamp) if stamp.isascii() and stamp.isdecimal() and len(stamp) <= _LONGEST_STAMP else now_ms
    actor, type_ = _text(headers.get(h.SENDER)), _text(headers.get(h.MESSAGE_TYPE))
    event = _event(body) if headers.get(h.FORM) in ("whole", "forgotten", "pointer") else None
    if event is not None:
        line = describe(event)
        if headers.get(h.FORM) == "pointer":
            line = Line(line.label, "(too large for the server; the log has it)", "quiet")
        return ShownMessage(ts, _end_of(event.stream_id), event.type, event.actor, line)
    place, told = _place(subject)
    type_ = type_ or told
    line = _meaning(subject, body) or Line(short_type(type_) if type_ else "message", _said(body), _tone(subject))
    return ShownMessage(ts, place, type_, actor, line)


def as_json(subject: str, headers: Mapping[str, str], body: bytes, now_ms: int) -> dict[str, Any]:
    """The whole message: ``time`` (when it was received), ``subject``, ``headers``, and the body: as ``payload`` if it
    is JSON, as ``text`` if it is other text, or else as ``base64``.
    """
    told: dict[str, Any] = {"time": iso_time(now_ms), "subject": subject, "headers": dict(headers)}
    try:
        return {**told, "payload": orjson.loads(body)}
    except ValueError:
        pass  # a body that is not JSON is shown as text or base64
    try:
        return {**told, "text": body.decode()}
    except UnicodeDecodeError:
        return {**told, "base64": base64.b64encode(body).decode()}


def _meaning(subject: str, body: bytes) -> Line | None:
    """The text for an agent's step, state, task or piece of an answer, in the words that ``log`` uses."""
    try:
        l0 = L0Subject.parse(subject)
        payload = orjson.loads(body)
    except (SubjectError, ValueError):
        return None
    tell = _MEANINGS.get(l0.suffix) if l0.component == "agent" and isinstance(payload, dict) else None
    return tell(payload) if tell is not None else None


def _step(payload: dict[str, Any]) -> Line:
    about = as_mapping(payload.get("metadata"))
    took = as_mapping(about.get("timing")).get("duration_ms")
    # Show that the step is completed only if there is nothing else to show.
    finish, phase, child = _word(about.get("finish")), _word(payload.get("phase")), _word(about.get("child"))
    said = [finish or phase]
    if isinstance(took, int | float) and took >= 1000:
        said.append(lasted(int(took)))
    said += [spent(about), f"child {_end_of(child)}" if child else ""]
    text = " · ".join(filter(None, said))
    if payload.get("phase") == "failed":
        return Line(_word(about.get("tool")) or "step", text, "bad")
    is_model = about.get("kind") == "inference"
    label = "model" if is_model else _word(about.get("tool")) or _word(about.get("kind")) or "step"
    return Line(label, text, "quiet" if is_model else "plain")


def _state(payload: dict[str, Any]) -> Line:
    about = as_mapping(payload.get("metadata"))
    turn = payload.get("turn_epoch")
    said = [_word(payload.get("status")), f"turn {turn}" if isinstance(turn, int) and turn else ""]
    said.append(_word(about.get("outcome")) or _word(about.get("trigger")))
    return Line("state", " · ".join(filter(None, said)), "quiet")


def _task(payload: dict[str, Any]) -> Line:
    stats, status = as_mapping(payload.get("stats")), _word(payload.get("status"))
    steps = stats.get("steps")
    said = [status, _word(payload.get("error"))]
    said.append(counted(steps, "step") if isinstance(steps, int) and steps else "")
    said.append(spent(stats))
    tone: Tone = "good" if status == "success" else "bad" if status == "failed" else "asks"
    return Line("task", " · ".join(filter(None, said)), tone)


def _chunk(payload: dict[str, Any]) -> Line | None:
    if not isinstance(payload.get("content"), str):
        return None
    return KINDS["execution.output"].line({"kind": payload.get("chunk_type"), "text": payload["content"]})


_MEANINGS: Final[dict[str, Callable[[dict[str, Any]], Line | None]]] = {
    "step": _step,
    "state": _state,
    "task": _task,
    "chunk": _chunk,
}


def _word(value: Any) -> str:
    return one_line(value[:LONGEST]) if isinstance(value, str) else ""


def _event(body: bytes) -> StreamEvent | None:
    try:
        return StreamEvent.parse(orjson.loads(body))
    except (ValueError, StreamError):
        return None


def _text(value: str | None) -> str:
    """A header's value with its escapes undone."""
    return "" if value in (None, "%_") else one_line(unquote(value or "")[:LONGEST])


def _end_of(name: str) -> str:
    return one_line(name)[-PLACE_CHARACTERS:]


def _place(subject: str) -> tuple[str, str]:
    """The stream or session that a subject names, and the type in the subject."""
    try:
        if subject.startswith("cg."):
            l0 = L0Subject.parse(subject)
            return _end_of(l0.target), f"{l0.category}.{l0.component}.{l0.suffix}"
        record = RecordSubject.parse(subject)
        return _end_of(record.stream), record.type
    except SubjectError:
        return "", one_line(subject)


def _said(body: bytes) -> str:
    """A payload on one line. A piece of an answer is shown unchanged; for any other payload, the fields are shown."""
    text = body[: 4 * LONGEST].decode("utf-8", "replace")
    if len(body) <= 64 * 1024:
        try:
            payload = orjson.loads(body)
        except ValueError:
            return one_line(text)[:LONGEST]
        if isinstance(payload, dict):
            content = payload.get("content")
            if isinstance(content, str):
                return one_line(content[:LONGEST])
            fields = (f"{key}={_value(value)}" for key, value in payload.items() if not _is_empty(value))
            return one_line(", ".join(fields)[:LONGEST])
    return one_line(text)[:LONGEST]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value == {} or value == []


def _tone(subject: str) -> Tone:
    first, _, rest = subject.partition(".")
    if first == "dlq":
        return "bad"
    if first == "cg" and rest.split(".")[3:4] == ["str"]:
        return "output"
    return "plain"
