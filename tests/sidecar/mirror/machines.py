"""Two homes that ask each other over a real server, for tests without sidecars."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.sessions import Sessions
from bridge.opencode.link.protocol import RequestError
from sidecar.link.local import ASKER
from sidecar.mirror.actions import Deeds
from sidecar.mirror.asking import Asks, ForOthers
from sidecar.mirror.machines import Machines
from streams.identity import Identity, seeded_identity
from tests.memory import MemoryStore
from tests.nats_servers import RealServer
from tests.sidecar.mirror.test_commands import QUICK


class Machine:
    """A home. What others have it do is in ``done``; ``gate`` is closed while it takes its time."""

    def __init__(self, name: str, allowed: Mapping[str, Collection[str]] | None = None) -> None:
        self.name, self.allowed = name, allowed or {}
        self.store, self.identity = MemoryStore(), seeded_identity(sum(name.encode()))
        self.options: ConnectOptions | None = None
        """How it reaches the server, if not as everybody."""
        self.done: list[tuple[str, str, dict[str, Any]]] = []
        self.bys: list[str] = []
        self.answer: Any = {"rows": []}
        self.gate = asyncio.Event()
        self.gate.set()
        self.machines: Machines
        self.asks: Asks

    async def do(self, machine: str, name: str, args: dict[str, Any]) -> Any:
        await self.gate.wait()
        if args.get("intent") == "int_none":
            raise RequestError("no-intent", "no intent")
        asker = ASKER.get()
        assert asker is not None and asker.machine == machine
        self.bys.append(asker.by)
        self.done.append((machine, name, args))
        return {"id": f"int_{len(self.done)}"}

    async def read(self, machine: str, name: str, args: dict[str, Any]) -> Any:
        if name != "intents":
            raise RequestError("unknown-request", "no such question")
        return self.answer

    async def ask(self, machine: str, name: str, args: dict[str, Any], key: str, seconds: float = 20.0) -> Any:
        """The answer to a request; ``None`` if none came."""
        return await self.asks.answer(await self.asks.send(machine, name, args, key), seconds)

    async def types(self) -> list[str]:
        return [one.event.type async for one in self.store.read("system/requests")]


def deeds(store: Any, identity: Identity) -> Any:
    return lambda do: Deeds(store, identity, do, lambda value: value)


async def reach(home: Machine, server: RealServer) -> ConnectOptions:
    return home.options or server.options


@asynccontextmanager
async def living(server: RealServer, *homes: Machine) -> AsyncIterator[None]:
    """These homes at work."""
    all_sessions, tasks = [], []
    for home in homes:
        sessions = Sessions(partial(reach, home, server))
        all_sessions.append(sessions)
        home.asks = Asks(home.store, home.identity, lambda value: value)
        await home.asks.start()
        bus = JetStreamEventBus(sessions, QUICK, log_id=f"log-{home.name}")
        others = ForOthers(home.asks, home.allowed, home.read, home.do)
        home.machines = Machines(home.name, bus, others, deeds(home.store, home.identity))
        tasks.append(asyncio.create_task(home.machines.run()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sessions in all_sessions:
            await sessions.close()
