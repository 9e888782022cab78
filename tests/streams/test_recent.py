"""The newest records in memory: no gap, a bound, and what a follower reads from it."""

from __future__ import annotations

from pathlib import Path

import pytest

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
