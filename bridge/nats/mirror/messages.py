"""Builds the messages that the mirror publishes for one record of the log. Pure.

The messages, in this order (the mirror has one cursor for all of them):

1. the record's L0 messages (``bridge/nats/l0/captured.py``), id ``{event}:l0``;
2. a command for an agent of another home, on ``cmd.{project}.{workspace}.{to}.{type}``, id ``{event}:cmd``,
   the canonical event as its body, and then its wakeup on ``cg.….cmd.agent.{to}.wakeup``, id ``{event}:wakeup``;
3. the record itself, on ``evt.{project}.{log}.{stream}.{type}``, id ``{event}``, the canonical event as its body.

The record's headers give its place in the log (``DS-Log``, ``DS-Position``, ``DS-Offset``), its chain
hash (``DS-Hash``) and what the body is (``DS-Form``):

* ``whole``: the canonical event. A reader can check the hash: sha256(previous hash ‖ body with the payload replaced by
  its digest).
* ``forgotten``: the same, but the payload was replaced by its digest in the log. The chain still passes verification.
* ``pointer``: the record exceeds the server's limit, so the body has the payload's digest; the log has the payload.
* ``stub``: even a pointer would exceed the limit; the body has only id, time, stream, type and the event's digest.

L0 messages and commands also carry ``DS-Log`` and ``DS-Position``, because their subject does not name the log.

The same record gives the same messages, byte for byte, whenever and wherever it is mirrored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from bridge.nats import headers as h
from bridge.nats.headers import (
    FORM,
    HASH,
    LOG,
    MESSAGE_ID,
    MESSAGE_TYPE,
    OFFSET,
    POSITION,
    SENDER,
    TIMESTAMP,
    TRACE_MADE,
    TRACEPARENT,
    VERSION,
    HeaderLines,
    ProtocolViolation,
)
from bridge.nats.jetstream.wire import VERSION_LINE_BYTES, Message, wire_size
from bridge.nats.l0.captured import IncompleteRecord, L0Message, l0_messages
from bridge.nats.l0.context import RecordContext
from bridge.nats.l0.payloads import Chunk, L0Payload, PayloadError, Wakeup
from bridge.nats.subjects import CHANNEL, PROTOCOL_VERSION, WAKEUP, CommandSubject, L0Subject, RecordSubject
from streams.bus.headers import HeaderError
from streams.bus.subjects import SubjectError
from streams.event import StreamEvent
from streams.hashing import canonical, encode
from streams.store import Record
from streams.trace import TraceContext, made_trace, parse_traceparent

Form = Literal["whole", "forgotten", "pointer", "stub"]

DEFAULT_MAX_PAYLOAD: Final = 1024 * 1024
"""A server's default limit in bytes, for headers and body together."""

UNSENT: Final = "cmd_unsent"
"""The note about a command that is not sent begins with this word; ``:forgotten``, ``:invalid``, ``:large`` or ``:old``
follows and says why.
"""

BATCH_RESERVE: Final = 256
"""Bytes reserved for the headers of atomic batches."""

_LONGEST_FORM = len("forgotten\r\n")
_OWN_LINES = 6
"""Headers specific to one record: id, position, offset, hash, time and form."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Settings of a mirror; ``log`` is the id of the home's log.

    ``max_payload`` is the server's limit in bytes. ``rebuild`` is 0, or the
    number of the rebuild that publishes everything again.
    """

    log: str
    max_payload: int = DEFAULT_MAX_PAYLOAD
    rebuild: int = 0
    version: str = PROTOCOL_VERSION
    channel: str = CHANNEL


class RecordMessages(NamedTuple):
    """The messages of one record, in the order in which they are published; the record's own message comes last.

    Count the ``notes``: ``trace_made``, ``pointer``, ``stub``, ``l0_skipped:{why}``, …
    """

    messages: tuple[Message, ...]
    notes: tuple[str, ...] = ()
    commands: tuple[Message, ...] = ()
    """Commands for agents elsewhere, each followed by its wakeup. A work queue forgets its messages, so commands are
    never compared with the log or published again."""


def mirrored(record: Record, context: RecordContext, mirror: Mirror) -> RecordMessages:
    """All messages of one record. Never fails, because no record may stop a mirror."""
    event, messages = record.event, []
    notes: list[str] = []
    try:
        for each in l0_messages(event, context):
            message = _l0_message(record, each, context, mirror)
            if message is None:
                notes.append(f"l0_skipped:{event.type}:too_large")
            else:
                messages.append(message)
    except IncompleteRecord as why:
        notes.append(f"l0_skipped:{why.reason}")
    commands: tuple[Message, ...] = ()
    if event.metadata.get("route") == "bus":
        made = _commands(record, mirror)
        if isinstance(made, str):
            notes.append(f"{UNSENT}:{made}")
        else:
            commands = made
    own, own_notes = _own_message(record, context, mirror)
    return RecordMessages((*messages, own), (*notes, *own_notes), commands)


