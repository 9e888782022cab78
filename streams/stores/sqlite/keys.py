"""Idempotency keys of a sqlite log, in a table that is updated in bulk, for many records at once.

A digest may fall anywhere in an index, so writing each digest together with its record would change one page of the
index for every record of a commit. Instead, the writer remembers the digests of its last records, up to ``FOLDED`` of
them, and then writes them all in the order of the table, so that several fall on one page. Opening the log reads the
digests that are not yet in the table from their records.

``keys`` holds exactly the keys of ``records`` up to ``keys_through.position``;
``verify`` compares them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

FOLDED = 16_384
"""How many digests to remember before writing them: about two megabytes, and about 50 ms of writing."""

_LOOKED_UP: Final = 500
"""How many keys one query looks up."""

COMPARED: Final = 10_000
"""Maximum number of records that one statement compares with the table, so that other work gets its turn."""

_THROUGH: Final = "(SELECT position FROM keys_through)"

_NOT_FOLDED: Final = f"SELECT key, position FROM records WHERE position > {_THROUGH}"  # noqa: S608 - a constant
_FOLDED_NOW: Final = (
    "UPDATE keys_through SET position = max(position, (SELECT coalesce(max(position), -1) FROM records))"
)

_COUNTS: Final = (
    "SELECT (SELECT count(*) FROM keys), (SELECT count(*) FROM records INDEXED BY records_by_stream"
    " WHERE position <= (SELECT position FROM keys_through))"
)
_FIND: Final = ("position = (SELECT position FROM keys WHERE key = ?1)", f"position > {_THROUGH} AND key = ?1")


def find_key(connection: sqlite3.Connection, select: str, digest: bytes) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = None
    for where in _FIND:
        row = row or connection.execute(f"{select} WHERE {where}", [digest]).fetchone()
    return row


def find_known(
    connection: sqlite3.Connection, select: str, digest: bytes, recent: int | None
) -> tuple[Any, ...] | None:
    """Like ``find_key``, for the writer: ``recent`` is ``Keys.recent``, so no records have to be searched."""
    where = _FIND[0] if recent is None else "position = ?2 AND key = ?1"
    given = [digest] if recent is None else [digest, recent]
    row: tuple[Any, ...] | None = connection.execute(f"{select} WHERE {where}", given).fetchone()
    return row


def faults(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the faults of the keys table. Reads all keys; each SQL statement sees one state of the file."""
    last: int = connection.execute(f"SELECT coalesce({_THROUGH}, -1)").fetchone()[0]
    for first in range(0, last + 1, COMPARED):
        lacking = connection.execute(
            "SELECT position FROM records WHERE position >= ? AND position < ? AND position <= ? AND NOT EXISTS"
            " (SELECT 1 FROM keys WHERE keys.key = records.key AND keys.position = records.position) LIMIT 1",
            [first, first + COMPARED, last],
        ).fetchone()
        if lacking is not None:
            yield f"the keys table lacks the key of record {lacking[0]}"
            return
    there, wanted = connection.execute(_COUNTS).fetchone()
    if there != wanted:
        yield f"the keys table has {there} keys for {wanted} records"


class Keys:
    """The writer's view of the keys: which digests are stored, and where. Use it from one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._remembered: dict[bytes, int] = dict(connection.execute(_NOT_FOLDED).fetchall())
        """Maps the digests that are not in the table yet to the positions of their records. Some of these records may
        have been pruned since; callers read the record anyway.
        """

    def positions(self, digests: Sequence[bytes]) -> dict[bytes, int]:
        """Where the records of these digests are. Digests that are not stored are left out.

        Nearly always no digest is stored, and one query for many is cheaper than one query for each.
        """
        found = {digest: self._remembered[digest] for digest in digests if digest in self._remembered}
        for begin in range(0, len(digests), _LOOKED_UP):
            asked = digests[begin : begin + _LOOKED_UP]
            marks = ", ".join("?" * len(asked))
            found.update(
                self._connection.execute(f"SELECT key, position FROM keys WHERE key IN ({marks})", asked)  # noqa: S608 - marks only
            )
        return found

    def remember(self, written: Iterable[tuple[bytes, int]]) -> None:
        self._remembered.update(written)

    def recent(self, digest: bytes) -> int | None:
        """The position of a record whose digest is not in the table yet, or ``None``. May be called from any thread."""
        return self._remembered.get(digest)

    @property
    def are_many(self) -> bool:
        return len(self._remembered) >= FOLDED

    def fold(self) -> None:
        """Write the remembered digests in a separate transaction, which changes nothing if it is cut off."""
        # Take the digests from the records, because the digests in memory may include those of pruned records.
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(f"INSERT INTO keys {_NOT_FOLDED} ORDER BY key")
            self._connection.execute(_FOLDED_NOW)
        self._remembered.clear()


def forget_keys(connection: sqlite3.Connection, digests: Iterable[bytes]) -> None:
    """Delete the digests of pruned records, within the transaction that deletes the records."""
    connection.executemany("DELETE FROM keys WHERE key = ?", ((digest,) for digest in digests))


def rebuild(connection: sqlite3.Connection) -> None:
    """Rewrite the table from the records, within a transaction."""
    connection.execute("DELETE FROM keys")
    connection.execute("INSERT INTO keys SELECT key, position FROM records ORDER BY key")
    connection.execute(_FOLDED_NOW)
