"""A home as a process that a test holds at a step: an agent, its commands, its calls and the mirror.

Everything is the product's own, over a real server. At the step that ``armed`` names, the whole process stops, says
so, and goes on when the test says so; a test may also kill it there.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.options import ConnectOptions, PullSettings
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.l0.calls import REPORT
from sidecar.agents.effects.policy import Effect
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.runtime import Runtime
from sidecar.agents.stops import Point
from sidecar.config import RemoteTool
from sidecar.mirror.calling import RemoteCalls
from sidecar.mirror.commands import CommandConsumers
from sidecar.mirror.follower import MirrorTask
from sidecar.mirror.owning import Owning
from sidecar.mirror.remote_tools import ServedTools
from streams.identity import system_identity
from streams.log.log import Log
from streams.system.retry import Retry
from tests.sidecar.agents.kinds import Policy
from tests.sidecar.agents.support import agents
from tests.torture.many_homes import Tally

SUBJECT: Final = "cmd.tool.words.count"
_POINTS: Final = get_args(Point)
_CALLED: Final = _POINTS.index("effect-done")
STEPS: Final = (*_POINTS[:_CALLED], "call-published", "report-published", *_POINTS[_CALLED:])
"""The steps from a command to its effect's result, at an owner that also carries out calls."""

SETTINGS: Final = PullSettings(
    fetch_timeout_s=1.0, heartbeat_s=0.2, ack_wait_s=0.5, retry=Retry(0.01, 1.0, attempts=1000)
)

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.torture.home_process"])


@dataclass
class Held:
    """Where a test holds this process."""

    armed: Any
    """An array of bytes that the test shares: the name of a step."""
    wire: Connection

    def stop(self, at: str) -> None:
        if self.armed.value == at.encode():
            self.armed.value = b""
            self.wire.send(at)
            self.wire.recv()


class HeldBus(JetStreamEventBus):
    """The bus, where the process is held after a call or a report was published."""

    def __init__(self, sessions: Sessions, log_id: str, held: Held) -> None:
        super().__init__(sessions, SETTINGS, log_id=log_id, stop=held.stop)
        self._held = held

    async def publish(self, subject: str, headers: Mapping[str, str], body: bytes) -> int:
        stored = await super().publish(subject, headers, body)
        if subject.endswith(SUBJECT):
            self._held.stop("call-published")
        elif subject.endswith(REPORT):
            self._held.stop("report-published")
        return stored


@dataclass
class Count(EffectKind):
    """The tool, which does each key once."""

    done: Path
    effect_class = "idempotent"

    async def run(self, effect: Effect, key: str) -> Any:
        (self.done / key.replace(":", "-")).touch()
        return {"words": len(effect.args["text"].split())}

    async def reconcile(self, effect: Effect, key: str) -> Any:
        raise AssertionError


class Given(NamedTuple):
    """What a home is, and what it may do. ``done`` has a file for each key that the tool did."""

    path: Path
    options: ConnectOptions
    serves: bool
    done: Path


def run(home: Given, armed: Any, wire: Connection) -> None:
    """Work until killed."""
    logging.getLogger("sidecar").setLevel(logging.CRITICAL)  # what a test does to the process is worth no warning
    asyncio.run(_run(home, Held(armed, wire)))


async def _run(home: Given, held: Held) -> None:
    async def given() -> ConnectOptions:
        return home.options

    identity, sessions = system_identity(), Sessions(given)
    store = await Log.open(home.path, identity)
    log_id = store.manifest.log_id
    bus = HeldBus(sessions, log_id, held)
    owning = Owning(["tally"])
    calls = RemoteCalls(lambda: bus, store, identity, log_id, lambda value: value, lambda: runtime)
    runtime = Runtime(
        store,
        identity,
        agents(Tally),
        kinds=calls.kinds({"count": RemoteTool(target_subject=SUBJECT)}),
        policy=Policy(attempts=1000),
        owner=owning,
        stop=held.stop,
    )
    await runtime.start()
    tools = {SUBJECT: Count(home.done)} if home.serves else {}
    served = ServedTools(bus, tools, identity.now_ms, lambda value: value)
    mirror = MirrorTask(store, log_id, sessions, identity.now_ms, stop=held.stop)
    mirror.start()
    CommandConsumers(runtime, bus, owning=owning, calls=calls).start()
    owning.start(bus, runtime.own, runtime.resume)
    await asyncio.gather(served.run(), asyncio.Event().wait())
