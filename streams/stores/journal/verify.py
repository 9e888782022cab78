"""Verify a whole log: the database, and then the journal's lines above it, in one chain.

The journal's files are opened before the database is read. So records that move in the meantime are read in one of the
two places or in both, never in none.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

from streams.findings import Finding, Summary
from streams.stores.directory import is_being_written
from streams.stores.head import Head, read_head
from streams.stores.journal.line_verify import LineVerification
from streams.stores.journal.segments import HEAD, JOURNAL, Segment, list_segments
from streams.stores.sqlite.files import LOG_FILE
from streams.stores.sqlite.verify import SqliteVerification
from streams.system.files import open_to_read, refuse_link
from streams.system.threads import in_thread


class LogVerification:
    """One pass over the log in ``store``; see ``Verification``."""

    def __init__(self, store: Path, progress: Callable[[int], None] | None, quick: bool) -> None:
        self.progress = progress
        self._store = store
        self._database = SqliteVerification(store, None, quick)
        self._lines = LineVerification(store)
        self.summary = Summary()

    def size(self) -> int:
        return self._database.size() + self._lines.size()

    async def run(self) -> AsyncIterator[Finding]:
        """Yield every fault in log order. Safe to cancel. Raises what the verifications of both parts raise."""
        self._database.progress = self._lines.progress = self.progress
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
        lines = self._lines.summary
        self.summary = Summary(
            records=database.records + lines.records,
            streams=lines.streams,
            segments=database.segments + lines.segments,
            bytes=database.bytes + lines.bytes,
            head=max(database.head, lines.head),
            pruned=database.pruned,
            forgotten=database.forgotten,
        )

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
