"""Migrate a log to another backend while it is being written: copy, verify, catch up, compare, switch.

Every record is copied byte for byte. When few records are left to copy, the copy is verified: every record in it is
read back and checked against its stream's hash chain. Then the migration delays appends, copies the remaining records
and reads them back. It compares the copy's head and every stream's last hash with those of the original. Finally, it
replaces ``store.json`` by a rename. Until that rename, the old backend holds the log; after the rename, the new backend
does. A hash covers its stream's whole history, so equal last hashes mean equal records.

The next run continues an interrupted copy and verifies all of it as ``verify`` does, because the copy may have been
damaged in the meantime. The old store stays as it was at the switch until it is discarded. No migration ever continues
the old store, because migrating back makes a new copy.

A log from which records were pruned or forgotten stays in sqlite.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from streams.errors import BadStore, StoreUnavailable
from streams.hashing import GENESIS, chain
from streams.log.backends import MigratingStore, open_backend
from streams.log.copies import discard, discard_copy, missing_for_copy
from streams.log.verify import Verification, is_of_records
from streams.store import NOTHING
from streams.stores.directory import Backend, KeptStore, Manifest, read_manifest, write_manifest
from streams.stores.head import BadLine
from streams.stores.jsonl.lines import parse_event_keys
from streams.stores.jsonl.store import JsonlStore
from streams.stores.space import MIB, mib_to_open
from streams.stores.sqlite.store import SqliteStore
from streams.stores.stored import Stored
from streams.system.threads import in_thread

if TYPE_CHECKING:
    from streams.log.log import Log

CHUNK: Final = 512
CLOSE_ENOUGH: Final = 1024
"""Appends are held when at most this many records are left to copy."""

Tails = dict[str, tuple[int, bytes]]
"""Maps a stream to its next offset and its last hash."""

Phase = Literal["opening", "copying", "verifying", "switching", "done"]


@dataclass(slots=True)
class Progress:
    """The progress of a migration; ``head`` grows while others append."""

    to: Backend
    phase: Phase = "opening"
    copied: int = 0
    """Records in the copy."""
    head: int = NOTHING
    streams: int = 0
    held_ms: float = 0.0
    """How long appends were held for the switch."""


class MigrationFailed(StoreUnavailable):
    """The copy does not equal the original; the log stays where it was."""

    code: ClassVar[str] = "migration-failed"


class HoldsRemoved(StoreUnavailable):
    """The log has pruned or forgotten records, so it stays in sqlite; nothing was changed."""

    code: ClassVar[str] = "holds-removed"


@contextmanager
def explaining_full_disk(store: Path, to: Backend) -> Iterator[None]:
    """Wrap a migration: turn ENOSPC into an error that says how much space the copy needs.

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
            f"the log in {store} was not migrated to {to}: {cause.filename or store}: {cause.strerror}",
            f"free about {missing} MiB on that disk, then run the same command again",
        ) from error


