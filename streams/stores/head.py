"""The head file: a log's last durable record, in a file of its own. Both backends keep one.

Every record up to that one must exist whole. The file is rewritten in place
after each commit, before the ack, without a sync of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import orjson

from streams.files import read_file
from streams.store import NOTHING

PREFIX: Final = len(b'{"crc":"01234567",')
"""The length of a line's checksum field."""

_HEAD_BYTES: Final = 160


class BadLine(Exception):
    """A line is not a whole, undamaged record. The text names the fault, never the line's contents."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last durable record. Everything at or below it must exist whole."""

    position: int
    hash: str


def check_crc(line: bytes) -> None:
    """Raise ``BadLine`` unless ``line`` (without newline) carries its own checksum."""
    if line[:PREFIX] == b'{"crc":"%08x",' % crc32(line[PREFIX:]):
        return
    if line.startswith(b'{"crc":"') and line[16:PREFIX] == b'",':
        raise BadLine("wrong checksum")
    raise BadLine("not a record")


def format_head(head: Head) -> bytes:
    """The head file's bytes. They always have the same length, so that one write in place replaces them."""
    body = orjson.dumps({"hash": head.hash, "position": head.position})
    text = b'{"crc":"%08x",%b' % (crc32(body[1:]), body[1:])
    return text.ljust(_HEAD_BYTES - 1) + b"\n"


def read_head(path: Path) -> Head | None:
    """The head, or ``None`` if the file is missing or damaged (then it is unknown).

    Raises:
        ForeignStore: the head file is a symbolic link.
    """
    for _ in range(3):  # try again, because the writer may be replacing the file at this moment
        try:
            text = read_file(path).rstrip()
        except FileNotFoundError:
            return None
        try:
            check_crc(text)
            fields = orjson.loads(text)
            return Head(fields["position"], fields["hash"])
        except (BadLine, orjson.JSONDecodeError, KeyError):
            continue
    return None


EMPTY_HEAD = Head(NOTHING, "")
