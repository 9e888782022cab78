"""Keep derived tables level with the records (see ``streams/derived.py``)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from streams.derived import Derived
from streams.errors import StoreUnavailable, StreamError
from streams.store import NOTHING, Record
from streams.stores.sqlite.derived import drop_one, is_damage, leave_behind, row_of, write_anew
from streams.stores.sqlite.file_verify import content_damage, derived_damage
from streams.stores.sqlite.files import translate
from streams.stores.sqlite.removed import pending
from streams.stores.sqlite.rows import SELECT, record_of

MOST: Final = 2000
"""How many records one transaction applies at most to tables that are behind."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""About how many bytes of records it reads at most."""

FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 30.0


Result = TypeVar("Result")


class NotDerived(Exception):
    """The caller's tables refused records, so these must move without them."""


class Deriving:
    """The tables' writing side, on the database's one writing connection. The caller lets nothing else use it
    meanwhile.

    A fault here never concerns the records: the tables stay behind, and ``fault`` says why until an attempt succeeds.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, derived: Derived) -> None:
        self._connection, self._path, self._derived = connection, path, derived
        self.fault: str | None = None
        self._retry_seconds, self._retry_at = FIRST_RETRY_SECONDS, 0.0
        self._is_checked = False
        """Damage that is found within a second is found before anybody reads it."""
        self.position: int | None = None
        """The last record that the tables have; ``None`` if there are no tables of this version."""
        with suppress(sqlite3.DatabaseError):  # damaged tables must not keep a log from being opened
            found = row_of(connection)
            self.position = found[1] if found is not None and found[0] == derived.version else None
        derived.reset()

    def is_level(self, head: int) -> bool:
        """True if the tables take the records after ``head`` in the transaction that moves these."""
        return self.position == head and self.fault is None

    def lacking(self, head: int) -> int:
        """How many records up to ``head`` the tables lack; pruned ones count, too."""
        return head - (NOTHING if self.position is None else self.position)

    def due_in(self, head: int) -> float | None:
        """In how many seconds to call ``catch_up``; ``None`` if there is nothing to do."""
        is_done = self._is_checked and self.is_level(head)
        return None if is_done else max(self._retry_at - time.monotonic(), 0.0)

    def apply(self, records: Sequence[Record], last: int) -> None:
        """Apply the records up to position ``last``, in the caller's transaction; then call ``done`` or ``undone``.

        Raises ``NotDerived``; the transaction must be rolled back.
        """
        try:
            self._apply(records, last)
        except Exception as error:
            raise NotDerived from error

    def _apply(self, records: Sequence[Record], last: int) -> None:
        self._derived.apply(self._connection, records, self._record)
        self._connection.execute("UPDATE derived SET position = ?", [last])

    def _record(self, position: int) -> Record:
        row = self._connection.execute(f"{SELECT} WHERE position = ?", [position]).fetchone()
        if row is None:
            raise KeyError(position)
        return record_of(row, str(self._path))

    def done(self, last: int | None) -> None:
        self.position = last
        self.fault, self._retry_seconds, self._retry_at = None, FIRST_RETRY_SECONDS, 0.0

    def undone(self, fault: Exception | None = None) -> None:
        """A transaction was rolled back; ``fault`` if the tables are to blame, which then rest."""
        self._derived.reset()
        if fault is not None:
            if isinstance(fault, sqlite3.Error):
                fault = translate(fault, self._path, "deriving tables in")
            self.fault = str(fault) if isinstance(fault, StreamError | OSError) else repr(fault)
            self._retry_at = time.monotonic() + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)

    def dropped(self) -> None:
        """A removal has changed records, and deleted the row of ``derived``."""
        self._derived.reset()
        self.done(None)

    def catch_up(self, head: int, begin: Callable[[], None]) -> None:
        """Do the next step towards tables that are right up to ``head``, after ``begin``: drop an old table, create the
        new ones, or apply records. Never raises."""
        try:
            begin()
            if not self._is_checked:
                self._is_checked = True
                if derived_damage(self._path, self._connection, quick=True) and self._left_behind():
                    return
            if self.position is None and write_anew(self._connection):
                return
            self.done(self._in_transaction(lambda: self._step(head)))
        except Exception as error:  # noqa: BLE001 - the caller's code may raise anything
            self.undone(error)
            if is_damage(error):
                with suppress(sqlite3.Error, StreamError, OSError):
                    self._left_behind()

    def _left_behind(self) -> bool:
        """Leave the tables behind if they are damaged. Not if the log is, too: it could not be written anew."""
        log, derived = content_damage(self._path, self._connection, quick=False)
        if log or not derived:
            return False
        self._in_transaction(lambda: leave_behind(self._connection))
        self.dropped()
        return True

    def _in_transaction(self, work: Callable[[], Result]) -> Result:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            raise
        return result

    def _step(self, head: int) -> int | None:
        if next(pending(self._connection), None) is not None:
            # The tables would take up again what is to be removed.
            raise StoreUnavailable("they are made again when the prune or forget that is under way has ended")
        if self.position is None:
            if drop_one(self._connection):
                return None
            self._derived.reset()
            self._derived.create(self._connection)
            self._connection.execute("INSERT INTO derived VALUES (1, ?, ?)", [self._derived.version, NOTHING])
            return NOTHING
        records: list[Record] = []
        size, last = 0, head
        query = f"{SELECT} WHERE position > ? ORDER BY position LIMIT ?"
        for row in self._connection.execute(query, [self.position, MOST]):
            records.append(record_of(row, str(self._path)))
            size += len(row[-1])
            if len(records) == MOST or size > MOST_BYTES:
                last = records[-1].position
                break
        self._apply(records, last)
        return last
