"""Records the spools, which are the files to which shims write while no sidecar is running.

A running shim empties its spool itself, over its link. A spool whose process is dead, or that its shim has left behind
(which its name shows), is recorded here and then deleted. If the shim had already sent part of the spool, the events'
keys prevent duplicates.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from bridge.opencode.capture.translate import Origin
from bridge.opencode.link.frames import HookItem
from bridge.opencode.link.lenient import FrameError
from bridge.opencode.link.spool import SpoolHeader, parse_header, read_items
from sidecar.private_files import open_unfollowed
from sidecar.processes import pid_here, space_of, still_runs
from sidecar.record.backlog import marks, spools
from sidecar.record.ingest import Ingest

log = logging.getLogger("sidecar.record.spools")

_NAME = re.compile(r"([0-9a-f]{16,64})-([0-9a-f]{16,64})(\.left\d{1,9})?\.jsonl")
_MARK = re.compile(r"(?:.*\.)?([0-9a-f]{16,64})-([0-9a-f]{16,64})-(\d{1,10})\.lost(\d{0,9})", re.DOTALL)

MAX_UNSETTLED_ITEMS: Final = 512
"""Maximum number of a spool's items that may wait for the disk before more are read. This number equals the window of a
link."""

MAX_UNSETTLED_BYTES: Final = 8 * 1024 * 1024
"""After this many bytes of a spool, wait until everything read is durable."""

_BATCH_ITEMS: Final = 128
_BATCH_BYTES: Final = 1024 * 1024
_MAX_LINE: Final = 16 * 1024 * 1024


def boots(directory: Path) -> set[str]:
    """The boots (one for each OpenCode process) that have a spool."""
    return {match[1] for path in spools(directory) if (match := _NAME.fullmatch(path.name)) is not None}


async def take_left(directory: Path, ingest: Ingest, announce: Callable[[str], str] = lambda service: "") -> int:
    """Record and delete the spools that no shim will send; return how many items they had.

    ``announce`` gets the registration file of the OpenCode 2 service that a spool names, and returns a short name for
    the service.

    A spool stays if its process is running and has not left it behind, if another user owns the file, or if the log
    fails in the meantime.
    """
    taken = 0
    for path in spools(directory):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        origin = Origin(match[1], match[2])
        if ingest.is_linked(origin):
            continue
        try:
            left = await asyncio.to_thread(_open_if_left, path, match[3] is not None)
            if left is None:
                continue
            with left.file:
                if left.service:
                    origin = replace(origin, service=announce(left.service))
                items = await _take(left, replace(origin, pid=left.pid), ingest)
        except OSError as error:
            log.warning("the spool %s cannot be read: %s", path.name, error.strerror)
            continue
        if ingest.failed.done():
            return taken
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the spool %s is recorded but cannot be removed: %s", path.name, error.strerror)
            continue
        taken += items
    return taken


async def take_marks(directory: Path, ingest: Ingest) -> None:
    """Record a gap for each mark whose plugin has ended, and delete the mark. Call it after ``take_left``, so that the
    log knows the sessions of the same plugin."""
    for path in marks(directory):
        match = _MARK.fullmatch(path.name)
        if match is None or ingest.is_linked(origin := Origin(match[1], match[2], pid=int(match[3]))):
            continue
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # the plugin has delivered the items
        at_ms = found.st_mtime_ns // 1_000_000
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            continue
        if not match[4] and still_runs(origin.pid or 0, at_ms):
            continue
        # The gap's number is a time, which no item has as its number, so its key is unique.
        item = HookItem("capture.gap", at_ms, {"lost": int(match[4] or 0), "reason": "not_kept"}, None)
        ingest.take(origin, at_ms, [item], None)
        if not await ingest.at_most(0, origin):
            return
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the mark %s is recorded but cannot be removed: %s", path.name, error.strerror)


@dataclass(frozen=True, slots=True)
class _Left:
    """A spool that no shim will send. The spool's file is open and positioned after the header."""

    file: BinaryIO
    directory: str
    pid: int
    service: str = ""


async def _take(left: _Left, origin: Origin, ingest: Ingest) -> int:
    """Feed a spool's items batch by batch, and continue to read only while few of them are waiting for the disk."""
    excluded = ingest.excludes(left.directory)
    count = unsettled_bytes = 0
    batches = _batches(_Lines(left.file))
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        if excluded:
            ingest.excluded += len(batch.items)
            continue
        ingest.take(origin, batch.first_seq, batch.items, None)
        count += sum(1 for item in batch.items if item.hook != "capture.gap")
        unsettled_bytes += batch.bytes
        if unsettled_bytes > MAX_UNSETTLED_BYTES:
            unsettled_bytes = 0
        if not await ingest.at_most(MAX_UNSETTLED_ITEMS if unsettled_bytes else 0, origin):
            return count
    await ingest.at_most(0, origin)
    return count


@dataclass(slots=True)
class _Batch:
    """Items with consecutive seqs from ``first_seq``; ``bytes`` is the length of their lines."""

    first_seq: int
    items: list[HookItem]
    bytes: int


def _batches(lines: _Lines) -> Iterator[_Batch]:
    batch: _Batch | None = None
    for seq, item in read_items(lines):
        if batch is not None and (
            seq != batch.first_seq + len(batch.items) or len(batch.items) >= _BATCH_ITEMS or lines.bytes >= _BATCH_BYTES
        ):
            batch.bytes, lines.bytes = lines.bytes, 0
            yield batch
            batch = None
        if batch is None:
            batch = _Batch(seq, [], 0)
        batch.items.append(item)
    if batch is not None:
        yield batch


class _Lines:
    """The remaining lines of a file without their newlines; ``bytes`` counts what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self.bytes = 0
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        # A line longer than any that a shim writes is damaged. It is read in pieces, and no piece of it can be parsed.
        is_first = True
        while line := self._file.readline(_MAX_LINE):
            if line == b"\n" and is_first:
                # A shim overwrites acknowledged lines with empty ones, from the first one on. If it was killed
                # meanwhile, a rest of them follows.
                return
            is_first = False
            self.bytes += len(line)
            if line != b"\n":
                yield line.removesuffix(b"\n")


def _open_if_left(path: Path, is_left: bool) -> _Left | None:
    """Open a spool whose shim left it behind or died; ``None`` for any other file."""
    descriptor = open_unfollowed(path)
    with ExitStack() as stack:
        file = stack.enter_context(os.fdopen(descriptor, "rb"))
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        header: SpoolHeader | None = None
        try:
            header = parse_header(file.readline(_MAX_LINE))
        except FrameError:
            log.warning("the spool %s has no readable header; its lines are recorded anyway", path.name)
        pid = header.pid if header is not None else 0
        if header is not None and header.space not in ("", space_of("pid")):
            pid = pid_here(pid, header.space)
        if not is_left and header is not None and pid and still_runs(pid, header.started_ms):
            return None
        stack.pop_all()
        if header is None:
            return _Left(file, "", 0)
        return _Left(file, header.directory, pid or header.pid, header.service)