def _commands(record: Record, mirror: Mirror) -> tuple[Message, Message] | str:
    event, about = record.event, record.event.metadata
    if is_forgotten(event):
        return "forgotten"
    try:
        to, project = about["to"], about["project"]
        subject = str(CommandSubject(project, about["workspace"], to, event.type))
        headers = _command_headers(record, mirror, event.type, "cmd")
        body = canonical(event.fields())
        announced = str(L0Subject(project, "cmd", "agent", to, WAKEUP, mirror.channel, mirror.version))
        wakeup = Wakeup.parse({"agent_id": to, "inbox_id": event.id, "reason": event.type}).encode()
        wakeup_headers = _command_headers(record, mirror, f"agent.{WAKEUP}", WAKEUP)
    except (SubjectError, HeaderError, PayloadError, ProtocolViolation, LookupError, TypeError):
        return "invalid"
    if wire_size(headers, len(body)) > mirror.max_payload:
        return "large"
    return Message(subject, headers, body), Message(announced, wakeup_headers, wakeup)


def _command_headers(record: Record, mirror: Mirror, message_type: str, part: str) -> dict[str, str]:
    event, about = record.event, record.event.metadata
    given = {LOG: h.header_text(mirror.log), POSITION: str(record.position)}
    traced = {TRACEPARENT: event.traceparent, h.TRACESTATE: about.get(h.TRACESTATE)}
    given |= {name: value for name, value in traced.items() if isinstance(value, str)} | h.forwarded(about)
    return h.fill_headers(
        {**given, **h.depth_header(about["depth"])},
        origin=event.stream_id,
        timestamp_ms=event.ts,
        message_type=message_type,
        sender=event.source.agent,
        payload=event.payload,
        message_id=h.message_id(event.id, part=part),
        version=mirror.version,
    ).headers


def chunk_message(session: str, chunk: Chunk, project: str, mirror: Mirror) -> Message:
    """A message with a piece of an answer, on ``str.agent.{session}.chunk``. The message has no headers and no id, and
    may be lost.
    """
    return Message(_subject(session, "chunk", project, mirror.channel, mirror.version, "str"), {}, chunk.encode())


def is_forgotten(event: StreamEvent) -> bool:
    """True if an event's payload is only a digest, which is what ``forget`` leaves."""
    digest = event.payload.get("$sha256")
    return len(event.payload) == 1 and isinstance(digest, str) and len(digest) == 64


def _own_message(record: Record, context: RecordContext, mirror: Mirror) -> tuple[Message, tuple[str, ...]]:
    event = record.event
    subject = _record_subject(context.project, mirror.log, event.stream_id, event.type)
    if event.metadata and not _PASSED_ON.isdisjoint(event.metadata):
        return _own_message_by_name(record, context, mirror, subject)
    # This is the fast path for nearly every message: the header lines that it shares with many others are cached, and
    # the rest is written as text. A test checks that ``_own_message_by_name`` gives the same message.
    shared = _shared_lines(
        event.stream_id, event.traceparent, context.depth, mirror.log, mirror.version, event.type, event.source.agent
    )
    identity = event.id if not mirror.rebuild else h.message_id(event.id, rebuild=mirror.rebuild)
    text = (
        f"{MESSAGE_ID}: {identity}\r\n{POSITION}: {record.position}\r\n{OFFSET}: {record.offset}\r\n"
        f"{HASH}: {record.hash}\r\n{TIMESTAMP}: {event.ts}\r\n{shared.text}{FORM}: "
    )
    form, body = _body(event, mirror.max_payload - BATCH_RESERVE - VERSION_LINE_BYTES - len(text) - _LONGEST_FORM)
    text, count = f"{text}{form}\r\n", shared.lines + _OWN_LINES
    if not h.are_lines(text, count):
        # A line break in a tampered log must not forge a header line. The publisher decides what to do.
        return _own_message_by_name(record, context, mirror, subject)
    notes = _noted(shared.notes, event.payload)
    return Message(subject, HeaderLines(text, count), body), _with_form(notes, form)


def _own_message_by_name(
    record: Record, context: RecordContext, mirror: Mirror, subject: str
) -> tuple[Message, tuple[str, ...]]:
    event = record.event
    given = _depth(context)
    given[LOG] = _header_text(mirror.log)
    given[POSITION] = str(record.position)
    given[OFFSET] = str(record.offset)
    given[HASH] = record.hash
    identity = event.id if not mirror.rebuild else h.message_id(event.id, rebuild=mirror.rebuild)
    headers, _, notes = _filled(event, given, mirror, event.type, identity, event.payload)
    # Measure the headers with the longest possible form, because the real form is not known yet.
    headers[FORM] = "forgotten"
    form, body = _body(event, mirror.max_payload - BATCH_RESERVE - wire_size(headers, 0))
    headers[FORM] = form
    return Message(subject, headers, body), _with_form(notes, form)


def _with_form(notes: tuple[str, ...], form: Form) -> tuple[str, ...]:
    return (*notes, form) if form in ("pointer", "stub") else notes


