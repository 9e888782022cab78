"""The files of a jsonl log, below the lines in them: ``<first position>.jsonl``, or compressed ``….jsonl.zst``.

Offsets here are logical: of the lines, whichever the form. Where a segment is compressed while somebody reads, its
file vanishes between listing and opening, and is looked for under its other name. For an instant it has both names,
with the same lines: then the plain one counts.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from streams.errors import CorruptLog
from streams.stores.disk import open_to_read, read_file, refuse_link
from streams.stores.seekable import (
    FOOTER_BYTES,
    BadFrame,
    Frame,
    Frames,
    decode_frame,
    parse_tables,
    tables_size,
)

_SEGMENT: Final = re.compile(r"(\d{20})\.jsonl(\.zst)?")
_COMPRESSED: Final = ".zst"
_PLACE: Final = re.compile(rb',"position":(\d{1,19}),"tx":\[\d+,\d+\]\}$')


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the log; ``first`` is the position of its first record."""

    first: int
    path: Path

    @property
    def is_compressed(self) -> bool:
        """Whether ``path`` names the compressed form."""
        return self.path.suffix == _COMPRESSED

    def other_form(self) -> Segment:
        """The same segment under its other name, whether or not there is such a file."""
        path = self.path
        return Segment(
            self.first, path.with_suffix("") if self.is_compressed else path.with_name(path.name + _COMPRESSED)
        )


class DamagedSegment(CorruptLog):
    """Bytes of a compressed segment are not what was written.

    ``following`` is the logical offset behind what is damaged, from where reading can go on; ``None``: nowhere in it.
    """

    def __init__(self, segment: Segment, line: int, position: int | None, reason: str, following: int | None) -> None:
        super().__init__(str(segment.path), line, position, reason)
        self.following = following


def segment_name(first: int) -> str:
    """The file name of a segment that is not compressed; names sort by position."""
    return f"{first:020d}.jsonl"


def list_segments(log: Path) -> list[Segment]:
    """The log's segments in position order; none for a new log. Other files are not ours to judge.

    Raises:
        ForeignStore: the directory is a symbolic link.
    """
    refuse_link(log)
    found: dict[int, Segment] = {}
    # Twice: a listing that runs while a segment is compressed may have passed the new name's place before it was
    # there, and come to the old one's when it was gone. Then the second one sees the new name.
    for path in [*log.glob("*.jsonl*"), *log.glob("*.jsonl*")]:
        matched = _SEGMENT.fullmatch(path.name)
        if matched is not None and (matched[2] is None or int(matched[1]) not in found):
            found[int(matched[1])] = Segment(int(matched[1]), path)
    return [found[first] for first in sorted(found)]


