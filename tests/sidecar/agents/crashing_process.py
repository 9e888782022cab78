"""The process that ``test_crashes.py`` kills: agents over a real log, commands from a source that redelivers.

Everything outside of the log is a file here. A source and a mirror over NATS have the same two shapes,
``Source`` and ``Mirror``, and pass the same stop points.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL
from typing import Any, Protocol

from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.effects.runner import Reconciled, Unknown
from sidecar.agents.inputs import Command
from sidecar.agents.loading import UserAgent
from sidecar.agents.runtime import Runtime
from sidecar.agents.stops import Point, Stop
from streams.identity import system_identity
from streams.log.log import Log
from streams.store import StreamStore
from streams.stores.directory import Backend
from tests.sidecar.agents.kinds import Policy

AGENT = "clerk"


class Clerk:
    """Counts; each command is answered by an event, a message for another home, and one kind of effect or none."""

    name = AGENT

    def __init__(self) -> None:
        self.count = 0
        self.results: list[str] = []

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        payload = event["payload"]
        if event["type"].startswith("effect."):
            said = {"request": payload["request"], "type": event["type"]}
            return [{"type": "clerk.result", "payload": said}]
        counted = {"type": "clerk.counted", "payload": {"n": payload["n"], "was": self.count}}
        message = {"to": "elsewhere", "type": "tell", "payload": {"n": payload["n"]}}
        effect = {"effect": event["type"], "payload": {"n": payload["n"]}}
        return [counted, message] + ([] if event["type"] == "plain" else [effect])

    def apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "clerk.counted":
            self.count += 1
        elif event["type"] == "clerk.result":
            self.results = [*self.results, event["payload"]["request"] + event["payload"]["type"]][-20:]


class Source(Protocol):
    """Where commands come from. What was not acknowledged comes again."""

    def pull(self) -> Iterator[tuple[str, Command]]:
        """Every command that is not acknowledged, with the handle that acknowledges it."""
        ...

    def ack(self, handle: str) -> None:
        """Never deliver this one again."""
        ...


class Mirror(Protocol):
    """Where messages for other homes go."""

    async def publish(self, id_: str, payload: dict[str, Any]) -> None:
        """Publish a message; the receiver knows repetitions by its id."""
        ...


class FileSource:
    """Commands from a journal, one a line; the acknowledged ones stand in another file."""

    def __init__(self, path: Path) -> None:
        self._journal, self._acked = path / "commands", path / "acked"

    def pull(self) -> Iterator[tuple[str, Command]]:
        acked = set(lines(self._acked))
        for line in lines(self._journal):
            given = json.loads(line)
            if given["key"] not in acked:
                yield given["key"], Command(given["key"], given["type"], {"n": given["n"]})

    def ack(self, handle: str) -> None:
        append(self._acked, handle)


@dataclass
class FileMirror:
    """Messages, one a line."""

    path: Path

    async def publish(self, id_: str, payload: dict[str, Any]) -> None:
        append(self.path, json.dumps([id_, payload["n"]]))


@dataclass
class Outside:
    """An effect that appends a line. If it honours the key, a repetition appends nothing."""

    path: Path
    effect_class: EffectClass

    async def run(self, effect: Effect, key: str) -> Any:
        if self.effect_class == "unsafe" or key not in lines(self.path):
            append(self.path, key)
        return {"n": effect.args["n"]}

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        return Unknown()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def append(path: Path, line: str) -> None:
    """One write; the kernel keeps it when this process is killed."""
    with path.open("ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


def killing(point: Point | None, passing: int) -> Stop:
    """A stop that kills this process when ``point`` is passed the given time."""
    passed = 0

    def stop(at: Point) -> None:
        nonlocal passed
        passed += at == point
        if at == point and passed == passing:
            os.kill(os.getpid(), SIGKILL)

    return stop


def run(path: Path, backend: Backend, point: Point | None, passing: int, report: Connection) -> None:
    """Work until nothing is left to do, and report the agents' status; or be killed on the way."""
    report.send(asyncio.run(_run(path, backend, killing(point, passing))))


async def _run(path: Path, backend: Backend, stop: Stop) -> list[dict[str, Any]]:
    store = await Log.open(path / "store", system_identity(), backend=backend)
    runtime = Runtime(
        store,
        system_identity(),
        [UserAgent("tests:Clerk", Clerk)],
        kinds={"honest": Outside(path / "honest", "idempotent"), "unsafe": Outside(path / "unsafe", "unsafe")},
        policy=Policy(attempts=1000),
        stop=stop,
    )
    await runtime.start()
    mirroring = asyncio.create_task(_mirror(store, FileMirror(path / "published"), stop))
    await _take(runtime, FileSource(path), stop)
    async with asyncio.timeout(60):
        await _until(lambda: _is_done(runtime, store))
        while await store.cursor("mirror") < store.head:
            assert not mirroring.done(), mirroring.result()
            await asyncio.sleep(0.002)
    status = runtime.status()
    mirroring.cancel()
    await runtime.close()
    await store.close()
    return status


async def _take(runtime: Runtime, source: Source, stop: Stop) -> None:
    """The pull loop: hand in what was delivered, acknowledge what is durable."""

    async def one(handle: str, command: Command) -> None:
        stop("pulled")
        await runtime.command(AGENT, command)
        stop("before-ack")
        source.ack(handle)
        stop("after-ack")

    await asyncio.gather(*(one(handle, command) for handle, command in source.pull()))


async def _mirror(store: StreamStore, mirror: Mirror, stop: Stop) -> None:
    """Publish every message for another home, past a cursor that may lag."""
    async for record in store.subscribe(after=await store.cursor("mirror")):
        if record.event.metadata.get("route") == "bus":
            stop("before-publish")
            await mirror.publish(record.event.id, record.event.payload)
            stop("after-publish")
        await store.advance("mirror", record.position)


def _is_done(runtime: Runtime, store: StreamStore) -> bool:
    engine = runtime.engines[AGENT]
    return runtime.view.position >= store.head and engine.position >= store.head and not runtime.owes()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)
