"""What a jsonl log has lost on purpose, in files beside its segments.

::

    log/  removed.json             ranges, bases, marks and the names of the runs; replaced by a rename
          removed-<number>.keys    a run: entries of removed records, sorted by key digest, all of one size

The manifest is the truth: it is durable before a segment is changed, and what it
names as removed is not there whatever a segment still holds. Entries are looked
up by bisection in the files and cost no memory. A new run swallows those
before it that are not much larger, so that there are few.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from streams.errors import CorruptLog, ForeignStore, MissingFile
from streams.retention import ENTRY_BYTES, KEY_BYTES, NOTHING_REMOVED, Base, Entry, Mark, Ranges, Removal
from streams.stores.disk import Disk, open_to_read, read_file, replace_durably, write_beside
from streams.stores.segments import BadLine, check_crc

MANIFEST: Final = "removed.json"
FORMAT: Final = 1

_RUN = re.compile(r"removed-(\d{1,10})\.keys")
_PIECE = 4096
"""Entries written at a time."""

Version = tuple[int, int, int] | None


class Run(NamedTuple):
    """One file of entries."""

    name: str
    entries: int
    crc: int


class RemovedLog(NamedTuple):
    """The manifest's content."""

    removal: Removal = NOTHING_REMOVED
    runs: tuple[Run, ...] = ()

    def as_bytes(self) -> bytes:
        """The file's bytes; the checksum covers all that follows it."""
        removal = self.removal
        fields = {
            "bases": {name: [base.offset, base.hash.hex(), base.at_ms] for name, base in removal.bases.items()},
            "format": FORMAT,
            "marks": {name: list(mark) for name, mark in removal.marks.items()},
            "pending": removal.pending,
            "ranges": removal.ranges.pairs(),
            "runs": [list(run) for run in self.runs],
        }
        body = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)[1:]
        return b'{"crc":"%08x",%b' % (crc32(body), body)


def is_run(name: str) -> bool:
    """Whether a file of this name in the log's directory is a run."""
    return _RUN.fullmatch(name) is not None


def version_of(log: Path) -> Version:
    """Changes with every replacement of the manifest; ``None`` where there is none."""
    try:
        found = (log / MANIFEST).stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def read_removed(log: Path) -> RemovedLog:
    """The manifest of the log in this directory; one that is not there names nothing.

    Raises:
        CorruptLog: it is damaged.
        ForeignStore: it is of a newer version, or a symbolic link.
    """
    path = log / MANIFEST
    try:
        text = read_file(path)
    except FileNotFoundError:
        return RemovedLog()
    try:
        check_crc(text)
        fields = orjson.loads(text)
        if fields["format"] > FORMAT:
            reason = f"it has format {fields['format']}, this version reads up to {FORMAT}: upgrade durable-stream"
            raise ForeignStore(str(path), reason)
        return _parsed(fields)
    except (BadLine, ValueError, KeyError, TypeError, AttributeError):
        raise CorruptLog(
            str(path), None, None, "the list of what was pruned and forgotten is damaged, so the log cannot be judged"
        ) from None


def _parsed(fields: dict[str, Any]) -> RemovedLog:
    bases = {name: Base(offset, bytes.fromhex(hash_), at) for name, (offset, hash_, at) in fields["bases"].items()}
    marks = {name: Mark(offset, at) for name, (offset, at) in fields["marks"].items()}
    ranges = Ranges((first, end) for first, end in fields["ranges"])
    runs = tuple(Run(name, count, crc) for name, count, crc in fields["runs"])
    if not ranges.count == sum(base.offset for base in bases.values()) == sum(run.entries for run in runs):
        raise ValueError("it contradicts itself")
    if not all(_RUN.fullmatch(run.name) for run in runs):
        raise ValueError("it names a file that is not ours")
    return RemovedLog(Removal(ranges, bases, marks, bool(fields["pending"])), runs)


class _Entries:
    """One run, mapped."""

    def __init__(self, log: Path, run: Run) -> None:
        """Raises ``CorruptLog`` unless the file is what the manifest says."""
        path = log / run.name
        try:
            fd = open_to_read(path)
        except FileNotFoundError:
            reason = f"the digests of {run.entries} pruned records are gone: none of them would be known if sent again"
            raise MissingFile(str(path), reason) from None
        try:
            if os.fstat(fd).st_size != run.entries * ENTRY_BYTES:
                raise _damaged(path, "have another size than they were written with")
            self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        self.run = run
        if crc32(self._map) != run.crc:
            self._map.close()
            raise _damaged(path, "have a wrong checksum")

    def find(self, key: bytes) -> Entry | None:
        low, high = 0, self.run.entries
        while low < high:
            middle = (low + high) // 2
            at = middle * ENTRY_BYTES
            if self._map[at : at + KEY_BYTES] < key:
                low = middle + 1
            else:
                high = middle
        at = low * ENTRY_BYTES
        if low < self.run.entries and self._map[at : at + KEY_BYTES] == key:
            return Entry.unpack(self._map[at : at + ENTRY_BYTES])
        return None

    def packed(self) -> Iterator[bytes]:
        for at in range(0, self.run.entries * ENTRY_BYTES, ENTRY_BYTES):
            yield self._map[at : at + ENTRY_BYTES]

    def close(self) -> None:
        self._map.close()


