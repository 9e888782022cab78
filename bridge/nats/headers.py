"""Fills in the message headers that the sender left out, and checks the headers that the sender set. Pure.

No foreign text can end a header or begin another: header names consist of letters, digits and ``-_``, header values
consist of printable ASCII, and ``header_text`` encodes free text.

Times in headers are decimal milliseconds since 1970, UTC, as everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from bridge.nats.subjects import PROTOCOL_VERSION, shorten
from streams.bus.headers import MAX_VALUE, check_headers, is_header_value
from streams.bus.headers import MESSAGE_ID as MESSAGE_ID  # the protocol names it with its other headers
from streams.trace import MAX_TRACESTATE, TraceContext, made_trace, parse_traceparent

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

TIMESTAMP: Final = "CG-Timestamp"
VERSION: Final = "CG-Version"
MESSAGE_TYPE: Final = "CG-Msg-Type"
SENDER: Final = "CG-Sender"
RECURSION_DEPTH: Final = "CG-Recursion-Depth"
USER_ID: Final = "CG-User-ID"
CHANNEL_ID: Final = "CG-Channel-ID"
CONTEXT_ID: Final = "CG-Context-ID"
FORWARDED: Final = (USER_ID, CHANNEL_ID, CONTEXT_ID)
"""Headers that are passed on unchanged along a chain."""
MODE: Final = "CG-Mode"
TRACE_MADE: Final = "CG-Trace-Generated"
"""``true`` if the publisher generated the ``traceparent`` because it was missing or invalid."""

LOG: Final = "DS-Log"
POSITION: Final = "DS-Position"
OFFSET: Final = "DS-Offset"
HASH: Final = "DS-Hash"
FORM: Final = "DS-Form"
"""The header that says in which form the body holds the record: see ``bridge/nats/mirror/messages.py``."""

RESERVED: Final = "CG-"
MAX_DEPTH_DIGITS: Final = 6

_ID = re.compile(r"([^:]{1,128})((?::[a-z][a-z0-9_]*)*)(?::([1-9][0-9]{0,17}))?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_DEPTH = re.compile(rf"0|[1-9][0-9]{{0,{MAX_DEPTH_DIGITS - 1}}}")


class HeaderLines(Mapping[str, str]):
    """Headers as they are sent: ``text`` is ``count`` lines of ``Name: value``, each ending in CR LF."""

    __slots__ = ("_count", "_read", "text")

    def __init__(self, text: str, count: int) -> None:
        self.text, self._count = text, count
        self._read: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self._read is None:
            lines = (line.partition(": ") for line in self.text.split("\r\n")[:-1])
            self._read = {name: value for name, _, value in lines}
        return self._read

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"HeaderLines({self._all()!r})"


def header_lines(headers: Mapping[str, str]) -> str:
    """Format headers in the form in which they are sent, without any check."""
    if isinstance(headers, HeaderLines):
        return headers.text
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def are_lines(text: str, count: int) -> bool:
    """True if header text is ASCII and has exactly ``count`` lines; an additional line would be a forged header."""
    return text.count("\n") == text.count("\r") == count and text.isascii()


class ProtocolViolation(ValueError):
    """A message violates the L0 protocol. ``code`` is the protocol's term; ``reason`` explains it to people."""

    def __init__(self, reason: str, code: str = "protocol_violation") -> None:
        super().__init__(reason, code)
        self.reason, self.code = reason, code

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


def header_text(text: str) -> str:
    """Encode free text as a header value: UTF-8, with ``%`` and every byte other than printable ASCII written as
    ``%XX``.

    ``urllib.parse.unquote`` decodes it. A value longer than ``MAX_VALUE`` is cut and ends in ``%~`` and 32 hex
    digits of the text's SHA-256. The empty text is ``%_``.
    """
    if len(text) <= MAX_VALUE and "%" not in text and is_header_value(text):
        return text
    if not text:
        return "%_"
    raw = text.encode("utf-8", "surrogatepass")
    parts = [chr(b) if 0x20 <= b <= 0x7E and b != 0x25 else f"%{b:02X}" for b in raw]
    # Escape a space at either end, because NATS clients strip white space at the ends of a header's value.
    for end in (0, -1):
        if parts[end] == " ":
            parts[end] = "%20"
    value = "".join(parts)
    return value if len(value) <= MAX_VALUE else shorten(value, raw, MAX_VALUE)


