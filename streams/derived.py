"""Tables that a caller derives from the records of a log.

They are in the log's database, and are written in the transaction that moves the records there. So they are right up to
a known record after any crash, and whoever reads the database sees both as of one moment. If they are lost, they are
made again from the records.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Protocol

from streams.store import Record

Write = Callable[[sqlite3.Connection], None]
"""Changes the tables in which a caller keeps a state of its own (see ``Log.keep``), in the log's transaction."""


class Derived(Protocol):
    """The log calls these methods from one thread at a time, never from the event loop's. After an error in ``create``
    or ``apply``, the transaction is rolled back and ``reset`` is called before the next attempt."""

    @property
    def version(self) -> int:
        """Of the tables' columns and contents. Tables of another version are dropped and made again."""

    def create(self, db: sqlite3.Connection) -> None:
        """Create the tables and their indexes, empty, in the caller's transaction. No table of the log has one of their
        names."""

    def reset(self) -> None:
        """Forget everything in memory: the tables may not hold what was last applied."""

    def apply(self, db: sqlite3.Connection, records: Sequence[Record], record: Callable[[int], Record]) -> None:
        """Change the tables by the next records, in the order of positions, in the caller's transaction.

        Positions are missing where records were pruned; payloads that were forgotten are digests. ``record`` reads a
        record up to these by its position; ``KeyError`` if it was pruned.
        """
