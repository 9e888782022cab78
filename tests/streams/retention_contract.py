"""What every ``RetentionStore`` must do. Subclass ``RetentionContract`` and supply ``open_store``."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from streams.errors import InvalidEvent
from streams.hashing import canonical, chain, digest_form_of, encode, is_digest
from streams.query import Filter
from streams.retention import Removed, StreamRemoval
from streams.store import Record, RetentionStore, Snapshot
from tests.streams.builders import event, events
from tests.streams.opened import Opened, collect

NOW = 1_800_000_000_000


async def fill(store: RetentionStore, count: int = 20, prefix: str = "k") -> list[Record]:
    """Append batches of one to four over three streams, so that removals split batches."""
    records: list[Record] = []
    number = 0
    while number < count:
        size = min(1 + number % 4, count - number)
        batch = [
            event(
                f"{prefix}{n}", stream=f"ses_{n % 3}", ts=1000 + n, payload={"text": f"secret-{prefix}{n}-" + "x" * n}
            )
            for n in range(number, number + size)
        ]
        records += await store.append(batch)
        number += size
    return records


async def check_chains(store: RetentionStore, names: tuple[str, ...] = ("ses_0", "ses_1", "ses_2")) -> None:
    """Check that kept offsets have no gaps, and that each kept record but the first continues the one before it."""
    gone = await store.removed()
    for name in names:
        kept = await collect(store.read(name))
        first = gone.get(name, StreamRemoval()).first_offset
        assert [record.offset for record in kept] == list(range(first, first + len(kept)))
        for before, after in itertools.pairwise(kept):
            form = digest_form_of(canonical(after.event.fields()))[1]
            assert chain(bytes.fromhex(before.hash), form).hex() == after.hash


class RetentionContract(Opened):
    # Pruning

    async def test_a_resend_of_a_pruned_event_is_still_a_duplicate(self, store: RetentionStore) -> None:
        before = await fill(store)
        await store.prune({"ses_0": 99, "ses_1": 2}, at_ms=NOW)
        for _ in range(2):
            for record in before:
                given = event(
                    record.event.idempotency_key[5:],
                    stream=record.event.stream_id,
                    ts=77,
                    payload=dict(record.event.payload),
                )
                answer = (await store.append([given]))[0]
                assert answer.duplicate
                assert (answer.position, answer.offset, answer.hash) == (record.position, record.offset, record.hash)
                assert answer.event.payload == record.event.payload
            store = await self.reopened(store)
        assert store.head == 19
        await store.close()

    async def test_removing_drops_snapshots_and_keeps_cursors(self, store: RetentionStore) -> None:
        await fill(store)
        for remove in (store.prune({"ses_0": 1}, at_ms=NOW), store.forget(["ses_1"], at_ms=NOW)):
            await store.put_snapshot("lineage", Snapshot(1, 5, b"x"))
            await store.advance("mirror", 2)
            await remove
            assert await store.snapshot("lineage", 1) is None
            assert await store.cursor("mirror") == 2

    async def test_a_subscriber_that_is_behind_skips_what_was_removed(self, store: RetentionStore) -> None:
        await fill(store)
        live = store.subscribe(after=0)
        async with asyncio.timeout(20):
            assert (await anext(live)).position == 1
            await store.prune({"ses_0": 99}, at_ms=NOW)
            await store.append([event("new", stream="ses_0")])
            seen = []
            while not seen or seen[-1] < 20:
                seen.append((await anext(live)).position)
        kept = [position for position in range(2, 21) if position % 3 or position == 20]
        # What was read ahead before the prune may still come; nothing comes twice, nothing kept is missing.
        assert seen == sorted(set(seen)) and set(kept) <= set(seen)
        assert [r.position for r in await collect(store.read_all(after=1))] == kept

    async def test_removing_while_others_append_and_read(self, store: RetentionStore) -> None:
        await fill(store, 60)
        stop = asyncio.Event()
        written: list[Record] = []

        async def write(name: str) -> None:
            number = 0
            while not stop.is_set():
                payload = {"text": f"{name}{number}"}
                written.extend(await store.append([event(f"{name}-{number}", stream=f"ses_{name}", payload=payload)]))
                number += 1
                await asyncio.sleep(0)

        async def read() -> None:
            while not stop.is_set():
                for reading in (store.read_all(), store.read("ses_0"), store.read("ses_1"), store.query(Filter())):
                    positions = [record.position for record in await collect(reading)]
                    assert positions == sorted(set(positions))
                found = await store.find("test:k59")
                assert found is not None and found.position == 59
                await asyncio.sleep(0)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(write("a")), tasks.create_task(write("b")), tasks.create_task(read())]
            for step in range(1, 6):
                await asyncio.gather(
                    store.prune({"ses_0": step * 2, "ses_a": step}, at_ms=NOW),
                    store.forget(["ses_1", "ses_b"], at_ms=NOW),
                    store.prune({"ses_0": step}, at_ms=NOW),
                )
            stop.set()
            await asyncio.gather(*running)
        gone = await store.removed()
        assert gone["ses_0"].first_offset == 10 and 0 < gone["ses_a"].first_offset <= 5
        kept = {r.position: r for r in await collect(store.read_all())}
        for record in written:
            pruned = record.event.stream_id == "ses_a" and record.offset < gone["ses_a"].first_offset
            assert (record.position in kept) is not pruned
            if not pruned:
                assert kept[record.position].hash == record.hash
            assert (await store.append([record.event]))[0].position == record.position
        await check_chains(store, ("ses_0", "ses_1", "ses_2", "ses_a", "ses_b"))

    async def test_a_cancelled_removal_is_all_or_nothing(self, store: RetentionStore) -> None:
        await fill(store, 40)
        for step in range(1, 8):
            task = asyncio.ensure_future(store.prune({"ses_0": step, "ses_1": step}, at_ms=NOW))
            for _ in range(step):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # Cancelling ends the wait, not the removal: the last one may be under way. After this one, none is.
        await store.prune({"ses_0": 7, "ses_1": 7, "ses_2": 1}, at_ms=NOW)
        gone = await store.removed()
        assert gone["ses_0"] == gone["ses_1"] and gone["ses_0"].first_offset == 7
        await check_chains(store)

    # Forgetting

    async def test_a_forgotten_payload_is_its_digest_and_the_rest_stays(self, store: RetentionStore) -> None:
        before = await fill(store)
        digests = {r.position: encode(r.event).payload_sha256 for r in before}
        shorter = [r for r in before if r.event.stream_id in ("ses_0", "ses_2")]
        saved = sum(len(encode(r.event).canonical) - len(encode(r.event).digest_form) for r in shorter)
        done = await store.forget(["ses_0", "ses_2", "ses_2"], at_ms=NOW)
        assert done == Removed(len(shorter), saved, 2)
        later = (await store.append([event("later", stream="ses_0", payload={"text": "kept"})]))[0]
        assert await store.forget(["ses_2"], at_ms=NOW + 1) == Removed(0, 0, 0), "it is forgotten already"
        store = await self.reopened(store)
        for record in await collect(store.read_all()):
            if record.position == 20:
                assert record == later
                continue
            first = before[record.position]
            assert record[1:] == first[1:]
            if record in before:
                assert record.event.stream_id == "ses_1"
                continue
            assert record.event.payload == {"$sha256": digests[record.position]}
            assert {**record.event.fields(), "payload": 0} == {**first.event.fields(), "payload": 0}
            assert await store.find(first.event.idempotency_key) == record
        assert await collect(store.query(Filter(text="secret-k0-"))) == []
        assert [r.position for r in await collect(store.query(Filter(text="secret-k1-")))] == [1]
        assert await store.removed() == {
            "ses_0": StreamRemoval(0, None, 7, NOW),
            "ses_2": StreamRemoval(0, None, 6, NOW),
        }
        await check_chains(store)
        assert await store.forget(["ses_0"], at_ms=NOW + 2) == Removed(
            1, len(encode(later.event).canonical) - len(encode(later.event).digest_form), 1
        )
        await store.close()

    @pytest.mark.parametrize(
        ("payload", "is_refused"),
        [({"$sha256": "0" * 64}, True), ({"$sha256": "0" * 64, "n": 1}, False), ({"$sha256": "A" * 64}, False)],
    )
    async def test_a_payload_that_is_only_a_digest_is_refused(
        self, store: RetentionStore, payload: dict[str, Any], is_refused: bool
    ) -> None:
        batch = [*events(1), event("digest", payload=payload)]
        if is_refused:
            with pytest.raises(InvalidEvent, match="test:digest is only a digest"):
                await store.append(batch)
            assert store.head == -1
        else:
            assert (await store.append(batch))[1].event.payload == payload

    async def test_single_records_of_any_stream_are_forgotten_and_the_others_stay(self, store: RetentionStore) -> None:
        before = await fill(store)
        chosen = {2, 3, 7, 19}
        done = await store.forget([], at_ms=NOW, positions=[*chosen, 2, 999])
        assert (done.records, done.streams) == (4, len({before[p].event.stream_id for p in chosen}))
        store = await self.reopened(store)
        found = await collect(store.read_all())
        assert [record.hash for record in found] == [record.hash for record in before]
        for record in found:
            assert is_digest(record.event.payload) is (record.position in chosen)
        await check_chains(store)
        gone = await store.removed()
        assert gone["ses_2"].forgotten_ms == NOW and gone["ses_2"].first_offset == 0
        again = await store.append([before[2].event])
        assert again[0].duplicate and again[0].position == 2
        assert (await store.forget([], at_ms=NOW + 1, positions=chosen)).records == 0
        both = await store.forget(["ses_0"], at_ms=NOW + 2, positions=[0, 4])
        assert both.records == sum(r.event.stream_id == "ses_0" and r.position not in chosen for r in before) + 1
        await store.prune({"ses_2": 99}, at_ms=NOW + 3)
        await check_chains(store)
        await store.close()
