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

from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from bridge.nats import headers as h
from bridge.nats.headers import (
    FORM,
    HASH,
    LOG,
    MESSAGE_ID,
    OFFSET,
    POSITION,
    TIMESTAMP,
    HeaderLines,
    ProtocolViolation,
)
from bridge.nats.jetstream.wire import VERSION_LINE_BYTES, Message, wire_size
from bridge.nats.l0.captured import IncompleteRecord, L0Message, l0_messages
from bridge.nats.l0.context import RecordContext
from bridge.nats.l0.payloads import Chunk, L0Payload, PayloadError, Wakeup
from bridge.nats.subjects import CHANNEL, PROTOCOL_VERSION, WAKEUP, CommandSubject, L0Subject, RecordSubject
from streams.bus.headers import HeaderError, check_headers
from streams.bus.subjects import SubjectError
from streams.event import StreamEvent
from streams.hashing import canonical, digest_form_of
from streams.store import Record

Form = Literal["whole", "forgotten", "pointer", "stub"]

DEFAULT_MAX_PAYLOAD: Final = 1024 * 1024
"""A server's default limit in bytes, for headers and body together."""

UNSENT: Final = "cmd_unsent"
"""The note about a command that is not sent begins with this word; ``:forgotten``, ``:invalid``, ``:large`` or ``:old``
follows and says why.
"""

BATCH_RESERVE: Final = 512
"""Bytes reserved for the headers that an atomic batch adds to a message."""

_LONGEST_FORM = len(f"{FORM}: forgotten\r\n")


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


def mirrored(record: Record, context: RecordContext, mirror: Mirror, *, room: int | None = None) -> RecordMessages:
    """All messages of one record. Never fails, because no record may stop a mirror.

    ``room``: the most bytes of a body. Without it, the server's limit and the headers' size decide.
    """
    event, messages = record.event, []
    notes: list[str] = []
    try:
        for each in l0_messages(event, context):
            message = _l0_message(record, each, context, mirror, room)
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
    own, own_notes = _own_message(record, context, mirror, room)
    return RecordMessages((*messages, own), (*notes, *own_notes), commands)


def _commands(record: Record, mirror: Mirror) -> tuple[Message, Message] | str:
    event, about = record.event, record.event.metadata
    if is_forgotten(event):
        return "forgotten"
    try:
        to, project = about["to"], about["project"]
        subject = str(CommandSubject(project, about["workspace"], to, event.type))
        mirror = replace(mirror, rebuild=0)  # a command is sent once, however often its record is published
        headers = HeaderLines(*_headers(record, about["depth"], mirror, event.type, "cmd")[:2])
        body = event.stored or canonical(event.fields())
        announced = str(L0Subject(project, "cmd", "agent", to, WAKEUP, mirror.channel, mirror.version))
        wakeup = Wakeup.parse({"agent_id": to, "inbox_id": event.id, "reason": event.type}).encode()
        wakeup_headers = HeaderLines(*_headers(record, about["depth"], mirror, f"agent.{WAKEUP}", WAKEUP)[:2])
    except (SubjectError, HeaderError, PayloadError, ProtocolViolation, LookupError, TypeError):
        return "invalid"
    if wire_size(headers, len(body)) > mirror.max_payload:
        return "large"
    return Message(subject, headers, body), Message(announced, wakeup_headers, wakeup)


def chunk_message(session: str, chunk: Chunk, project: str, mirror: Mirror) -> Message:
    """A piece of an answer, on ``str.agent.{session}.chunk``: without headers and id, and it may be lost."""
    return Message(_subject(session, "chunk", project, mirror.channel, mirror.version, "str"), {}, chunk.encode())


def is_forgotten(event: StreamEvent) -> bool:
    """True if an event's payload is only a digest, which is what ``forget`` leaves."""
    return len(event.payload) == 1 and isinstance(digest := event.payload.get("$sha256"), str) and len(digest) == 64


def _own_message(
    record: Record, context: RecordContext, mirror: Mirror, room: int | None
) -> tuple[Message, tuple[str, ...]]:
    event = record.event
    subject = _record_subject(context.project, mirror.log, event.stream_id, event.type)
    place = f"{OFFSET}: {record.offset}\r\n{HASH}: {record.hash}\r\n"
    lines, count, notes = _headers(record, context.depth, mirror, event.type, more=place)
    # Measure the headers with the longest possible form, because the real form is not known yet.
    form, body = _body(event, _room(lines, mirror) - _LONGEST_FORM if room is None else room)
    if h.reserved_keys(event.payload):
        notes = (*notes, "reserved_keys")
    if form in ("pointer", "stub"):
        notes = (*notes, form)
    return Message(subject, HeaderLines(f"{lines}{FORM}: {form}\r\n", count + 3), body), notes


