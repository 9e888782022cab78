"""Spools: what shims wrote to disk while no sidecar was there.

A shim that lives empties its spool itself, over its link. A spool whose
process is dead, or which its shim left (as its name says), is taken in here and
then deleted; the events' keys make it harmless if its shim had sent part of it
before. Source: ``docs/protocol.md``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bridge.opencode.frames import HookItem
from bridge.opencode.lenient import FrameError
from bridge.opencode.spool import SpoolHeader, parse_header, parse_line
from bridge.opencode.translate import Origin
from sidecar.ingest import Ingest

log = logging.getLogger("sidecar.spools")

_NAME = re.compile(r"([0-9a-f]{16,64})-([0-9a-f]{16,64})(\.left\d{1,9})?\.jsonl")
_BATCH: Final = 128


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much lies in spool files."""

    files: int
    bytes: int


def backlog(directory: Path) -> Backlog:
    """What the spool directory holds; nothing when it does not exist."""
    sizes = [path.lstat().st_size for path in _spools(directory)]
    return Backlog(len(sizes), sum(sizes))


async def take_left(directory: Path, ingest: Ingest) -> int:
    """Ingest and delete the spools that nobody else will bring; returns how many items they held.

    A spool stays when its process lives and did not leave it, when it is not ours, or when the log fails meanwhile.
    """
    taken = 0
    for path in _spools(directory):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        origin = Origin(match[1], match[2])
        if ingest.is_linked(origin):
            continue
        try:
            content = await asyncio.to_thread(_read_if_left, path, match[3] is not None)
        except OSError as error:
            log.warning("the spool %s cannot be read: %s", path.name, error.strerror)
            continue
        if content is None:
            continue
        items = await _take(content, origin, ingest)
        if ingest.failed.done():
            return taken
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the spool %s is taken in but cannot be removed: %s", path.name, error.strerror)
            continue
        taken += items
    return taken


async def _take(content: bytes, origin: Origin, ingest: Ingest) -> int:
    if ingest.excludes(_directory(content)):
        dropped = sum(1 for _ in _items(content))
        ingest.excluded += dropped
        return 0
    count = 0
    last = 0
    batch: list[HookItem] = []
    first = 0
    bad = 0
    for seq, item in _items(content):
        if item is None:
            bad += 1
            continue
        if batch and (seq != last + 1 or len(batch) >= _BATCH):
            ingest.take(origin, first, batch, None)
            batch = []
        if not batch:
            first = seq
        batch.append(item)
        last = seq
        count += 1
    if bad:
        # The process died in the middle of a line, or somebody changed the file: say so in the log.
        if not batch:
            first = last + 1
        gap = {"lost": bad, "reason": "spool_damaged", "first_seq": None, "last_seq": None}
        batch.append(HookItem("capture.gap", batch[-1].t if batch else 0, gap, None))
    if batch:
        ingest.take(origin, first, batch, None)
    await ingest.finished(origin)
    return count


def _directory(content: bytes) -> str:
    """The directory whose hooks a spool holds; nothing where its header cannot be read."""
    try:
        return parse_header(content.split(b"\n", 1)[0]).directory
    except FrameError:
        return ""


def _items(content: bytes) -> Iterator[tuple[int, HookItem | None]]:
    """(seq, item) of each line after the header; the item is ``None`` for a line that is damaged."""
    for line in content.split(b"\n")[1:]:
        if line:
            try:
                yield parse_line(line)
            except FrameError:
                yield 0, None


def _spools(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".jsonl")
    except FileNotFoundError:
        return []


def _read_if_left(path: Path, is_left: bool) -> bytes | None:
    """What a spool holds that its shim left or died over; ``None`` for others and for what is no plain file of ours."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        content: bytes = file.read()
    header: SpoolHeader | None = None
    try:
        header = parse_header(content.split(b"\n", 1)[0])
    except FrameError:
        log.warning("the spool %s has no readable header; its lines are taken all the same", path.name)
    return None if not is_left and header is not None and _lives(header) else content


def _lives(header: SpoolHeader) -> bool:
    """Whether the process that wrote the spool still runs; a pid taken by another program does not count."""
    try:
        os.kill(header.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return False
    started = _process_started_ms(header.pid)
    # The shim starts within its process, so a process younger than the spool is another one.
    return started is None or started <= header.started_ms + 2000


def _process_started_ms(pid: int) -> int | None:
    """When a process started, ms since 1970; ``None`` where the system does not say (macOS)."""
    try:
        fields: list[Any] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
    except (OSError, StopIteration, IndexError, ValueError):
        return None
    return int((boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")) * 1000)
