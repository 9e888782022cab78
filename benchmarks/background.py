"""Background work on the real OpenCode: how soon it begins, and how soon an idle parent learns of its end.

A scripted model that takes no time answers everything. Each sample is one intent, spawned while the parent is idle.
Next to each, the same is done by hand over OpenCode's HTTP API: a new session with a prompt, and a prompt for the
parent.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Row
from sidecar.home import Home
from sidecar.link.client import ControlClient
from sidecar.version import VERSION
from streams.identity import system_identity
from streams.log.reader import LogReader
from streams.query import Filter
from tests.real.durable import PLUGIN, DurableStream
from tests.real.model_server import ModelRequest, ModelServer
from tests.real.opencode import RealOpenCode
from tools.install_opencode import binary_path

SAMPLES = 100
PER_PARENT = 10
"""How many samples share a parent, whose history grows with each of them."""
HANG_SECONDS = 60.0
_TAIL = 4000
"""How many characters at the end of a request are searched."""


@dataclass
class Times:
    """Durations in seconds, one of each kind for a sample."""

    begun: list[float] = field(default_factory=list)
    """From the request ``spawn`` to the phantom's first request to the model."""
    begun_by_hand: list[float] = field(default_factory=list)
    woken: list[float] = field(default_factory=list)
    """From the phantom's last request to the model, to the request in which the parent reads the result."""
    woken_by_hand: list[float] = field(default_factory=list)
    observed: list[float] = field(default_factory=list)
    """From the phantom's last request to ``message.seen`` in the log."""


class Arrivals:
    """When the model first got a request whose prompt contains a given text."""

    def __init__(self, model: ModelServer) -> None:
        self._model, self._seen = model, list[tuple[float, str]]()
        model.answer = self._note

    def _note(self, request: ModelRequest) -> None:
        self._seen.append((time.time(), json.dumps(request.body["messages"])[-_TAIL:]))

    def forget(self) -> None:
        """Forget what has arrived."""
        self._seen.clear()

    async def of(self, text: str) -> float:
        """Wait for the request that contains ``text``; return when it came.

        Raises:
            TimeoutError: the request did not come.
        """
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                for at, body in self._seen:
                    if text in body:
                        return at
                await asyncio.sleep(0.001)


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure ``SAMPLES`` intents one after another, after a first one that starts the headless OpenCode."""
    with ModelServer() as model, DurableStream(directory / "background") as durable:
        durable.home.mkdir(mode=0o700)
        (durable.home / "config.toml").write_text('[link]\nscripts_may = ["spawn"]\n')
        options: dict[str, Any] = {"plugins": {PLUGIN: durable.plugin()}, "config": {"snapshot": False}, "lean": False}
        with RealOpenCode(binary_path(), model.port, plugin_scope="global", **options) as opencode:
            opencode.create_session("loads the plugin, which starts the sidecar")
            await asyncio.to_thread(durable.wait_running)
            home = Home(directory / "background")
            control = await ControlClient.connect(home, version=VERSION, nonce=system_identity().nonce)
            try:
                first, times, ends = await _samples(control, opencode, Arrivals(model))
            finally:
                await control.close()
            times.observed = await _observed(home, ends)
            return _rows(first, times)


def _rows(first: float, times: Times) -> list[Row]:
    def beside(label: str, ours: list[float], theirs: list[float]) -> Row:
        return Row(label, 1 / statistics.median(ours), 1 / statistics.median(theirs), "the same by hand")

    return [
        Row("spawn until the first model request, headless starts", first, None, "s"),
        beside("spawn until the first model request", times.begun, times.begun_by_hand),
        Row("spawn until the first model request, p50", statistics.median(times.begun), None, "s"),
        Row("spawn until the first model request, p99", _p99(times.begun), None, "s"),
        beside("end of the work to the idle parent's model", times.woken, times.woken_by_hand),
        Row("end of the work to wake observed, idle parent, p50", statistics.median(times.observed), None, "s"),
        Row("end of the work to wake observed, idle parent, p99", _p99(times.observed), None, "s"),
    ]


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


async def _samples(
    control: ControlClient, opencode: RealOpenCode, arrivals: Arrivals
) -> tuple[float, Times, dict[str, float]]:
    """Return the first start's duration, the times, and when the work of each intent ended."""
    times, first, ends = Times(), 0.0, dict[str, float]()
    parent = ""
    for number in range(SAMPLES + 1):
        if number % PER_PARENT == 0:
            parent = await asyncio.to_thread(opencode.create_session, "parent")
            await asyncio.to_thread(opencode.prompt, parent, "SAY:ready")
        arrivals.forget()
        start = time.time()
        intent = await _spawn(control, opencode, parent, f"sample-{number}.")
        begun = await arrivals.of(f"SAY:sample-{number}.") - start
        woken = await arrivals.of(f'background-agent id=\\"{intent}') - start - begun
        await _at_rest(opencode, parent)
        if not number:
            first = begun
            continue
        times.begun.append(begun)
        times.woken.append(woken)
        ends[intent] = start + begun
        start = time.time()
        session = await asyncio.to_thread(opencode.create_session, "by hand")
        await asyncio.to_thread(opencode.prompt_async, session, f"SAY:by-hand-{number}.")
        times.begun_by_hand.append(await arrivals.of(f"SAY:by-hand-{number}.") - start)
        start = time.time()
        await asyncio.to_thread(opencode.prompt_async, parent, f"SAY:prompt-{number}.")
        times.woken_by_hand.append(await arrivals.of(f"SAY:prompt-{number}.") - start)
        await _at_rest(opencode, parent)
    return first, times, ends


async def _spawn(control: ControlClient, opencode: RealOpenCode, parent: str, said: str) -> str:
    given: dict[str, Any] = {
        "prompt": f"SAY:{said}",
        "title": "sample",
        "directory": str(opencode.project),
        "parent": parent,
        "isolation": "shared",
    }
    return str((await control.request("spawn", given))["id"])


async def _observed(home: Home, ends: dict[str, float]) -> list[float]:
    """Seconds from the end of each intent's work to the record that the parent's history has its result."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            found = {}
            async for record in LogReader(home.store_path).query(Filter(types=("message.seen",))):
                found[f"int_{record.event.payload['message'][4:]}"] = record.event.ts / 1000
            if ends.keys() <= found.keys():
                return [found[intent] - end for intent, end in ends.items()]
            await asyncio.sleep(0.1)


async def _at_rest(opencode: RealOpenCode, session: str) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while (await asyncio.to_thread(opencode.status)).get(session, {}).get("type", "idle") != "idle":
            await asyncio.sleep(0.01)
