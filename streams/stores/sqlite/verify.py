"""Verify a log's whole database, row by row, continuing after each fault as far as SQLite reads.

A row has everything twice: in its columns, which queries use, and in the
event's bytes, which the chain covers. So the bytes reveal a changed column, the checksum
reveals changed bytes, and the chain reveals a change of both. If SQLite cannot read a
page, the records end there, with a finding. After the records, ``file_verify.py`` checks the
file as a whole: whether it opens, and what SQLite's own checks find.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import orjson

from streams.errors import ForeignStore
from streams.findings import Finding, Kind, Summary, drained
from streams.hashing import is_canonical, is_digest
from streams.retention import NOTHING_REMOVED, Removal, payload_fault
from streams.stores.chains import Chains
from streams.stores.directory import is_being_written
from streams.stores.head import Head
from streams.stores.key_digest import key_digest
from streams.stores.missing import missing_at_end
from streams.stores.sqlite.file_verify import (
    DAMAGE,
    content_damage,
    damage_text,
    opening_damage,
)
from streams.stores.sqlite.files import (
    LOG_FILE,
    STEPS,
    VERIFY,
    connect_to_read,
    shown,
    translated,
)
from streams.stores.sqlite.removed import last_of, load, tails_of, version_of
from streams.stores.sqlite.rows import rows_to_damage
from streams.system.threads import in_thread

Answer = TypeVar("Answer")

_ROWS: Final = 512

_QUICK_RECORDS: Final = 2000
_QUERY: Final = (
    "SELECT records.position, (SELECT name FROM streams WHERE id = records.stream), offset, ts, type, actor,"
    " correlation_id, causation_id, event_id, key, hash, crc, batch_index, batch_count, event"
    " FROM records WHERE position"
)

_TYPES: Final = {"position": int, "offset": int, "hash": bytes, "crc": int, "batch_index": int, "event": bytes}


class _Row(NamedTuple):
    position: int
    stream: str | None
    offset: int
    ts: int
    type: str
    actor: str
    correlation_id: str | None
    causation_id: str | None
    event_id: str
    key: bytes
    hash: bytes
    crc: int
    batch_index: int
    batch_count: int
    event: bytes


@dataclass(slots=True)
class SqliteVerification:
    store: Path
    progress: Callable[[int], None] | None = None
    quick: bool = False
    named: Head | None = None
    """The record that the head file names, which may be here or in the journal."""
    summary: Summary = field(default_factory=Summary)
    _found: list[Finding] = field(default_factory=list)
    _told: set[Finding] = field(default_factory=set)
    _removal: Removal = NOTHING_REMOVED
    _chains: Chains = field(default_factory=lambda: Chains({}))
    _last: int = -1
    _lost: int = 0
    _batch: tuple[int, int] = (0, 0)

    _head: Head | None = None
    _hash_at_head: bytes | None = None
    """The hash of the record that the database names as its last one, once read."""

    @property
    def chains(self) -> Chains:
        """Where each stream ended, after ``run``."""
        return self._chains

    @property
    def lost(self) -> int:
        """How many records up to the last one could not be read, after ``run``."""
        return self._lost

    @property
    def head(self) -> Head | None:
        """The record that the database names as its last one, after ``run``; ``None`` if that cannot be read."""
        return self._head

    @property
    def _path(self) -> Path:
        return self.store / LOG_FILE

    def size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    async def run(self) -> AsyncIterator[Finding]:
        self.summary.segments = int(self._path.exists())
        try:
            connection = await asyncio.to_thread(connect_to_read, self._path, len(STEPS), damaged=True)
        except ForeignStore as error:
            if error.is_not_ours or "upgrade" in error.reason:
                raise
            self._find("corrupt", None, None, error.reason.replace(VERIFY, ""))
            connection = None
        for finding in drained(self._found):
            self._told.add(finding)
            yield finding
        if connection is None:
            return
        try:
            while True:
                version = await in_thread(self._version, connection, interrupt=connection.interrupt)
                if await in_thread(self._begin, connection, interrupt=connection.interrupt) == version:
                    async for finding in self._pass(connection):
                        # Start over if records were removed meanwhile.
                        if await in_thread(self._version, connection, interrupt=connection.interrupt) != version:
                            break
                        if finding not in self._told:
                            self._told.add(finding)
                            yield finding
                    else:
                        break
        finally:
            connection.close()
        self.summary.streams = self._chains.kept
        self.summary.head = self._removal.ranges.following(self._last + 1) - 1
        self._compare_with_head()
        for finding in drained(self._found):
            self._told.add(finding)
            yield finding

    def _compare_with_head(self) -> None:
        head, last = self._head, self.summary.head
        if head is None:
            return
        if last < head.position:
            self._find("missing", last + 1, None, missing_at_end(last + 1, head.position + 1))
        elif self._hash_at_head is not None and self._hash_at_head.hex() != head.hash:
            self._find("tampered", head.position, None, "it is not the record that the database names as its last one")

    def _asked(self, connection: sqlite3.Connection, ask: Callable[[sqlite3.Connection], Answer]) -> Answer:
        with translated(self._path, "reading"):
            return ask(connection)

    def _version(self, connection: sqlite3.Connection) -> int | None:
        try:
            return self._asked(connection, version_of)
        except DAMAGE:
            return None

    def _begin(self, connection: sqlite3.Connection) -> int | None:
        segments = self.summary.segments
        self.summary.reset()
        self.summary.segments = segments
        self._found.clear()
        self._last, self._lost, self._batch = -1, 0, (0, 0)
        try:
            # Read the head before the records, because a running writer adds more.
            self._head = Head(*self._asked(connection, _head_of))
            self._removal, count = self._asked(connection, _removal_of)
        except DAMAGE as error:
            self._removal, count = NOTHING_REMOVED, 0
            self._find("corrupt", None, None, f"its table of pruned records cannot be read: {damage_text(error)}")
        self._chains = Chains(self._removal.bases)
        self.summary.pruned = self._removal.ranges.count
        offsets = sum(base.offset for base in self._removal.bases.values())
        if not self._removal.ranges.count == offsets == count:
            self._find("corrupt", None, None, "its table of pruned records contradicts itself")
        if self._removal.pending and not is_being_written(self.store):
            reason = "pruned or forgotten content is still in the files; the next start finishes removing it"
            self._find("torn", None, None, reason)
        return self._version(connection)

    async def _pass(self, connection: sqlite3.Connection) -> AsyncIterator[Finding]:
        if self.quick:
            await in_thread(self._skip_to_the_end, connection, interrupt=connection.interrupt)
        done = False
        while not done:
            fetched, done = await in_thread(self._fetch, connection, interrupt=connection.interrupt)
            self.summary.bytes += fetched
            if self.progress is not None:
                self.progress(fetched)
            for finding in drained(self._found):
                yield finding
        if self._batch != (0, 0):
            self._find("missing", self._last + 1, None, "the last batch is incomplete")
        following, end = self._removal.ranges.following(self._last + 1), self._removal.ranges.end
        if following < end:
            self._find("missing", following, None, f"records {following} to {end - 1} at the end are missing")
        await in_thread(self._check_file, connection, interrupt=connection.interrupt)
        await in_thread(self._check_tails, connection, interrupt=connection.interrupt)
        for finding in drained(self._found):
            yield finding

    def _fetch(self, connection: sqlite3.Connection) -> tuple[int, bool]:
        """Check the next rows. Return their bytes, and whether the records end there, or what can be read of them."""
        rows, fault = self._readable(connection)
        for row in rows:
            self._judge(_Row(*row))
        if fault is not None:
            at = self._last + 1
            self._find("corrupt", at, None, f"SQLite cannot read any further: {fault}")
            self._lost += 1
        return sum(len(row[-1]) for row in rows if isinstance(row[-1], bytes)), fault is not None or not rows

    def _readable(self, connection: sqlite3.Connection) -> tuple[list[Any], str | None]:
        """The next rows up to damage, and the damage."""
        try:
            with translated(self._path, "reading"):
                rows, fault = rows_to_damage(connection, f"{_QUERY} > ? ORDER BY position LIMIT ?", [self._last, _ROWS])
        except DAMAGE as error:
            return [], damage_text(error)
        # A damaged page may give its rows in any order and repeat them without end.
        positions = [self._last, *(row[0] for row in rows)]
        for number, (one, following) in enumerate(pairwise(positions)):
            if one >= following:
                return rows[:number], "its rows are out of order"
        return rows, None if fault is None else shown(str(fault))

    def _skip_to_the_end(self, connection: sqlite3.Connection) -> None:
        try:
            with translated(self._path, "reading"):
                head = connection.execute("SELECT max(position) FROM records").fetchone()[0]
        except DAMAGE:
            return  # the scan will report the damage
        if isinstance(head, int) and head > _QUICK_RECORDS:
            self._last = head - _QUICK_RECORDS
            self._lost = self._last + 1

    def _check_file(self, connection: sqlite3.Connection) -> None:
        if not self._told and not self._found:
            self._find_in_file(opening_damage(self._path))
        log, derived = content_damage(self._path, connection, quick=self.quick)
        self._find_in_file(log)
        for fault in derived[:1]:
            self._find(
                "torn",
                None,
                None,
                f"tables that are made from the records are damaged; the next start makes them again: {fault}",
            )

    def _check_tails(self, connection: sqlite3.Connection) -> None:
        """A stream's row must not be behind its last record: the next record would take a place that is taken."""
        if self._lost:
            return  # where the streams end is not known
        try:
            rows = self._asked(connection, lambda each: list(tails_of(each)))
        except DAMAGE as error:
            self._find("corrupt", None, None, f"the table of streams cannot be read: {damage_text(error)}")
            return
        for name, offset, hash_ in rows:
            if self._chains.contradicts(name, offset, hash_):
                self._find("tampered", None, str(name), "the table of streams contradicts the stream's last record")

    def _judge(self, row: _Row) -> None:
        if not all(isinstance(getattr(row, name), kind) for name, kind in _TYPES.items()):
            position = row.position if isinstance(row.position, int) else self._last + 1
            self._find("corrupt", position, row.stream, "not a record: its fields have the wrong types")
            self._last, self._batch = position, (0, 0)
            self._lost += 1
            return
        ranges = self._removal.ranges
        expected = ranges.following(self._last + 1)
        begun = row.position - row.batch_index
        if ranges.holds(row.position):
            self._find("tampered", row.position, row.stream, "the log says that it was pruned, but it exists")
            self._last = row.position
            return
        if row.position != expected:
            count = ranges.kept(expected, row.position)
            records = f"record {expected} is" if count == 1 else f"records {expected} to {row.position - 1} are"
            self._find("missing", expected, None, f"{records} missing")
            self._lost += count
            self._batch = (0, 0)
        elif self._batch != (0, 0) and self._batch != (begun, row.batch_count):
            self._find("tampered", row.position, row.stream, "it does not belong to the batch at this position")
        self._last = row.position
        if self._head is not None and row.position == self._head.position:
            self._hash_at_head = row.hash
        if self.named is not None and row.position == self.named.position and row.hash.hex() != self.named.hash:
            self._find("tampered", row.position, row.stream, "its hash differs from the one in the head file")
        is_whole = ranges.following(row.position + 1) >= begun + row.batch_count
        self._batch = (0, 0) if is_whole else (begun, row.batch_count)
        event = self._event_of(row)
        if event is None:
            self._lost += 1
            return
        self._check_columns(row, event)
        self._check_chain(row, event)
        fault = payload_fault(self._removal, str(event.get("stream_id")), row.offset, row.position, event["payload"])
        if fault is not None:
            self._find("tampered", row.position, row.stream, fault)
        elif is_digest(event["payload"]):
            self.summary.forgotten += 1
        self.summary.records += 1

    def _event_of(self, row: _Row) -> dict[str, Any] | None:
        if crc32(row.event) != row.crc:
            self._find("corrupt", row.position, row.stream, "wrong checksum")
            return None
        try:
            event = orjson.loads(row.event)
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("payload"), dict):
            self._find("corrupt", row.position, row.stream, "not an event")
            return None
        if not is_canonical(row.event, event):
            self._find("tampered", row.position, row.stream, "it is not in canonical form")
        return event

    def _check_columns(self, row: _Row, event: dict[str, Any]) -> None:
        columns = {
            "stream_id": row.stream,
            "ts": row.ts,
            "type": row.type,
            "actor": row.actor,
            "correlation_id": row.correlation_id,
            "causation_id": row.causation_id,
            "id": row.event_id,
        }
        wrong = [name for name, value in columns.items() if event.get(name) != value]
        if row.key != key_digest(str(event.get("idempotency_key"))):
            wrong.append("idempotency_key")
        if wrong:
            reason = f"the row contradicts the event: {', '.join(wrong)}"
            self._find("tampered", row.position, row.stream, reason)

    def _check_chain(self, row: _Row, event: dict[str, Any]) -> None:
        stream = str(event.get("stream_id"))
        fault = self._chains.take(stream, row.offset, row.hash, row.event, self._lost)
        if fault is not None:
            self._find("tampered", row.position, stream, fault)

    def _find(self, kind: Kind, position: int | None, stream: str | None, reason: str) -> None:
        line = None if position is None else position + 1
        self._found.append(Finding(kind, str(self._path), line, position, stream, reason))

    def _find_in_file(self, faults: Iterable[str]) -> None:
        for fault in faults:
            self._find("corrupt", None, None, fault)


def _head_of(connection: sqlite3.Connection) -> tuple[int, str]:
    position, hash_ = last_of(connection)
    return position, hash_.hex()


def _removal_of(connection: sqlite3.Connection) -> tuple[Removal, int]:
    connection.execute("BEGIN")
    try:
        removal = load(connection)
        version_of(connection)  # this raises an error if the version is damaged
        count = connection.execute("SELECT count(*) FROM removed").fetchone()[0] if removal else 0
    finally:
        connection.execute("COMMIT")
    return removal, count
