"""Rows of the sqlite backend: records to rows and back, filters to SQL. No connection is opened here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import orjson

from streams.errors import CorruptLog
from streams.event import StreamEvent
from streams.query import Filter, json_needle
from streams.store import Record
from streams.stores.keys import key_digest
from streams.stores.plan import Placed
from streams.stores.stored import Stored

Row = tuple[Any, ...]

INSERT: Final = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

COLUMNS: Final = "records.position, records.offset, records.hash, records.crc, records.event"
SELECT: Final = f"SELECT {COLUMNS} FROM records"  # noqa: S608 - a constant

MAX_TRIGRAMS: Final = 24
"""Most trigrams of a text that the index is asked for; what it finds is compared as a whole anyway."""


POSITION: Final = 0
KEY: Final = 9
"""Where in a row they are."""


def row_of(placed: Placed, stream: int, digest: bytes, index: int, count: int) -> Row:
    """The row of a new record, in the order of the table's columns; ``digest`` is its key's."""
    (event, canonical, *_), offset, position, hash_ = placed
    return (
        position,
        stream,
        offset,
        event.ts,
        event.type,
        event.actor,
        event.correlation_id,
        event.causation_id,
        event.id,
        digest,
        hash_,
        crc32(canonical),
        index,
        count,
        canonical,
    )


def stored_row(record: Stored, event: StreamEvent, stream: int) -> Row:
    """The row of a record of ``event``, as ``row_of`` gives it of a new one."""
    return (
        record.position,
        stream,
        record.offset,
        event.ts,
        event.type,
        event.actor,
        event.correlation_id,
        event.causation_id,
        event.id,
        key_digest(event.idempotency_key),
        record.hash,
        crc32(record.event),
        record.batch_index,
        record.batch_count,
        record.event,
    )


def record_of(row: Sequence[Any], file: str) -> Record:
    """The record of ``COLUMNS``, checksum verified.

    Raises:
        CorruptLog: the row is damaged; its line is the row's number.
    """
    position, offset, hash_, crc, event = row
    try:
        if crc32(event) != crc:
            raise ValueError("wrong checksum")
        return Record(StreamEvent.trusted(orjson.loads(event)), offset, position, hash_.hex())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if str(error) == "wrong checksum" else f"not a record: {type(error).__name__}"
        raise CorruptLog(file, position + 1, position, reason) from None


def conditions(wanted: Filter) -> tuple[str, list[Any]]:
    """A ``WHERE`` text and its parameters for all of ``wanted`` but its text; ``""`` for no condition."""
    parts: list[str] = []
    values: list[Any] = []
    if wanted.types:
        either = []
        for name in wanted.types:
            if name.endswith(".*"):
                # Types are ASCII, so all that begin with "agent." are before "agent/".
                either.append("(records.type >= ? AND records.type < ?)")
                values += [name[:-1], name[:-2] + "/"]
            else:
                either.append("records.type = ?")
                values.append(name)
        parts.append(f"({' OR '.join(either)})")
    if wanted.streams:
        marks = ", ".join("?" * len(wanted.streams))
        parts.append(f"records.stream IN (SELECT id FROM streams WHERE name IN ({marks}))")  # noqa: S608 - marks only
        values += wanted.streams
    if wanted.actors:
        parts.append(f"records.actor IN ({', '.join('?' * len(wanted.actors))})")
        values += wanted.actors
    for column, value in (("correlation_id", wanted.correlation_id), ("causation_id", wanted.causation_id)):
        if value is not None:
            parts.append(f"records.{column} = ?")
            values.append(value)
    # The index of times is not in order of position: with the plus it is left alone, see ``SqliteReader``.
    if wanted.since_ms is not None:
        parts.append("+records.ts >= ?")
        values.append(wanted.since_ms)
    if wanted.until_ms is not None:
        parts.append("+records.ts < ?")
        values.append(wanted.until_ms)
    return " AND ".join(parts), values


def trigrams(text: str) -> str | None:
    """What to ask the full-text index for, so that nothing that holds ``text`` is missed; ``None``: it cannot help.

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
    """Whether SQLite can be asked for ``text``; a lone surrogate stands in no record, so it finds nothing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
