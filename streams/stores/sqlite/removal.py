"""Prune and forget in a log's database, in chunks between other commits.

A removal first writes down what it will remove, in a separate transaction. If a ``kill -9`` interrupts the removal, the
remaining work is done when the log is next opened for writing. At the end, a removal empties the write-ahead file,
which still holds the old pages, and returns free pages to the file system.

A removal needs some space before it frees any. On a full disk it fails with an error, and is finished once there is
space.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from streams.derived import Write
from streams.errors import StoreUnavailable
from streams.retention import Removed
from streams.stores.directory import remove_torn
from streams.stores.disk import Disk
from streams.stores.sqlite import removed as tables
from streams.stores.sqlite.cursors_and_snapshots import Hints
from streams.stores.sqlite.derived import drop_one, write_anew
from streams.stores.sqlite.files import BUSY_MS, LOG_FILE, translated
from streams.stores.sqlite.search_index import remove_search
from streams.system.threads import InTurn

FREE_PAGES: Final = 512
"""How many free pages are returned to the file system at once."""

Result = TypeVar("Result")


class Exclusive(Protocol):
    """Runs ``work`` on the calling thread while no commit is running."""

    def __call__(self, work: Callable[[], Result], /) -> Result: ...


class SqliteRemover:
    """The part of ``Database`` that removes records and payloads. The methods block; ``InTurn`` lets only one
    operation run at a time.

    ``changed`` is called after each transaction, while no commit is running.
    """

    def __init__(
        self,
        store: Path,
        connection: sqlite3.Connection,
        hints: Hints,
        turns: InTurn,
        changed: Callable[[], None],
    ) -> None:
        self._store, self._path, self._wal = store, store / LOG_FILE, store / f"{LOG_FILE}-wal"
        self._connection, self._hints, self._turns, self._changed = connection, hints, turns, changed

    def prune(self, cuts: Mapping[str, int], at_ms: int, exclusively: Exclusive, change: Write | None) -> Removed:
        with self._told("pruned"):
            self.resume(exclusively)
            with translated(self._path, "reading"):
                ends = exclusively(lambda: self._ends(cuts))
            cuts = {name: min(cuts[name], end) for name, (first, end) in ends.items() if min(cuts[name], end) > first}
            if not cuts:
                return Removed()
            self._check({name: (ends[name][0], cut) for name, cut in cuts.items()}, exclusively)

            def begin() -> None:
                tables.begin(self._connection, "prune", cuts, at_ms)
                if change is not None:
                    change(self._connection)

            exclusively(lambda: self._transact(begin))
            records, size, _, _ = self._work(exclusively)
            return Removed(records, size, len(cuts))

    def forget(
        self,
        streams: Collection[str],
        positions: Collection[int],
        at_ms: int,
        exclusively: Exclusive,
        change: Write | None,
    ) -> Removed:
        with self._told("forgotten"):
            self.resume(exclusively)
            wanted = exclusively(lambda: self._to_forget(streams))
            with translated(self._path, "reading"):
                singles = exclusively(lambda: tables.singles_among(self._connection, sorted(set(positions))))
            singles = {position: name for position, name in singles.items() if name not in wanted}
            if not wanted and not singles:
                return Removed()
            self._check(wanted, exclusively)
            ends = {name: end for name, (_, end) in wanted.items()}

            def begin() -> None:
                if ends:
                    tables.begin(self._connection, "forget", ends, at_ms)
                if singles:
                    tables.begin_singles(self._connection, singles, at_ms)
                if change is not None:
                    change(self._connection)

            exclusively(lambda: self._transact(begin))
            _, _, records, saved = self._work(exclusively)
            return Removed(records, saved, len({*wanted, *singles.values()}))

    def resume(self, exclusively: Exclusive) -> None:
        with translated(self._path, "reading"):
            is_pending = exclusively(lambda: next(tables.pending(self._connection), None)) is not None
        if is_pending:
            self._work(exclusively)

    def _ends(self, names: Collection[str]) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for name in names:
            first, last = self._connection.execute(
                "SELECT min(offset), max(offset) FROM records WHERE stream = (SELECT id FROM streams WHERE name = ?)",
                [name],
            ).fetchone()
            if first is not None:
                found[name] = (first, last + 1)
        return found

    def _to_forget(self, names: Collection[str]) -> dict[str, tuple[int, int]]:
        with translated(self._path, "reading"):
            marks = tables.load(self._connection).marks
            ends = self._ends(names)
        return {name: ends[name] for name in ends if name not in marks or marks[name].offset < ends[name][1]}

    def _check(self, wanted: Mapping[str, tuple[int, int]], exclusively: Exclusive) -> None:
        """Read the records to remove, before anything is noted. If a record is damaged, raise, so that no removal
        begins."""
        for name, (first, end) in wanted.items():
            while first < end:
                self._turns.check()
                with translated(self._path, "reading"):
                    first = exclusively(partial(tables.check_chunk, self._connection, name, first, end))

    def _work(self, exclusively: Exclusive) -> tuple[int, int, int, int]:
        """Do all noted work. Return how many records and bytes were pruned, and then how many were forgotten."""
        pruned = pruned_bytes = forgotten = saved = 0
        forgets = False
        with translated(self._path, "reading"):
            noted = exclusively(lambda: list(tables.pending(self._connection)))
        for what, stream, offset, at_ms in noted:
            if what == "prune":
                for records, size in self._chunks(exclusively, stream, offset, at_ms):
                    pruned, pruned_bytes = pruned + records, pruned_bytes + size
            elif what == tables.SINGLES:
                forgets = True
                for records, size in self._single_digests(exclusively):
                    forgotten, saved = forgotten + records, saved + size
            else:
                forgets = True
                for records, size in self._digests(exclusively, stream, offset):
                    forgotten, saved = forgotten + records, saved + size
        if forgets:
            remove_torn(self._store, Disk())
        # Delete the search index, because a search must not find removed records.
        remove_search(self._store)
        self._step(exclusively, lambda: self._hints.forget_snapshots(self._connection))
        while exclusively(self._free_pages):
            self._turns.check()
            exclusively(self._give_back)
        # Derived tables may hold what was removed. They are made again, from their own pages, which are zeros until
        # then: to give these back, too, would take longer than the rest.
        while self._step(exclusively, lambda: drop_one(self._connection)):
            pass
        with translated(self._path, "writing"):
            exclusively(lambda: write_anew(self._connection))
        self._empty(exclusively)
        exclusively(lambda: self._transact(lambda: tables.finish(self._connection)))
        return pruned, pruned_bytes, forgotten, saved

    def _chunks(self, exclusively: Exclusive, stream: str, offset: int, at_ms: int) -> Iterator[tuple[int, int]]:
        following = -1
        while following < offset:
            records, size, following = self._step(
                exclusively, lambda: tables.prune_chunk(self._connection, stream, offset, at_ms)
            )
            yield records, size

    def _digests(self, exclusively: Exclusive, stream: str, offset: int) -> Iterator[tuple[int, int]]:
        first = 0
        while first < offset:
            work = partial(tables.forget_chunk, self._connection, stream, first, offset)
            records, saved, first = self._step(exclusively, work)
            yield records, saved

    def _single_digests(self, exclusively: Exclusive) -> Iterator[tuple[int, int]]:
        after: int | None = -1
        while after is not None:
            work = partial(tables.forget_singles, self._connection, after)
            records, saved, after = self._step(exclusively, work)
            yield records, saved

    def _step(self, exclusively: Exclusive, work: Callable[[], Result]) -> Result:
        self._turns.check()
        return exclusively(lambda: self._transact(work))

    def _transact(self, work: Callable[[], Result]) -> Result:
        with translated(self._path, "writing"):
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                result = work()
            self._changed()
            return result

    def _empty(self, exclusively: Exclusive) -> None:
        """Empty the write-ahead file, which still holds the old pages."""
        until = time.monotonic() + BUSY_MS / 1000
        while exclusively(self._empty_wal):
            self._turns.check()
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"another program is reading {self._path}, so {self._wal.name} still holds what was removed",
                    "close that program and try again; the next start of the sidecar also finishes the removal",
                )
            time.sleep(0.02)

    def _free_pages(self) -> int:
        with translated(self._path, "reading"):
            found: int = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
        return found

    def _give_back(self) -> None:
        with translated(self._path, "writing"):
            self._connection.execute(f"PRAGMA incremental_vacuum({FREE_PAGES})").fetchall()

    def _empty_wal(self) -> bool:
        """Empty the WAL. True if a reader prevents it."""
        with translated(self._path, "writing"):
            # Do not wait for readers here, because commits wait for this method. The caller tries again if necessary.
            self._connection.execute("PRAGMA busy_timeout = 0")
            try:
                return bool(self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"records in {self._path} could not be {what} completely: {error.strerror or error}",
                "free disk space or repair the disk, then try again: trying again finishes the removal, "
                "as does the next start of the sidecar",
            ) from error
