"""What every ``StreamStore`` does with hints: cursors and snapshots, which may be lost. In ``StoreContract``."""

from __future__ import annotations

from typing import Any

import pytest

from streams.event import StreamEvent
from streams.lineage import CREATED, ENDED, LINEAGE_VERSION, LINKED, RESUMED, Lineage
from streams.projection import fold, resume, state_hash
from streams.store import NOTHING, Snapshot, StreamStore
from tests.streams.builders import event, events
from tests.streams.opened import Opened


def family(count: int) -> list[StreamEvent]:
    """Sessions that appear, descend from each other, end, resume and are linked late."""
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
            with pytest.raises(ValueError, match="cursor or snapshot name"):
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
