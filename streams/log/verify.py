"""Verify a whole log, whatever its backend; ``streams/findings.py`` lists what can be found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from streams.errors import ForeignStore, StoreUnavailable, StreamError
from streams.findings import Finding, Kind, Summary
from streams.log.beside import lost_findings, manifest_finding
from streams.log.presence import holds_files, with_records
from streams.stores.directory import MANIFEST, Backend, is_being_written, read_manifest, refuse_links
from streams.stores.journal.verify import JournalVerification
from streams.stores.jsonl.verify import JsonlVerification
from streams.stores.sqlite.verify import SqliteVerification

__all__ = ["Finding", "Kind", "Summary", "Verification", "is_of_records"]


def is_of_records(finding: Finding) -> bool:
    """True if the finding is about the log itself, not about ``store.json`` or the hints."""
    path = Path(finding.file)
    return path.name != MANIFEST and path.parent.name != "hints"


class Verification:
    """One pass over the log in ``store``. ``run`` yields the findings; then ``summary`` has the counts.

    A pass changes nothing and takes no lock. While a writer is running, it verifies the log up to the head at the start
    of the pass. ``backend`` is the backend to verify, whatever ``store.json`` says. ``alone``: the caller holds the
    writer's lock itself. ``quick`` checks only the end of the log: for jsonl the last segments; for sqlite the last
    records, and as much of the file as about a second allows.
    """

    def __init__(
        self,
        store: Path,
        *,
        backend: Backend | None = None,
        alone: bool = False,
        quick: bool = False,
    ) -> None:
        refuse_links(store)
        self._of_backend: JsonlVerification | SqliteVerification | JournalVerification
        self._store, self._alone, self._may_move = store, alone, backend is None and not alone
        self._backend = backend or _backend_of(store)
        if self._backend == "sqlite":
            self._of_backend = SqliteVerification(store, None, alone, quick)
        elif self._backend == "journal":
            self._of_backend = JournalVerification(store, None, alone, quick)
        else:
            self._of_backend = JsonlVerification(store, None, alone, quick)

    @property
    def summary(self) -> Summary:
        return self._of_backend.summary

    def size(self) -> int:
        """Bytes to read, for a progress bar."""
        return self._of_backend.size()

    async def run(self, progress: Callable[[int], None] | None = None) -> AsyncIterator[Finding]:
        """Yield every fault in log order. Safe to cancel. ``progress`` gets the bytes read since its last call.

        Raises:
            ForeignStore: a newer version or another program wrote the store, or one of its files is a symbolic link.
            StoreUnavailable: the log migrated to the other backend in the meantime, and the old store was deleted.
            OSError: a file cannot be read.
        """
        self._of_backend.progress = progress
        found = 0
        manifest = manifest_finding(self._store, has_log=holds_files(self._store, self._backend))
        if manifest is not None:
            found += 1
            yield manifest
        try:
            async for finding in self._of_backend.run():
                self._refuse_deleted()
                found += 1
                yield finding
        except (StreamError, OSError):
            self._refuse_deleted()
            raise
        self._refuse_deleted()
        last = self._of_backend.furthest
        if last is not None and (self._alone or not is_being_written(self._store)):
            for lost in lost_findings(self._store, last):
                found += 1
                yield lost
        self.summary.findings = found

    def _refuse_deleted(self) -> None:
        if not self._may_move:
            return
        try:
            manifest = read_manifest(self._store)
        except ForeignStore:
            return  # the check of the manifest reports the damage
        names = {manifest.backend, manifest.kept.backend if manifest.kept else None} if manifest is not None else set()
        if manifest is not None and self._backend not in names:
            raise StoreUnavailable(
                f"the log in {self._store} migrated to {manifest.backend} while it was being verified, and its old "
                f"{self._backend} store was deleted",
                "run the command again to verify the new store",
            )


def _backend_of(store: Path) -> Backend:
    try:
        manifest = read_manifest(store)
    except ForeignStore:
        manifest = None  # the check of the manifest reports the damage
    if manifest is not None:
        return manifest.backend
    return "sqlite" if with_records(store) == ["sqlite"] else "jsonl"
