"""A slow disk under the log: every sync takes 5, 50 or 500 ms more.

The loop keeps running while the disk works. No append is acknowledged before the end of a sync that began after it was
submitted. Waiting appends cost no memory beyond themselves. No time is asserted; the test counts the syncs during which
the loop ran. ``TORTURE_SLOW_SYNCS`` sets how many syncs each delay lasts.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from streams.identity import seeded_identity
from streams.log.log import Log
from tests.streams.builders import event
from tests.streams.calls import Call, watching
from tests.streams.sizes import is_set, size
from tests.torture.figures import MAX_GROWTH_MIB, note, percentile, rss_mib

SYNCS = size("SLOW_SYNCS", 10)
DELAYS = [5, 50, 500] if is_set("SLOW_SYNCS") else [5, 50]
IN_FLIGHT = 64


class SlowSyncs:
    """Sleeps before each sync, and notes how often the loop ran meanwhile."""

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self.begun = self.ended = self.turns = 0
        self.turns_in_a_sync: list[int] = []

    def __call__(self, call: Call) -> None:
        if call.kind != "sync" or self.delay_ms == 0:
            return
        self.begun += 1
        before = self.turns
        time.sleep(self.delay_ms / 1000)
        self.turns_in_a_sync.append(self.turns - before)
        self.ended += 1

    async def turn(self, lags: list[float]) -> None:
        """Run the loop until cancelled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append((time.perf_counter() - began) * 1000 - 1)
            self.turns += 1


@pytest.mark.parametrize("delay_ms", DELAYS)
async def test_the_loop_goes_on_and_acks_come_late(tmp_path: Path, delay_ms: int) -> None:
    slow = SlowSyncs(0)
    early = appended = 0
    lags: list[float] = []
    with watching(tmp_path, slow):
        log = await Log.open(tmp_path / "store", seeded_identity(1), segment_bytes=200_000)
        slow.delay_ms = delay_ms
        before = rss_mib()

        async def append(lane: int) -> None:
            nonlocal early, appended
            number = 0
            while slow.ended < SYNCS:
                begun = slow.begun
                await log.append([event(f"{lane}-{number}", stream=f"ses_{lane % 5}", payload={"text": "x" * 500})])
                early += slow.ended <= begun
                number += 1
                appended += 1

        turning = asyncio.create_task(slow.turn(lags))
        async with asyncio.timeout(60 + SYNCS * delay_ms / 100):
            await asyncio.gather(*(append(lane) for lane in range(IN_FLIGHT)))
        turning.cancel()
        slow.delay_ms = 0
        grown = rss_mib() - before
        await log.close()
    held = sum(turns == 0 for turns in slow.turns_in_a_sync)
    note(
        f"slow-disk {delay_ms} ms",
        inputs=appended,
        early=early,
        syncs=slow.ended,
        held=held,
        lag_p99_ms=percentile(lags, 0.99),
        grown_mib=grown,
    )
    assert early == 0, "an append was acknowledged without a sync after it"
    assert appended > slow.ended * 4, "what waits is committed together"
    # A delay of 5 ms may be over before a busy machine gives the loop its turn.
    assert held <= len(slow.turns_in_a_sync) * (0.5 if delay_ms < 20 else 0.1), slow.turns_in_a_sync
    assert grown < MAX_GROWTH_MIB
