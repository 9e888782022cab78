"""Reads a command that arrives on ``cmd.{project}.{workspace}.{agent}.{type}``, to which any client may send. Pure.

===================================================  =============================================
body                                                 read as
===================================================  =============================================
an object with ``id``, ``stream_id``, ``payload``    a whole event, as the mirror sends it
an object of the envelope's fields only, with        the command's ``type``, ``payload``, ``actor``,
``type`` or ``payload``                              ``correlation_id``, ``idempotency_key``, …
any other object                                     the payload
any other JSON value                                 the payload ``{"value": …}``
nothing                                              the payload ``{}``
===================================================  =============================================

If the body names no type, the last part of the subject is the type. The command's key is the body's
``idempotency_key``, or else the ``Nats-Msg-Id``, or else the message's place in the stream.

If headers and body disagree, the headers count. Without a valid ``traceparent``, the command gets a span in the trace
that is recorded for its chain, or else in a trace that is marked as generated. The depth rules are those of
``recursion.py``. If neither the headers nor the command's chain gives a depth, the command is accepted only if it names
no cause; it then begins a chain of its own. ``CG-Mode``, or ``mode`` next to ``payload`` in the body, is the mode of
``enqueue``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import orjson

from bridge.nats import headers as h
from bridge.nats.headers import ProtocolViolation, read_depth, reserved_keys
from bridge.nats.l0.recursion import CALL, MAX_DEPTH, VIOLATION, Decision, judge
from bridge.nats.subjects import CommandSubject
from streams.bus.command import Command, Refusal
from streams.bus.headers import is_header_value
from streams.bus.subjects import SubjectError
from streams.errors import InvalidEvent
from streams.event import StreamEvent
from streams.trace import MAX_TRACESTATE, Chain, made_trace, parse_traceparent

UNKNOWN_SENDER: Final = "user"

_FIELDS: Final = frozenset(StreamEvent.__annotations__) | {"timestamp"}
_WHOLE: Final = frozenset({"id", "stream_id", "payload"})
_TEXTS: Final = ("type", "mode", "actor", "idempotency_key", "correlation_id", "causation_id", "traceparent")
_KNOWN: Final = {
    name.lower(): name
    for name in (
        *(h.TRACEPARENT, h.TRACESTATE, h.TIMESTAMP, h.SENDER, h.RECURSION_DEPTH, h.TRACE_MADE, h.MESSAGE_ID, h.LOG),
        *(h.MODE, *h.FORWARDED),
    )
}
_MAX_MS: Final = 2**53


class Undecodable(ValueError):
    """A message that is not a command; ``reason`` says why, without its content."""

    code: ClassVar[str] = "undecodable"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_command(
    subject: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    stream: str,
    sequence: int,
    recorded: Callable[[str], Chain | None],
    limit: int = MAX_DEPTH,
) -> tuple[Command, list[str]]:
    """Read one message: the command, and notes to count, which are ``trace_made``, ``trace_invalid``,
    ``tracestate_dropped``, ``timestamp_invalid`` and ``reserved_keys``.

    The command's depth is that of its chain, or the one that the command claims. ``recorded`` returns what is recorded
    for a correlation id; ``limit`` is the maximum depth.

    Raises:
        Undecodable: the message is not a command.
    """
    try:
        names = CommandSubject.parse(subject)
    except SubjectError as error:
        raise Undecodable(f"its subject is not a command subject: {error.reason}") from None
    given, fields = known_headers(headers), _fields_of(body)
    notes: list[str] = []
    payload = fields["payload"]
    if reserved_keys(payload):
        notes.append("reserved_keys")
    key = fields.get("idempotency_key") or given.get(h.MESSAGE_ID) or f"{stream}:{sequence}"
    if h.LOG in given and fields.get("idempotency_key"):
        # A key is unique only within one log, and the command may come from any home's log, so put that log's id before
        # the key.
        key = f"{given[h.LOG]}:{key}"
    correlation, causation = fields.get("correlation_id"), fields.get("causation_id")
    chain = recorded(correlation) if correlation else None
    mode = given.get(h.MODE) or fields.get("mode") or CALL
    depth, decision = _judged(given, chain.depth if chain is not None else None, causation, mode, limit)
    metadata: dict[str, Any] = {"subject": subject, "project": names.project, "workspace": names.workspace}
    metadata |= {name: given[name] for name in h.FORWARDED if name in given}
    source = fields.get("source")
    sender = unquote(given[h.SENDER]) if h.SENDER in given else source.get("agent") if source else None
    command = Command(
        key,
        fields.get("type") or names.type,
        payload,
        actor=fields.get("actor") or sender or UNKNOWN_SENDER,
        sender=sender or UNKNOWN_SENDER,
        depth=depth or 0,
        correlation_id=correlation,
        # A command that is a whole event was recorded elsewhere, so that event is the cause of the records here.
        causation_id=fields["id"] if fields.keys() >= _WHOLE else causation,
        traceparent=_trace_of(given, fields, key, chain, metadata, notes),
        ts=_ts_of(given, fields, notes),
        metadata=metadata,
        refusal=Refusal(decision.verdict, decision.reason, depth) if decision.verdict == VIOLATION else None,
    )
    return command, notes


def known_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that the protocol defines, under their usual names, regardless of upper and lower case in the
    message. Those that no sender could have meant are left out, except a depth, which then is a violation."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        known = _KNOWN.get(name.lower())
        if known is None or (known != name and known in headers):
            continue
        if known == h.RECURSION_DEPTH or is_header_value(value):
            found[known] = value
    return found


def _fields_of(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {"payload": {}}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Undecodable("its body is not JSON") from None
    if not isinstance(value, dict):
        return {"payload": {"value": value}}
    if value.keys() >= _WHOLE:
        try:
            return StreamEvent.parse(value).fields()
        except InvalidEvent as error:
            raise Undecodable(f"its body is {error}") from None
    # ``mode`` is a likely name in a payload, so it counts only next to one.
    known = _FIELDS | {"mode"} if "payload" in value else _FIELDS
    if not value.keys() <= known or not ("type" in value or "payload" in value):
        return {"payload": value}
    payload = value.get("payload", {})
    found = {**value, "payload": payload if isinstance(payload, dict) else {"value": payload}}
    for name in _TEXTS:
        if found.get(name) is not None and not (isinstance(found[name], str) and found[name]):
            raise Undecodable(f"its {name} is not a non-empty string")
    source = found.get("source")
    if source is not None and not (isinstance(source, dict) and isinstance(source.get("agent", ""), str)):
        raise Undecodable("its source is not an object that names an agent")
    return found


def _judged(
    given: Mapping[str, str], recorded: int | None, causation: str | None, mode: str, limit: int
) -> tuple[int | None, Decision]:
    begins = h.RECURSION_DEPTH not in given and recorded is None and causation is None and mode == CALL
    decision = judge("entry" if begins else "enqueue", given, recorded=recorded, mode=mode, limit=limit)
    if decision.depth is not None:
        return decision.depth, decision
    try:
        claimed = read_depth(given)
    except ProtocolViolation:
        claimed = None
    return recorded if recorded is not None else claimed, decision


def _trace_of(
    given: Mapping[str, str],
    fields: Mapping[str, Any],
    key: str,
    chain: Chain | None,
    metadata: dict[str, Any],
    notes: list[str],
) -> str:
    came = given.get(h.TRACEPARENT) or fields.get("traceparent")
    trace = parse_traceparent(came) if came else None
    state = given.get(h.TRACESTATE)
    if state is not None:
        if trace is None or len(state) > MAX_TRACESTATE:
            notes.append("tracestate_dropped")
        else:
            metadata[h.TRACESTATE] = state
    if trace is not None:
        if given.get(h.TRACE_MADE) == "true":
            metadata["trace_generated"] = True
        return str(trace)
    if came:
        notes.append("trace_invalid")
    known = parse_traceparent(chain.traceparent) if chain is not None else None
    if known is None:
        notes += [] if came else ["trace_made"]
        metadata["trace_generated"] = True
    correlation = fields.get("correlation_id")
    made = known or made_trace(correlation or key)
    return str(made.child(key) if correlation else made)


def _ts_of(given: Mapping[str, str], fields: Mapping[str, Any], notes: list[str]) -> int | None:
    """The sender's time. ``None`` if it is missing or unreadable, so that the recorder's time is used."""
    text = given.get(h.TIMESTAMP)
    came = fields.get("ts", fields.get("timestamp")) if text is None else text
    if came is None:
        return None
    if isinstance(came, str):
        came = int(came) if came.isascii() and came.isdecimal() and len(came) < 17 else None
    if isinstance(came, int) and not isinstance(came, bool) and 0 <= came < _MAX_MS:
        return came
    notes.append("timestamp_invalid")
    return None
