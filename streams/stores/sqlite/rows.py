"""Converts records to rows of the database and back, and filters to SQL. Opens no connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final
from zlib import crc32

import orjson

from streams.errors import CorruptLog
from streams.event import StreamEvent
from streams.query import Filter, json_needle
from streams.store import Record
from streams.stores.key_digest import key_digest
from streams.stores.stored import Stored

Row = tuple[Any, ...]

_VALUES: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT: Final = f"INSERT INTO records VALUES {_VALUES}"  # noqa: S608 - a constant

ROWS_AT_ONCE: Final = 64
"""How many rows one statement inserts. Python gives its lock away for each statement, and must get it back from a busy
event loop."""

_INSERT_MANY: Final = f"INSERT INTO records VALUES {', '.join([_VALUES] * ROWS_AT_ONCE)}"  # noqa: S608 - constants

COLUMNS: Final = "records.position, records.offset, records.hash, records.crc, records.event"
SELECT: Final = f"SELECT {COLUMNS} FROM records"  # noqa: S608 - a constant
SELECT_EACH: Final = f"{SELECT} WHERE position IN (SELECT value FROM json_each(?))"  # noqa: S608 - a constant

_LOOKED_UP: Final = 500
"""How many keys one query looks up."""

MAX_TRIGRAMS: Final = 24
"""Maximum number of a text's trigrams to ask the index for; whole texts are compared afterwards anyway."""


def row_of(record: Stored, stream: int) -> Row:
    """The row of a record, in the table's column order; ``stream`` is the number of its stream."""
    position, offset, hash_, index, count, event, keys = record
    return (
        position,
        stream,
        offset,
        keys.ts,
        keys.type,
        keys.actor,
        keys.correlation_id,
        keys.causation_id,
        keys.id,
        key_digest(keys.idempotency_key),
        hash_,
        crc32(event),
        index,
        count,
        event,
    )


def insert(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Insert rows, within a transaction."""
    whole = len(rows) - len(rows) % ROWS_AT_ONCE
    for begin in range(0, whole, ROWS_AT_ONCE):
        connection.execute(_INSERT_MANY, [*chain.from_iterable(rows[begin : begin + ROWS_AT_ONCE])])
    connection.executemany(INSERT, rows[whole:])


def record_of(row: Sequence[Any], file: str) -> Record:
    """The record in a row of ``COLUMNS``. Verifies the checksum.

    Raises:
        CorruptLog: the row is damaged; the error's ``line`` is the row's number.
    """
    position, offset, hash_, crc, event = row
    try:
        if crc32(event) != crc:
            raise ValueError("wrong checksum")
        return Record(StreamEvent.trusted(orjson.loads(event), event), offset, position, hash_.hex())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if str(error) == "wrong checksum" else f"not a record: {type(error).__name__}"
        raise CorruptLog(file, position + 1, position, reason) from None


def conditions(wanted: Filter) -> tuple[str, list[Any]]:
    """A ``WHERE`` clause and its parameters for all conditions of ``wanted`` but its text, trace and ``times``; ``""``
    if there are none. Types must be whole, without ``.*``.
    """
    parts: list[str] = []
    values: list[Any] = []
    if wanted.types:
        parts.append(f"records.type IN ({', '.join('?' * len(wanted.types))})")
        values += wanted.types
    if wanted.streams:
        marks = ", ".join("?" * len(wanted.streams))
        parts.append(f"records.stream IN (SELECT id FROM streams WHERE name IN ({marks}))")  # noqa: S608 - marks only
        values += wanted.streams
    if wanted.actors:
        parts.append(f"records.actor IN ({', '.join('?' * len(wanted.actors))})")
        values += wanted.actors
    # No index of correlation ids: whoever asks for one names its stream.
    for column, value in (("correlation_id", wanted.correlation_id), ("causation_id", wanted.causation_id)):
        if value is not None:
            parts.append(f"records.{column} = ?")
            values.append(value)
    if wanted.times:
        return " AND ".join(parts), values  # the reader compares the times
    # The plus keeps SQLite from using the index of times, which is not in the order of positions.
    if wanted.since_ms is not None:
        parts.append("+records.ts >= ?")
        values.append(wanted.since_ms)
    if wanted.until_ms is not None:
        parts.append("+records.ts < ?")
        values.append(wanted.until_ms)
    return " AND ".join(parts), values


def positions_of(connection: sqlite3.Connection, digests: Sequence[bytes], *, scan: bool = False) -> dict[bytes, int]:
    """Where the records with these keys are. Keys that are not stored are left out.

    Nearly always no key is stored, and one query for many is cheaper than one query for each. ``scan``: reads the whole
    table, for a damaged index.
    """
    table = "records NOT INDEXED" if scan else "records"
    found: dict[bytes, int] = {}
    for begin in range(0, len(digests), _LOOKED_UP):
        asked = digests[begin : begin + _LOOKED_UP]
        marks = ", ".join("?" * len(asked))
        query = f"SELECT key, position FROM {table} WHERE key IN ({marks})"  # noqa: S608 - marks only
        found.update(connection.execute(query, asked))
    return found


def trigrams(text: str) -> str | None:
    """The full-text query that finds every payload containing ``text``; ``None`` if the index cannot help.

    The index holds the payload as JSON text, in which some characters of ``text`` are escaped.
    """
    folded = json_needle(text)
    if folded is None:
        return None
    found = list(dict.fromkeys(folded[n : n + 3] for n in range(len(folded) - 2)))
    if not found:
        return None
    step = max(1, len(found) // MAX_TRIGRAMS)
    return " AND ".join('"' + gram.replace('"', '""') + '"' for gram in found[::step][:MAX_TRIGRAMS])


def bindable(text: str) -> bool:
    """True if SQLite can search for ``text``. No record contains a lone surrogate, so such a search finds nothing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rows_to_damage(
    connection: sqlite3.Connection, query: str, values: list[Any]
) -> tuple[list[Any], sqlite3.Error | None]:
    """The rows of a query that ends with a limit, the last of ``values``, up to damage; and the damage."""
    rows: list[Any] = []
    try:
        for row in connection.execute(query, values):
            rows.append(row)  # noqa: PERF402 - those before the damage count
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        with suppress(sqlite3.DatabaseError):  # Python drops the row from which SQLite cannot step on
            rows = connection.execute(query, [*values[:-1], len(rows) + 1]).fetchall()
        return rows, error
    return rows, None
