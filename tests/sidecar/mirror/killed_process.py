"""The process that ``test_command_crashes.py`` kills: agents, the consumers of their commands, and the mirror.

Everything is the product's own, over a real server; only effects end in files.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL
from typing import Any, Literal, NamedTuple

from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.options import ConnectOptions, PullSettings
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS
from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.loading import UserAgent
from sidecar.agents.runtime import Runtime
from sidecar.agents.stops import Point, Stop
from sidecar.mirror.commands import CommandConsumers
from sidecar.mirror.follower import MirrorTask
from streams.identity import system_identity
from streams.log.log import Log
from streams.system.retry import Retry
from tests.sidecar.agents.kinds import Policy

AGENT = "clerk"
CONSUMER = f"{AGENT}_consumer"
SETTINGS = PullSettings(fetch_timeout_s=1.0, heartbeat_s=0.2, ack_wait_s=0.5, retry=Retry(0.01, 1.0, attempts=2))


class Place(NamedTuple):
    """A stop point, and whose it is: the bus publishes dead letters, the mirror everything else."""

    part: Literal["runtime", "bus", "mirror"]
    point: Point


PLACES = (
    Place("bus", "pulled"),
    Place("runtime", "received"),
    Place("runtime", "before-commit"),
    Place("runtime", "after-commit"),
    Place("bus", "before-publish"),
    Place("bus", "after-publish"),
    Place("mirror", "before-publish"),
    Place("mirror", "after-publish"),
    Place("bus", "before-ack"),
    Place("bus", "after-ack"),
    Place("runtime", "effect-started"),
    Place("runtime", "effect-done"),
    Place("runtime", "effect-recorded"),
)


class Clerk:
    """Counts; each command is answered by an event, a message for another home, and one kind of effect or none.

    It fails on ``poison``.
    """

    name = AGENT

    def __init__(self) -> None:
        self.count = 0
        self.results: list[str] = []

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        payload = event["payload"]
        if event["type"] == "poison":
            raise ValueError("poison")
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


@dataclass
class Outside(EffectKind):
    """An effect that appends a line. If it honours the key, a repetition appends nothing."""

    path: Path
    effect_class: EffectClass

    async def run(self, effect: Effect, key: str) -> Any:
        if self.effect_class == "unsafe" or key not in lines(self.path):
            append(self.path, key)
        return {"n": effect.args["n"]}


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


def run(path: Path, options: ConnectOptions, place: Place | None, passing: int, report: Connection) -> None:
    """Work until the queue is empty and all is published, and report the agent's status; or be killed on the way."""
    logging.getLogger("sidecar").setLevel(logging.ERROR)  # it warns about each poison
    report.send(asyncio.run(_run(path, options, place, passing)))


async def _run(path: Path, options: ConnectOptions, place: Place | None, passing: int) -> dict[str, Any]:
    def stop(part: str) -> Stop:
        return killing(place.point if place is not None and place.part == part else None, passing)

    async def given() -> ConnectOptions:
        return options

    identity = system_identity()
    store = await Log.open(path / "store", identity)
    runtime = Runtime(
        store,
        identity,
        [UserAgent("tests:Clerk", Clerk)],
        kinds={"honest": Outside(path / "honest", "idempotent"), "unsafe": Outside(path / "unsafe", "unsafe")},
        policy=Policy(attempts=1000),
        stop=stop("runtime"),
    )
    sessions = Sessions(given)
    await runtime.start()
    consumers = CommandConsumers(runtime, JetStreamEventBus(sessions, SETTINGS, stop=stop("bus")))
    mirror = MirrorTask(store, store.manifest.log_id, sessions, identity.now_ms, stop=stop("mirror"))
    consumers.start()
    mirror.start()

    def is_done() -> bool:
        at_head = runtime.view.position >= store.head and runtime.engines[AGENT].position >= store.head
        return at_head and not runtime.owes() and mirror.status()["state"] == "idle"

    async with asyncio.timeout(60):
        await _until_empty(sessions, is_done)
    (status,) = runtime.status()
    await consumers.close()
    await mirror.close()
    await runtime.close()
    await sessions.close()
    await store.close()
    return status


async def _until_empty(sessions: Sessions, is_done: Callable[[], bool]) -> None:
    """Wait until no command is left on the server, and what the commands led to is done."""
    session = await sessions.get()
    while True:
        await asyncio.sleep(0.005)
        if is_done():
            names = await session.api(f"CONSUMER.NAMES.{COMMANDS}")
            if CONSUMER in (names.get("consumers") or ()):
                found = await session.api(f"CONSUMER.INFO.{COMMANDS}.{CONSUMER}")
                if not found["num_pending"] and not found["num_ack_pending"] and is_done():
                    return