@dataclass(slots=True)
class Migration:
    """One migration of ``log`` to ``to``. ``run`` may be cancelled: the next run continues its copy."""

    log: Log
    to: Backend
    report: Callable[[Progress], None] = lambda progress: None
    progress: Progress = field(init=False)
    _tails: Tails = field(default_factory=dict)
    """The tail of every stream, computed from the bytes in the copy."""
    _original: Tails = field(default_factory=dict)
    _continued: bool = False
    _touched: set[str] = field(default_factory=set)
    """Streams with records copied since all tails of the original were read."""

    def __post_init__(self) -> None:
        self.progress = Progress(self.to)

    async def run(self) -> Progress:
        """Migrate the log. Returns when the new backend holds it.

        Raises:
            HoldsRemoved: records were removed from the log, and ``to`` is jsonl.
            MigrationFailed: the copy differs from the original. The log is unchanged, the copy deleted.
            StoreUnavailable, BadStore: a store cannot be read or written. The log is unchanged.
        """
        # Keep removals waiting, because a removal during the copy would affect only one of the two stores.
        async with self.log.moving():
            with explaining_full_disk(self.log.store, self.to):
                try:
                    return await self._run()
                except MigrationFailed:
                    if not self._continued:
                        raise
                    # The continued copy was damaged or belonged to another log, and was deleted. Begin a new copy.
                    return await self._run()

    async def _run(self) -> Progress:
        log = self.log
        if log.backend == self.to:
            self._report("done")
            return self.progress
        if await log.source.removal():
            raise HoldsRemoved(
                f"the log in {log.store} has pruned or forgotten records, so it cannot migrate to {self.to}",
                "it stays in sqlite",
            )
        self._report("opening")
        self._tails = {}
        copy = await self._open_copy()
        try:
            await self._catch_up(copy)
            await self._verify(copy)
            self._touched = set()
            self._original = await log.source.tails()
            await self._catch_up(copy)
            begun = time.perf_counter()
            try:
                await log.hold()
                self._report("switching")
                await self._copy_to(copy)
                await self._compare(copy)
                self.progress.copied = copy.head + 1
                kept = KeptStore(log.backend, log.head)
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
                    # If store.json already names the copy, ``discard`` raises ValueError, and the copy stays.
                    with suppress(OSError, ValueError):
                        await in_thread(discard, log.store, self.to)
            raise
        self._report("done")
        return self.progress

    async def _catch_up(self, copy: MigratingStore) -> None:
        before = None
        while (left := self.log.head - copy.head) > CLOSE_ENOUGH:
            if before is not None and left > before / 2:
                self.log.slow_down()
            before = left
            await self._copy_to(copy)

    async def _open_copy(self) -> MigratingStore:
        """Open the copy that an interrupted run left in the other backend, if that copy is usable, or else open a new
        copy.

        A store that once held the log is deleted instead of continued, because that store may have been damaged since.
        """
        if self.log.manifest.kept is not None:
            # ``discard_old`` verifies the log first, because the old store may be the only good copy.
            await discard_old(self.log.store)
            self.log.reread_manifest()
        with suppress(BadStore):
            copy = await self._open()
            if copy.head <= self.log.head:
                self._continued = copy.head > NOTHING
                return copy
            await copy.close()
        self._continued = False
        await in_thread(discard, self.log.store, self.to)
        return await self._open()

    async def _open(self) -> MigratingStore:
        store = await open_backend(self.log.store, self.to, segment_bytes=self.log.segment_bytes)
        assert isinstance(store, JsonlStore | SqliteStore)
        return store

    async def _copy_to(self, copy: MigratingStore) -> None:
        if self.progress.phase == "opening":
            self._report("copying")
        last = copy.head
        async for records in self.log.source.copy_out(after=copy.head, most=CHUNK):
            await copy.copy_in(records)
            self.progress.copied = copy.head + 1
            self._report(self.progress.phase)
        if self.progress.phase in ("verifying", "switching"):  # ``_verify`` checks the records that were copied earlier
            await self._read_back(copy, last)

    async def _read_back(self, copy: MigratingStore, after: int) -> None:
        async for records in copy.copy_out(after=after, most=CHUNK):
            await in_thread(self._check, records)

    def _check(self, records: list[Stored]) -> None:
        for record in records:
            try:
                stream = parse_event_keys(record.event).stream_id
            except BadLine as fault:
                raise self._failed(f"record {record.position} of the copy is damaged ({fault})") from None
            offset, previous = self._tails.get(stream, (0, GENESIS))
            if record.offset != offset or chain(previous, record.digest_form()) != record.hash:
                raise self._failed(f"record {record.position} of the copy does not continue its stream's hash chain")
            self._tails[stream] = (offset + 1, record.hash)
            self._touched.add(stream)

    async def _verify(self, copy: MigratingStore) -> None:
        self._report("verifying")
        if not self._continued:
            await self._read_back(copy, NOTHING)
            return
        verification = Verification(self.log.store, backend=self.to, alone=True)
        async for finding in verification.run():
            if is_of_records(finding):
                raise self._failed(f"the copy is damaged: {finding}")
        if verification.summary.records != copy.head + 1:
            raise self._failed(f"the copy holds {verification.summary.records} of {copy.head + 1} records")
        self._tails = await copy.tails()

    async def _compare(self, copy: MigratingStore) -> None:
        original = self._original | await self.log.source.tails(self._touched)
        self.progress.streams = len(original)
        if copy.head != self.log.head or original != self._tails:
            different = sum(self._tails.get(name) != tail for name, tail in original.items())
            raise self._failed(
                f"the copy holds {copy.head + 1} of {self.log.head + 1} records, and the ends of {different} of "
                f"{len(original)} streams differ"
            )

    def _failed(self, what: str) -> MigrationFailed:
        return MigrationFailed(
            f"{what}, so the log was not migrated", "run `durable-stream verify`, then the same command again"
        )

    def _report(self, phase: Phase) -> None:
        self.progress.phase, self.progress.head = phase, self.log.head
        self.report(self.progress)


async def discard_old(store: Path) -> int:
    """Verify the whole log, then delete the store that a migration left. Return the bytes freed; 0 if there was no such
    store.

    The process of the caller must hold the store's lock, and the caller must ensure that no migration is running.

    Raises:
        StoreUnavailable: the log failed verification, so the old store may be the only good copy; or the disk failed.
        BadStore: see ``read_manifest``.
    """
    manifest = await in_thread(read_manifest, store)
    if manifest is None:
        return 0
    if manifest.kept is not None:
        verification = Verification(store, backend=manifest.backend, alone=False)
        faults = [str(finding) async for finding in verification.run() if is_of_records(finding)]
        if faults:
            raise StoreUnavailable(
                f"the log in {store} failed verification ({faults[0]}), so the old {manifest.kept.backend} store was "
                "kept",
                "run `durable-stream verify`, then restore the log or use the old store, then run the same command "
                "again",
            )
    return await in_thread(discard_kept, store)


def discard_kept(store: Path) -> int:
    """Delete the store or the unfinished copy that a migration left. Return the bytes freed.

    ``discard_old`` first checks that the log is intact. The caller holds the store's lock.

    Raises:
        StoreUnavailable: the disk failed; another run deletes what is left.
        BadStore: see ``read_manifest``.
    """
    try:
        manifest = read_manifest(store)
        if manifest is None:
            return 0
        if manifest.kept is None:
            return discard_copy(store, manifest.backend)
        # Change store.json first, because it must never name a partly deleted store.
        write_manifest(store, Manifest(manifest.backend, manifest.log_id))
        return discard(store, manifest.kept.backend)
    except OSError as error:
        again = "then run the same command again"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"free {mib_to_open(store)} MiB on that disk, {again}"
        else:
            hint = f"check that you own the directory and that its disk is writable and works, {again}"
        where = f"{error.filename}: " if error.filename else ""
        raise StoreUnavailable(
            f"the old store in {store} could not be deleted: {where}{error.strerror or error}; the log itself is "
            "intact",
            hint,
        ) from error
