"""The wire format: received messages, and the command that publishes one. Pure.

A reader of millions of messages needs the headers of only a few, so a received header block is parsed only on access.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from bridge.nats.headers import are_lines, header_lines
from bridge.nats.jetstream.errors import NatsRefused, message_too_large
from streams.bus.subjects import SubjectError, check_subject

VERSION: Final = b"NATS/1.0"
VERSION_LINE_BYTES: Final = len("NATS/1.0\r\n\r\n")
_LINE_END: Final = b"\r\n"
_SPACE: Final = " \t\n\r\x0b\x0c"
_NAME: Final = re.compile(r"[^\s]+")


class HeaderBlock(Mapping[str, str]):
    """The headers of a received message; ``raw`` is the block with its version line and its final empty line.

    Invalid lines are ignored; if a name occurs twice, the last value counts. A status in the version line appears as
    the header ``Status``, and the status text as ``Description``.
    """

    __slots__ = ("_parsed", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._parsed: dict[str, str] | None = None

    @property
    def has_status(self) -> bool:
        """Whether this is a notice from the server instead of a message."""
        return self.raw[len(VERSION) : len(VERSION) + 1] == b" "

    def get(self, name: str, default: Any = None, /) -> Any:
        """Like ``get`` of any mapping, but finds one header without parsing all headers."""
        if self._parsed is None:
            mark = name.encode()
            at = self.raw.find(b"\r\n%b: " % mark)
            if at >= 0 and self.raw.count(mark) == 1:
                start = at + len(mark) + 4
                return self.raw[start : self.raw.find(_LINE_END, start)].decode("utf-8", "replace").strip(_SPACE)
        try:
            return self[name]
        except KeyError:
            return default

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, str]:
        if self._parsed is None:
            self._parsed = _parsed(self.raw)
        return self._parsed


def _parsed(raw: bytes) -> dict[str, str]:
    first, _, rest = raw.partition(_LINE_END)
    found: dict[str, str] = {}
    status, _, words = first[len(VERSION) :].decode("utf-8", "replace").strip(_SPACE).partition(" ")
    if status.isdigit():
        found["Status"] = status
        if words:
            found["Description"] = words
    for line in rest.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        name = name.strip(_SPACE)
        if colon and name.isascii() and _NAME.fullmatch(name):
            found[name] = value.strip(_SPACE)
    return found


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server's description of itself. ``max_payload`` is in bytes, headers included."""

    id: str
    version: str
    max_payload: int


@dataclass(frozen=True, slots=True)
class Received:
    """A received message. ``status`` is set on the server's notices, such as ``408``, and empty on messages."""

    subject: str
    reply: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def status(self) -> str:
        if isinstance(self.headers, HeaderBlock) and not self.headers.has_status:
            return ""
        return self.headers.get("Status", "")

    @property
    def description(self) -> str:
        return self.headers.get("Description", "")


def published(subject: str, headers: Mapping[str, str], more: str, body: bytes, max_payload: int) -> bytes:
    """The command that publishes a message with headers.

    Raises:
        NatsRefused: the subject or a header is invalid, or the message is too large.
    """
    lines = header_lines(headers)
    # The caller has already checked the headers. Check them again, because an extra line could forge a header or a
    # command.
    if not are_lines(lines, len(headers)) or not _is_subject(subject):
        raise NatsRefused(
            f"the message on {subject[:80]!a} has an invalid header or subject", "escape its names and values"
        )
    head = f"NATS/1.0\r\n{lines}{more}\r\n".encode("ascii")
    total = len(head) + len(body)
    if total > max_payload:
        raise message_too_large()
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject.encode("ascii"), len(head), total, head, body)


@lru_cache(maxsize=4096)
def _is_subject(subject: str) -> bool:
    try:
        return check_subject(subject).isascii()
    except SubjectError:
        return False


class Message(NamedTuple):
    """A message to publish. A lossy message (``str``) has no headers and goes to core NATS."""

    subject: str
    headers: Mapping[str, str]
    body: bytes


def wire_size(headers: Mapping[str, str], body: int) -> int:
    """Bytes of headers and body on the wire; headers are ASCII, as ``check_headers`` demands."""
    return body + VERSION_LINE_BYTES + len(header_lines(headers)) if headers else body