def _body(event: StreamEvent, room: int) -> tuple[Form, bytes]:
    # The bytes that the log hashed: another library, or another version of it, may write a float in another form.
    body = event.stored or canonical(event.fields())
    if len(body) <= room:
        return ("forgotten" if is_forgotten(event) else "whole"), body
    if not is_forgotten(event):
        pointer = digest_form_of(body)[1]
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


def _l0_message(
    record: Record, meaning: L0Message, context: RecordContext, mirror: Mirror, room: int | None
) -> Message | None:
    target = meaning.target or context.session
    assert target is not None
    subject = _subject(target, meaning.suffix, context.project, mirror.channel, mirror.version, "evt")
    part = f"l0:{meaning.part}" if meaning.part else "l0"
    lines, count, _ = _headers(record, context.depth, mirror, f"agent.{meaning.suffix}", part)
    room = _room(lines, mirror) if room is None else room
    body = meaning.payload.encode()
    if len(body) > room:
        body = _required(meaning.payload).encode()
    return Message(subject, HeaderLines(lines, count), body) if len(body) <= room else None


def _room(lines: str, mirror: Mirror) -> int:
    return mirror.max_payload - BATCH_RESERVE - VERSION_LINE_BYTES - len(lines)


def _required(payload: L0Payload) -> L0Payload:
    fields: dict[str, Any] = payload.fields()
    return type(payload)(**{k: fields[k] for k, info in type(payload).model_fields.items() if info.is_required()})


def _headers(
    record: Record, depth: int | None, mirror: Mirror, type_: str, part: str = "", more: str = ""
) -> tuple[str, int, tuple[str, ...]]:
    """The headers of a message made from a record: their lines, the number of the lines without those in ``more``, and
    notes.

    A line break that somebody put into a log gives a line too many, which the publisher refuses.
    """
    event, about = record.event, record.event.metadata
    state = about.get(h.TRACESTATE)
    shared = _shared_lines(
        tuple(h.forwarded(about).items()) if about else (),
        depth,
        mirror.log,
        mirror.version,
        type_,
        event.source.agent,
    )
    traced = _trace_lines(event.traceparent, state if isinstance(state, str) else None, event.stream_id)
    identity = h.message_id(event.id, part=part, rebuild=mirror.rebuild)
    text = (
        f"{MESSAGE_ID}: {identity}\r\n{POSITION}: {record.position}\r\n{TIMESTAMP}: {event.ts}\r\n"
        f"{more}{traced.text}{shared.text}"
    )
    return text, 3 + traced.lines + shared.lines, traced.notes


class _Lines(NamedTuple):
    text: str
    lines: int
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def _shared_lines(
    forwarded: tuple[tuple[str, str], ...], depth: int | None, log: str, version: str, type_: str, agent: str
) -> _Lines:
    """The header lines that many messages have in common."""
    headers = {
        LOG: h.header_text(log),
        h.VERSION: h.header_text(version),
        h.MESSAGE_TYPE: h.header_text(type_),
        h.SENDER: h.header_text(agent),
        **(h.depth_header(depth) if depth is not None else {}),
        **dict(forwarded),
    }
    return _Lines(h.header_lines(check_headers(headers)), len(headers))


@lru_cache(maxsize=4096)
def _trace_lines(traceparent: str | None, tracestate: str | None, stream: str) -> _Lines:
    """The header lines with the trace, which all messages of a session, or of one command, have in common."""
    traced = h.trace_headers(traceparent, tracestate, stream)
    return _Lines(h.header_lines(traced.headers), len(traced.headers), traced.notes)


@lru_cache(maxsize=4096)
def _record_subject(project: str, log: str, stream: str, type_: str) -> str:
    return str(RecordSubject(project, log, stream, type_))


@lru_cache(maxsize=4096)
def _subject(
    session: str, suffix: str, project: str, channel: str, version: str, category: Literal["str", "evt"]
) -> str:
    return str(L0Subject(project, category, "agent", session, suffix, channel, version))
