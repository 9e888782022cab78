"""What every ``StreamStore`` must preserve of an event: content, key and hash chain. In ``StoreContract``."""

from __future__ import annotations

from typing import Any

from streams.hashing import GENESIS, canonical, chain, digest_form_of
from streams.store import StreamStore
from tests.streams.builders import event
from tests.streams.opened import Opened, collect


class ContentContract(Opened):
    async def test_each_record_continues_its_streams_chain(self, store: StreamStore) -> None:
        for n in range(8):
            await store.append([event(f"k{n}", stream=f"ses_{n % 2}", payload={"n": n, "text": "é✓"})])
        for name in ("ses_0", "ses_1"):
            previous = GENESIS
            for record in await collect(store.read(name)):
                _, form = digest_form_of(canonical(record.event.fields()))
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
