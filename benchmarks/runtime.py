"""The runtime: commands through an agent, compared with bare appends of the same number of events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import pipeline
from benchmarks.limits import beside
from benchmarks.report import Row
from benchmarks.store import IDENTITY, PAYLOAD, an_event
from sidecar.agents.loading import UserAgent
from sidecar.agents.runtime import Runtime
from streams.bus.command import Command
from streams.log.log import Log

IN_FLIGHT = 256
CHUNK = 512


class Echo:
    """Answers each command with one event of the same size."""

    name = "echo"

    def __init__(self) -> None:
        self.count = 0

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the command's payload."""
        return [{"type": "echo.said", "payload": event["payload"]}]

    def apply(self, event: dict[str, Any]) -> None:
        """Count."""
        self.count += 1


async def _rate(one: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Calls per second with ``IN_FLIGHT`` of them waiting at a time."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        numbers = iter(range(CHUNK))

        async def work(numbers: Iterator[int] = numbers) -> None:
            for _ in numbers:
                await one()

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        done += CHUNK
    return done / (time.perf_counter() - start)


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure from a command to its durable result, and the whole pipeline over NATS."""
    bare = await Log.open(directory / "runtime-bare", IDENTITY)
    store = await Log.open(directory / "runtime", IDENTITY)
    runtime = Runtime(store, IDENTITY, [UserAgent("benchmarks:Echo", Echo)])
    await runtime.start()

    async def append() -> None:
        await bare.append([an_event(0), an_event(1)])

    async def command() -> None:
        await runtime.command("echo", Command(IDENTITY.ulid(), "say", PAYLOAD))

    await _rate(command, seconds / 10)  # warm up before measuring
    rate, limit = await beside(lambda s: _rate(append, s), lambda s: _rate(command, s), seconds)
    await runtime.close()
    await store.close()
    await bare.close()
    row = Row("command to durable result, 256 in flight", rate, limit, "bare appends of 2")
    return [row, *await pipeline.measure(directory, seconds)]
