"""Moving a log to another backend while it is being written: copy, catch up, compare, switch.

Everything is copied record by record, byte for byte, and each record's place in
its stream's hash chain is computed anew from the copied bytes. When little is
left, appends are held, the rest is copied, the copy is compared with the original
(heads, streams, every stream's last hash, all that was pruned and forgotten), and
``store.json`` is replaced by a rename.
Until that rename the old backend is the truth, after it the new one; a copy
that was cut off is continued by the next run. The old store stays as it was at
the switch, until it is discarded.

A rollback is the same way back: the kept store is continued with what was
written since.

Source: seed 004, 2.3 (jsonl v1, SQLite v2); FEATURES D9, F8, U32.
"""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from streams.errors import BadStore, StoreUnavailable
from streams.hashing import GENESIS, chain
from streams.log import DiskStore, Log, open_backend
from streams.retention import Removal
from streams.store import NOTHING
from streams.stores.copies import discard, discard_copy, missing_for_copy
from streams.stores.directory import Backend, Kept, Manifest, read_manifest, write_manifest
from streams.stores.in_turn import in_thread
from streams.stores.reserve import MIB, Reserve, mib_to_open
from streams.stores.segments import parse_event_keys
from streams.stores.stored import Stored

CHUNK: Final = 512
CLOSE_ENOUGH: Final = 1024
"""Records that may be left to copy when appends are held."""

Tails = dict[str, tuple[int, bytes]]
"""By stream: the next offset, and the last hash."""

Phase = Literal["opening", "copying", "switching", "done"]


@dataclass(slots=True)
class Progress:
    """How far a migration is; ``head`` grows while others append."""

    to: Backend
    phase: Phase = "opening"
    copied: int = 0
    """Records of the log that the copy holds or knows to be pruned."""
    head: int = NOTHING
    pruned: int = 0
    """How many of these were pruned; known when little is left to copy."""
    streams: int = 0
    """Streams that hold records; known at the end."""
    held_ms: float = 0.0
    """How long appends were held for the switch."""


class MigrationFailed(StoreUnavailable):
    """The copy does not equal the original; the log stays where it was."""


