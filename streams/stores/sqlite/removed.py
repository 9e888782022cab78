"""The records that a log removed on purpose: their tables, and changing them in chunks.

``removed`` holds an entry for each pruned record, ``removed_ranges`` their positions;
``bases``, ``marks`` and ``singles`` are as in ``Removal``. ``pending`` holds what an operation
has yet to do. An operation first writes its rows there, and the transaction that does the last
part of a row's work deletes the row. ``removals.version`` grows with each of these transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from streams.hashing import GENESIS, digest_form_of, is_digest, payload_digest
from streams.retention import Base, Entry, Mark, Ranges, Removal, body_digest
from streams.stores.key_digest import key_digest

CHUNK: Final = 256
"""Maximum number of records removed or forgotten in one transaction, so that appends never wait long."""

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Maximum number of bytes of events that are removed or forgotten in one transaction. A transaction always takes at
least one record.
"""

HEAD: Final = "SELECT position, hash FROM head"
"""The log's last position and the hash of its record, which may have been pruned."""

SINGLES: Final = "single"
"""The value in ``pending`` that stands for the work of forgetting the records in ``singles``."""

NO_DERIVED: Final = "DELETE FROM derived WHERE version >= 0"
"""What says that there are no derived tables (see ``derived.py``)."""

_INSERT_ENTRY: Final = "INSERT INTO removed VALUES (?, ?, ?, ?, ?)"


class DamagedRow(sqlite3.DatabaseError):
    """A row differs from what was written. SQLite does not notice this, so this error supplements SQLite's own."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT

    def __init__(self, table: str, fault: str) -> None:
        super().__init__(f"table {table}: {fault}")


def _as_written(table: str, row: tuple[Any, ...], *types: type) -> tuple[Any, ...]:
    """Return ``row`` if its values have the table's types; a damaged page may return any value in any column."""
    for value, wanted in zip(row, types, strict=True):
        if type(value) is not wanted:
            raise DamagedRow(table, f"a row has a value of type {type(value).__name__}, not {wanted.__name__}")
    return row


def last_of(connection: sqlite3.Connection) -> tuple[int, bytes]:
    """The log's last position and the hash of its record."""
    row = connection.execute(HEAD).fetchone()
    if row is None:
        raise DamagedRow("head", "its row is missing")
    position, hash_ = _as_written("head", row, int, bytes)
    return position, hash_


def head_of(connection: sqlite3.Connection) -> int:
    return last_of(connection)[0]


def tail_of(connection: sqlite3.Connection, stream_id: str) -> tuple[int, bytes]:
    """(next offset, last hash) of a stream; (0, GENESIS) for a new one."""
    row = connection.execute("SELECT next_offset, hash FROM streams WHERE name = ?", [stream_id]).fetchone()
    if row is None:
        return (0, GENESIS)
    offset, hash_ = _as_written("streams", row, int, bytes)
    return offset, hash_


def tail_in_spite_of_damage(connection: sqlite3.Connection, stream_id: str) -> tuple[int, bytes]:
    """``tail_of`` a stream if the table of streams or the index of their names is damaged: what the other one says.

    Raises:
        sqlite3.DatabaseError: both are damaged, so neither can be trusted.
    """
    try:
        row = connection.execute(
            "SELECT next_offset, hash FROM streams NOT INDEXED WHERE name = ?", [stream_id]
        ).fetchone()
        if row is None:
            # Streams are numbered from 1 and never deleted, so this shows that the table lacks none.
            count, last, used = connection.execute(
                "SELECT (SELECT count(*) FROM streams NOT INDEXED), (SELECT max(id) FROM streams NOT INDEXED),"
                " (SELECT max(stream) FROM records)"
            ).fetchone()
            if not count == (last or 0) >= (used or 0):
                raise DamagedRow("streams", "rows are missing")
            return (0, GENESIS)
        offset, hash_ = _as_written("streams", row, int, bytes)
        return offset, hash_
    except sqlite3.DatabaseError:
        row = connection.execute(
            "SELECT id FROM streams INDEXED BY sqlite_autoindex_streams_1 WHERE name = ?", [stream_id]
        ).fetchone()
    if row is None:
        return (0, GENESIS)
    last = connection.execute(
        "SELECT offset + 1, hash FROM records WHERE stream = ? ORDER BY offset DESC LIMIT 1", [row[0]]
    ).fetchone()
    if last is None and (last := base_of(connection, stream_id)) is None:
        raise DamagedRow("records", f"the stream {stream_id} has none")
    offset, hash_ = _as_written("records", last, int, bytes)
    return offset, hash_


def tails_of(connection: sqlite3.Connection) -> Iterator[tuple[str, int, bytes]]:
    """``tail_of``, of every stream."""
    for row in connection.execute("SELECT name, next_offset, hash FROM streams"):
        name, offset, hash_ = _as_written("streams", row, str, int, bytes)
        yield name, offset, hash_


