"""The compressed form of a segment: zstd frames of whole lines in the seekable format. Pure: bytes in, bytes out.

::

    frame …        some 128 KiB of whole lines each, or one line that is longer; each compressed for itself
    check frame    skippable, ours: CRC-32 of every frame's bytes, then of the check frame and the seek table
    seek table     skippable, of the zstd project's seekable format: size and logical size of every frame

Any zstd tool decompresses the file and passes over what is skippable; what knows the seekable format seeks in it.
The check frame covers what zstd itself does not: bits of a frame that decompress to the same bytes, and the table.

zstd comes from the standard library where that has it (3.14), below from its backport.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct, error, unpack_from
from typing import Final, NamedTuple
from zlib import crc32

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FRAME_BYTES: Final = 128 * 1024
"""Logical size of a frame: larger ones compress a little better and cost more for one record (0.2 ms for this)."""

LEVEL: Final = 3
"""zstd's own default: level 9 takes four times as long for six hundredths less."""

FOOTER_BYTES: Final = 9

_OPTIONS: Final[Mapping[int, int]] = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}

_U32: Final = Struct("<I")
_SKIPPABLE: Final = Struct("<II")
_ENTRY: Final = Struct("<II")
_FOOTER: Final = Struct("<IBI")
_CHECK_MAGIC: Final = 0x184D2A5C
_TABLE_MAGIC: Final = 0x184D2A5E
_SEEKABLE_MAGIC: Final = 0x8F92EAB1


class BadFrame(Exception):
    """The bytes are not what was written; the text says what is wrong, never what they hold."""


class Frame(NamedTuple):
    """One frame: where its bytes are in the file, and where what they hold is in the segment."""

    at: int
    size: int
    start: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        """The logical offset where the next frame starts."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a file, in order. A file may have 500 where one is wanted: each ``Frame`` is made when asked for.

    ``ats`` and ``starts`` have one item more than there are frames: where the last one ends.
    """

    ats: Sequence[int]
    starts: Sequence[int]
    crcs: Sequence[int]

    @property
    def size(self) -> int:
        """Logical size of them all."""
        return self.starts[-1]

    def __len__(self) -> int:
        return len(self.crcs)

    def __getitem__(self, number: int) -> Frame:
        at, start = self.ats[number], self.starts[number]
        return Frame(at, self.ats[number + 1] - at, start, self.starts[number + 1] - start, self.crcs[number])

    def number_at(self, offset: int) -> int:
        """The frame that holds a logical offset, 0 or more; how many there are, for one at or behind the end."""
        return bisect_right(self.starts, offset) - 1


def cut(data: Iterable[bytes]) -> Iterator[bytes]:
    """``data``, in pieces of any size, as pieces for one frame each: whole lines, as many as fit, or one longer line.

    Only the last piece may end without a newline, if ``data`` does.
    """
    held = bytearray()
    searched = 0
    for piece in data:
        held += piece
        while len(held) >= FRAME_BYTES:
            end = held.rfind(b"\n", searched, FRAME_BYTES) + 1
            if not end:
                end = held.find(b"\n", max(searched, FRAME_BYTES)) + 1
            if not end:
                searched = len(held)
                break
            yield bytes(held[:end])
            del held[:end]
            searched = 0
    if held:
        yield bytes(held)


def encode_frame(lines: bytes) -> bytes:
    """One frame that holds ``lines``."""
    return zstd.compress(lines, options=_OPTIONS)


def encode_tables(frames: Sequence[Frame]) -> bytes:
    """What follows the frames: check frame and seek table."""
    crcs = b"".join(_U32.pack(frame.crc) for frame in frames)
    check = _SKIPPABLE.pack(_CHECK_MAGIC, len(crcs) + _U32.size) + crcs
    entries = [(frame.size, frame.length) for frame in frames] + [(len(check) + _U32.size, 0)]
    body = b"".join(_ENTRY.pack(*entry) for entry in entries)
    table = _SKIPPABLE.pack(_TABLE_MAGIC, len(body) + FOOTER_BYTES) + body
    table += _FOOTER.pack(len(entries), 0, _SEEKABLE_MAGIC)
    return check + _U32.pack(crc32(table, crc32(check))) + table


def tables_size(footer: bytes) -> int:
    """How many bytes at the end of a file are check frame and seek table, said by its last ``FOOTER_BYTES``.

    Raises:
        BadFrame: they are no footer.
    """
    if len(footer) != FOOTER_BYTES:
        raise BadFrame("the file is too short for a compressed segment")
    entries: int
    entries, descriptor, magic = _FOOTER.unpack(footer)
    if magic != _SEEKABLE_MAGIC or descriptor or not entries:
        raise BadFrame("its seek table is cut off or damaged")
    return _check_size(entries - 1) + _SKIPPABLE.size + entries * _ENTRY.size + FOOTER_BYTES


def parse_tables(tables: bytes, file_size: int) -> Frames:
    """The frames of a file of ``file_size`` bytes, from its last ``tables_size`` bytes.

    Raises:
        BadFrame: they are damaged, or belong to another file.
    """
    count = _FOOTER.unpack(tables[-FOOTER_BYTES:])[0] - 1
    check, table = tables[: _check_size(count)], tables[_check_size(count) :]
    try:
        sealed = _U32.unpack_from(check, len(check) - _U32.size)[0] == crc32(table, crc32(check[: -_U32.size]))
        is_check = _SKIPPABLE.unpack_from(check) == (_CHECK_MAGIC, len(check) - _SKIPPABLE.size)
        is_table = _SKIPPABLE.unpack_from(table) == (_TABLE_MAGIC, len(table) - _SKIPPABLE.size)
        crcs = unpack_from(f"<{count}I", check, _SKIPPABLE.size)
        entries = unpack_from(f"<{2 * count}I", table, _SKIPPABLE.size)
    except error:
        raise BadFrame("its seek table is cut off or damaged") from None
    if not (sealed and is_check and is_table):
        raise BadFrame("its seek table is damaged")
    frames = Frames(
        list(accumulate(entries[::2], initial=0)),
        list(accumulate(entries[1::2], initial=0)),
        crcs,
    )
    if frames.ats[-1] + len(tables) != file_size:
        raise BadFrame(f"the file has {file_size} bytes where its seek table counts {frames.ats[-1] + len(tables)}")
    return frames


def decode_frame(frame: Frame, data: bytes) -> bytes:
    """The lines that the frame's bytes hold. Never more memory than the seek table says.

    Raises:
        BadFrame: they are damaged.
    """
    if len(data) != frame.size or crc32(data) != frame.crc:
        raise BadFrame("a compressed frame is damaged: wrong checksum")
    decompressor = zstd.ZstdDecompressor()
    try:
        lines = decompressor.decompress(data, frame.length)
    except zstd.ZstdError:
        raise BadFrame("a compressed frame is damaged: it cannot be decompressed") from None
    if len(lines) != frame.length or not decompressor.eof:
        raise BadFrame("a compressed frame is damaged: it is not as long as the seek table says")
    return lines


def _check_size(count: int) -> int:
    return _SKIPPABLE.size + (count + 1) * _U32.size
