"""Verify a whole log: the database, and then the journal's lines above it, in one chain.

``streams/findings.py`` lists what can be found. The journal's files are opened before the database is read. So records
that move in the meantime are read in one of the two places or in both, never in none.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

from streams.findings import Finding, Kind, Summary
from streams.log.completeness import holds_files
from streams.log.manifest_verify import manifest_finding
from streams.stores.directory import is_being_written, refuse_links
from streams.stores.head import Head, read_head
from streams.stores.journal.line_verify import LineVerification
from streams.stores.journal.segments import HEAD, JOURNAL, Segment, list_segments
from streams.stores.sqlite.files import LOG_FILE
from streams.stores.sqlite.verify import SqliteVerification
from streams.system.files import open_to_read, refuse_link
from streams.system.threads import in_thread

__all__ = ["Finding", "Kind", "Summary", "Verification"]


class Verification:
    """One pass over the log in ``store``. ``run`` yields the findings; then ``summary`` has the counts.

    A pass changes nothing and takes no lock. While a writer is running, it verifies the log up to the head at the start
    of the pass. ``quick`` checks only the newest records, and as much of the database's file as about a second allows.
    """

    def __init__(self, store: Path, *, quick: bool = False) -> None:
        refuse_links(store)
        self._store = store
        self._database = SqliteVerification(store, None, quick)
        self._lines = LineVerification(store)
        self.summary = Summary()

    def size(self) -> int:
        """Bytes to read, for a progress bar."""
        return self._database.size() + self._lines.size()

    async def run(self, progress: Callable[[int], None] | None = None) -> AsyncIterator[Finding]:
        """Yield every fault in log order. Safe to cancel. ``progress`` gets the bytes read since its last call.

        Raises:
            ForeignStore: a newer version or another program wrote the store, or one of its files is a symbolic link.
            OSError: a file cannot be read.
        """
        self._database.progress = self._lines.progress = progress
        found = 0
        manifest = manifest_finding(self._store, has_log=holds_files(self._store))
        if manifest is not None:
            found += 1
            yield manifest
        async for finding in self._both():
            found += 1
            yield finding
        database, lines = self._database.summary, self._lines.summary
        self.summary = Summary(
            records=database.records + lines.records,
            streams=lines.streams,
            segments=database.segments + lines.segments,
            bytes=database.bytes + lines.bytes,
            head=max(database.head, lines.head),
            pruned=database.pruned,
            forgotten=database.forgotten,
            findings=found,
        )

    async def _both(self) -> AsyncIterator[Finding]:
        writing = is_being_written(self._store)
        with ExitStack() as opened:
            head, segments = await in_thread(self._open, opened)
            self._database.named = head
            async for finding in self._database.run():
                yield finding
            database, moved = self._database.summary, self._database.head
            # What the database cannot show is not the journal's to show: nobody reads it there.
            end = database.head if moved is None else max(database.head, moved.position)
            lost = self._database.lost + end - database.head
            self._lines.continue_after(end, moved, self._database.chains, lost)
            async for finding in self._lines.verify(head, segments, writing):
                yield finding

    def _open(self, opened: ExitStack) -> tuple[Head | None, list[Segment]]:
        refuse_link(self._store / LOG_FILE)
        while True:
            head = read_head(self._store / HEAD)
            segments = list_segments(self._store / JOURNAL)
            try:
                for segment in segments:
                    fd = open_to_read(segment.path)
                    opened.callback(os.close, fd)
                    self._lines.files[segment.first] = fd
            except FileNotFoundError:
                continue  # a segment was deleted, because it is in the database
            return head, segments
