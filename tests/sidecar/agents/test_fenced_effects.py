"""A sidecar that lost its lock does no effect: it cannot note in the ledger that it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.effects.runner import EffectRunner
from streams.errors import StoreFenced
from streams.event import StreamEvent
from streams.log.log import Log
from streams.store import Record
from streams.stores.directory import LOCK
from tests.sidecar.agents.kinds import Clock, Policy, Work, request


@pytest.mark.parametrize("fenced", [False, True])
async def test_an_effect_that_was_asked_for_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    clock = Clock()
    identity = clock.identity()
    log = await Log.open(tmp_path / "store", identity)
    asked = await request(log, identity)
    if fenced:
        (log.store / LOCK).unlink()
    kind = Work()
    refused = asyncio.Event()
    append = log.append

    async def noted(events: Sequence[StreamEvent], **more: Any) -> list[Record]:
        try:
            return await append(events, **more)
        except StoreFenced:
            refused.set()
            raise

    monkeypatch.setattr(log, "append", noted)
    runner = EffectRunner(log, identity, {"work": kind}, policy=Policy(), sleep=clock.sleep)
    runner.offer(asked)
    async with asyncio.timeout(20):
        while runner.is_busy and not refused.is_set():
            await asyncio.sleep(0.001)
    await runner.close()
    await log.close()
    assert refused.is_set() == fenced
    assert len(kind.keys) == (0 if fenced else 1)
