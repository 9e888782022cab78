"""The remains of a migration: readers of a discarded store continue in the other one, and no store is half deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.errors import StoreUnavailable
from streams.log.migrate import Migration, discard_kept
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.query import Filter
from streams.stores.directory import Backend
from streams.stores.sqlite.search import SearchIndex
from tests.streams.descriptors import deleted_and_open, needs_descriptors
from tests.streams.moves import BOTH, fill, open_log
from tests.streams.opened import collect, faults


@BOTH
async def test_a_reading_whose_store_is_discarded_goes_on_where_the_log_lies(
    tmp_path: Path, start: Backend, to: Backend
) -> None:
    log = await open_log(tmp_path, start)
    written = await fill(log, 300)
    reader, begun = LogReader(tmp_path), LogReader(tmp_path)
    some = Filter(streams=("ses_1", "ses_2"))
    readings = {
        "all of the log": (log.read_all(), written),
        "a query of the log": (log.query(Filter()), written),
        "all": (reader.read_all(), written),
        "a stream": (reader.read("ses_3"), [r for r in written if r.event.stream_id == "ses_3"]),
        "a query": (reader.query(some), [r for r in written if r.event.stream_id in some.streams]),
    }
    firsts = {name: await anext(reading) for name, (reading, _) in readings.items()}
    ids = reader.event_ids()
    seen = set(await anext(ids))
    unread = begun.read_all()
    await Migration(log, to).run()
    await asyncio.to_thread(discard_kept, tmp_path)
    for name, (reading, wanted) in readings.items():
        assert [firsts[name], *await collect(reading)] == wanted, name
    async for more in ids:
        seen |= set(more)
    assert seen == {record.event.id for record in written}
    assert await collect(unread) == written, "a deleted log does not read as empty"
    assert await reader.find(written[-1].event.idempotency_key) == written[-1]
    assert await reader.find_event(written[-1].event.id) == written[-1]
    assert await reader.removed() == {}
    for one in (reader, begun):
        await one.close()
    await log.close()


async def test_a_reader_that_slept_through_two_moves_reads_the_new_file(tmp_path: Path) -> None:
    log = await open_log(tmp_path, "sqlite")
    written = await fill(log, 30)
    reader = LogReader(tmp_path)
    assert await collect(reader.read_all()) == written
    await Migration(log, "jsonl").run()
    await asyncio.to_thread(discard_kept, tmp_path)
    log.reread_manifest()
    await Migration(log, "sqlite").run()
    written += await fill(log, 5, "later-")
    assert await collect(reader.read_all()) == written and reader.head == log.head
    await reader.close()
    await log.close()


@needs_descriptors
async def test_a_reader_does_not_keep_the_space_of_a_store_that_is_discarded(tmp_path: Path) -> None:
    """A follower may live for weeks; it closes the database when it next looks at the log."""
    log = await open_log(tmp_path, "sqlite")
    written = await fill(log, 300)
    reader = LogReader(tmp_path)
    index = SearchIndex(tmp_path)
    index.advance(len(written))
    index.close()
    assert await collect(reader.query(Filter(text="k1-0"))) != []
    begun = reader.read_all()
    assert await anext(begun) == written[0]
    await Migration(log, "jsonl").run()
    assert reader.head == log.head, "it let go of the database"
    for record in written[1:300]:
        assert await anext(begun) == record, "and a reading of the old store, which is kept, continues"
    await asyncio.to_thread(discard_kept, tmp_path)
    assert "log.db" in deleted_and_open(tmp_path)
    assert reader.head == log.head
    assert deleted_and_open(tmp_path) == set()
    assert await collect(begun) == written[300:]
    assert deleted_and_open(tmp_path) == set()
    await reader.close()
    await log.close()


@BOTH
async def test_verifying_a_store_that_is_discarded_finds_no_damage(tmp_path: Path, start: Backend, to: Backend) -> None:
    log = await open_log(tmp_path, start)
    await fill(log, 300)
    check = Verification(tmp_path)
    await Migration(log, to).run()
    assert await faults(tmp_path) == []
    await asyncio.to_thread(discard_kept, tmp_path)
    with pytest.raises(StoreUnavailable, match=f"migrated to {to} while it was being verified.*run the command again"):
        assert [finding async for finding in check.run()] == []
    assert await faults(tmp_path) == []
    await log.close()
