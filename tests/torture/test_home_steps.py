"""Each fault at each step between a command and its effect's result, at an owner beside another home.

The owner also carries out calls. It is held at the step while the fault comes, so no cell of the table is left to
chance. Whatever happens, each command is handled once, its effect has one key, and the state is that of a quiet home.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import nats

from streams.log.reader import LogReader
from streams.store import Record
from tests.mirrors import unsynced
from tests.nats_servers import TOKEN, RealServer, real_server
from tests.streams.opened import faults
from tests.torture import home_process
from tests.torture.figures import note
from tests.torture.home_process import CONTEXT, SETTINGS, STEPS, Given
from tests.torture.many_homes import Wire, handled, surely, text, undisturbed, until
from tests.torture.sidecars import HANG_S

Fault = Callable[["Home"], Coroutine[Any, Any, None]]


class Home:
    """A process that works for a home, with a wire of its own, which ``start`` replaces after its end."""

    def __init__(self, path: Path, server: RealServer, done: Path, *, serves: bool) -> None:
        self.path, self.server, self.wire = path, server, Wire(server)
        self._done, self._serves = done, serves

    async def start(self) -> None:
        await self.wire.open()
        options = replace(
            self.server.options,
            servers=(f"nats://127.0.0.1:{self.wire.port}",),
            connect_seconds=5,
            ping_seconds=1,
            request_seconds=5,
        )
        self.pipe, theirs = CONTEXT.Pipe()
        self.armed = CONTEXT.Array("c", 32)
        given = Given(self.path, options, self._serves, self._done)
        self.process = CONTEXT.Process(target=home_process.run, args=(given, self.armed, theirs))
        await asyncio.to_thread(self.process.start)
        theirs.close()

    async def again(self) -> None:
        """Start it after its end."""
        self.wire = Wire(self.server)
        await self.start()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    async def close(self) -> None:
        """Kill it. Idempotent."""
        self.process.kill()
        await asyncio.to_thread(self.process.join, HANG_S)
        self.pipe.close()
        await self.wire.close()

    # --- faults, at a process that is held ---

    async def killed(self) -> None:
        await self.close()
        await self.again()

    async def suspended(self) -> None:
        self.signal(signal.SIGSTOP)
        await asyncio.sleep(SETTINGS.ack_wait_s * 1.5)  # its command must be delivered again
        self.signal(signal.SIGCONT)
        self.pipe.send("go on")

    async def server_restarted(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)
        self.pipe.send("go on")

    async def cut(self) -> None:
        self.wire.cut()
        self.wire.is_cut = False
        self.pipe.send("go on")

    async def records(self) -> list[Record]:
        """What ``tally`` did."""
        reader = LogReader(self.path)
        found = [record async for record in reader.read_all() if record.event.stream_id.startswith("agent/tally")]
        await reader.close()
        return found


FAULTS: dict[str, Fault] = {
    "kill": Home.killed,
    "suspend": Home.suspended,
    "restart": Home.server_restarted,
    "cut": Home.cut,
}


class World:
    def __init__(self, path: Path, server: RealServer, client: nats.NATS) -> None:
        self.done = path / "done"
        self.done.mkdir()
        self.homes = [Home(path / name, server, self.done, serves=name == "a") for name in "ab"]
        self.sent, self._client = 0, client

    async def send(self) -> None:
        """Send a new command, twice."""
        body = json.dumps({"payload": {"text": text(self.sent)}, "idempotency_key": f"k{self.sent}"})
        for copy in range(2):
            await surely(self._client.jetstream(), f"{self.sent}-{copy}", body)
        self.sent += 1

    async def send_and_hold(self, step: str) -> tuple[Home, Home]:
        """Send a new command; return the home that is held at this step, and the other one."""
        for home in self.homes:
            home.armed.value = step.encode()
        await self.send()
        return await self.held(step)

    async def held(self, step: str) -> tuple[Home, Home]:
        """The home that is held at a step, as soon as one is, and the other one, which passes the step."""
        (pipe, *_) = await asyncio.to_thread(
            wait, [home.pipe for home in self.homes if not home.pipe.closed], HANG_S
        ) or [None]
        assert pipe is not None, f"{step} was not passed"
        one, other = sorted(self.homes, key=lambda home: home.pipe is not pipe)
        assert one.pipe.recv() == step
        other.armed.value = b""
        return one, other

    async def is_settled(self) -> bool:
        """Whether the owner has a result for each command."""
        return await self.is_done(self.homes[0])

    async def is_acknowledged(self) -> bool:
        """Whether no command and no report waits."""
        return not (await self._client.jetstream().stream_info("MESHFORGE_COMMANDS")).state.messages

    async def is_done(self, home: Home) -> bool:
        """Whether the agent has a result for each command."""
        counted = [record.event.payload for record in await home.records() if record.event.type == "tally.counted"]
        return len({each["run"] for each in counted}) == self.sent


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    """Two homes at work, of which the first owns the agent."""
    with real_server(path / "nats", jetstream=unsynced(path / "nats")) as server:
        client = await nats.connect(
            f"nats://127.0.0.1:{server.port}", token=TOKEN, max_reconnect_attempts=-1, reconnect_time_wait=0.05
        )
        made = World(path, server, client)
        started: list[Home] = []
        try:
            for home in made.homes:
                await home.start()
                started.append(home)
                if home is made.homes[0]:
                    await made.send()
                    await until(lambda: made.is_done(made.homes[0]))
            yield made
        finally:
            for home in started:
                await home.close()
            await client.close()


async def test_each_fault_at_each_step_costs_and_doubles_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        for step in STEPS:
            for fault in FAULTS.values():
                owner, other = await made.send_and_hold(step)
                await fault(owner)
        records = await judge(made, disturbed=len(STEPS) * len(FAULTS))
        assert [record.event.type for record in records].count("effect.completed") == made.sent
        assert [record.event.type for record in records].count("agent.owned") == 1
        assert not handled(await other.records())


async def judge(made: World, *, disturbed: int) -> list[Record]:
    """Each command handled once, one key for each effect, the state of a quiet home. Returns what the owner did."""
    await until(made.is_settled)
    await until(made.is_acknowledged)
    records = await made.homes[0].records()
    inputs = handled(records)
    lost, doubled = made.sent - len(inputs), inputs.total() - len(inputs)
    note("many-homes", kills=disturbed, inputs=made.sent, lost=lost, doubled=doubled)
    assert (lost, doubled) == (0, 0)
    assert len(list(made.done.iterdir())) == made.sent
    states = [record.event.metadata["state"] for record in records if "state" in record.event.metadata]
    assert states[-1] == await undisturbed(made.sent)
    for home in made.homes:
        ids = [record.event.id for record in await home.records()]
        assert len(set(ids)) == len(ids)
        assert await faults(home.path) == []
    return records
