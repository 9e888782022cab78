"""Verify a whole log. ``streams/findings.py`` lists what can be found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from streams.findings import Finding, Kind, Summary
from streams.log.completeness import holds_files
from streams.log.manifest_verify import manifest_finding
from streams.stores.directory import refuse_links
from streams.stores.journal.verify import LogVerification

__all__ = ["Finding", "Kind", "Summary", "Verification"]


class Verification:
    """One pass over the log in ``store``. ``run`` yields the findings; then ``summary`` has the counts.

    A pass changes nothing and takes no lock. While a writer is running, it verifies the log up to the head at the start
    of the pass. ``quick`` checks only the newest records, and as much of the database's file as about a second allows.
    """

    def __init__(self, store: Path, *, quick: bool = False) -> None:
        refuse_links(store)
        self._store = store
        self._log = LogVerification(store, None, quick)

    @property
    def summary(self) -> Summary:
        return self._log.summary

    def size(self) -> int:
        """Bytes to read, for a progress bar."""
        return self._log.size()

    async def run(self, progress: Callable[[int], None] | None = None) -> AsyncIterator[Finding]:
        """Yield every fault in log order. Safe to cancel. ``progress`` gets the bytes read since its last call.

        Raises:
            ForeignStore: a newer version or another program wrote the store, or one of its files is a symbolic link.
            OSError: a file cannot be read.
        """
        self._log.progress = progress
        found = 0
        manifest = manifest_finding(self._store, has_log=holds_files(self._store))
        if manifest is not None:
            found += 1
            yield manifest
        async for finding in self._log.run():
            found += 1
            yield finding
        self.summary.findings = found
