"""Folds over records, and the state hash that proves two equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.lineage import CREATED, Lineage
from streams.projection import fold, state_hash
from streams.store import Record, StreamStore
from streams.stores.jsonl.store import JsonlStore
from tests.memory import MemoryStore
from tests.streams.builders import event


class Totals:
    """Counts and sums by type; keeps the last payload."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def apply(self, record: Record) -> None:
        entry = self.seen.setdefault(record.event.type, {"count": 0, "last": None})
        entry["count"] += 1
        entry["last"] = record.event.payload

    def state(self) -> dict[str, Any]:
        return self.seen


def history(seed: int) -> list[StreamEvent]:
    identity = seeded_identity(seed)
    return [
        event(
            f"k{n}",
            type_=["agent.spawned", CREATED, "execution.step"][n % 3],
            stream=f"ses_{n % 2}",
            identity=identity,
            payload={"session": f"ses_{n}", "parent": f"ses_{n - 1}" if n else None, "odd": [2**70, "\ud800", -0.0]},
        )
        for n in range(20)
    ]


async def filled(store: StreamStore, seed: int = 1) -> StreamStore:
    for each in history(seed):
        await store.append([each])
    return store


async def test_equal_histories_have_equal_state_hashes(tmp_path: Path) -> None:
    """This holds in another store, in another process, and with other batches."""
    memory = await filled(MemoryStore())
    jsonl = await filled(await JsonlStore.open(tmp_path, seeded_identity(5)))
    await jsonl.close()
    reopened = await JsonlStore.open(tmp_path, seeded_identity(6))
    batched = MemoryStore()
    await batched.append(history(1))
    for make in (Totals, Lineage):
        hashes = {state_hash(await fold(make(), store.read_all())) for store in (memory, reopened, batched)}
        assert len(hashes) == 1
    await reopened.close()


async def test_the_state_hash_is_pinned() -> None:
    store = await filled(MemoryStore())
    assert (
        state_hash(await fold(Totals(), store.read_all()))
        == "d147abda25df2c3493c3085ed037b7996b23eeec64166d8c0490e8ac3f3c391a"
    )
