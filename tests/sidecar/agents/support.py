"""A runtime over any store, and what tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.inputs import agent_stream
from sidecar.agents.loading import UserAgent
from sidecar.agents.runtime import Runtime
from streams.bus.command import Command
from streams.identity import Identity, seeded_identity
from streams.log.log import Log
from streams.store import Record, StreamStore
from tests.memory import MemoryStore
from tests.sidecar.agents.agents import Counter, Other, Watcher
from tests.streams.builders import event

AGENTS: tuple[Callable[[], Any], ...] = (Counter, Other, Watcher)


def agents(*makes: Callable[[], Any]) -> list[UserAgent]:
    return [UserAgent(f"tests:{make.__name__}", make) for make in makes or AGENTS]


def opener(backend: str, path: Path) -> Callable[[], Any]:
    """Opens the same log each time; a memory store lives on."""
    memory = MemoryStore()

    async def open_store() -> StreamStore:
        if backend == "memory":
            return memory
        return await Log.open(path / "store", seeded_identity(1))

    return open_store


@asynccontextmanager
async def running(
    store: StreamStore,
    *makes: Callable[[], Any],
    kinds: Mapping[str, EffectKind] | None = None,
    identity: Identity | None = None,
    **more: Any,
) -> AsyncIterator[Runtime]:
    runtime = Runtime(store, identity or seeded_identity(7), agents(*makes), kinds=kinds, **more)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.close()


def command(key: str, type_: str = "add", **payload: Any) -> Command:
    return Command(key, type_, payload or {"by": 1})


def state(runtime: Runtime, name: str = "counter") -> dict[str, Any]:
    return runtime.engines[name].agent.state()


async def records(store: StreamStore, stream: str) -> list[Record]:
    return [record async for record in store.read(stream)]


async def types(store: StreamStore, name: str = "counter") -> list[str]:
    return [record.event.type for record in await records(store, agent_stream(name))]


async def until(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait for something that the runtime does in the background."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


async def settled(runtime: Runtime, store: StreamStore, *, seconds: float = 20.0) -> None:
    """Wait until every event of the log was handed out and handled."""

    def is_settled() -> bool:
        at_end = all(engine.position >= store.head or engine.is_broken for engine in runtime.engines.values())
        return at_end and not runtime.owes() and runtime.view.position >= store.head

    await until(is_settled, seconds=seconds)


def steps(*statuses: str) -> Sequence[Any]:
    """Captured steps of a session, with these outcomes."""
    identity, about = seeded_identity(99), {"session": "ses_1", "kind": "tool"}
    return [
        event(f"{n}:{status}", stream="ses_1", identity=identity, payload={**about, "status": status})
        for n, status in enumerate(statuses)
    ]
