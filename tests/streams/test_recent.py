"""The newest records in memory: no gap, a bound, and what a follower reads from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.stores.directory import Backend
from tests.streams.builders import event, events


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