def _damaged(path: Path, reason: str) -> CorruptLog:
    return CorruptLog(str(path), None, None, f"the digests of pruned records {reason}")


def run_faults(log: Path, runs: Iterable[Run]) -> Iterator[CorruptLog]:
    """Those of these runs that are not there, or not whole."""
    for run in runs:
        try:
            _Entries(log, run).close()
        except CorruptLog as fault:
            yield fault


class RemovedFiles:
    """The one writer of a log's manifest and runs. Blocking; one thread at a time.

    Raises:
        CorruptLog: the manifest or a run of it is damaged or missing.
    """

    def __init__(self, log: Path, disk: Disk) -> None:
        self._log, self._disk = log, disk
        self._content = read_removed(log)
        self._entries = [_Entries(log, run) for run in self._content.runs]

    @property
    def removal(self) -> Removal:
        """What the manifest says."""
        return self._content.removal

    def manifest(self) -> bytes:
        """The manifest's bytes as they are."""
        return self._content.as_bytes()

    def find(self, key: bytes) -> Entry | None:
        """The entry of a removed record, by the digest of its key."""
        for entries in self._entries:
            found = entries.find(key)
            if found is not None:
                return found
        return None

    def packed(self) -> Iterator[bytes]:
        """All entries, packed, in the order of their keys."""
        return merge(*(entries.packed() for entries in self._entries))

    def keys_of(self, runs: Collection[Run]) -> Iterator[bytes]:
        """The key digests in these of the manifest's runs."""
        for entries in self._entries:
            if entries.run in runs:
                for packed in entries.packed():
                    yield packed[:KEY_BYTES]

    def write_run(self, packed: Iterable[bytes]) -> Run | None:
        """A new run of entries in the order of their keys, durable but named by no manifest yet; ``None`` for none."""
        name = f"removed-{self._next_number()}.keys"
        count = crc = 0

        def pieces() -> Iterator[bytes]:
            nonlocal count, crc
            waiting: list[bytes] = []
            for entry in packed:
                waiting.append(entry)
                if len(waiting) == _PIECE:
                    yield (piece := b"".join(waiting))
                    count, crc = count + len(waiting), crc32(piece, crc)
                    waiting.clear()
            if waiting:
                yield (piece := b"".join(waiting))
                count, crc = count + len(waiting), crc32(piece, crc)

        replace_durably(self._disk, self._log / name, pieces())
        if not count:
            self._disk.unlink(self._log / name)
            return None
        return Run(name, count, crc)

    def replace(self, removal: Removal, new: Sequence[Run] = (), *, before: Callable[[], None] | None = None) -> None:
        """Make this the truth: the runs there are and ``new`` ones hold its entries. Durable when it returns.

        ``before`` is called when only the rename is left to do: a full disk has been met by then.

        Raises:
            OSError: the manifest was not replaced, or its name is not durable; ``removal`` says which.
        """
        content = RemovedLog(removal, (*self._content.runs, *new))
        self._write(content, [*self._entries, *(_Entries(self._log, run) for run in new)], before)

    def compact(self) -> None:
        """Merge runs of like size, and delete files that no manifest names."""
        runs = sorted(self._content.runs, key=lambda run: -run.entries)
        small = next(
            (n for n in range(len(runs)) if sum(run.entries for run in runs[n + 1 :]) * 2 > runs[n].entries), None
        )
        if small is not None and small + 1 < len(runs):
            names = {run.name for run in runs[small:]}
            merged = [entries for entries in self._entries if entries.run.name in names]
            kept = [entries for entries in self._entries if entries.run.name not in names]
            run = self.write_run(merge(*(entries.packed() for entries in merged)))
            if run is not None:
                content = RemovedLog(self.removal, (*(entries.run for entries in kept), run))
                self._write(content, [*kept, _Entries(self._log, run)])
        self.sweep()

    def sweep(self) -> None:
        """Delete what a removal that was cut off left: files half written, and runs that no manifest names."""
        named = {run.name for run in self._content.runs}
        for path in self._log.iterdir():
            stray = _RUN.fullmatch(path.name) is not None and path.name not in named
            if stray or path.name.endswith(".new"):
                self._disk.unlink(path)

    def close(self) -> None:
        """Close the files."""
        for entries in self._entries:
            entries.close()

    def _write(self, content: RemovedLog, entries: list[_Entries], before: Callable[[], None] | None = None) -> None:
        wanted = content.as_bytes()
        path = self._log / MANIFEST
        draft = write_beside(self._disk, path, [wanted])
        if before is not None:
            before()
        try:
            self._disk.replace(draft, path)
        except OSError:
            # Renamed, but the name may not be durable: readers go by it, so do we.
            with suppress(OSError):
                if read_file(path) == wanted:
                    self._adopt(content, entries)
            raise
        self._adopt(content, entries)

    def _adopt(self, content: RemovedLog, entries: list[_Entries]) -> None:
        old, self._content, self._entries = self._entries, content, entries
        for one in old:
            if one not in entries:
                one.close()

    def _next_number(self) -> int:
        found = [int(m[1]) for path in self._log.iterdir() if (m := _RUN.match(path.name)) is not None]
        return max(found, default=0) + 1