class SegmentFile(AbstractContextManager["SegmentFile"]):
    """A segment open for reading; close it, or use it as a context. Blocking. Made by ``open_segment``."""

    size: int
    """Logical bytes; of a segment that is being written, those at the opening."""

    def __init__(self, segment: Segment, fd: int) -> None:
        self.segment, self._fd = segment, fd
        self.size = os.fstat(fd).st_size

    @property
    def file_id(self) -> int:
        """What tells this file from another one that is given its name later, as long as this one is not deleted."""
        return os.fstat(self._fd).st_ino

    def read(self, start: int, size: int) -> bytes:
        """``size`` bytes from ``start`` on; fewer at the end. Raises ``DamagedSegment``."""
        return os.pread(self._fd, size, start)

    def read_on(self, start: int, about: int) -> bytes:
        """About ``about`` bytes from ``start`` on, as is convenient; none at the end. Raises ``DamagedSegment``."""
        return self.read(start, about)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _CompressedFile(SegmentFile):
    def __init__(self, segment: Segment, fd: int) -> None:
        super().__init__(segment, fd)
        try:
            self._frames = self._read_tables(self.size)
        except BadFrame as fault:
            raise DamagedSegment(segment, 1, segment.first, str(fault), None) from None
        self.size = self._frames.size
        self._last: tuple[int, bytes] = (-1, b"")

    def _read_tables(self, file_size: int) -> Frames:
        footer = os.pread(self._fd, FOOTER_BYTES, max(file_size - FOOTER_BYTES, 0))
        size = tables_size(footer)
        if size > file_size:
            raise BadFrame("the file is shorter than its seek table says")
        return parse_tables(os.pread(self._fd, size, file_size - size), file_size)

    def read(self, start: int, size: int) -> bytes:
        parts = []
        end = min(start + size, self.size)
        while start < end:
            lines, frame = self._frame(self._frames.number_at(start))
            parts.append(lines[start - frame.start : end - frame.start])
            start = frame.end
        return b"".join(parts)

    def read_on(self, start: int, about: int) -> bytes:
        # Whole frames, so that the next call decompresses nothing a second time.
        end = start + about
        parts: list[bytes] = []
        for number in range(self._frames.number_at(start), len(self._frames)):
            try:
                lines, frame = self._frame(number)
            except DamagedSegment:
                if not parts:
                    raise
                break  # what comes before is given first; the next call meets it again
            parts.append(lines[start - frame.start :])
            start = frame.end
            if start >= end:
                break
        return b"".join(parts)

    def _frame(self, number: int) -> tuple[bytes, Frame]:
        frame = self._frames[number]
        if self._last[0] != number:
            try:
                self._last = (number, decode_frame(frame, os.pread(self._fd, frame.size, frame.at)))
            except BadFrame as fault:
                raise self._damaged(number, str(fault)) from None
        return self._last[1], frame

    def _damaged(self, number: int, reason: str) -> DamagedSegment:
        """The fault with its line and position, which the frames before it tell."""
        line = 1
        position: int | None = self.segment.first
        for before in range(number):
            frame = self._frames[before]
            try:
                lines = decode_frame(frame, os.pread(self._fd, frame.size, frame.at))
            except BadFrame as fault:
                number, reason = before, str(fault)
                break
            line += lines.count(b"\n")
            position = _position_after(lines)
        return DamagedSegment(self.segment, line, position, reason, self._frames[number].end)


def _position_after(lines: bytes) -> int | None:
    """The position that follows that of the last line, if that can be read."""
    found = _PLACE.search(lines[lines.rfind(b"\n", 0, -1) + 1 : -1])
    return None if found is None else int(found[1]) + 1


def open_segment(segment: Segment) -> SegmentFile:
    """The segment's file, under whichever name it has now.

    Raises:
        DamagedSegment: it is compressed and its seek table is damaged.
        ForeignStore: it is a symbolic link.
        FileNotFoundError: it has neither name.
    """
    segment, fd = _open(segment)
    try:
        return _CompressedFile(segment, fd) if segment.is_compressed else SegmentFile(segment, fd)
    except BaseException:
        os.close(fd)
        raise


def _open(segment: Segment) -> tuple[Segment, int]:
    for named in (segment, segment.other_form()):
        try:
            return named, open_to_read(named.path)
        except FileNotFoundError:
            continue
    return segment, open_to_read(segment.path)


def read_segment(segment: Segment) -> bytes:
    """All lines of a segment. Raises as ``open_segment`` and ``SegmentFile.read``."""
    if not segment.is_compressed:
        try:
            return read_file(segment.path)
        except FileNotFoundError:
            segment = segment.other_form()
    with open_segment(segment) as file:
        return file.read(0, file.size)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the files of a log take: ``bytes`` is logical, ``disk_bytes`` as they lie there."""

    files: int = 0
    compressed: int = 0
    bytes: int = 0
    disk_bytes: int = 0


def sizes_of(log: Path) -> Sizes:
    """The sizes of all segments; a damaged seek table counts with what its file takes."""
    files = compressed = logical = disk = 0
    for segment in list_segments(log):
        on_disk = _disk_size(segment)
        files, compressed, disk = files + 1, compressed + segment.is_compressed, disk + on_disk
        logical += logical_size(segment) if segment.is_compressed else on_disk
    return Sizes(files, compressed, logical, disk)


def logical_size(segment: Segment) -> int:
    """Bytes of a segment's lines; where its seek table is damaged, of its file. Else raises as ``open_segment``."""
    try:
        with open_segment(segment) as file:
            return file.size
    except DamagedSegment:
        return _disk_size(segment)


def _disk_size(segment: Segment) -> int:
    segment, fd = _open(segment)
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
