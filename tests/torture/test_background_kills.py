"""``kill -9`` in every step of a background agent's life, with the real OpenCode.

An undisturbed life writes some thirty records to the streams of the built-in agents. Each kill waits for one of them,
the next one every time, and ends the sidecar, the headless OpenCode, the user's OpenCode or its terminal. Then
everything goes on by itself: one session for the intent, one message to the parent, nothing lost.
``TORTURE_BACKGROUND_KILLS`` sets how often for each victim.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streams.log.reader import LogReader
from tests.real.durable import PLUGIN, DurableStream, is_alive, wait_until
from tests.real.model_server import HANG_LIMIT_S, ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.terminal import ENTER, READY, Terminal
from tests.streams.sizes import size
from tests.torture.figures import note, seeded
from tools.install_opencode import binary_path

pytestmark = pytest.mark.real_opencode

KILLS = size("BACKGROUND_KILLS", 1)
STEPS = 30
"""Records of an undisturbed life in the streams of agents, or a few more: a later one is never reached."""

_POLL_S = 0.001


class Torment:
    """One OpenCode with Durable Stream, in which one life after the other is disturbed."""

    def __init__(self, durable: DurableStream, client: RealOpenCode, random: Random) -> None:
        self.durable, self.client, self._random = durable, client, random
        self.lost = self.doubled = self.kills = self.late = 0
        self._step = random.randrange(STEPS)

    def life(self, victim: str) -> None:
        """One intent from the prompt to the parent's wake, with a kill at the next step."""
        self._step = (self._step + 7) % STEPS  # 7 and 30 have no common divisor: every step has its turn
        mark = f"life {self._random.randrange(10**9)}"
        prompt = json.dumps({"prompt": f"SAY:result of {mark}", "title": mark})
        script = f"CALL:agent_spawn {prompt}THEN: SAY:started {mark}"
        if victim == "terminal":
            with self._in_terminal(script, mark):
                self._wait(victim, mark)
        else:
            parent = self.client.create_session(mark)
            after = asyncio.run(head(self.durable))
            self.client.prompt_async(parent, script)
            if asyncio.run(self._reached(after)):
                self._kill(victim)
            self._wait(victim, mark)
        self._judge(mark)

    def _wait(self, victim: str, mark: str) -> None:
        wait_until(lambda: self._settled(mark), f"the end of {mark} ({victim}, step {self._step})")

    def _terminal(self, *arguments: str) -> Terminal:
        environment = self.client.environment() | {"PWD": str(self.client.project)}
        return Terminal([str(self.client.binary), *arguments], self.client.project, environment)

    @contextmanager
    def _in_terminal(self, script: str, mark: str) -> Iterator[Terminal]:
        """Prompt in a terminal, kill it, and open the session in another one."""
        with self._terminal() as screen:
            screen.wait_for(READY)
            screen.press(script.encode())
            screen.wait_for("agent_spawn")
            after = asyncio.run(head(self.durable))
            screen.press(ENTER)
            if asyncio.run(self._reached(after)):
                os.kill(screen.process.pid, signal.SIGKILL)
                self.kills += 1
        wait_until(lambda: self._intents(mark), f"the intent of {mark}")
        with self._terminal("--session", self._intents(mark)[0]["parent"]) as screen:
            yield screen

    async def _reached(self, after: int) -> bool:
        """Wait for the step; false if the life is over before."""
        reader, steps, deadline = LogReader(self.durable.home / "store"), 0, time.monotonic() + HANG_LIMIT_S
        while time.monotonic() < deadline:
            async for record in reader.read_all(after=after):
                after = record.position
                steps += record.event.stream_id.startswith("agent/")
                if steps > self._step:
                    return True
                if record.event.type == "notice.observed":
                    self.late += 1
                    return False
            await asyncio.sleep(_POLL_S)
        raise TimeoutError(f"step {self._step} was not reached")

    def _kill(self, victim: str) -> None:
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
            pid = int(json.loads((self.durable.home / "headless.json").read_text())["pid"])
        except FileNotFoundError:
            return None
        return pid if is_alive(pid) else None

    def _intents(self, mark: str) -> list[dict[str, Any]]:
        return [intent for intent in self.durable.lines("intents") if intent["title"] == mark]

    def _settled(self, mark: str) -> bool:
        found = self._intents(mark)
        if [intent["state"] for intent in found] != ["completed"]:
            assert [i for i in found if i["state"] in ("failed", "cancelled", "refused")] == []
            return False
        notices = [n for n in self.durable.lines("notices") if n["kind"] == "wake" and n["about"] == found[0]["id"]]
        return bool(notices) and all(notice["state"] == "observed" for notice in notices)

    def _judge(self, mark: str) -> None:
        (intent,) = self._intents(mark)
        assert intent["result"] == f"result of {mark}"
        children = [child["id"] for child in self.client.children(intent["parent"])]
        messages = self.client.messages(intent["parent"])
        given = [json.dumps(message) for message in messages if message["info"]["role"] == "user"]
        wakes = sum("background-agent" in text and mark in text for text in given)
        self.lost += (intent["session"] not in children) + (wakes == 0)
        self.doubled += len(children) - 1 + max(wakes - 1, 0)
        assert (self.lost, self.doubled) == (0, 0), (mark, self._step, children, wakes)


async def head(durable: DurableStream) -> int:
    """The log's last position."""
    return LogReader(durable.home / "store").head


@contextmanager
def torment(path: Path, random: Random) -> Iterator[Torment]:
    """An OpenCode and a home for one victim."""
    with ModelServer() as model, DurableStream(path / "home") as durable:
        durable.cli("agents")
        plugins = {PLUGIN: durable.plugin()}
        with RealOpenCode(binary_path(), model.port, plugins=plugins, plugin_scope="global") as client:
            yield Torment(durable, client, random)


@pytest.mark.parametrize("victim", ["sidecar", "headless", "opencode", "terminal"])
def test_one_session_and_one_message_whoever_is_killed_and_when(tmp_path: Path, victim: str) -> None:
    with torment(tmp_path, seeded(f"background {victim}")) as tormented:
        for _ in range(KILLS):
            tormented.life(victim)
            print(f"{victim}: {tormented.kills} kills, {tormented.late} too late", file=sys.stderr)
        note(
            f"background-{victim}",
            kills=tormented.kills,
            late=tormented.late,
            lost=tormented.lost,
            doubled=tormented.doubled,
        )
