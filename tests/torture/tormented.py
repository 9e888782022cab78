"""An OpenCode with Durable Stream, one of whose processes is killed at a chosen record."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sidecar.background.intents.intent_effects import CONTINUE
from streams.log.reader import LogReader
from tests.real.durable import PLUGIN, DurableStream, is_alive
from tests.real.model_server import HANG_LIMIT_S, ModelRequest, ModelServer, Step
from tests.real.opencode import RealOpenCode
from tests.torture.figures import SEED
from tools.install_opencode import binary_path

_POLL_S = 0.001
STALL_S = 60.0
"""After how long without a record a person looks; many agents on a busy machine are slow, and do not hang."""

_numbers = count(1)
"""The lives of a process: several victims may share a home."""


class Tormented:
    """Counts what is killed, and goes through the steps at which something can be killed.

    A step is a record in the streams of agents. ``steps`` is how many an undisturbed life writes, or a few more, and
    no multiple of 7; ``last`` is the type of the record that ends it.
    """

    steps = 30
    last = "message.seen"

    def __init__(self, durable: DurableStream, client: RealOpenCode) -> None:
        self.durable, self.client = durable, client
        self.lost = self.doubled = self.kills = self.late = self.lives = 0
        self.step = self.position = 0

    def life(self, victim: str, mark: str) -> None:
        """One life, with a kill at ``step``, judged."""
        raise NotImplementedError

    def torment(self, victim: str, kills: int) -> None:
        """Disturb one life after the other until this many kills have landed. Prints the figures so far.

        The chunks of a torture run have consecutive seeds, so that together they go through all steps.
        """
        while self.kills < kills:
            assert self.lives < 3 * kills, f"{self.late} of {self.lives} kills came too late"
            self.step = 7 * (SEED * kills + self.lives) % self.steps
            self.lives += 1
            self.life(victim, f"life {SEED}.{next(_numbers)}")
            print(f"{victim}, step {self.step}: {self.kills} kills, {self.late} too late", file=sys.stderr)

    def head(self) -> int:
        """The log's last position."""

        async def read() -> int:
            return LogReader(self.durable.home / "store").head

        return asyncio.run(read())

    def reached(self, after: int) -> bool:
        """Wait until the records after position ``after`` have this step; false if the life is over before."""
        return asyncio.run(self._reached(after))

    async def _reached(self, after: int) -> bool:
        reader, steps, deadline = LogReader(self.durable.home / "store"), 0, time.monotonic() + HANG_LIMIT_S
        look = time.monotonic() + STALL_S
        while time.monotonic() < deadline:
            if time.monotonic() > look:
                await asyncio.to_thread(self.stalled)
                look = time.monotonic() + STALL_S
            async for record in reader.read_all(after=after):
                after = self.position = record.position
                look, deadline = time.monotonic() + STALL_S, time.monotonic() + HANG_LIMIT_S
                steps += record.event.stream_id.startswith("agent/")
                is_last = self.is_last(record.event.type)
                if steps > self.step:
                    return True
                if is_last:
                    self.late += 1
                    return False
            await asyncio.sleep(_POLL_S)
        raise TimeoutError(f"step {self.step} was not reached")

    def stalled(self) -> None:
        """Do what a person does when nothing happens any more: nothing, unless a window has to be opened."""

    def is_last(self, type_: str) -> bool:
        """Whether the life ends with this record."""
        return type_ == self.last

    def kill(self, victim: str) -> None:
        """``kill -9``; an OpenCode is started again, the others are started by those that need them."""
        pid = self._pid(victim)
        if pid is None:
            self.late += 1
            return
        if victim == "opencode":
            self.client.kill9()
            self.client.start()
            self.client.sessions()
        else:
            os.kill(pid, signal.SIGKILL)
        self.kills += 1

    def _pid(self, victim: str) -> int | None:
        if victim == "sidecar":
            return self.durable.wait_running()
        if victim == "opencode":
            return self.client.pid
        try:
            servers = json.loads((self.durable.home / "headless.json").read_text())["servers"]
            pid = int(servers[-1]["pid"])
        except (FileNotFoundError, IndexError):
            return None
        return pid if is_alive(pid) else None

    def figures(self) -> dict[str, Any]:
        """What ``figures.note`` takes."""
        return {"kills": self.kills, "late": self.late, "lost": self.lost, "doubled": self.doubled}


def _goes_on(request: ModelRequest) -> Step | None:
    """A model that should go on does what the session's first prompt says; the scripted one knows only the last."""
    prompts = [json.dumps(each) for each in request.messages if each.get("role") == "user"]
    if CONTINUE not in request.user_text:
        return None
    first = re.search(r"SAY:(result of life [\d.]+)", prompts[0])
    return Step(say=first[1]) if first is not None else None


@contextmanager
def client_and_home(path: Path, **options: Any) -> Iterator[tuple[DurableStream, RealOpenCode]]:
    """An OpenCode, with options of ``RealOpenCode``, and a home for one victim."""
    with ModelServer() as model, DurableStream(path / "home") as durable:
        model.answer = _goes_on
        durable.start()
        plugins = {PLUGIN: durable.plugin()}
        with RealOpenCode(binary_path(), model.port, plugins=plugins, plugin_scope="global", **options) as client:
            yield durable, client
