"""Moving a log to another backend while it is being written: copy, read back, verify, switch.

A move never builds on a store that was the log before. It deletes what an earlier
move left there, after it has verified the whole log in use, and makes a new copy. What
a kill cut off is continued, if every record of it is still the log's.

Everything is copied record by record, byte for byte. Then the copy is read back:
each record must equal the log's, and ``Verification`` must find no fault in the copy (its
hash chains, its columns, its indexes). All of this happens beside appends; only the records that
came last are copied and compared while appends are held. Then ``store.json`` is
replaced by a rename. Until that rename the old backend is the truth, after it the new one. The
old store stays as it was at the switch, until it is discarded.

Source: seed 004, 2.3 (jsonl v1, SQLite v2); FEATURES D9, F8, U32.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Final, Literal, cast

from streams.errors import BadStore, StoreUnavailable
from streams.findings import Finding
from streams.log import DiskStore, Log, open_backend, unavailable
from streams.store import NOTHING
from streams.stores.copies import discard, discard_copy, holds_payloads, missing_for_copy, other
from streams.stores.directory import Backend, Kept, Manifest, read_manifest, take_lock, write_manifest
from streams.stores.in_turn import in_thread
from streams.stores.reserve import MIB, Reserve, mib_to_open
from streams.stores.segments import parse_event_keys
from streams.stores.stored import Stored
from streams.verify import Verification

CHUNK: Final = 512
CLOSE_ENOUGH: Final = 1024
"""Records that may be left to copy when appends are held."""

Phase = Literal["opening", "copying", "checking", "switching", "done"]


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
    """The log or its copy is damaged, or they differ; the log stays where it was, and so does a kept store."""


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
    _compared: int = NOTHING
    """Up to this position the copy was read back and equals the log."""
    _streams: set[str] = field(default_factory=set)
    """Of the records that were read back."""

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
        if log.manifest.kept is not None:
            await discard_kept(log.store)
            log.reread_manifest()
        copy = await self._open_copy()
        try:
            await self._advance(copy)
            self._tell("checking")
            await self._compare_removals(copy)
            fault = await _first_fault(log.store, self.to)
            if fault is not None:
                where = "the copy" if fault.position is None else f"record {fault.position}, copied as it is,"
                raise _not_moved(f"{where} does not verify: {fault.reason}")
            await self._catch_up(copy)
            begun = time.perf_counter()
            try:
                await log.hold()
                self._tell("switching")
                await self._advance(copy)
                if copy.head != log.head:
                    raise _not_moved(f"the copy ends at position {copy.head}, the log at {log.head}")
                self.progress.copied, self.progress.streams = copy.head + 1, len(self._streams)
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

        What a kill or a cancelling cut off stays: the next move continues it.
        """
        # ValueError: store.json names it, so it stays. What else could not be deleted is by the next move,
        # `repair` or `--discard-old`.
        with suppress(OSError, ValueError):
            await in_thread(discard, self.log.store, self.to)

    async def _catch_up(self, copy: DiskStore) -> None:
        """Copy until little is left. Where appends come nearly as fast as that, they are slowed down."""
        before = copy.head + 1  # what was copied in the first round
        while (left := self.log.head - copy.head) > CLOSE_ENOUGH:
            if left > before / 2:
                self.log.slow_down()
            before = left
            await self._advance(copy)

    async def _open_copy(self) -> DiskStore:
        """What a move that was cut off had copied, if all of it is the log's; else an empty store."""
        with suppress(BadStore, MigrationFailed):
            copy = await self._open()
            try:
                await self._compare_removals(copy)
                await self._compare(copy)
            except BaseException:
                await copy.close()
                raise
            return copy
        await in_thread(discard, self.log.store, self.to)
        self._compared = NOTHING
        self._streams.clear()
        begun: DiskStore | None = None
        try:
            begun = await self._open()
            removal = await self.log.source.removal()
            if removal:
                await begun.adopt(removal, self.log.source.removed_entries())
        except BaseException as error:
            if begun is not None:
                await begun.close()
            if isinstance(error, Exception):
                await self._discard_copy()
            raise
        return begun

    async def _open(self) -> DiskStore:
        return await open_backend(self.log.store, self.to, segment_bytes=self.log.segment_bytes, is_copy=True)

    async def _advance(self, copy: DiskStore) -> None:
        """Copy up to the log's head of this moment, and read back what was copied."""
        if self.progress.phase == "opening":
            self._tell("copying")
        async for records in self.log.source.copy_out(after=copy.head, most=CHUNK):
            await copy.copy_in(records)
            self.progress.copied = copy.head + 1
            self._tell(self.progress.phase)
        await self._compare(copy)

    async def _compare(self, copy: DiskStore) -> None:
        """Read back what the copy holds since the last call: each record must be the log's, byte for byte."""
        originals: list[Stored] = []
        try:
            async with (
                aclosing(_all_of(self.log.source, self._compared)) as log,
                aclosing(_all_of(copy, self._compared)) as copied,
            ):
                async for copies in copied:
                    while len(originals) < len(copies) and (more := await anext(log, None)):
                        originals += more
                    await in_thread(self._compare_some, originals[: len(copies)], copies)
                    del originals[: len(copies)]
        except BadStore as error:
            raise _not_moved(str(error)) from error
        self._compared = copy.head

    def _compare_some(self, originals: list[Stored], copies: list[Stored]) -> None:
        for original, copied in zip_longest(originals, copies):
            if original != copied:
                raise _not_moved(f"record {copied.position} of the copy is not the log's")
            self._streams.add(parse_event_keys(copied.event).stream_id)

    async def _compare_removals(self, copy: DiskStore) -> None:
        """Nothing is pruned or forgotten while the log moves, so this is compared once."""
        removal = await self.log.source.removal()
        self.progress.pruned = removal.ranges.count
        same = removal.equals(await copy.removal())
        if not same or await _digest_of(self.log.source) != await _digest_of(copy):
            raise _not_moved("the copy does not know of the same pruned and forgotten records")

    def _tell(self, phase: Phase) -> None:
        self.progress.phase, self.progress.head = phase, self.log.head
        self.report(self.progress)