def version_of(connection: sqlite3.Connection) -> int:
    """A number that changes with every removal."""
    row = connection.execute("SELECT version FROM removals").fetchone()
    if row is None:
        raise DamagedRow("removals", "its row is missing")
    version: int = _as_written("removals", row, int)[0]
    return version


def load(connection: sqlite3.Connection) -> Removal:
    """Everything that was removed, without the entries. Call this within a transaction, so that all queries see the
    same state of the file.
    """
    found = connection.execute('SELECT first, "end" FROM removed_ranges')
    ranges = Ranges(_as_written("removed_ranges", row, int, int) for row in found)
    found = connection.execute("SELECT stream, offset, hash, at_ms FROM bases")
    bases = {row[0]: Base(*row[1:]) for row in found if _as_written("bases", row, str, int, bytes, int)}
    found = connection.execute("SELECT stream, offset, at_ms FROM marks")
    marks = {row[0]: Mark(*row[1:]) for row in found if _as_written("marks", row, str, int, int)}
    found = connection.execute("SELECT position, stream, offset, at_ms FROM singles ORDER BY position")
    singles = [row for row in found if _as_written("singles", row, int, str, int, int)]
    pending = connection.execute("SELECT 1 FROM pending LIMIT 1").fetchone() is not None
    last = {stream: Mark(offset + 1, at_ms) for _, stream, offset, at_ms in singles}
    return Removal(ranges, bases, marks, Ranges((row[0], row[0] + 1) for row in singles), last, pending)


def find(connection: sqlite3.Connection, key: bytes) -> Entry | None:
    row = connection.execute("SELECT key, body, position, offset, hash FROM removed WHERE key = ?", [key]).fetchone()
    return None if row is None else _entry(row)


def base_of(connection: sqlite3.Connection, stream_id: str) -> tuple[int, bytes] | None:
    """(first kept offset, hash of the record before that offset) of a pruned stream."""
    row = connection.execute("SELECT offset, hash FROM bases WHERE stream = ?", [stream_id]).fetchone()
    if row is None:
        return None
    offset, hash_ = _as_written("bases", row, int, bytes)
    return offset, hash_


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(*_as_written("removed", row, bytes, bytes, int, int, bytes))


# --- chunks, each called within a transaction of its own ---


def begin(connection: sqlite3.Connection, what: str, offsets: Mapping[str, int], at_ms: int) -> None:
    """Record what is to be done, and mark the streams to forget as forgotten. Derived tables are right no more."""
    connection.execute(NO_DERIVED)
    rows = [(what, name, offset, at_ms) for name, offset in offsets.items()]
    connection.executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?)", rows)
    if what == "forget":
        connection.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", [row[1:] for row in rows])
    connection.execute("UPDATE removals SET version = version + 1")


def begin_singles(connection: sqlite3.Connection, positions: Iterable[int], at_ms: int) -> None:
    """Record which single records are to be forgotten; skip positions without a record. Derived tables are right no
    more."""
    connection.execute(NO_DERIVED)
    connection.executemany(
        "INSERT OR IGNORE INTO singles SELECT position, (SELECT name FROM streams WHERE id = stream), offset, ?"
        " FROM records WHERE position = ?",
        ((at_ms, position) for position in positions),
    )
    connection.execute("INSERT OR REPLACE INTO pending VALUES (?, '', 0, ?)", [SINGLES, at_ms])
    connection.execute("UPDATE removals SET version = version + 1")


def singles_among(connection: sqlite3.Connection, positions: Iterable[int]) -> dict[int, str]:
    """The positions of the records that still have a payload, with their streams.

    Raises:
        DamagedRow: one of them is damaged.
    """
    found: dict[int, str] = {}
    for position in positions:
        for row in _rows(connection, _AT_POSITION, [position]):
            fields = _fields_of(row)
            if not is_digest(fields["payload"]):
                found[position] = fields["stream_id"]
    return found


def forget_singles(connection: sqlite3.Connection, after: int) -> tuple[int, int, int | None]:
    """Turn the next single records after a position into digests. Return (count, bytes saved, next).

    ``next`` is ``None`` if there are no more such records.
    """
    rows = _rows(connection, _NEXT_SINGLES, [after, CHUNK])
    count, saved = _to_digests(connection, rows)
    last = connection.execute(
        "SELECT max(position) FROM (SELECT position FROM singles WHERE position > ? ORDER BY position LIMIT ?)",
        [after, CHUNK],
    ).fetchone()[0]
    return count, saved, last


def pending(connection: sqlite3.Connection) -> Iterator[tuple[str, str, int, int]]:
    """Yield what remains to do: (what, stream, offset, time)."""
    query = "SELECT what, stream, offset, at_ms FROM pending ORDER BY what, stream"
    for row in connection.execute(query).fetchall():
        what, stream, offset, at_ms = _as_written("pending", row, str, str, int, int)
        yield what, stream, offset, at_ms


