"""What every ``StreamStore`` must do. Subclass ``StoreContract`` and supply ``open_store``; never copy a test.

``open_store`` opens the same history each time it is called within one test.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from streams.errors import IdempotencyConflict, OffsetConflict, StoreClosed
from streams.query import Filter
from streams.store import MAX_BATCH, NOTHING, StreamStore
from tests.streams.builders import event, events
from tests.streams.content_contract import ContentContract
from tests.streams.hints_contract import HintsContract
from tests.streams.opened import collect, everything


class StoreContract(HintsContract, ContentContract):
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
        assert [(r.position, r.offset, r.duplicate) for r in records] == [(0, 0, False), (1, 0, False), (2, 1, False)]
        assert store.head == 2

    @pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
    async def test_a_batch_of_the_wrong_size_is_refused(self, store: StreamStore, count: int) -> None:
        with pytest.raises(ValueError, match="1 to 512"):
            await store.append(events(count))
        assert store.head == NOTHING
        assert len(await store.append(events(MAX_BATCH))) == MAX_BATCH

    async def test_concurrent_appends_each_get_their_own_records(self, store: StreamStore) -> None:
        answers = await asyncio.gather(*(store.append(events(3, prefix=f"p{n}-")) for n in range(50)))
        positions = [[r.position for r in records] for records in answers]
        assert all(p == list(range(p[0], p[0] + 3)) for p in positions), "a batch stands together"
        assert sorted(p for batch in positions for p in batch) == list(range(150))
        for n, records in enumerate(answers):
            assert [r.event.idempotency_key for r in records] == [f"test:p{n}-{i}" for i in range(3)]

    # Idempotency

    async def test_the_same_key_twice_is_one_record(self, store: StreamStore) -> None:
        first = await store.append([event("a")])
        again = await store.append([event("a")])
        assert [(r.event, r.position, r.hash) for r in again] == [(r.event, r.position, r.hash) for r in first]
        assert again[0].duplicate and not first[0].duplicate
        assert store.head == 0

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

    async def test_keep_first_writes_what_is_new_and_keeps_what_is_known(self, store: StreamStore) -> None:
        await store.append([event("a", payload={"n": 1})])
        records = await store.append(
            [event("a", payload={"n": 2}), event("b"), event("b"), event("a", payload={"n": 1})], on_known="keep_first"
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

    # Expected offsets

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

    async def test_read_ends_at_the_tail_seen_at_call_time(self, store: StreamStore) -> None:
        await store.append(events(3))
        reading = store.read("ses_a")
        seen = [await anext(reading)]
        await store.append(events(3, prefix="later"))
        seen += [record async for record in reading]
        assert [r.offset for r in seen] == [0, 1, 2]

    async def test_read_all_from_any_position_gives_the_rest(self, store: StreamStore) -> None:
        """However a store finds the start: near the end it may look records up, otherwise it may scan."""
        for first in range(0, 40, 4):
            await store.append([event(f"k{n}", stream=f"ses_{n % 3}") for n in range(first, first + 4)])
        whole = await collect(store.read_all())
        assert len(whole) == 40
        for after in range(-1, 41):
            assert await collect(store.read_all(after=after)) == [r for r in whole if r.position > after], after
        for first in range(15):
            wanted = [r for r in whole if r.event.stream_id == "ses_1" and r.offset >= first]
            assert await collect(store.read("ses_1", from_offset=first)) == wanted, first

    async def test_find_each_answers_every_key_in_the_order_of_the_keys(self, store: StreamStore) -> None:
        assert await store.find_each([]) == [] and await store.find_each(["test:k1"]) == [None]
        first, second, third = await store.append(events(3))
        wanted = ["test:k2", "test:none", "test:k0", "test:k1", "test:k2"]
        assert await store.find_each(wanted) == [third, None, first, second, third]

    async def test_query_filters_across_streams(self, store: StreamStore) -> None:
        trace = f"00-{'a' * 32}-{'c' * 16}-01"
        await store.append(
            [
                event("a", type_="agent.error", ts=1000, payload={"text": "Disk FULL"}),
                event("b", type_="agent.spawned", ts=2000, stream="ses_b", correlation_id="msg_1", traceparent=trace),
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
        assert await keys(trace_id="a" * 32) == ["b"] and await keys(trace_id="c" * 32) == []
        assert await keys(text="disk full") == ["a"]
        assert await keys(text="disk full", actors=["user"]) == []
        assert await keys(text="text") == [], "names of fields are not searched"

    async def test_a_query_of_many_records_is_whole_and_in_order(self, store: StreamStore) -> None:
        """More records than a reader fetches at a time: rare and frequent types, several streams, and every bound."""
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

    async def test_a_slow_subscriber_misses_nothing(self, store: StreamStore) -> None:
        live = store.subscribe()
        writing = asyncio.gather(*(store.append([event(f"k{n}")]) for n in range(60)))
        async with asyncio.timeout(20):
            seen = [(await anext(live)).position for _ in range(30)]
            await writing
            seen += [(await anext(live)).position for _ in range(30)]
        assert seen == list(range(60))

    async def test_a_subscriber_gets_the_records_that_a_reader_gets(self, store: StreamStore) -> None:
        odd = {"tuple": (1, 2.0), "half": "\ud800", "deep": {"list": [{"n": 10**30}]}, "none": None}
        live = store.subscribe()
        wanted = [event("a", payload=odd), event("b", unknown={"x": 1}), *events(200)]
        await store.append(wanted[:1])
        await store.append(wanted[1:])
        async with asyncio.timeout(20):
            seen = [(await anext(live)).as_json() for _ in wanted]
        # As text, too: 2 and 2.0 are equal.
        assert seen == await everything(store) and orjson.dumps(seen) == orjson.dumps(await everything(store))

    async def test_a_subscriber_gets_all_that_it_wants_and_the_newest_record(self, store: StreamStore) -> None:
        live = store.subscribe(wanted=lambda event: event.type == "wanted")
        for batch in range(3):
            await store.append([event(f"{batch}:{n}", type_="wanted" if n == 5 else "other") for n in range(10)])
            await store.append([event(f"{batch}:last", type_="other")])
            seen: list[int] = []
            async with asyncio.timeout(20):
                while not seen or seen[-1] != store.head:
                    seen.append((await anext(live)).position)
            assert seen == sorted(set(seen)) and 11 * batch + 5 in seen

    async def test_closing_ends_a_subscription(self, store: StreamStore) -> None:
        await store.append([event("a")])
        live = store.subscribe()
        await anext(live)
        ending = asyncio.ensure_future(anext(live, None))
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(10):
            assert await ending is None

    # Reopening

    async def test_reopening_returns_identical_records(self, store: StreamStore) -> None:
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
