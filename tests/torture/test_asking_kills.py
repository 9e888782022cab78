"""``kill -9`` while a model waits for a person's answer or for a signal, with the real OpenCode.

A session calls ``checkpoint_ask``, and a person answers from the command line. Each kill waits for a later record of
what the built-in agents write about it. Whoever is killed, the answer reaches the model: as the result of the call, or
as one message. A signal that came while nobody waited is returned by the next call of ``wait_for``.
``TORTURE_ASKING_KILLS`` sets how often for each victim.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.real.durable import wait_until
from tests.streams.sizes import size
from tests.torture.figures import note
from tests.torture.tormented import Tormented, client_and_home

pytestmark = pytest.mark.real_opencode

KILLS = size("ASKING_KILLS", 1)


class Asking(Tormented):
    """One question after the other."""

    steps = 13
    last = "checkpoint.told"

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
            if mine and mine[0]["state"] == "open":
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


@pytest.mark.parametrize("victim", ["sidecar", pytest.param("opencode", marks=pytest.mark.torture)])
def test_an_answer_reaches_the_model_once_whoever_is_killed_and_when(tmp_path: Path, victim: str) -> None:
    with client_and_home(tmp_path) as (durable, client):
        tormented = Asking(durable, client)
        tormented.torment(victim, KILLS)
        note(f"asking-{victim}", **tormented.figures())


@pytest.mark.torture
def test_a_signal_after_a_kill_of_the_sidecar_ends_the_wait_that_died_with_it(tmp_path: Path) -> None:
    with client_and_home(tmp_path) as (durable, client):
        session = client.create_session("waits")
        wait = f"CALL:wait_for {json.dumps({'what': 'deployed', 'seconds': 120})}"
        client.prompt_async(session, f"{wait}THEN: {wait}THEN: SAY:went on")
        wait_until(lambda: client.parts(session, "tool"), "the call")
        os.kill(durable.wait_running(), signal.SIGKILL)
        # A command does not wait for the next sidecar.
        wait_until(lambda: durable._run("signal", "deployed", '{"version": 7}').returncode == 0, "the signal")
        wait_until(lambda: "version" in _read(client.parts(session, "tool")[-1]), "the payload")
