"""What every ``StreamStore`` must do. Subclass ``StoreContract`` and supply ``open_store``; never copy a test.

``open_store`` opens the same history each time it is called within one test.
A backend without a durable history sets ``durable = False``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streams.errors import IdempotencyConflict, InvalidEvent, OffsetConflict, StoreClosed
from streams.event import StreamEvent
from streams.hashing import GENESIS, canonical, chain, digest_form_of
from streams.lineage import CREATED, ENDED, LINEAGE_VERSION, LINKED, RESUMED, Lineage
from streams.projection import fold, resume, state_hash
from streams.query import Filter
from streams.store import MAX_BATCH, NOTHING, Record, Snapshot, StreamStore
from tests.streams.builders import event, events
from tests.streams.retention_contract import RetentionContract


async def collect(records: AsyncIterator[Record]) -> list[Record]:
    return [record async for record in records]


async def everything(store: StreamStore) -> list[dict[str, Any]]:
    return [record.as_json() for record in await collect(store.read_all())]


def family(count: int) -> list[StreamEvent]:
    """A story of sessions that appear, descend from each other, end, resume and are linked late."""
    story: list[StreamEvent] = []
    for n in range(count):
        session, above = f"ses_{n // 4}", f"ses_{n // 4 - 1}"
        payload: dict[str, Any] = {"session": session, "title": f"é {n}"}
        match n % 4:
            case 0:
                parent = {} if n // 4 % 5 == 0 else {"lineage": "unknown"} if n // 4 % 5 == 3 else {"parent": above}
                story.append(event(f"f{n}", type_=CREATED, stream=session, payload=payload | parent))
            case 1:
                linked = {"session": session, "parent": above}
                is_late = n // 4 % 5 == 3
                type_ = LINKED if is_late else "execution.step"
                story.append(event(f"f{n}", type_=type_, stream=session, payload=linked if is_late else payload))
            case 2:
                story.append(event(f"f{n}", type_=ENDED, stream=session, payload=payload))
            case _:
                type_ = RESUMED if n % 3 else "turn.ended"
                story.append(event(f"f{n}", type_=type_, stream=session, payload=payload))
    return story


class StoreContract(RetentionContract):
    durable = True

    async def open_store(self) -> StreamStore:
        raise NotImplementedError("a backend's suite says how to open it")

    @pytest.fixture
    async def store(self) -> AsyncIterator[StreamStore]:
        store = await self.open_store()
        yield store
        await store.close()

    # Appending

    async def test_an_empty_store_has_no_head_and_yields_nothing(self, store: StreamStore) -> None:
        assert store.head == NOTHING
        assert await everything(store) == []
        assert await collect(store.read("ses_never")) == []
        assert await store.find("test:none") is None

    async def test_append_returns_one_record_each_in_order(self, store: StreamStore) -> None:
        batch = [event("a"), event("b", stream="ses_b"), event("c")]
        records = await store.append(batch)
        assert [r.event for r in records] == batch
        assert [(r.position, r.offset, r.duplicate) for r in records] == [
            (0, 0, False),
            (1, 0, False),
            (2, 1, False),
        ]
        assert store.head == 2

    async def test_offsets_are_dense_by_stream_and_positions_over_the_log(self, store: StreamStore) -> None:
        for n in range(9):
            await store.append([event(f"k{n}", stream=f"ses_{n % 3}")])
        records = await collect(store.read_all())
        assert [r.position for r in records] == list(range(9))
        for name in ("ses_0", "ses_1", "ses_2"):
            assert [r.offset for r in await collect(store.read(name))] == [0, 1, 2]

    @pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
    async def test_a_batch_of_the_wrong_size_is_refused(self, store: StreamStore, count: int) -> None:
        with pytest.raises(ValueError, match="1 to 512"):
            await store.append(events(count))
        assert store.head == NOTHING

    async def test_a_full_batch_is_written(self, store: StreamStore) -> None:
        assert len(await store.append(events(MAX_BATCH))) == MAX_BATCH
        assert store.head == MAX_BATCH - 1

    async def test_concurrent_appends_each_get_their_own_records(self, store: StreamStore) -> None:
        answers = await asyncio.gather(*(store.append(events(3, prefix=f"p{n}-")) for n in range(50)))
        positions = [[r.position for r in records] for records in answers]
        assert all(p == list(range(p[0], p[0] + 3)) for p in positions), "a batch stands together"
        assert sorted(p for batch in positions for p in batch) == list(range(150))
        for n, records in enumerate(answers):
            assert [r.event.idempotency_key for r in records] == [f"test:p{n}-{i}" for i in range(3)]

    async def test_appends_keep_the_order_they_were_submitted_in(self, store: StreamStore) -> None:
        tasks = [asyncio.ensure_future(store.append([event(f"k{n}")])) for n in range(100)]
        answers = await asyncio.gather(*tasks)
        assert [records[0].position for records in answers] == list(range(100))

    # Hints

    async def test_cursors_are_remembered_by_name(self, store: StreamStore) -> None:
        await store.append(events(5))
        assert await store.cursor("mirror") == NOTHING
        await store.advance("mirror", 3)
        await store.advance("worker-a", 1)
        assert (await store.cursor("mirror"), await store.cursor("worker-a")) == (3, 1)
        await store.advance("mirror", 2)
        assert await store.cursor("mirror") == 2, "a reader may go back"

    async def test_a_snapshot_is_given_back_in_its_own_form_only(self, store: StreamStore) -> None:
        await store.append(events(5))
        assert await store.snapshot("lineage", 1) is None
        first = Snapshot(1, 2, b'{"a": 1}\n\xff')
        await store.put_snapshot("lineage", first)
        assert await store.snapshot("lineage", 1) == first
        assert await store.snapshot("lineage", 2) is None and await store.snapshot("other", 1) is None
        second = Snapshot(2, 4, b"")
        await store.put_snapshot("lineage", second)
        assert await store.snapshot("lineage", 2) == second and await store.snapshot("lineage", 1) is None

    async def test_a_hint_beyond_head_is_none(self, store: StreamStore) -> None:
        """As after a log was restored from a backup: the hint must not hide the records that will follow."""
        await store.append(events(2))
        await store.advance("mirror", 7)
        await store.put_snapshot("lineage", Snapshot(1, 7, b"x"))
        assert await store.cursor("mirror") == NOTHING
        assert await store.snapshot("lineage", 1) is None

    @pytest.mark.parametrize("cut", [0, 1, 7, 300, 599])
    async def test_a_lineage_from_its_snapshot_equals_a_full_replay(self, store: StreamStore, cut: int) -> None:
        story = family(600)
        for begin in range(0, len(story), 100):
            await store.append(story[begin : begin + 100])
        early = Lineage()
        async for record in store.read_all():
            if record.position <= cut:
                early.apply(record)
        await store.put_snapshot("lineage", Snapshot(LINEAGE_VERSION, cut, early.dump()))
        resumed, after = await resume(store, "lineage", LINEAGE_VERSION, Lineage.load, Lineage)
        assert after == cut
        await fold(resumed, store.read_all(after=after))
        whole = await fold(Lineage(), store.read_all())
        assert state_hash(resumed) == state_hash(whole) and resumed.dump() == whole.dump()
        assert len(whole.sessions) > 100 and whole.roots() != list(whole.sessions.values())
        for session in whole.sessions:
            assert resumed.root(session) == whole.root(session)
            assert resumed.streams_of(session) == whole.streams_of(session)
            assert resumed.children(session) == whole.children(session)

    async def test_what_is_no_snapshot_is_a_full_replay(self, store: StreamStore) -> None:
        await store.append(family(20))
        await store.put_snapshot("lineage", Snapshot(LINEAGE_VERSION, 7, b"{not what was dumped"))
        assert (await resume(store, "lineage", LINEAGE_VERSION, Lineage.load, Lineage))[1] == NOTHING
        await store.put_snapshot("lineage", Snapshot(LINEAGE_VERSION + 1, 7, Lineage().dump()))
        assert (await resume(store, "lineage", LINEAGE_VERSION, Lineage.load, Lineage))[1] == NOTHING

    @pytest.mark.parametrize(
        "name", ["", "../x", "a/b", "A", "a.b", "a b", "1a", "a" * 64, "a\n", "é", "\ud800", "a\0"]
    )
    async def test_a_hint_has_a_plain_name(self, store: StreamStore, name: str) -> None:
        for attempt in (
            store.cursor(name),
            store.advance(name, 0),
            store.snapshot(name, 1),
            store.put_snapshot(name, Snapshot(1, 0, b"")),
        ):
            with pytest.raises(ValueError, match="no name for a cursor"):
                await attempt

    async def test_hints_survive_a_restart(self) -> None:
        if not self.durable:
            return
        store = await self.open_store()
        await store.append(events(3))
        await store.advance("mirror", 1)
        await store.put_snapshot("lineage", Snapshot(1, 2, b"state"))
        await store.close()
        store = await self.open_store()
        assert await store.cursor("mirror") == 1
        assert await store.snapshot("lineage", 1) == Snapshot(1, 2, b"state")
        await store.close()

    # Idempotency (seed 003, "Idempotency Check")

    async def test_the_same_key_twice_is_one_record(self, store: StreamStore) -> None:
        first = await store.append([event("a")])
        again = await store.append([event("a")])
        assert [(r.event, r.position, r.hash) for r in again] == [(r.event, r.position, r.hash) for r in first]
        assert again[0].duplicate and not first[0].duplicate
        assert store.head == 0

    async def test_the_first_time_and_id_win_over_a_retry(self, store: StreamStore) -> None:
        first = (await store.append([event("a", ts=1000)]))[0]
        again = (await store.append([event("a", ts=2000)]))[0]
        assert again.event.ts == 1000 and again.event.id == first.event.id

    async def test_a_known_key_with_another_body_is_a_conflict(self, store: StreamStore) -> None:
        await store.append([event("a")])
        for other in (
            event("a", payload={"n": "other"}),
            event("a", type_="execution.output"),
            event("a", actor="plan"),
            event("a", stream="ses_b"),
        ):
            with pytest.raises(IdempotencyConflict, match="another body") as raised:
                await store.append([other])
            assert raised.value.key == "test:a"
        assert store.head == 0

    async def test_a_partly_known_batch_is_a_conflict_and_leaves_no_trace(self, store: StreamStore) -> None:
        await store.append([event("a")])
        with pytest.raises(IdempotencyConflict, match="1 of the batch's 2 keys"):
            await store.append([event("a"), event("b")])
        assert store.head == 0 and await store.find("test:b") is None

    async def test_a_key_twice_in_one_batch_is_a_conflict(self, store: StreamStore) -> None:
        with pytest.raises(IdempotencyConflict, match="twice in one batch"):
            await store.append([event("a"), event("a")])
        assert store.head == NOTHING

    async def test_keep_first_writes_what_is_new_and_keeps_what_is_known(self, store: StreamStore) -> None:
        await store.append([event("a", payload={"n": 1})])
        records = await store.append(
            [event("a", payload={"n": 2}), event("b"), event("b"), event("a", payload={"n": 1})],
            on_known="keep_first",
        )
        assert [(r.position, r.duplicate) for r in records] == [(0, True), (1, False), (1, True), (0, True)]
        assert records[0].event.payload == {"n": 1}
        assert store.differences == 1
        assert store.head == 1

    async def test_concurrent_appends_of_one_key_write_it_once(self, store: StreamStore) -> None:
        answers = await asyncio.gather(*(store.append([event("same")]) for _ in range(20)))
        assert {records[0].position for records in answers} == {0}
        assert sum(not records[0].duplicate for records in answers) == 1
        assert store.head == 0

    # Expected offsets (seed 002, 4.1)

    async def test_expected_holds_only_at_the_right_offset(self, store: StreamStore) -> None:
        await store.append([event("a")], expected={"ses_a": 0})
        with pytest.raises(OffsetConflict) as raised:
            await store.append([event("b")], expected={"ses_a": 0})
        assert (raised.value.stream_id, raised.value.expected, raised.value.actual) == ("ses_a", 0, 1)
        await store.append([event("b")], expected={"ses_a": 1})

    async def test_one_wrong_expectation_refuses_the_whole_batch(self, store: StreamStore) -> None:
        with pytest.raises(OffsetConflict):
            await store.append([event("a"), event("b", stream="ses_b")], expected={"ses_a": 0, "ses_b": 1})
        assert store.head == NOTHING

    async def test_keys_are_looked_at_before_expected(self, store: StreamStore) -> None:
        await store.append([event("a")], expected={"ses_a": 0})
        assert (await store.append([event("a")], expected={"ses_a": 0}))[0].duplicate

    async def test_of_two_concurrent_writers_at_one_offset_one_wins(self, store: StreamStore) -> None:
        answers = await asyncio.gather(
            *(store.append([event(f"w{n}")], expected={"ses_a": 0}) for n in range(10)), return_exceptions=True
        )
        assert sum(isinstance(a, list) for a in answers) == 1
        assert sum(isinstance(a, OffsetConflict) for a in answers) == 9

    # Cancelling and closing

    async def test_a_cancelled_append_is_all_or_nothing(self, store: StreamStore) -> None:
        for n in range(20):
            task = asyncio.ensure_future(store.append(events(5, prefix=f"c{n}-")))
            for _ in range(n % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await store.append([event("last")])
        keys = [r.event.idempotency_key for r in await collect(store.read_all())]
        for n in range(20):
            assert sum(key.startswith(f"test:c{n}-") for key in keys) in (0, 5)

    async def test_a_closed_store_refuses_to_write(self, store: StreamStore) -> None:
        await store.append([event("a")])
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.append([event("b")])

    # Reading

    async def test_read_starts_at_the_offset_asked_for(self, store: StreamStore) -> None:
        await store.append(events(5))
        assert [r.offset for r in await collect(store.read("ses_a", from_offset=3))] == [3, 4]
        assert await collect(store.read("ses_a", from_offset=5)) == []

    async def test_read_ends_at_the_tail_seen_at_call_time(self, store: StreamStore) -> None:
        await store.append(events(3))
        reading = store.read("ses_a")
        seen = [await anext(reading)]
        await store.append(events(3, prefix="later"))
        seen += [record async for record in reading]
        assert [r.offset for r in seen] == [0, 1, 2]

    async def test_read_all_starts_after_the_position_asked_for(self, store: StreamStore) -> None:
        await store.append(events(5))
        assert [r.position for r in await collect(store.read_all(after=2))] == [3, 4]
        assert await collect(store.read_all(after=4)) == []
        assert await collect(store.read_all(after=99)) == []

    async def test_read_all_from_any_position_gives_the_rest_also_of_a_pruned_log(self, store: StreamStore) -> None:
        """However a backend finds where to begin: near the end it may look for places, else it may scan."""
        for first in range(0, 40, 4):
            await store.append([event(f"k{n}", stream=f"ses_{n % 3}") for n in range(first, first + 4)])
        await store.prune({"ses_1": 12}, at_ms=1)
        whole = await collect(store.read_all())
        assert len(whole) == 28
        for after in range(-1, 41):
            assert await collect(store.read_all(after=after)) == [r for r in whole if r.position > after], after

    async def test_find_returns_the_record_of_a_key(self, store: StreamStore) -> None:
        records = await store.append(events(3))
        found = await store.find("test:k1")
        assert found is not None and found.as_json() == records[1].as_json()

    async def test_query_filters_across_streams(self, store: StreamStore) -> None:
        await store.append(
            [
                event("a", type_="agent.error", ts=1000, payload={"text": "Disk FULL"}),
                event("b", type_="agent.spawned", ts=2000, stream="ses_b", correlation_id="msg_1"),
                event("c", type_="human.input", ts=3000, actor="user"),
            ]
        )

        async def keys(**conditions: Any) -> list[str]:
            return [r.event.idempotency_key[5:] for r in await collect(store.query(Filter(**conditions)))]

        assert await keys() == ["a", "b", "c"]
        assert await keys(types=["agent.error"]) == ["a"]
        assert await keys(types=["agent.*"]) == ["a", "b"]
        assert await keys(types=["agent"]) == []
        assert await keys(streams=["ses_b"]) == ["b"]
        assert await keys(streams=["ses_a", "ses_b"]) == ["a", "b", "c"]
        assert await keys(actors=["user"]) == ["c"]
        assert await keys(since_ms=2000) == ["b", "c"]
        assert await keys(until_ms=2000) == ["a"]
        assert await keys(correlation_id="msg_1") == ["b"]
        assert await keys(text="disk full") == ["a"]
        assert await keys(text="disk full", actors=["user"]) == []

    async def test_a_query_of_many_records_is_whole_and_in_order(self, store: StreamStore) -> None:
        """More than a reader takes at a time: rare and frequent types, streams side by side, and every bound."""
        types = ("execution.step", "execution.output", "execution.step", "agent.error")
        story = [
            event(f"k{n}", type_=types[n % 4] if n % 97 else "agent.spawned", stream=f"ses_{n % 7}", ts=1000 + n // 3)
            for n in range(1500)
        ]
        for begin in range(0, len(story), 500):
            await store.append(story[begin : begin + 500])
        for wanted in (
            Filter(types=("execution.*",)),
            Filter(types=("agent.*", "execution.output")),
            Filter(types=("agent.spawned",)),
            Filter(types=("nothing.*",)),
            Filter(streams=("ses_1", "ses_5", "ses_1")),
            Filter(streams=("ses_2",), types=("agent.*",), since_ms=1100),
            Filter(streams=("ses_2", "ses_none"), text="nothing like it"),
            Filter(since_ms=1400),
            Filter(since_ms=1100, until_ms=1200, types=("execution.*",)),
            Filter(since_ms=99_999),
            Filter(until_ms=1003),
        ):
            found = [record.position for record in await collect(store.query(wanted))]
            assert found == [n for n, each in enumerate(story) if wanted.matches(each)], wanted

    async def test_subscribe_replays_and_then_follows(self, store: StreamStore) -> None:
        await store.append(events(2))
        live = store.subscribe(after=0)
        async with asyncio.timeout(10):
            assert (await anext(live)).position == 1
            waiting = asyncio.ensure_future(anext(live))
            await store.append([event("new")])
            assert (await waiting).event.idempotency_key == "test:new"

    async def test_a_slow_subscriber_misses_nothing(self, store: StreamStore) -> None:
        live = store.subscribe()
        writing = asyncio.gather(*(store.append([event(f"k{n}")]) for n in range(60)))
        async with asyncio.timeout(20):
            seen = [(await anext(live)).position for _ in range(30)]
            await writing
            seen += [(await anext(live)).position for _ in range(30)]
        assert seen == list(range(60))

    async def test_closing_ends_a_subscription(self, store: StreamStore) -> None:
        await store.append([event("a")])
        live = store.subscribe()
        await anext(live)
        ending = asyncio.ensure_future(anext(live, None))
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(10):
            assert await ending is None

    # The hash chain and canonical content (FEATURES F10)

    async def test_each_record_continues_its_streams_chain(self, store: StreamStore) -> None:
        for n in range(8):
            await store.append([event(f"k{n}", stream=f"ses_{n % 2}", payload={"n": n, "text": "é✓"})])
        for name in ("ses_0", "ses_1"):
            previous = GENESIS
            for record in await collect(store.read(name)):
                _, form = digest_form_of(record.event.fields())
                previous = chain(previous, form)
                assert record.hash == previous.hex()

    async def test_any_json_value_is_kept_or_repaired_never_refused(self, store: StreamStore) -> None:
        deep: Any = 1
        for _ in range(400):
            deep = [deep]
        payload = {
            "lone": "a\ud800b",
            "big": 2**70,
            "not": [float("nan"), float("inf")],
            "deep": deep,
            "ok": {"é": [1, 2.5, None, True]},
        }
        record = (await store.append([event("odd", payload=payload)]))[0]
        assert record.event.payload["lone"] == "a\ufffdb"
        assert record.event.payload["big"] == float(2**70)
        assert record.event.payload["not"] == [None, None]
        assert record.event.payload["ok"] == payload["ok"]
        read = (await collect(store.read("ses_a")))[0]
        assert read.as_json() == record.as_json()

    async def test_a_number_that_is_none_is_repaired_alone_too(self, store: StreamStore) -> None:
        """The writer takes NaN without complaint, so that this is another path than a refused value's."""
        record = (await store.append([event("odd", payload={"n": [float("nan")]})]))[0]
        assert record.event.payload == {"n": [None]}
        assert await everything(store) == [record.as_json()]

    async def test_what_the_caller_does_to_a_payload_later_does_not_change_the_log(self, store: StreamStore) -> None:
        payload = {"list": [1]}
        made = event("a", payload=payload)
        await store.append([made])
        made.payload["list"].append(2)
        payload["more"] = 3
        for record in (
            await collect(store.read_all()),
            await collect(store.read("ses_a")),
            [await store.find("test:a")],
        ):
            assert record[0] is not None and record[0].event.payload == {"list": [1]}

    async def test_any_printable_key_is_found(self, store: StreamStore) -> None:
        keys = ['a"b', "back\\slash", "é✓", "a b", "a:b", "{}", "x" * 500]
        await store.append([event(key) for key in keys])
        for key in keys:
            found = await store.find(f"test:{key}")
            assert found is not None and found.event.idempotency_key == f"test:{key}"
        for key in ("test:", "", "\ud800", "x" * 500):
            assert await store.find(key) is None

    async def test_unknown_fields_survive(self, store: StreamStore) -> None:
        newer = event("new", schema_version=9, invented={"by": "a newer version"})
        await store.append([newer])
        read = (await collect(store.read("ses_a")))[0]
        assert read.event == newer
        assert canonical(read.event.fields()) == canonical(newer.fields())

    async def test_ids_are_data_and_never_paths(self, store: StreamStore) -> None:
        for hostile in (
            "../../etc/passwd",
            "/etc/passwd",
            "a\0b",
            "a b",
            "a>b",
            "a*",
            "CON\\x",
            "é",
            "",
            "a" * 10_000,
        ):
            with pytest.raises(InvalidEvent):
                event("x", stream=hostile)
        await store.append([event("ok", stream="agent/a-1")])
        assert len(await collect(store.read("agent/a-1"))) == 1

    # Reopening

    async def test_reopening_returns_identical_records(self, store: StreamStore) -> None:
        if not self.durable:
            assert await everything(await self.open_store()) == [], "a memory store keeps nothing"
            return
        await store.append(events(4))
        await store.append([event("b", stream="ses_b")])
        before = await everything(store)
        await store.close()
        again = await self.open_store()
        try:
            assert await everything(again) == before
            assert (await again.append([event("k1")]))[0].duplicate
            record = (await again.append([event("next")], expected={"ses_a": 4}))[0]
            assert (record.position, record.offset) == (5, 4)
        finally:
            await again.close()
