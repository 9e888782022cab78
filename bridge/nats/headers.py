"""The headers of a message: filling in what is missing, checking what is there. Pure.

Nothing that a foreign name holds can end a header or begin another one: names
are of letters, digits and ``-_``, values of printable ASCII, and what comes from
free text goes through ``header_text``.

Times in headers are decimal milliseconds since 1970, UTC, as everywhere else.

Source: seed 002, 3; corrections in FEATURES ("A generated ``traceparent`` is marked as generated and counted").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from bridge.nats.subjects import PROTOCOL_VERSION
from bridge.nats.trace import MAX_TRACESTATE, TraceContext, made_trace, parse_traceparent
from streams.bus.headers import MAX_VALUE, check_headers, is_header_value

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"

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
TRACE_MADE: Final = "CG-Trace-Generated"
"""``true`` when the ``traceparent`` was made by the publisher because none, or no valid one, came."""

LOG: Final = "DS-Log"
POSITION: Final = "DS-Position"
OFFSET: Final = "DS-Offset"
HASH: Final = "DS-Hash"
FORM: Final = "DS-Form"
"""What the body of a record's message is: see ``bridge/nats/mirror/messages.py``."""

RESERVED: Final = "CG-"
MAX_DEPTH_DIGITS: Final = 6

_DEPTH = re.compile(rf"0|[1-9][0-9]{{0,{MAX_DEPTH_DIGITS - 1}}}")


class HeaderLines(Mapping[str, str]):
    """Headers as they are sent: ``text`` is ``count`` lines of ``Name: value``, with CR LF at their ends.

    For the many messages whose headers are only sent; they are read out of the text when somebody asks.
    """

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
    """Headers as they are sent; nothing of them is checked."""
    if isinstance(headers, HeaderLines):
        return headers.text
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def are_lines(text: str, count: int) -> bool:
    """Whether a text of headers is ASCII and as many lines: one too many would be somebody else's header."""
    return text.count("\n") == text.count("\r") == count and text.isascii()


class ProtocolViolation(ValueError):
    """A message breaks the L0 protocol. ``code`` is the protocol's own word, ``reason`` is for people."""

    def __init__(self, reason: str, code: str = "protocol_violation") -> None:
        super().__init__(reason, code)
        self.reason, self.code = reason, code

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


def header_text(text: str) -> str:
    """Free text as a header's value: UTF-8 with all but printable ASCII, and ``%``, written as ``%XX``.

    ``urllib.parse.unquote`` reads it. Text that would be over ``MAX_VALUE`` is cut and ends in ``%~`` and 32 hex
    digits of its SHA-256; the empty text is ``%_``.
    """
    if len(text) <= MAX_VALUE and "%" not in text and is_header_value(text):
        return text
    if not text:
        return "%_"
    raw = text.encode("utf-8", "surrogatepass")
    parts = [chr(b) if 0x20 <= b <= 0x7E and b != 0x25 else f"%{b:02X}" for b in raw]
    # A client strips white space at the ends.
    for end in (0, -1):
        if parts[end] == " ":
            parts[end] = "%20"
    value = "".join(parts)
    if len(value) <= MAX_VALUE:
        return value
    head = value[: MAX_VALUE - 34]
    cut = head.rfind("%", len(head) - 2)
    return (head if cut < 0 else head[:cut]) + "%~" + sha256(raw).hexdigest()[:32]


class Filled(NamedTuple):
    """Headers ready to be sent, and what had to be done for that; each note is worth counting.

    Notes: ``trace_made`` (none came), ``trace_invalid`` (what came was none,
    one was made), ``tracestate_dropped``, ``reserved_keys`` (``CG-*`` in the payload).
    """

    headers: dict[str, str]
    trace: TraceContext
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


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

    What is given is kept, but for a bad ``traceparent`` or ``tracestate``.
    ``origin`` names the trace when none came; ``message_type`` and ``sender``
    may be any text. ``CG-Recursion-Depth`` is never made up: see
    ``bridge/nats/l0/recursion.py``; one that is given must be well formed.

    Raises:
        HeaderError: a given header cannot be sent.
        ProtocolViolation: the given ``CG-Recursion-Depth`` is none.
    """
    notes: list[str] = []
    came = dict(given)
    # A bad trace is not an error: a new one starts (W3C, 4.3).
    trace = parse_traceparent(came.pop(TRACEPARENT, ""))
    state = came.pop(TRACESTATE, None)
    headers = check_headers(came)
    if trace is None:
        notes.append("trace_invalid" if TRACEPARENT in given else "trace_made")
        trace = made_trace(origin)
        headers[TRACE_MADE] = "true"
    elif state is not None and _is_tracestate(state):
        headers[TRACESTATE] = state
    headers[TRACEPARENT] = str(trace)
    if state is not None and TRACESTATE not in headers:
        # What vendors keep there belongs to the trace that is not continued.
        notes.append("tracestate_dropped")
    warnings: list[str] = []
    if RECURSION_DEPTH in headers:
        read_depth(headers)
    headers.setdefault(TIMESTAMP, str(timestamp_ms))
    headers.setdefault(VERSION, header_text(version))
    headers.setdefault(MESSAGE_TYPE, header_text(message_type))
    headers.setdefault(SENDER, header_text(sender))
    if message_id is not None:
        headers.setdefault(MESSAGE_ID, header_text(message_id))
    found = reserved_keys(payload) if payload is not None else ()
    if found:
        notes.append("reserved_keys")
        warnings.append(f"the payload has keys that are reserved for headers: {', '.join(map(ascii, found))}")
    return Filled(headers, trace, tuple(notes), tuple(warnings))


def _is_tracestate(value: str) -> bool:
    return len(value) <= MAX_TRACESTATE and is_header_value(value)


def read_depth(headers: Mapping[str, str]) -> int:
    """The recursion depth that a message says it has.

    Raises:
        ProtocolViolation: there is none, or it is not a plain decimal number (no
            sign, space, leading zero or other digits) of at most ``MAX_DEPTH_DIGITS``.
    """
    value = headers.get(RECURSION_DEPTH)
    if value is None:
        raise ProtocolViolation(f"{RECURSION_DEPTH} is missing; every command and event carries its depth")
    if _DEPTH.fullmatch(value) is None:
        raise ProtocolViolation(f"{RECURSION_DEPTH} is {value[:40]!a}, not a whole number of 0 or more")
    return int(value)


def depth_header(depth: int) -> dict[str, str]:
    """The header of a depth; merge it into the others. Raises ``ProtocolViolation`` for a negative or huge one."""
    headers = {RECURSION_DEPTH: str(depth)}
    read_depth(headers)
    return headers


def reserved_keys(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """The payload's top-level keys that begin like a header of the protocol, in upper or lower case."""
    # This runs for every record; the third character rules out nearly all keys.
    return tuple(
        [
            key
            for key in payload
            if key[2:3] == "-" and isinstance(key, str) and key[: len(RESERVED)].upper() == RESERVED
        ]
    )


def message_id(event_id: str, *, rebuild: int = 0, part: str = "") -> str:
    """``Nats-Msg-Id`` of a message made from an event.

    The record itself has the event's id, its L0 message ``{event}:l0`` and a
    second one ``{event}:l0:{part}``. A rebuild numbers them, ``{event}:{rebuild}``:
    the server still takes the old ids for duplicates after a purge.
    """
    return ":".join([event_id, *([part] if part else []), *([str(rebuild)] if rebuild else [])])