def forwarded(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The headers with the identity that an event's chain keeps; what cannot be a header is left out."""
    found = {name: metadata[name] for name in FORWARDED if name in metadata}
    return {name: value for name, value in found.items() if isinstance(value, str) and is_header_value(value)}


class Filled(NamedTuple):
    """Complete headers. The notes name the changes that were necessary, for counting.

    Notes: ``trace_made`` (no trace was given), ``trace_invalid`` (an invalid trace was replaced),
    ``tracestate_dropped``, ``reserved_keys`` (``CG-*`` in the payload).
    """

    headers: dict[str, str]
    trace: TraceContext
    notes: tuple[str, ...] = ()


def fill_headers(
    given: Mapping[str, str],
    *,
    origin: str,
    timestamp_ms: int,
    message_type: str,
    sender: str,
    payload: Mapping[str, Any] | None = None,
    message_id: str | None = None,
    version: str = PROTOCOL_VERSION,
) -> Filled:
    """Complete the headers of a ``cmd`` or ``evt`` message; ``str`` messages have none.

    Given headers are kept, except for an invalid ``traceparent`` or ``tracestate``. ``origin`` determines the trace if
    none was given; ``message_type`` and ``sender`` may be any text. ``CG-Recursion-Depth`` is never invented (see
    ``bridge/nats/l0/recursion.py``); a given depth must be well formed.

    Raises:
        HeaderError: a given header cannot be sent.
        ProtocolViolation: the given ``CG-Recursion-Depth`` is not a depth.
    """
    came = dict(given)
    traced = trace_headers(came.pop(TRACEPARENT, None), came.pop(TRACESTATE, None), origin)
    headers, notes = check_headers(came) | traced.headers, traced.notes
    if RECURSION_DEPTH in headers:
        read_depth(headers)
    headers.setdefault(TIMESTAMP, str(timestamp_ms))
    headers.setdefault(VERSION, header_text(version))
    headers.setdefault(MESSAGE_TYPE, header_text(message_type))
    headers.setdefault(SENDER, header_text(sender))
    if message_id is not None:
        headers.setdefault(MESSAGE_ID, header_text(message_id))
    if payload is not None and reserved_keys(payload):
        notes = (*notes, "reserved_keys")
    return Filled(headers, traced.trace, notes)


def trace_headers(traceparent: str | None, tracestate: str | None, origin: str) -> Filled:
    """The headers with a message's trace; ``origin`` determines the trace if ``traceparent`` gives none."""
    # A malformed ``traceparent`` is not an error: W3C Trace Context (section 4.3) says to start a new trace.
    trace = parse_traceparent(traceparent or "")
    notes: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    if trace is None:
        trace, notes = made_trace(origin), ("trace_made" if traceparent is None else "trace_invalid",)
        headers[TRACE_MADE] = "true"
    elif tracestate is not None and _is_tracestate(tracestate):
        headers[TRACESTATE] = tracestate
    headers[TRACEPARENT] = str(trace)
    if tracestate is not None and TRACESTATE not in headers:
        # Drop a ``tracestate`` that is malformed or belongs to a trace that is not continued.
        notes = (*notes, "tracestate_dropped")
    return Filled(headers, trace, notes)


def _is_tracestate(value: str) -> bool:
    return len(value) <= MAX_TRACESTATE and is_header_value(value)


def read_depth(headers: Mapping[str, str]) -> int:
    """The recursion depth in a message's headers.

    Raises:
        ProtocolViolation: the depth is missing or is not a plain decimal number (no sign,
            space, leading zero or non-ASCII digit) of at most ``MAX_DEPTH_DIGITS`` digits.
    """
    value = headers.get(RECURSION_DEPTH)
    if value is None:
        raise ProtocolViolation(f"{RECURSION_DEPTH} is missing; every command and event must carry its depth")
    if _DEPTH.fullmatch(value) is None:
        raise ProtocolViolation(f"{RECURSION_DEPTH} is {value[:40]!a}; expected a whole number, 0 or more")
    return int(value)


def depth_header(depth: int) -> dict[str, str]:
    """The header with a depth. Raises ``ProtocolViolation`` if the depth is negative or huge."""
    headers = {RECURSION_DEPTH: str(depth)}
    read_depth(headers)
    return headers


def reserved_keys(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """The payload's top-level keys that begin like the protocol's headers, in upper or lower case."""
    # This function runs for every record, so it first tests the third character, which excludes nearly all keys.
    return tuple(
        [
            key
            for key in payload
            if key[2:3] == "-" and isinstance(key, str) and key[: len(RESERVED)].upper() == RESERVED
        ]
    )


def message_id(event_id: str, *, rebuild: int = 0, part: str = "") -> str:
    """The ``Nats-Msg-Id`` of a message made from an event.

    The record's own message has the event's id, its L0 message has ``{event}:l0``, and a second L0 message has
    ``{event}:l0:{part}``. If a stream was emptied, its next messages get a number, ``{event}:{rebuild}``, because the
    server still treats the ids of purged messages as duplicates.
    """
    return ":".join([event_id, *([part] if part else []), *([str(rebuild)] if rebuild else [])])


class MessageId(NamedTuple):
    """What a message id says. ``event`` is empty if no mirror made the id."""

    event: str
    part: str = ""
    rebuild: int = 0


def read_message_id(headers: Mapping[str, str]) -> MessageId:
    """The parts of the id in a message's headers; the reverse of ``message_id``."""
    found = _ID.fullmatch(headers.get(MESSAGE_ID, ""))
    return MessageId("") if found is None else MessageId(found[1], found[2][1:], int(found[3] or 0))


def read_position(headers: Mapping[str, str]) -> int | None:
    """The log position in a message's headers; ``None`` if there is none, so that no mirror made the message."""
    text = headers.get(POSITION, "")
    return int(text) if _NUMBER.fullmatch(text) else None
