"""A log in memory whose records are all in the journal, to be written to disk intact or damaged."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from streams.identity import seeded_identity
from streams.log.log import Log as StreamLog
from streams.log.verify import Verification
from streams.store import Record
from streams.stores.head import Head, read_head
from streams.stores.journal.lines import parse_stored
from streams.stores.journal.segments import segment_name
from streams.stores.sqlite.database import Database
from tests.streams.builders import event
from tests.streams.disks import FastDisk
from tests.streams.opened import collect, held


@dataclass(frozen=True)
class Log:
    """``segments`` are (name, bytes); ``heads[position]`` is the head file after the commit that ended there.
    ``database`` has no record yet."""

    segments: list[tuple[str, bytes]]
    heads: dict[int, bytes]
    manifest: bytes
    database: bytes
    records: list[Record]

    @property
    def data(self) -> bytes:
        """The bytes of a log of one segment."""
        assert len(self.segments) == 1
        return self.segments[0][1]

    @cached_property
    def lines(self) -> list[bytes]:
        return self.data.splitlines(keepends=True)

    @cached_property
    def ends(self) -> list[int]:
        """The end of each line, including its newline."""
        return list(accumulate(map(len, self.lines)))

    def whole(self, size: int) -> tuple[int, int]:
        """How many records the whole batches in the first ``size`` bytes have, and where the last batch ends."""
        count = max((position + 1 for position in self.heads if self.ends[position] <= size), default=0)
        return count, self.ends[count - 1] if count else 0

    def head(self, position: int) -> Head:
        return Head(position, self.records[position].hash)

    def put(self, store: Path, data: bytes | None = None, *, head: int | None = -1, moved: int = 0) -> Path:
        """Write the log to ``store``, with ``data`` as its one segment and the head after the record ``head``
        (negative: from the end), or no head. The database has the first ``moved`` records, whole batches. Return the
        (last) segment."""
        (store / "journal").mkdir(parents=True)
        (store / "store.json").write_bytes(self.manifest)
        (store / "log.db").write_bytes(self.database)
        if moved:
            lines = b"".join(kept for _, kept in self.segments).splitlines()[:moved]
            database = Database(store)
            database.move([parse_stored(line) for line in lines])
            database.close_at_once()
        for name, kept in self.segments:
            (store / "journal" / name).write_bytes(kept if data is None else data)
        if head is not None:
            (store / "head").write_bytes(self.heads[head if head >= 0 else len(self.records) + head])
        return store / "journal" / name


def make_log(directory: Path, batches: list[int], *, text: int, segment_bytes: int = 10**9) -> Log:
    """A log of batches of these sizes, each committed alone, with about ``text`` extra characters a record."""
    with held():
        return asyncio.run(_make_log(directory, batches, text, segment_bytes))


async def _make_log(directory: Path, batches: list[int], text: int, segment_bytes: int) -> Log:
    await (await StreamLog.open(directory, seeded_identity(3), disk=FastDisk())).close()
    database = (directory / "log.db").read_bytes()
    log = await StreamLog.open(directory, seeded_identity(3), disk=FastDisk(), segment_bytes=segment_bytes)
    heads: dict[int, bytes] = {}
    for number, count in enumerate(batches):
        records = await log.append(
            [
                event(f"{number}-{index}", stream=f"ses_{(number + index) % 3}", payload={"text": "é\n" * (text // 4)})
                for index in range(count)
            ]
        )
        heads[records[-1].position] = (directory / "head").read_bytes()
    records = await collect(log.read_all())
    segments = [(path.name, path.read_bytes()) for path in sorted((directory / "journal").iterdir())]
    assert segments[0][0] == segment_name(0) and read_head(directory / "head") is not None
    await log.close()
    return Log(segments, heads, (directory / "store.json").read_bytes(), database, records)


async def open_store(store: Path) -> StreamLog:
    return await StreamLog.open(store, seeded_identity(9), disk=FastDisk())


async def findings(store: Path) -> list[tuple[str, str, int | None, int | None]]:
    return [(f.kind, Path(f.file).name, f.line, f.position) async for f in Verification(store).run()]


def files(store: Path) -> dict[str, bytes]:
    """Every file in the store but the lock and SQLite's files beside a database that somebody read, which hold
    nothing."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name not in ("lock", "log.db-shm")
        if path.name != "log.db-wal" or path.stat().st_size
    }
