"""``kill -9`` in every step of a background agent's life, with the real OpenCode.

An undisturbed life writes some thirty records to the streams of the built-in agents. Each kill waits for one of them,
the next one every time, and ends the sidecar, the headless OpenCode, the user's OpenCode or its terminal. Then
everything goes on by itself: one session for the intent, one message to the parent, nothing lost.
``TORTURE_BACKGROUND_KILLS`` sets how often for each victim.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.durable import wait_until
from tests.real.terminal import ENTER, READY, Terminal
from tests.streams.sizes import size
from tests.torture.figures import note, seeded
from tests.torture.tormented import Tormented, client_and_home

pytestmark = pytest.mark.real_opencode

KILLS = size("BACKGROUND_KILLS", 1)


class Torment(Tormented):
    """One life after the other is disturbed."""

    def life(self, victim: str) -> None:
        """One intent from the prompt to the parent's wake, with a kill at the next step."""
        self.next_step()
        mark = f"life {self.random.randrange(10**9)}"
        prompt = json.dumps({"prompt": f"SAY:result of {mark}", "title": mark})
        script = f"CALL:agent_spawn {prompt}THEN: SAY:started {mark}"
        if victim == "terminal":
            with self._in_terminal(script, mark):
                self._wait(victim, mark)
        else:
            parent = self.client.create_session(mark)
            after = self.head()
            self.client.prompt_async(parent, script)
            if self.reached(after):
                self.kill(victim)
            self._wait(victim, mark)
        self._judge(mark)

    def _wait(self, victim: str, mark: str) -> None:
        wait_until(lambda: self._settled(mark), f"the end of {mark} ({victim}, step {self.step})")

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
            after = self.head()
            screen.press(ENTER)
            if self.reached(after):
                os.kill(screen.process.pid, signal.SIGKILL)
                self.kills += 1
        wait_until(lambda: self._intents(mark), f"the intent of {mark}")
        with self._terminal("--session", self._intents(mark)[0]["parent"]) as screen:
            yield screen

    def _intents(self, mark: str) -> list[dict[str, Any]]:
        return [intent for intent in self.durable.lines("intents") if intent["title"] == mark]

    def _settled(self, mark: str) -> bool:
        found = self._intents(mark)
        if [intent["state"] for intent in found] != ["completed"]:
            ended = [(i["state"], i["code"], i["reason"]) for i in found]
            assert not {"failed", "cancelled", "refused"} & {each[0] for each in ended}, (ended, self.step)
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
        assert (self.lost, self.doubled) == (0, 0), (mark, self.step, children, wakes)


@pytest.mark.parametrize("victim", ["sidecar", "headless", "opencode", "terminal"])
def test_one_session_and_one_message_whoever_is_killed_and_when(tmp_path: Path, victim: str) -> None:
    with client_and_home(tmp_path) as (durable, client):
        tormented = Torment(durable, client, seeded(f"background {victim}"))
        for _ in range(KILLS):
            tormented.life(victim)
            print(f"{victim}: {tormented.kills} kills, {tormented.late} too late", file=sys.stderr)
        note(f"background-{victim}", **tormented.figures())
