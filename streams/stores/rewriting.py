"""Writing a closed segment's file anew, compressed or with other lines; a crash at any point leaves a right log.

The new file is written beside the old one, synced, read back and compared, and only then takes its name. Until that
rename the old file is the truth, after it the new one. What a crash leaves is settled at the next opening:
a ``new-…`` file counts for nothing, and of two forms with the same lines the compressed one stays.

One rewriting at a time: the caller sees to it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from zlib import crc32

from streams.errors import CorruptLog, StoreUnavailable
from streams.stores.disk import Disk
from streams.stores.seekable import Frame, cut, encode_frame, encode_tables
from streams.stores.segment_files import DamagedSegment, Segment, SegmentFile, open_segment

_BESIDE: Final = "new-"
_LEFT: Final = re.compile(r"new-\d{20}\.jsonl(\.zst)?")
_CHUNK: Final = 1024 * 1024


class Abandoned(Exception):
    """The rewriting was called off; the segment is as it was."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """A segment that was compressed, and what that gained."""

    segment: Segment
    bytes: int
    disk_bytes: int


def compress(disk: Disk, segment: Segment, is_wanted: Callable[[], bool] = lambda: True) -> Compressed:
    """Compress a closed segment; blocking, about a second for 64 MiB. ``is_wanted`` is asked every megabyte.

    Raises:
        Abandoned: ``is_wanted`` said no.
        StoreUnavailable: what was written is not what is read back.
        OSError: a file cannot be read or written. Each time the segment is as it was.
    """
    target = segment.other_form()

    def lines(file: SegmentFile) -> Iterator[bytes]:
        for piece in _pieces(file):
            if not is_wanted():
                raise Abandoned
            yield piece

    with open_segment(segment) as file:
        disk.replace(write_segment_beside(disk, target, lines(file)), target.path)
        size = file.size
    disk.unlink(segment.path)
    return Compressed(target, size, target.path.stat().st_size)


def replace_lines(disk: Disk, segment: Segment, lines: Iterable[bytes]) -> None:
    """Give a closed segment these lines, newlines included, in the form it has; all of them or, after a crash, none.

    It keeps its name: its lines must begin at or after ``first``. Blocking. A reader between two chunks goes on at
    the offset it had, in other lines: who changes lengths must keep readers out, or let them begin anew.

    Raises:
        StoreUnavailable: what was written is not what is read back.
        OSError: a file cannot be written. Both times the segment is as it was.
    """
    replace_segment(disk, segment, write_segment_beside(disk, segment, lines))


def write_segment_beside(disk: Disk, segment: Segment, lines: Iterable[bytes]) -> Path:
    """A finished, synced file with these lines, in the segment's form; ``replace_segment`` puts it in place.

    Raises:
        StoreUnavailable, OSError: nothing is left of it.
    """
    written = Segment(segment.first, segment.path.with_name(_BESIDE + segment.path.name))
    beside = written.path
    _unlink(disk, beside)
    fd = disk.create(beside)
    try:
        try:
            wanted = _write_frames(fd, lines, disk) if segment.is_compressed else _write_plain(fd, lines, disk)
            disk.sync(fd)
        finally:
            os.close(fd)
        if _digest(written) != wanted:
            raise StoreUnavailable(
                f"{beside} does not hold what was written to it, so {segment.path.name} was not replaced",
                "the disk may be failing: check it, and run `durable-stream verify`",
            )
    except BaseException:
        _unlink(disk, beside)
        raise
    return beside


def replace_segment(disk: Disk, segment: Segment, finished: Path) -> None:
    """Put the file of ``write_segment_beside`` in place, durably."""
    other = segment.other_form()
    if other.path.exists() and segment.path.exists():
        # Left by a failed removal. With the old lines it would come back as a second truth.
        disk.unlink(other.path)
    disk.replace(finished, segment.path)


def remove_segment(disk: Disk, segment: Segment) -> None:
    """Delete a closed segment, whichever its forms, durably; one that is gone already is no error."""
    _unlink(disk, segment.other_form().path)
    _unlink(disk, segment.path)


def settle(disk: Disk, log: Path, segments: Sequence[Segment]) -> list[Segment]:
    """Finish what a crash interrupted, when nobody else writes; the segments as they are then. The last stays plain.

    Raises:
        CorruptLog: a segment lies there in two forms with different lines, which no crash does.
    """
    settled = []
    for number, segment in enumerate(segments):
        other = segment.other_form()
        if not segment.is_compressed and other.path.exists():
            refuse_difference(segment)
            segment, other = (segment, other) if number == len(segments) - 1 else (other, segment)
            disk.unlink(other.path)
        settled.append(segment)
    for path in log.glob(f"{_BESIDE}*"):
        if _LEFT.fullmatch(path.name):
            disk.unlink(path)
    return settled


def refuse_difference(segment: Segment) -> None:
    """Raise ``CorruptLog`` if a segment has two files that hold different lines. Blocking."""
    other = segment.other_form()
    try:
        with open_segment(segment) as mine, open_segment(other) as theirs:
            same = mine.size == theirs.size and all(
                mine.read(start, _CHUNK) == theirs.read(start, _CHUNK) for start in range(0, mine.size, _CHUNK)
            )
    except DamagedSegment:
        same = False
    if not same:
        raise CorruptLog(
            str(other.path),
            1,
            segment.first,
            f"{segment.path.name} beside it holds other lines: move the one that you do not trust out of the directory",
        )


def _pieces(file: SegmentFile) -> Iterator[bytes]:
    start = 0
    while piece := file.read_on(start, _CHUNK):
        yield piece
        start += len(piece)


def _unlink(disk: Disk, path: Path) -> None:
    if path.exists() or path.is_symlink():
        disk.unlink(path)


def _write_plain(fd: int, lines: Iterable[bytes], disk: Disk) -> bytes:
    hashed = sha256()
    for piece in cut(lines):
        hashed.update(piece)
        disk.write(fd, piece)
    return hashed.digest()


def _write_frames(fd: int, lines: Iterable[bytes], disk: Disk) -> bytes:
    hashed = sha256()
    frames: list[Frame] = []
    at = start = 0
    for piece in cut(lines):
        hashed.update(piece)
        data = encode_frame(piece)
        disk.write(fd, data)
        frames.append(Frame(at, len(data), start, len(piece), crc32(data)))
        at, start = at + len(data), start + len(piece)
    disk.write(fd, encode_tables(frames))
    return hashed.digest()


def _digest(segment: Segment) -> bytes | None:
    """The hash of all its lines; ``None`` where they cannot be read."""
    hashed = sha256()
    try:
        with open_segment(segment) as file:
            for piece in _pieces(file):
                hashed.update(piece)
    except DamagedSegment:
        return None
    return hashed.digest()