def prune_chunk(connection: sqlite3.Connection, stream_id: str, offset: int, at_ms: int) -> tuple[int, int, int]:
    """Remove the next records below ``offset``. Return (count, bytes, next offset)."""
    rows = _chunk(connection, stream_id, 0, offset)
    if rows:
        entries = [_entry_of(row) for row in rows]
        connection.executemany(_INSERT_ENTRY, entries)
        connection.executemany("DELETE FROM records WHERE position = ?", [(row[0],) for row in rows])
        last = entries[-1]
        connection.execute(
            "INSERT OR REPLACE INTO bases VALUES (?, ?, ?, ?)", [stream_id, last.offset + 1, last.hash, at_ms]
        )
        for entry in entries:
            _include(connection, entry.position)
        connection.execute("UPDATE removals SET version = version + 1")
    return len(rows), sum(len(row.event) for row in rows), rows[-1].offset + 1 if rows else offset


def forget_chunk(connection: sqlite3.Connection, stream_id: str, first: int, offset: int) -> tuple[int, int, int]:
    """Turn the next records from ``first`` to below ``offset`` into digests. Return (count, bytes saved, next)."""
    rows = _chunk(connection, stream_id, first, offset)
    count, saved = _to_digests(connection, rows)
    return count, saved, rows[-1].offset + 1 if rows else offset


def _to_digests(connection: sqlite3.Connection, rows: Iterable[_Row]) -> tuple[int, int]:
    """Replace these records' payloads by digests. Return how many records had a payload, and the bytes saved."""
    changed = []
    saved = 0
    for row in rows:
        fields = _fields_of(row)
        if not is_digest(fields["payload"]):
            form = digest_form_of(row.event)[1]
            saved += len(row.event) - len(form)
            changed.append((form, crc32(form), row.position))
    connection.executemany("UPDATE records SET event = ?, crc = ? WHERE position = ?", changed)
    connection.execute("UPDATE removals SET version = version + 1")
    return len(changed), saved


def check_chunk(connection: sqlite3.Connection, stream_id: str, first: int, end: int) -> int:
    """Read the next records from ``first`` to below ``end`` in the same way as a removal. Return the next offset.

    Raises:
        DamagedRow: one of them is damaged. Only records that are known to be intact may be removed.
    """
    rows = _chunk(connection, stream_id, first, end)
    for row in rows:
        _fields_of(row)
    return rows[-1].offset + 1 if rows else end


def finish(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM pending")
    connection.execute("UPDATE removals SET version = version + 1")


class _Row(NamedTuple):
    position: int
    offset: int
    hash: bytes
    crc: int
    event: bytes


_AT_POSITION: Final = "SELECT position, offset, hash, crc, event FROM records WHERE position = ?"
_NEXT_SINGLES: Final = (
    "SELECT position, offset, hash, crc, event FROM records"
    " WHERE position IN (SELECT position FROM singles WHERE position > ? ORDER BY position LIMIT ?) ORDER BY position"
)


def _rows(connection: sqlite3.Connection, query: str, values: list[Any]) -> list[_Row]:
    found = connection.execute(query, values).fetchall()
    return [_Row(*_as_written("records", row, int, int, bytes, int, bytes)) for row in found]


def _chunk(connection: sqlite3.Connection, stream_id: str, first: int, end: int) -> list[_Row]:
    found = connection.execute(
        "SELECT position, offset, hash, crc, event FROM records WHERE stream = (SELECT id FROM streams WHERE name = ?)"
        " AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?",
        [stream_id, first, end, CHUNK],
    )
    rows: list[_Row] = []
    size = 0
    for values in found:
        row = _Row(*_as_written("records", values, int, int, bytes, int, bytes))
        if row.offset < (rows[-1].offset + 1 if rows else first):
            raise DamagedRow("records", f"record {row.position} is out of order")
        size += len(row.event)
        if rows and size > CHUNK_BYTES:
            break
        rows.append(row)
    return rows


def _fields_of(row: _Row) -> dict[str, Any]:
    if crc32(row.event) != row.crc:
        raise DamagedRow("records", f"record {row.position} has a wrong checksum")
    try:
        fields: dict[str, Any] = orjson.loads(row.event)
    except orjson.JSONDecodeError as error:
        raise DamagedRow("records", f"row {row.position} is not a record") from error
    return fields


def _entry_of(row: _Row) -> Entry:
    fields = _fields_of(row)
    body = body_digest((fields["type"], fields["stream_id"], fields["actor"], payload_digest(fields["payload"])))
    return Entry(key_digest(fields["idempotency_key"]), body, row.position, row.offset, row.hash)


def _include(connection: sqlite3.Connection, position: int) -> None:
    after = connection.execute("SELECT end FROM removed_ranges WHERE first = ?", [position + 1]).fetchone()
    end = position + 1 if after is None else after[0]
    if after is not None:
        connection.execute("DELETE FROM removed_ranges WHERE first = ?", [position + 1])
    before = connection.execute(
        "UPDATE removed_ranges SET end = ? WHERE first ="
        " (SELECT max(first) FROM removed_ranges WHERE first <= ?) AND end = ?",
        [end, position, position],
    )
    if not before.rowcount:
        connection.execute("INSERT INTO removed_ranges VALUES (?, ?)", [position, end])
