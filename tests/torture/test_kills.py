"""``kill -9`` of a sidecar under load, again and again.

Several shims send recorded runs. The test journals which of their hooks were acknowledged, kills the sidecar,
looks for them in its log, and starts the next one, to which the shims resend the others. At the end the log equals
that of an undisturbed run. ``TORTURE_SIDECAR_KILLS`` sets how often.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from streams.log.reader import LogReader
from tests.bridge.opencode.playing import Content, content
from tests.streams.opened import faults
from tests.streams.sizes import size
from tests.torture.figures import note, percentile, seeded
from tests.torture.load import Lane, expected
from tests.torture.sidecars import HANG_S, RunningSidecar

KILLS = size("SIDECAR_KILLS", 4)
HOMES = 2
"""How many stores are killed in parallel."""
LANES = 3


class Torment:
    """One home whose sidecar is killed, or in a subclass ends in another way."""

    moments = ("starting", "up", "linked", "acking", "acking", "acking", "acking")

    def __init__(self, path: Path, random: Random) -> None:
        self.one = RunningSidecar(path)
        self.lanes = [Lane(n, Random(random.random())) for n in range(1, LANES + 1)]
        self.log: Counter[Content] = Counter()
        self.lost_acked = self.kills = 0
        self.recovery_s: list[float] = []
        self._random = random
        self._position = -1
        self._telling: list[asyncio.Task[None]] = []

    @property
    def acked(self) -> int:
        return sum(lane.acked for lane in self.lanes)

    async def run(self, kills: int) -> None:
        self._telling = telling = [asyncio.create_task(lane.run(self.one)) for lane in self.lanes]
        try:
            for _ in range(kills):
                await self._life()
            await self._restart()
            for lane in self.lanes:
                lane.ending = True
            async with asyncio.timeout(HANG_S):
                await asyncio.gather(*telling)
            await self._read()
            assert self.one.stop() == 0, self.one.complaints()
            assert self.one.complaints() == [], self.one.complaints()
        finally:
            for task in telling:
                task.cancel()
            await asyncio.gather(*telling, return_exceptions=True)
            self.one.close()

    async def _life(self) -> None:
        """One sidecar from its start to its violent end."""
        moment = self._random.choice(self.moments)
        acks = self._random.choice([1, 5, 20, 40, 100])
        await self._restart(moment != "starting")
        if moment == "starting":
            await asyncio.sleep(self._random.random() * 0.3)  # anywhere in its start: the moment is the chance here
        elif moment != "up":
            before = self.acked
            await self._until(lambda: self.acked >= before + (1 if moment == "linked" else acks))
        await self._end()
        self.kills += 1
        await self._read()
        self.lost_acked += sum(lane.missing(self.log) for lane in self.lanes)

    async def _end(self) -> None:
        self.one.kill()

    async def _restart(self, wait: bool = True) -> None:
        began, before = time.perf_counter(), self.acked
        self.one.spawn()
        if wait:
            await self._until(lambda: self.one.is_up)
            await self._until(lambda: self.acked > before or any(lane.ending for lane in self.lanes))
            self.recovery_s.append(time.perf_counter() - began)

    async def _until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not done():
                assert self.one.lives, self.one.complaints()
                for task in self._telling:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.005)

    async def _read(self) -> None:
        """The log's new records, read as any other process would."""
        reader = LogReader(self.one.home.store_path)
        async for record in reader.read_all(after=self._position):
            self.log[content(record.event)] += 1
            self._position = record.position
        await reader.close()


async def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    torments = [Torment(tmp_path / str(n), seeded(f"kills {n}")) for n in range(HOMES)]
    await asyncio.gather(*(torment.run(KILLS // HOMES) for torment in torments))
    await judge("kills", torments)


async def judge(part: str, torments: Sequence[Torment]) -> None:
    """Every log must verify and equal that of an undisturbed run."""
    lost = doubled = 0
    told: list[str] = []
    for torment in torments:
        wanted = expected(torment.lanes)
        missing, surplus = wanted - torment.log, torment.log - wanted
        lost += missing.total() + torment.lost_acked
        doubled += surplus.total()
        told += [f"missing: {one}" for one in missing] + [f"too much: {one}" for one in surplus]
        findings = await faults(torment.one.home.store_path)
        assert findings == []
    recovery = [took for torment in torments for took in torment.recovery_s]
    note(
        part,
        kills=sum(torment.kills for torment in torments),
        inputs=sum(torment.acked for torment in torments),
        events=sum(torment.log.total() for torment in torments),
        resent=sum(lane.resent for torment in torments for lane in torment.lanes),
        lost=lost,
        doubled=doubled,
        recovery_p50_s=percentile(recovery, 0.5),
        recovery_max_s=max(recovery),
    )
    assert (lost, doubled) == (0, 0), "\n".join(told)