def _body(event: StreamEvent, room: int) -> tuple[Form, bytes]:
    body = canonical(event.fields())
    if len(body) <= room:
        return ("forgotten" if is_forgotten(event) else "whole"), body
    if not is_forgotten(event):
        pointer = encode(event).digest_form
        if len(pointer) <= room:
            return "pointer", pointer
    return "stub", canonical(
        {
            "$sha256": sha256(body).hexdigest(),
            "id": event.id,
            "ts": event.ts,
            "stream_id": event.stream_id,
            "type": event.type,
        }
    )


def _l0_message(record: Record, meaning: L0Message, context: RecordContext, mirror: Mirror) -> Message | None:
    target = meaning.target or context.session
    assert target is not None
    event = record.event
    subject = _subject(target, meaning.suffix, context.project, mirror.channel, mirror.version, "evt")
    part = f"l0:{meaning.part}" if meaning.part else "l0"
    identity = h.message_id(event.id, part=part, rebuild=mirror.rebuild)
    given = {**_depth(context), h.LOG: h.header_text(mirror.log), h.POSITION: str(record.position)}
    filled = _filled(event, given, mirror, f"agent.{meaning.suffix}", identity, None)
    room = mirror.max_payload - BATCH_RESERVE - wire_size(filled.headers, 0)
    body = meaning.payload.encode()
    if len(body) > room:
        body = _required(meaning.payload).encode()
    return Message(subject, filled.headers, body) if len(body) <= room else None


def _depth(context: RecordContext) -> dict[str, str]:
    return dict(_depth_header(context.depth)) if context.depth is not None else {}


def _required(payload: L0Payload) -> L0Payload:
    fields: dict[str, Any] = payload.fields()
    return type(payload)(**{k: fields[k] for k, info in type(payload).model_fields.items() if info.is_required()})


def _filled(
    event: StreamEvent,
    given: dict[str, str],
    mirror: Mirror,
    message_type: str,
    identity: str,
    payload: dict[str, Any] | None,
) -> h.Filled:
    given |= h.forwarded(event.metadata)
    state = event.metadata.get(h.TRACESTATE)
    if not isinstance(state, str):
        return _filled_plainly(event, given, mirror, message_type, identity, payload)
    given[h.TRACESTATE] = state
    if event.traceparent is not None:
        given[h.TRACEPARENT] = event.traceparent
    return h.fill_headers(
        given,
        origin=event.stream_id,
        timestamp_ms=event.ts,
        message_type=message_type,
        sender=event.source.agent,
        payload=payload,
        message_id=identity,
        version=mirror.version,
    )


def _filled_plainly(
    event: StreamEvent,
    headers: dict[str, str],
    mirror: Mirror,
    message_type: str,
    identity: str,
    payload: dict[str, Any] | None,
) -> h.Filled:
    """Does the same as ``fill_headers``, for headers that Durable Stream made itself and without a ``tracestate`` to
    forward."""
    trace, notes = _trace_of(event.stream_id, event.traceparent)
    headers |= _shared_headers(trace, bool(notes), mirror.version, message_type, event.source.agent)
    headers[TIMESTAMP] = str(event.ts)
    headers[MESSAGE_ID] = identity
    return h.Filled(headers, trace, notes if payload is None else _noted(notes, payload))


def _noted(notes: tuple[str, ...], payload: dict[str, Any]) -> tuple[str, ...]:
    return (*notes, "reserved_keys") if h.reserved_keys(payload) else notes


@lru_cache(maxsize=1024)
def _trace_of(stream: str, traceparent: str | None) -> tuple[TraceContext, tuple[str, ...]]:
    trace = parse_traceparent(traceparent) if traceparent is not None else None
    if trace is not None:
        return trace, ()
    return made_trace(stream), ("trace_made" if traceparent is None else "trace_invalid",)


def _shared_headers(trace: TraceContext, is_made: bool, version: str, type_: str, agent: str) -> dict[str, str]:
    return {
        **({TRACE_MADE: "true"} if is_made else {}),
        TRACEPARENT: str(trace),
        VERSION: _header_text(version),
        MESSAGE_TYPE: _header_text(type_),
        SENDER: _header_text(agent),
    }


_PASSED_ON: Final = frozenset({h.TRACESTATE, *h.FORWARDED})


class _Shared(NamedTuple):
    text: str
    lines: int
    notes: tuple[str, ...]


@lru_cache(maxsize=4096)
def _shared_lines(
    stream: str, traceparent: str | None, depth: int | None, log: str, version: str, type_: str, agent: str
) -> _Shared:
    trace, notes = _trace_of(stream, traceparent)
    headers = {} if depth is None else _depth_header(depth)
    headers = {**headers, LOG: _header_text(log), **_shared_headers(trace, bool(notes), version, type_, agent)}
    return _Shared(h.header_lines(headers), len(headers), notes)


_depth_header = lru_cache(maxsize=64)(h.depth_header)
_header_text = lru_cache(maxsize=1024)(h.header_text)


@lru_cache(maxsize=4096)
def _record_subject(project: str, log: str, stream: str, type_: str) -> str:
    return str(RecordSubject(project, log, stream, type_))


@lru_cache(maxsize=4096)
def _subject(
    session: str, suffix: str, project: str, channel: str, version: str, category: Literal["str", "evt"]
) -> str:
    return str(L0Subject(project, category, "agent", session, suffix, channel, version))
