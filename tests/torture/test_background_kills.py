"""``kill -9`` in every step of a background agent's life, with the real OpenCode.

An undisturbed life writes some twenty records to the streams of the built-in agents. Each kill waits for one of them,
the next one every time, and ends the sidecar, the headless OpenCode, the user's OpenCode or its terminal. Then
everything goes on by itself: one session for the intent, one message to the parent, nothing lost.
``TORTURE_BACKGROUND_KILLS`` sets how often for each victim.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.intents.lifecycle import ENDED
from tests.real.durable import wait_until
from tests.real.terminal import ENTER, READY, Terminal
from tests.streams.sizes import size
from tests.torture.figures import note
from tests.torture.tormented import Tormented, client_and_home

pytestmark = pytest.mark.real_opencode

KILLS = size("BACKGROUND_KILLS", 1)


class Torment(Tormented):
    """The life of an intent: its prompt, its result, and the wake of its parent."""

    ends: tuple[str, ...] = ("completed",)

    def life(self, victim: str, mark: str) -> None:
        """One intent from the prompt to the parent's wake."""
        prompt = json.dumps({"prompt": self.work(mark), "title": mark})
        script = f"CALL:agent_spawn {prompt}THEN: SAY:started {mark}"
        if victim == "terminal":
            with self._in_terminal(script, mark):
                self._wait(victim, mark)
        else:
            parent = self.client.create_session(mark)
            after = self.head()
            self.client.prompt_async(parent, script)
            person = threading.Thread(target=self.person, args=(mark,))
            person.start()
            if self.reached(after):
                self.kill(victim)
            person.join()
            self._wait(victim, mark)
        self.judge(mark)

    def work(self, mark: str) -> str:
        """The prompt of the intent."""
        return f"SAY:result of {mark}"

    def person(self, mark: str) -> None:
        """What a person does meanwhile."""

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
        ended = [(i["state"], i["code"], i["reason"]) for i in found if i["state"] in ENDED]
        if not ended:
            return False
        assert len(found) == 1 and ended[0][0] in self.ends, (ended, self.step)
        if ended[0][0] == "cancelled":
            return True
        notices = [n for n in self.durable.lines("notices") if n["kind"] == "wake" and n["about"] == found[0]["id"]]
        return bool(notices) and all(notice["state"] == "observed" for notice in notices)

    def judge(self, mark: str) -> None:
        """One session, one result, one message."""
        (intent,) = self._intents(mark)
        assert intent["result"] == f"result of {mark}"
        children = [child["id"] for child in self.client.children(intent["parent"])]
        messages = self.client.messages(intent["parent"])
        given = [json.dumps(message) for message in messages if message["info"]["role"] == "user"]
        wakes = sum("background-agent" in text and mark in text for text in given)
        self.lost += (intent["session"] not in children) + (wakes == 0)
        self.doubled += len(children) - 1 + max(wakes - 1, 0)
        assert (self.lost, self.doubled) == (0, 0), (mark, self.step, children, wakes)


class Asking(Torment):
    """The intent asks for a permission, and a person answers on the command line."""

    def work(self, mark: str) -> str:
        shell = json.dumps({"command": "true", "description": mark})
        return f"CALL:bash {shell}THEN: SAY:result of {mark}"

    def person(self, mark: str) -> None:
        """Allow what is asked, until the intent has ended; whoever is killed may ask again, or never."""

        def ended() -> bool:
            mine = {intent["id"]: intent["state"] for intent in self._intents(mark)}
            for asked in self.durable.lines("checkpoints"):
                if asked["intent"] in mine:
                    self.durable._run("checkpoints", asked["id"], "--answer", "once")
            return any(state in ENDED for state in mine.values())

        wait_until(ended, f"the end of {mark} with its permissions")


class Cancelled(Torment):
    """A person cancels the intent while its model thinks."""

    steps = 12
    last = "intent.cancelled"
    ends = ("cancelled",)

    def work(self, mark: str) -> str:
        return f"HOLD:{mark.replace(' ', '-')} SAY:never"

    def person(self, mark: str) -> None:
        """Cancel as soon as there is something to cancel, and again if the sidecar is killed meanwhile."""

        def cancelled() -> bool:
            (intent,) = self._intents(mark) or [None]
            if intent is not None and intent["state"] not in (*ENDED, "cancelling"):
                self.durable._run("intents", intent["id"], "--cancel")
            return intent is not None and intent["state"] in ENDED

        wait_until(cancelled, f"the end of {mark}")

    def judge(self, mark: str) -> None:
        """At most one session, no message, and nothing works any more."""
        (intent,) = self._intents(mark)
        children = [child["id"] for child in self.client.children(intent["parent"])]
        self.doubled += max(len(children) - 1, 0)
        told = json.dumps(self.client.messages(intent["parent"]))
        assert self.doubled == 0 and "background-agent" not in told, (mark, self.step, children)

        def is_at_rest() -> bool:
            log = [r["event"] for r in self.durable.log(intent["parent"])]
            turns = [event["type"] for event in log if event["payload"].get("session") in children]
            return turns.count("turn.started") == turns.count("turn.ended")

        # A prompt on its way when the intent was cancelled may still begin a turn, which is aborted then.
        wait_until(is_at_rest, f"the end of every turn of {mark} (step {self.step})")


FULL = pytest.mark.torture


@pytest.mark.parametrize(
    "victim", ["sidecar", *(pytest.param(name, marks=FULL) for name in ("headless", "opencode", "terminal"))]
)
def test_one_session_and_one_message_whoever_is_killed_and_when(tmp_path: Path, victim: str) -> None:
    with client_and_home(tmp_path) as (durable, client):
        tormented = Torment(durable, client)
        tormented.torment(victim, KILLS)
        note(f"background-{victim}", **tormented.figures())


@pytest.mark.parametrize(
    "victim", ["headless", pytest.param("sidecar", marks=FULL), pytest.param("opencode", marks=FULL)]
)
def test_a_permission_of_background_work_whoever_is_killed_and_when(tmp_path: Path, victim: str) -> None:
    with client_and_home(tmp_path, config={"permission": {"bash": "ask"}}) as (durable, client):
        tormented = Asking(durable, client)
        tormented.torment(victim, KILLS)
        note(f"permission-{victim}", **tormented.figures())


@pytest.mark.parametrize("victim", ["sidecar", pytest.param("headless", marks=FULL)])
def test_a_cancelled_one_stops_and_tells_nobody_whoever_is_killed_and_when(tmp_path: Path, victim: str) -> None:
    with client_and_home(tmp_path) as (durable, client):
        tormented = Cancelled(durable, client)
        tormented.torment(victim, KILLS)
        note(f"cancel-{victim}", **tormented.figures())