async def _digest_of(store: DiskStore) -> bytes:
    """Of the entries of all pruned records."""
    digest = sha256()
    async for entries in store.removed_entries():
        digest.update(b"".join(entries))
    return digest.digest()


def _all_of(store: DiskStore, after: int) -> AsyncGenerator[list[Stored], None]:
    return cast("AsyncGenerator[list[Stored], None]", store.copy_out(after=after, most=CHUNK))


def _not_moved(what: str) -> MigrationFailed:
    return MigrationFailed(f"{what}, so the log was not moved", "run `durable-stream verify`, then try again")


async def _first_fault(store: Path, backend: Backend) -> Finding | None:
    """Read every record of one backend, up to the first fault."""
    async with aclosing(cast("AsyncGenerator[Finding, None]", Verification(store, backend=backend).run())) as findings:
        return await anext(findings, None)


async def discard_kept(store: Path) -> int:
    """Delete the store that a migration left behind; returns the bytes freed, 0 when there is none.

    It also deletes what else of the other backend lies there: an old store whose deletion was cut off, or what a
    migration that was cut off had copied. The log in use is verified whole first, because the other store may be the
    only good one. The caller holds the store's lock and makes sure that no migration runs. On a full disk the reserve
    is given up for it, because this makes room there.

    Raises:
        MigrationFailed: the log in use is damaged. Nothing was deleted.
        StoreUnavailable: the disk has no room to begin, or failed; run again, it deletes what is left.
        BadStore: as ``read_manifest``.
    """
    reserve = Reserve(store)
    given_up = await in_thread(reserve.give_up)
    try:
        manifest = await in_thread(read_manifest, store)
        if manifest is None:
            return 0
        if await in_thread(holds_payloads, store, other(manifest.backend)):
            await _refuse_damaged(store, manifest.backend)
        if manifest.kept is not None:
            # The pointer first: half a store must never be named.
            await in_thread(write_manifest, store, Manifest(manifest.backend, manifest.log_id))
        return await in_thread(discard_copy, store, manifest.backend)
    except OSError as error:
        raise _not_discarded(store, error) from error
    finally:
        await in_thread(reserve.take_back, given_up)


async def _refuse_damaged(store: Path, backend: Backend) -> None:
    fault = await _first_fault(store, backend)
    if fault is not None:
        raise MigrationFailed(
            f"the log is damaged ({fault}), so nothing was moved or deleted",
            f"keep both stores: the {other(backend)} one may hold what is damaged in {backend}; "
            "`durable-stream repair --dry-run` says what can be done",
        )


async def discard_unserved(store: Path) -> int:
    """``discard_kept`` for a caller that has no log open: takes the store's lock for it.

    Raises:
        StoreLocked: another process writes there; nothing was changed.
        StoreUnavailable, BadStore: as ``discard_kept``.
    """
    try:
        lock = take_lock(store)
    except OSError as error:
        raise unavailable(store, error) from error
    try:
        return await discard_kept(store)
    finally:
        os.close(lock)


def _not_discarded(store: Path, error: OSError) -> StoreUnavailable:
    """A full disk is met by the verifying or the pointer, before anything is deleted."""
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
