"""The head file: a separate file that names a log's last durable record.

Every record up to the named record must exist and be complete. The file is rewritten in place after each commit, before
the ack, without a separate sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import orjson

from streams.store import NOTHING
from streams.system.files import read_file

PREFIX: Final = len(b'{"crc":"01234567",')
"""The length of a line's checksum field."""

_HEAD_BYTES: Final = 160


class BadLine(Exception):
    """A line is not a whole, undamaged record. The text names the fault, never the line's contents."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last durable record. Every record at or below its position must exist and be complete."""

    position: int
    hash: str


def check_crc(line: bytes) -> None:
    """Raise ``BadLine`` unless ``line`` (without newline) begins with its correct checksum."""
    if line[:PREFIX] == b'{"crc":"%08x",' % crc32(line[PREFIX:]):
        return
    if line.startswith(b'{"crc":"') and line[16:PREFIX] == b'",':
        raise BadLine("wrong checksum")
    raise BadLine("not a record")


def format_head(head: Head) -> bytes:
    """The head file's bytes. The length is always the same, so that one write in place replaces the whole file."""
    body = orjson.dumps({"hash": head.hash, "position": head.position})
    text = b'{"crc":"%08x",%b' % (crc32(body[1:]), body[1:])
    return text.ljust(_HEAD_BYTES - 1) + b"\n"


def read_head(path: Path) -> Head | None:
    """The head; ``None`` if the file is missing or damaged, so that the head is unknown.

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
