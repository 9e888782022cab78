"""The fields by which a sqlite log finds records, in a table that is written in bulk and in order.

An index of ``records`` would change one more page for every commit, of four kilobytes for an event of one. So the
writer copies the fields of its last ``FOLDED`` records at a time into ``lookups``, whose indexes then grow at their
ends. A query asks ``lookups`` about the records that it has, and reads the few newer ones in ``records``.

Each index has its query:

===========================  ===========================================================================
``lookups_by_event_id``      ``find_event``, and ``event_ids`` for a part of an id
``lookups_by_type``          ``query`` with types, and the names of the types that a prefix stands for
``lookups_by_causation``     ``query`` with a cause: what came of an event
``lookups_by_ts``            ``query`` with ``since``: where to begin reading
``records_by_stream``        a stream's records and its last one; written with each record, because the
                             next append needs it
===========================  ===========================================================================
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from streams.store import NOTHING
from streams.stores.sqlite.keys import COMPARED

FOLDED: Final = 1024
"""How many records to collect before they are copied: a query reads them in a millisecond."""

MOVED: Final = 16
"""How many batches to copy before the WAL is moved: it then has about 10 MB."""

SCHEMA: Final = """
    DROP INDEX records_by_event_id;
    DROP INDEX records_by_type;
    DROP INDEX records_by_ts;
    DROP INDEX records_by_correlation;
    DROP INDEX records_by_causation;
    CREATE TABLE lookups (
        position INTEGER PRIMARY KEY, ts INTEGER NOT NULL, type TEXT NOT NULL, causation_id TEXT, event_id TEXT NOT NULL
    ) STRICT;
    CREATE INDEX lookups_by_event_id ON lookups (event_id);
    CREATE INDEX lookups_by_type ON lookups (type);
    CREATE INDEX lookups_by_ts ON lookups (ts);
    CREATE INDEX lookups_by_causation ON lookups (causation_id) WHERE causation_id IS NOT NULL;
    """

_FIELDS: Final = "position, ts, type, causation_id, event_id"
_THROUGH: Final = "SELECT coalesce(max(position), -1) FROM lookups"
_FOLD: Final = (
    f"INSERT INTO lookups SELECT {_FIELDS} FROM records"  # noqa: S608 - constants
    f" WHERE position > ({_THROUGH}) ORDER BY position LIMIT {FOLDED}"
)
_TYPES: Final = (
    "WITH RECURSIVE types (name) AS (SELECT min(type) FROM lookups UNION ALL"
    " SELECT (SELECT min(type) FROM lookups WHERE type > name) FROM types WHERE name IS NOT NULL)"
    " SELECT name FROM types WHERE name IS NOT NULL UNION SELECT type FROM records WHERE position > ?"
)
"""Selects the existing types, with one index step for each type."""

_RANGE: Final = "WHERE position > ?1 AND position <= ?2"
_DIFFERENCE: Final = (
    f"SELECT min(position) FROM (SELECT {_FIELDS} FROM {{}} {_RANGE} EXCEPT SELECT {_FIELDS} FROM {{}} {_RANGE})"  # noqa: S608 - constants
)


def through(connection: sqlite3.Connection) -> int:
    """The last position that ``lookups`` covers; ``NOTHING`` before the log has the table."""
    if connection.execute("PRAGMA user_version").fetchone()[0] < 2:
        return NOTHING
    found: int = connection.execute(_THROUGH).fetchone()[0]
    return found


def fold(connection: sqlite3.Connection) -> None:
    """Copy the fields of all newer records, in transactions of ``FOLDED`` records each."""
    while connection.execute(_FOLD).rowcount:
        pass


def fill(connection: sqlite3.Connection) -> None:
    """``fold`` at opening, outside a transaction. A log that lacks many moves its WAL into the database file meanwhile:
    the WAL would become longer than the table, and never shorter.
    """
    batches = 0
    while connection.execute(_FOLD).rowcount:
        batches += 1
        if batches % MOVED == 0:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def find_event(connection: sqlite3.Connection, select: str, event_id: str) -> tuple[Any, ...] | None:
    last = through(connection)
    row: tuple[Any, ...] | None = None
    if last > NOTHING:
        where = "position = (SELECT position FROM lookups WHERE event_id = ?)"
        row = connection.execute(f"{select} WHERE {where}", [event_id]).fetchone()
    return row or connection.execute(f"{select} WHERE position > ? AND event_id = ?", [last, event_id]).fetchone()


def types(connection: sqlite3.Connection) -> list[str]:
    """The names of all types."""
    last = through(connection)
    if last == NOTHING:
        return [row[0] for row in connection.execute("SELECT DISTINCT type FROM records")]
    return [row[0] for row in connection.execute(_TYPES, [last])]


def before(connection: sqlite3.Connection, since_ms: int) -> int:
    """A position with no record from ``since_ms`` on at or below it."""
    last = through(connection)
    if last == NOTHING:
        return NOTHING
    first = connection.execute("SELECT position FROM lookups WHERE ts >= ? ORDER BY ts LIMIT 1", [since_ms]).fetchone()
    if first is None:
        return last
    # The first record of that time may not be the first in the log. SQLite by itself goes through the log from its
    # beginning, also if only a few records are of that time.
    query = "SELECT min(position) FROM lookups WHERE ts >= ?"
    if last - first[0] < first[0]:
        query = "SELECT min(position) FROM lookups INDEXED BY lookups_by_ts WHERE ts >= ?"
    found = connection.execute(query, [since_ms]).fetchone()[0]
    return int(found) - 1


class Rows(NamedTuple):
    """The columns of the ``records`` that match ``where``, at most ``most``.

    In ``where``, which may be empty, ``{of}`` stands for the table of a field that ``lookups`` has.
    """

    columns: str
    where: str
    values: list[Any]
    most: int


def rows_between(
    connection: sqlite3.Connection, wanted: Rows, begin: int, end: int, *, back: bool
) -> tuple[list[tuple[Any, ...]], int, int]:
    """The first rows above position ``begin``, up to ``end``, and the range that was read, which may be shorter;
    ``back``: the last rows, the last one first."""
    source, of = "records", "records"
    if "{of}" in wanted.where:
        last = through(connection)
        if begin < last and not (back and end > last):
            # CROSS JOIN makes SQLite begin with ``lookups``.
            source, of = "lookups CROSS JOIN records ON records.position = lookups.position", "lookups"
            end = min(end, last)
        else:
            begin = max(begin, last)
    order = " DESC" if back else ""
    condition = f" AND {wanted.where.format(of=of)}" if wanted.where else ""
    query = (
        f"SELECT {wanted.columns} FROM {source} WHERE {of}.position > ? AND {of}.position <= ?{condition}"  # noqa: S608 - no values
        f" ORDER BY {of}.position{order} LIMIT ?"
    )
    return connection.execute(query, [begin, end, *wanted.values, wanted.most]).fetchall(), begin, end


def faults(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the faults of the table. Reads all of it; each SQL statement sees one state of the file."""
    last = through(connection)
    for first in range(NOTHING, last, COMPARED):
        given = [first, min(first + COMPARED, last)]
        for tables in (("records", "lookups"), ("lookups", "records")):
            found = connection.execute(_DIFFERENCE.format(*tables), given).fetchone()[0]
            if found is not None:
                yield f"the lookups table contradicts record {found}"
                return


def forget_lookups(connection: sqlite3.Connection, positions: Iterable[int]) -> None:
    """Delete the fields of pruned records, within the transaction that deletes the records."""
    connection.executemany("DELETE FROM lookups WHERE position = ?", ((position,) for position in positions))


def rebuild(connection: sqlite3.Connection) -> None:
    """Rewrite the table from the records, within a transaction."""
    connection.execute("DELETE FROM lookups")
    fold(connection)
