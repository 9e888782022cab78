"""The newest records in memory: no gap, a bound, and what a follower reads from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.event import StreamEvent
from streams.hashing import encode
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.stores import recent as module
from streams.stores.directory import Backend
from streams.stores.plan import Placed
from streams.stores.recent import AT_ONCE, Recent
from tests.streams.builders import event, events


def placed(position: int, text: str = "") -> Placed:
    return Placed(encode(event(f"k{position}", payload={"text": text})), position, position, b"\x01" * 32)


def positions(recent: Recent, after: int) -> list[int] | None:
    found = recent.after(after)
    return None if found is None else [record.position for record in found]


def test_it_returns_what_follows_or_says_that_the_log_must_be_read() -> None:
    recent = Recent()
    assert positions(recent, -1) is None
    recent.add(map(placed, range(10, 13)))
    assert positions(recent, 8) is None and positions(recent, 9) == [10, 11, 12]
    assert positions(recent, 11) == [12] and positions(recent, 12) == [] and positions(recent, 13) is None
    recent.clear()
    assert positions(recent, 9) is None


def test_a_gap_makes_it_begin_anew() -> None:
    recent = Recent()
    recent.add(map(placed, (1, 2, 5, 6)))
    assert positions(recent, 1) is None and positions(recent, 4) == [5, 6]


def test_it_returns_a_part_at_a_time_and_forgets_what_every_follower_has() -> None:
    recent = Recent()
    recent.add(map(placed, range(AT_ONCE + 2)))
    assert positions(recent, -1) == [*range(AT_ONCE)]
    recent.forget(AT_ONCE)
    assert positions(recent, AT_ONCE) == [AT_ONCE + 1] and positions(recent, AT_ONCE - 2) is None
    recent.forget(AT_ONCE + 1)
    assert positions(recent, AT_ONCE + 1) == [], "the last record stays, so that a follower need not read the log"


def test_it_keeps_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECENT_BYTES", 10_000)
    recent = Recent()
    recent.add(placed(position, "x" * 1000) for position in range(100))
    kept = next(position for position in range(100) if positions(recent, position - 1) is not None)
    assert 90 < kept < 95
    recent.add([placed(100, "x" * 20_000)])
    assert positions(recent, 99) is None, "a record that is larger than all of it is read from the log"


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_a_follower_that_keeps_up_never_reads_the_log(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend=backend)
    await log.append(events(1))
    live = log.subscribe()
    assert (await anext(live)).position == 0
    monkeypatch.setattr(Log, "read_all", None)
    for n in range(1, 20):
        await log.append([event(f"new{n}")])
        assert (await anext(live)).position == n
    await log.close()


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_what_a_follower_does_with_a_record_decides_what_it_wants_next(tmp_path: Path, backend: Backend) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend=backend)
    await log.append(events(1))
    asked: list[str] = []
    rejected: list[StreamEvent] = []
    wanted = {"b"}

    def wants(event: StreamEvent) -> bool:
        asked.append(str(event.payload["n"]))
        if asked[-1] not in wanted:
            rejected.append(event)
        return asked[-1] in wanted

    live = log.subscribe(wanted=wants)
    assert (await anext(live)).position == 0
    asked.clear()
    await log.append([event(name) for name in ("a", "b", "c", "d", "e")])
    assert (await anext(live)).event.payload == {"n": "b"} and asked == ["a", "b"]
    wanted.add("d")
    assert (await anext(live)).event.payload == {"n": "d"}
    newest = await anext(live)
    assert asked == ["a", "b", "c", "d", "e"], "each once"
    assert newest.event is rejected[-1] and newest.position == log.head, "the newest record always comes"
    await log.close()
