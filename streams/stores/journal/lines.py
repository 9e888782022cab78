"""The jsonl format: lines. Pure.

One record is one line of canonical JSON, whose key order puts ``crc``
first::

    {"crc":"1c291ca3","event":{…},"hash":"…","offset":0,"position":0,"tx":[0,1]}

``crc`` is CRC-32 of the line's bytes after ``"crc":"xxxxxxxx",`` without the
newline. ``tx`` is [index, count] in the batch: a batch whose last line is
missing was never acknowledged. A segment's name is its first position, so a missing segment is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from zlib import crc32

import msgspec
import orjson

from streams.event import StreamEvent
from streams.store import Record
from streams.stores.head import PREFIX, BadLine, check_crc
from streams.stores.plan import Placed
from streams.stores.stored import EventKeys, Stored

_POSITION = re.compile(rb'"position":(\d{1,20}),"tx":')


class LineKeys(msgspec.Struct):
    """A line without its payload, for scans."""

    event: EventKeys
    hash: str
    offset: int
    position: int
    tx: tuple[int, int]


_BEGIN = b'"event":'
_CRC_OF_BEGIN = crc32(_BEGIN)

_new = tuple.__new__
_keys_decoder = msgspec.json.Decoder(LineKeys)


def format_line(placed: Placed, index: int, count: int) -> bytes:
    encoded, offset, position, hash_ = placed
    return _line(encoded.canonical, hash_, offset, position, index, count)


def _line(event: bytes, hash_: bytes, offset: int, position: int, index: int, count: int) -> bytes:
    # The checksum goes on from part to part, so that the event is copied only once.
    place = (hash_.hex().encode(), offset, position, index, count)
    after = b',"hash":"%b","offset":%d,"position":%d,"tx":[%d,%d]}' % place
    return b'{"crc":"%08x",%b%b%b\n' % (crc32(after, crc32(event, _CRC_OF_BEGIN)), _BEGIN, event, after)


def parse_stored(line: bytes) -> Stored:
    """Parse a line, leaving its event's bytes untouched. Verifies the checksum. Raises ``BadLine``."""
    keys = parse_keys(line)
    try:
        return Stored(keys.position, keys.offset, bytes.fromhex(keys.hash), *keys.tx, event_of(line), keys.event)
    except ValueError:
        raise BadLine("its hash is malformed") from None


def parse_keys(line: bytes) -> LineKeys:
    """The place and the keys of a line's record. Verifies the checksum. Raises ``BadLine``."""
    check_crc(line)
    try:
        return _keys_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLine(f"not a record: {error}") from None


def parse_record(line: bytes) -> Record:
    """The record of a line. Verifies the checksum. Raises ``BadLine``."""
    if line[:PREFIX] != b'{"crc":"%08x",' % crc32(line[PREFIX:]):
        check_crc(line)  # the error of ``check_crc`` says what is wrong
    try:
        fields = orjson.loads(line)
        event = StreamEvent.trusted(fields["event"], event_of(line))
        # ``_new`` does the same as ``Record(…)`` without a Python call, which would take 2.5 % of this function's time.
        return _new(Record, (event, fields["offset"], fields["position"], fields["hash"], False))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BadLine(f"not a record: {type(error).__name__}") from None


def split_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset and the text of each complete line, without its newline; an unfinished last line is left
    out.
    """
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield start, data[start:end]
        start = end + 1


def position_of(line: bytes) -> int | None:
    """The position that a line gives, without verifying the checksum; ``None`` if it gives none."""
    # Use the last match, because the event, which may contain the same text, comes before the record's own position.
    found = _POSITION.match(line, line.rfind(b'"position":'))
    return None if found is None else int(found[1])


def event_of(line: bytes) -> bytes:
    """The bytes of a line's event."""
    return line[PREFIX + len(_BEGIN) : line.rfind(b',"hash":"')]
