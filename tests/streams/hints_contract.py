"""What every ``StreamStore`` does with hints: cursors and snapshots, which may be lost. In ``StoreContract``."""

from __future__ import annotations

import pytest

from streams.store import NOTHING, Snapshot, StreamStore
from tests.streams.builders import events
from tests.streams.opened import Opened


class HintsContract(Opened):
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
        """For example after a restore from a backup: the hint must not hide the records that will follow."""
        await store.append(events(2))
        await store.advance("mirror", 7)
        await store.put_snapshot("lineage", Snapshot(1, 7, b"x"))
        assert await store.cursor("mirror") == NOTHING
        assert await store.snapshot("lineage", 1) is None

    async def test_a_hint_has_a_plain_name(self, store: StreamStore) -> None:
        for name in ("", "../x", "a/b", "A", "a.b", "a b", "1a", "a" * 64, "a\n", "é", "\ud800", "a\0"):
            snapshot = Snapshot(1, 0, b"")
            for attempt in (store.cursor(name), store.advance(name, 0), store.put_snapshot(name, snapshot)):
                with pytest.raises(ValueError, match="cursor or snapshot name"):
                    await attempt

    async def test_hints_survive_a_restart(self) -> None:
        store = await self.open_store()
        await store.append(events(3))
        await store.advance("mirror", 1)
        await store.put_snapshot("lineage", Snapshot(1, 2, b"state"))
        await store.close()
        store = await self.open_store()
        assert await store.cursor("mirror") == 1
        assert await store.snapshot("lineage", 1) == Snapshot(1, 2, b"state")
        await store.close()
