"""``kill -9`` in every step of a background agent's life, with the real OpenCode.

An undisturbed life writes some thirty records to the streams of the built-in agents. Each kill waits for one of them,
the next one every time, and ends the sidecar, the headless OpenCode, the user's OpenCode or its terminal. Then
everything goes on by itself: one session for the intent, one message to the parent, nothing lost. The answer to a
question reaches the model once: as the result of its call, or as one message.
``TORTURE_BACKGROUND_KILLS`` and ``TORTURE_ASKING_KILLS`` set how often for each victim.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sidecar.background.intents.lifecycle import ENDED
from tests.real.durable import DurableStream, wait_until
from tests.real.opencode import RealOpenCode
from tests.real.terminal import ENTER, READY, Terminal
from tests.streams.sizes import size
from tests.torture.figures import note
from tests.torture.tormented import Tormented, client_and_home

pytestmark = pytest.mark.real_opencode

KILLS = size("BACKGROUND_KILLS", 1)
ASKING_KILLS = size("ASKING_KILLS", 1)


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
        return bool(notices) and all(notice["state"] == "seen" for notice in notices)

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


class Permission(Torment):
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


class Question(Tormented):
    """A session calls ``checkpoint_ask``, and a person answers from the command line."""

    steps = 15
    last = "message.seen"

    def life(self, victim: str, mark: str) -> None:
        """One question from the prompt to the answer."""
        session, after = self.client.create_session(mark), self.head()
        ask = json.dumps({"question": f"May I end {mark}?"})
        self.client.prompt_async(session, f"CALL:checkpoint_ask {ask}THEN: SAY:heard")
        person = threading.Thread(target=self._answers, args=(mark,))
        person.start()
        if self.reached(after):
            self.kill(victim)
        person.join()
        wait_until(lambda: self._heard(session, mark), f"the answer in {mark} ({victim}, step {self.step})")
        wait_until(lambda: self._at_rest(session), f"the end of {mark} ({victim}, step {self.step})")
        heard = self._heard(session, mark)
        self.doubled += max(len(heard) - 1, 0)
        assert self.doubled == 0, (victim, self.step, json.dumps(heard, indent=1))

    def _answers(self, mark: str) -> None:
        """A person who looks until something waits, and tries again until the answer is taken."""

        def answered() -> bool:
            mine = [each for each in self.durable.lines("checkpoints", "--all") if f"{mark}?" in each["text"]]
            if mine and mine[0]["state"] in ("queued", "sending", "sent"):
                self.durable._run("checkpoints", mine[0]["id"], "--answer", f"yes, {mark} may end")
                return False
            return bool(mine) and mine[0]["state"] == "answered"

        wait_until(answered, f"the answer to {mark}")

    def _heard(self, session: str, mark: str) -> list[dict[str, Any]]:
        """The parts in which the model gets the answer."""
        found = []
        for message in self.client.messages(session):
            kind = "text" if message["info"]["role"] == "user" else "tool"  # the scripted model repeats what it reads
            parts = [part for part in message["parts"] if part["type"] == kind]
            found += [part for part in parts if f"yes, {mark} may" in _read(part)]
        return found

    def _at_rest(self, session: str) -> bool:
        last = self.client.messages(session)[-1]["info"]
        return session not in self.client.status() and last["role"] == "assistant"


def _read(part: dict[str, Any]) -> str:
    """What the model reads in a part."""
    if part["type"] == "text":
        return str(part["text"])
    return str(part["state"].get("output") or "")


FULL = pytest.mark.torture
OTHERS = ("headless", "opencode", "terminal")

World = tuple[DurableStream, RealOpenCode]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One OpenCode and one home for every victim: the lives come one after the other."""
    with client_and_home(tmp_path_factory.mktemp("kills"), config={"permission": {"bash": "ask"}}) as made:
        yield made


@pytest.mark.parametrize(
    ("part", "kind", "kills", "victim"),
    [
        ("background", Torment, KILLS, "sidecar"),
        *(
            pytest.param("background", Torment, KILLS, name, marks=FULL)
            for name in ("headless", "opencode", "terminal")
        ),
        ("permission", Permission, KILLS, "headless"),
        *(pytest.param("permission", Permission, KILLS, name, marks=FULL) for name in ("sidecar", "opencode")),
        ("cancel", Cancelled, KILLS, "sidecar"),
        pytest.param("cancel", Cancelled, KILLS, "headless", marks=FULL),
        ("asking", Question, ASKING_KILLS, "sidecar"),
        pytest.param("asking", Question, ASKING_KILLS, "opencode", marks=FULL),
    ],
)
def test_all_of_it_happens_once_whoever_is_killed_and_when(
    world: World, part: str, kind: type[Tormented], kills: int, victim: str
) -> None:
    tormented = kind(*world)
    tormented.torment(victim, kills)
    note(f"{part}-{victim}", **tormented.figures())


@FULL
def test_a_signal_after_a_kill_of_the_sidecar_ends_the_wait_that_died_with_it(world: World) -> None:
    """A signal that came while nobody waited is returned by the next call of ``wait_for``."""
    durable, client = world
    session = client.create_session("waits")
    wait = f"CALL:wait_for {json.dumps({'what': 'deployed', 'seconds': 120})}"
    client.prompt_async(session, f"{wait}THEN: {wait}THEN: SAY:went on")
    wait_until(lambda: client.parts(session, "tool"), "the call")
    os.kill(durable.wait_running(), signal.SIGKILL)
    # A command does not wait for the next sidecar.
    wait_until(lambda: durable._run("signal", "deployed", '{"version": 7}').returncode == 0, "the signal")
    wait_until(lambda: "version" in _read(client.parts(session, "tool")[-1]), "the payload")
