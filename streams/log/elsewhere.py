"""Read a log whose rows are in another database, by the same queries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, Protocol, cast
from zlib import crc32

import orjson

from streams.findings import Finding, Kind, Summary
from streams.hashing import GENESIS, is_digest
from streams.log.reader import LogReader
from streams.query import Filter
from streams.retention import payload_fault
from streams.store import NOTHING, Record, Snapshot
from streams.stores.chains import Chains
from streams.stores.sqlite.cursors_and_snapshots import Kind as HintKind
from streams.stores.sqlite.derived import DerivedTables
from streams.stores.sqlite.reader import SqliteReader
from streams.stores.sqlite.removed import head_of
from streams.stores.sqlite.rows import SELECT_EACH, conditions, record_of

HOLDS: Final = "folded(records.event) LIKE ?"


class Asked(Protocol):
    """A database that answers the queries of SQLite's reader: about one log, as of one moment. From any thread."""

    def execute(self, text: str, given: Any = (), /) -> Any:
        """The rows of a query, as a cursor. The statements that begin and end a transaction do nothing."""


_PLAIN: Final = re.compile(r'[^\0-\x1f"\\\x7f-\U0010ffff]+')


def _with_text(wanted: Filter) -> tuple[str, list[Any]]:
    """As ``conditions``, with one for the longest part of the text that JSON writes as it is. Some more records may fit
    it."""
    where, values = conditions(wanted)
    if plain := max(_PLAIN.findall((wanted.text or "").casefold()), key=len, default=""):
        where = f"{where} AND {HOLDS}" if where else HOLDS
        values.append(f"%{plain}%")
    return where, values


class DatabaseElsewhere(SqliteReader):
    """SQLite's reader over another database; ``name`` is shown in messages."""

    _types = "SELECT DISTINCT type FROM records"  # types have no index
    _conditions = staticmethod(_with_text)

    def __init__(self, asked: Asked | None, name: str) -> None:
        super().__init__(Path(name), exists=True)
        self._asked: Any = asked

    def _connected(self) -> Any:
        return self._asked

    def hint(self, kind: HintKind, name: str) -> Snapshot | None:
        """None is there."""
        return None

    def _indexed(self) -> int:
        return NOTHING


class _Tables:
    """The derived tables, in the form of ``DerivedTables``. They may lack the newest records, which are not read
    instead, or have only some rows of them."""

    def __init__(self, asked: Asked, name: str, position: int, top: int) -> None:
        self.db, self._name = asked, name
        self.position = self.head = position
        self.top = top
        self.beside: dict[str, Any] = {}

    def clear(self) -> None:
        """Nothing is beside them."""

    def records(self, positions: Iterable[int]) -> dict[int, Record]:
        rows = self.db.execute(SELECT_EACH, [orjson.dumps([*positions]).decode()])
        return {row[0]: record_of(row, self._name) for row in rows}

    def checked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """The reader closes the database."""

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_STORED: Final = (
    "SELECT records.position, records.offset, records.hash, records.crc, records.event, streams.name FROM records"
    " JOIN streams ON streams.id = records.stream"
    " WHERE records.position > ? AND records.position <= ? ORDER BY records.position LIMIT ?"
)
_READ_AT_ONCE: Final = 1000


class ReaderElsewhere(LogReader):
    """``LogReader`` over another database. ``name`` is shown in messages.

    Nothing is followed, and no hint is known. The database has a function ``folded`` of an event's JSON, which returns
    what ``casefold`` makes of all in it that may become ASCII.
    """

    def __init__(self, asked: Asked, name: str) -> None:
        super().__init__(Path(name))
        self._asked: Any = asked
        self._name = name
        self._database = DatabaseElsewhere(asked, name)

    @property
    def head(self) -> int:
        return head_of(self._asked)

    def derived(self, version: int) -> DerivedTables | None:
        """See ``LogReader``. Up to the record that the tables have, and none above it."""
        row = self._asked.execute("SELECT version, position FROM derived").fetchone()
        if row is None or row[0] != version:
            return None
        return cast("DerivedTables", _Tables(self._asked, self._name, row[1], self.head))

    def verification(self) -> VerificationElsewhere:
        return VerificationElsewhere(self, self._asked, self._name)

    async def close(self) -> None:
        """Who opened the database closes it."""


class VerificationElsewhere:
    """One pass over a log elsewhere, in the form of ``Verification``."""

    def __init__(self, reader: ReaderElsewhere, asked: Any, name: str) -> None:
        self._reader, self._asked, self._name = reader, asked, name
        self.summary = Summary()

    def size(self) -> int:
        """0, because it is not known."""
        return 0

    async def run(self, progress: Callable[[int], None] | None = None) -> AsyncIterator[Finding]:
        """Yield each record that is damaged or not what was written, by its checksum, its place in its stream's hash
        chain and whether it was forgotten, and each stream that ends elsewhere than it should."""
        summary, after = self.summary, NOTHING
        removal, summary.head = await self._reader.removal(), self._reader.head
        chains, ends = Chains(removal.bases), {name: (base.offset, base.hash) for name, base in removal.bases.items()}
        while rows := await self._fetch(_STORED, after, summary.head, _READ_AT_ONCE):
            for position, offset, hash_, crc, event, stream in rows:
                after, ends[stream] = position, (offset + 1, hash_)
                summary.records, summary.bytes = summary.records + 1, summary.bytes + len(event)
                kind: Kind = "tampered"
                fault = chains.take(stream, offset, hash_, event, 0)
                if crc32(event) != crc:
                    kind, fault = "corrupt", "it has a wrong checksum"
                elif fault is None:
                    payload = orjson.loads(event)["payload"]
                    summary.forgotten += is_digest(payload)
                    fault = payload_fault(removal, stream, offset, position, payload)
                if fault is not None:
                    yield self._finding(kind, fault, position, stream)
        summary.streams = chains.kept
        for stream, *end in await self._fetch("SELECT name, next_offset, hash FROM streams ORDER BY name"):
            if ends.get(stream, (0, GENESIS)) != tuple(end):
                yield self._finding("missing", f"the stream {stream} does not end at offset {end[0]}", None, stream)

    async def _fetch(self, query: str, *given: Any) -> list[Any]:
        return await asyncio.to_thread(lambda: self._asked.execute(query, given).fetchall())

    def _finding(self, kind: Kind, fault: str, position: int | None, stream: str) -> Finding:
        self.summary.findings += 1
        return Finding(kind, self._name, None, position, stream, fault)