@contextmanager
def telling_what_is_missing(store: Path, to: Backend) -> Iterator[None]:
    """Around opening a log to move it, and moving it: on a full disk, how much the copy needs is told.

    Raises:
        StoreUnavailable: in place of any error that means a full disk.
    """
    try:
        yield
    except (StoreUnavailable, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        missing = -(-missing_for_copy(store, to) // MIB)
        raise StoreUnavailable(
            f"the log in {store} was not moved to {to}, no room for the copy: {cause.strerror}",
            f"free {missing} MiB on that disk, then run the same command again",
        ) from error


@dataclass(slots=True)
class Migration:
    """One move of ``log`` to ``to``. ``run`` may be cancelled: the next one goes on where it was."""

    log: Log
    to: Backend
    report: Callable[[Progress], None] = lambda progress: None
    progress: Progress = field(init=False)
    _tails: Tails = field(default_factory=dict)
    """Of every stream, as computed from the bytes that were copied."""
    _original: Tails = field(default_factory=dict)
    _copied: Tails = field(default_factory=dict)
    _lost: Removal = field(default_factory=Removal)
    _touched: set[str] = field(default_factory=set)
    """Streams of which records were copied since both stores were asked for all their tails."""

    def __post_init__(self) -> None:
        self.progress = Progress(self.to)

    async def run(self) -> Progress:
        """Move the log; returns when the new backend is the truth.

        Raises:
            MigrationFailed: the copy differs from the original. The log is as it was.
            StoreUnavailable, BadStore: a store cannot be read or written; of a full disk it says how much to free. The
                log is as it was.
        """
        # What is pruned or forgotten meanwhile would be missing in one of the two.
        async with self.log.moving():
            with telling_what_is_missing(self.log.store, self.to):
                return await self._run()

    async def _run(self) -> Progress:
        log = self.log
        if log.backend == self.to:
            self._tell("done")
            return self.progress
        # What is only listed as forgotten must not be copied.
        await log.source.finish_removal()
        self._tell("opening")
        copy = await self._open_copy()
        try:
            self._tails = await copy.tails()
            await self._catch_up(copy)
            await self._compare_most(copy)
            await self._catch_up(copy)
            begun = time.perf_counter()
            try:
                await log.hold()
                self._tell("switching")
                await self._copy_to(copy)
                await self._compare(copy)
                self.progress.copied = copy.head + 1
                kept = Kept(log.backend, log.head)
                await log.exchange(copy, Manifest(self.to, log.manifest.log_id, kept))
            finally:
                log.full_speed()
                log.release()
                self.progress.held_ms = (time.perf_counter() - begun) * 1000
        except BaseException as error:
            log.full_speed()
            if log.source is not copy:
                await copy.close()
                if isinstance(error, Exception):
                    await self._discard_copy()
            raise
        self._tell("done")
        return self.progress

    async def _discard_copy(self) -> None:
        """What a move that failed has copied: of no use, and in the way of records where the disk is full.

        A kept store stays, and so does what a kill or a cancelling cut off: the next move continues them.
        """
        kept = self.log.manifest.kept
        if kept is None or kept.backend != self.to:
            # ValueError: store.json names it, so it stays. What else could not be deleted is by the next move,
            # `repair` or `--discard-old`.
            with suppress(OSError, ValueError):
                await in_thread(discard, self.log.store, self.to)

    async def _catch_up(self, copy: DiskStore) -> None:
        """Copy until little is left. Where appends come nearly as fast as that, they are slowed down."""
        before = None
        while (left := self.log.head - copy.head) > CLOSE_ENOUGH:
            if before is not None and left > before / 2:
                self.log.slow_down()
            before = left
            await self._copy_to(copy)

    async def _open_copy(self) -> DiskStore:
        """The other backend, as far as an earlier run or an earlier life got; made anew if that is of no use.

        It is of none when it is another log's, or not whole: discarding it may have been cut off half-way. It is not
        the truth, so nothing is lost with it.
        """
        copy: DiskStore | None = None
        with suppress(BadStore):
            copy = await self._open()
        if copy is not None:
            try:
                if await self._continues(copy):
                    return copy
            except BaseException:
                await copy.close()
                raise
            await copy.close()
        await in_thread(discard, self.log.store, self.to)
        copy = None
        try:
            copy = await self._open()
            removal = await self.log.source.removal()
            if removal:
                await copy.adopt(removal, self.log.source.removed_entries())
        except BaseException as error:
            if copy is not None:
                await copy.close()
            if isinstance(error, Exception):
                await self._discard_copy()
            raise
        return copy

    async def _open(self) -> DiskStore:
        return await open_backend(self.log.store, self.to, segment_bytes=self.log.segment_bytes, is_copy=True)

    async def _continues(self, copy: DiskStore) -> bool:
        """Whether the copy is of this log, and of what it has lost: then what it holds need not be copied again."""
        if not (await copy.removal()).equals(await self.log.source.removal()):
            return False
        if copy.head == NOTHING:
            return True
        if copy.head > self.log.head:
            return False
        with suppress(BadStore):
            # Both are not there when that record was pruned.
            return await _record_at(self.log.source, copy.head) == await _record_at(copy, copy.head)
        return False

    async def _copy_to(self, copy: DiskStore) -> None:
        if self.progress.phase == "opening":
            self._tell("copying")
        async for records in self.log.source.copy_out(after=copy.head, most=CHUNK):
            await in_thread(self._check, records)
            await copy.copy_in(records)
            self.progress.copied = copy.head + 1
            self._tell(self.progress.phase)

    def _check(self, records: list[Stored]) -> None:
        """Each record must continue its stream's chain, computed from the bytes that are copied."""
        for record in records:
            stream = parse_event_keys(record.event).stream_id
            offset, previous = self._tails.get(stream, (0, GENESIS))
            if record.offset != offset or chain(previous, record.digest_form()) != record.hash:
                raise MigrationFailed(
                    f"record {record.position} does not continue its stream's hash chain, so the log was not moved",
                    "run `durable-stream verify` to see what is damaged",
                )
            self._tails[stream] = (offset + 1, record.hash)
            self._touched.add(stream)

    async def _compare_most(self, copy: DiskStore) -> None:
        """What takes the longer the larger the log is, before appends are held: what comes later is in ``_touched``."""
        self._touched = set()
        self._original, self._copied = await self.log.source.tails(), await copy.tails()
        # Nothing is pruned or forgotten while the log moves, so this stays as it is.
        self._lost = lost = await self.log.source.removal()
        lost_too = await copy.removal()
        self.progress.pruned = lost.ranges.count
        if not lost.equals(lost_too) or await _digest_of(self.log.source) != await _digest_of(copy):
            raise MigrationFailed(
                "the copy does not know of the same pruned and forgotten records, so the log was not moved",
                "run `durable-stream verify`, then try again",
            )

    async def _compare(self, copy: DiskStore) -> None:
        """The whole, while appends are held: of what was compared before only the streams that have grown since."""
        original = self._original | await self.log.source.tails(self._touched)
        copied = self._copied | await copy.tails(self._touched)
        bases = self._lost.bases
        self.progress.streams = sum(
            name not in bases or following > bases[name].offset for name, (following, _) in original.items()
        )
        if copy.head != self.log.head or original != copied or original != self._tails:
            different = sum(copied.get(name) != tail for name, tail in original.items())
            raise MigrationFailed(
                f"the copy holds {copy.head + 1} of {self.log.head + 1} records and {different} of "
                f"{len(original)} streams differ, so the log was not moved",
                "run `durable-stream verify`, then try again",
            )

    def _tell(self, phase: Phase) -> None:
        self.progress.phase, self.progress.head = phase, self.log.head
        self.report(self.progress)


async def _digest_of(store: DiskStore) -> bytes:
    """Of the entries of all pruned records."""
    digest = sha256()
    async for entries in store.removed_entries():
        digest.update(b"".join(entries))
    return digest.digest()


async def _record_at(store: DiskStore, position: int) -> Stored | None:
    found: AsyncIterator[list[Stored]] = store.copy_out(after=position - 1, most=1)
    async for records in found:
        return records[0] if records[0].position == position else None
    return None


def discard_kept(store: Path) -> int:
    """Delete the store that a migration left behind; returns the bytes freed, 0 when there is none.

    So it does with what lies beside the log otherwise: an old store whose deletion was cut off, or what a migration
    that was cut off had copied. The caller holds the store's lock, and sees to it that no migration runs. The reserve
    is given up for it on a full disk: this is what makes room there.

    Raises:
        StoreUnavailable: the disk has no room to begin, or failed; run again, it deletes what is left.
        BadStore: as ``read_manifest``.
    """
    reserve = Reserve(store)
    given_up = reserve.give_up()
    try:
        return _discard_kept(store)
    except OSError as error:
        raise _not_discarded(store, error) from error
    finally:
        reserve.take_back(given_up)


def _discard_kept(store: Path) -> int:
    manifest = read_manifest(store)
    if manifest is None:
        return 0
    if manifest.kept is None:
        return discard_copy(store, manifest.backend)
    # The pointer first: half a store must never be what a rollback continues.
    write_manifest(store, Manifest(manifest.backend, manifest.log_id))
    return discard(store, manifest.kept.backend)


def _not_discarded(store: Path, error: OSError) -> StoreUnavailable:
    """A full disk is met by the pointer only, before anything is deleted."""
    again = "then run the same command again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"free {mib_to_open(store)} MiB on that disk, {again}"
    else:
        hint = f"see that the directory is yours and its disk is writable and works, {again}"
    where = f"{error.filename}: " if error.filename else ""
    return StoreUnavailable(
        f"the old store in {store} could not be deleted: {where}{error.strerror or error}; the log itself is whole",
        hint,
    )
