"""The writer finds a key without searching the records that its table of keys does not have yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streams.store import Record
from streams.stores.sqlite import keys, reader
from streams.stores.sqlite.store import SqliteStore
from tests.streams.builders import event


@pytest.mark.parametrize("folded", [5, 16_384])
async def test_a_key_is_found_without_a_search(tmp_path: Path, monkeypatch: Any, folded: int) -> None:
    def searched(*args: Any) -> Record:
        raise AssertionError("it searched the records")

    monkeypatch.setattr(keys, "FOLDED", folded)
    store = await SqliteStore.open(tmp_path)
    try:
        sent = [event(f"n{n}") for n in range(23)]
        for each in sent:
            await store.append([each])
        names = [each.idempotency_key for each in sent]
        monkeypatch.setattr(reader, "find_key", searched)
        found = [await store.find(name) for name in names]
        assert [record and record.position for record in found] == list(range(23))
        assert await store.find("no such key") is None
        await store.prune({sent[0].stream_id: 21}, at_ms=0)
        assert [await store.find(name) is None for name in names] == [True] * 21 + [False] * 2
    finally:
        await store.close()
