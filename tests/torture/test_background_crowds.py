"""Many background agents of one session, and random kills of three processes meanwhile, with both OpenCodes.

A session asks for many agents at once. Meanwhile processes are killed, each kill after a random number of records: of
OpenCode 1 the sidecar, the headless OpenCode and the OpenCode that asked; of OpenCode 2 the sidecar, the service and
the terminal that asked. Each agent writes a line to a file. Then every result is in the session once, and no line is
there twice. ``TORTURE_CROWD`` sets how many agents, ``TORTURE_CROWD_KILLS`` how many kills.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.real.background import two_with_plugin, window, with_plugin
from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import HANG_LIMIT_S, ModelRequest, ModelServer, Step
from tests.real.terminal import ENTER, READY, Terminal
from tests.streams.sizes import size
from tests.torture.figures import SEED, note, seeded
from tests.torture.tormented import STALL_S, Tormented
from tools.install_opencode import binary_path

pytestmark = pytest.mark.real_opencode

CROWD = size("CROWD", 3)
KILLS = size("CROWD_KILLS", 1)

CONTINUED = "The server restarted"
"""How the message begins with which OpenCode 2 continues a turn."""
GIVES_UP_S = 20.0
"""When a person opens another terminal: one tries for a while only to start the service again."""
STARTS_S = 60.0
TERMINALS = 5
"""How long one may take on a busy machine until the service runs, and how many a person tries."""
SETTINGS = "[phantom]\nmax_running = 8\n"
TOLD = ("id", "title", "session", "state", "code", "reason", "result", "resumes")
RECORDS_OF_ONE = 20
"""About how many records the agents write for one of them."""

_SCRIPT = re.compile(r"(ask for|work of) (crowd \d+(?:\.\d+)*)")
_RESULT = re.compile(r"result of (crowd \d+(?:\.\d+)*)")


def _started(request: ModelRequest) -> Iterator[str]:
    """The agents whose calls returned, as far as the model knows."""
    titles = dict[str, str]()
    for message in request.messages:
        for call in message.get("tool_calls") or ():
            titles[call["id"]] = json.loads(call["function"]["arguments"])["title"]
        if message.get("role") == "tool" and "int_" in json.dumps(message):
            yield titles[message["tool_call_id"]]


class Crowd(Tormented):
    """What both OpenCodes have in common."""

    victims: tuple[str, ...] = ("sidecar", "headless", "opencode")
    shell: str = "bash"

    def __init__(self, durable: DurableStream, client: Any, model: ModelServer) -> None:
        super().__init__(durable, client)
        self.random, self.seen = seeded(f"crowds {self.shell}"), 0
        self.marks = durable.home.parent / "marks"
        self.before = set(self.sessions())
        model.answer = self._answer

    def life(self, victim: str, mark: str) -> None:
        """One crowd; the first kill is of ``victim``, if there is only one."""
        self.lives += 1
        self.ask(mark)
        first = self.victims.index(victim)
        victims = [self.victims[(first + at) % len(self.victims)] for at in range(KILLS)]
        self.random.shuffle(victims)
        for each in victims:
            self.step = self.random.randrange(2 * RECORDS_OF_ONE * CROWD // (KILLS + 1))
            if not self.reached(self.position):
                break
            self.kill(each)
        wait_until(lambda: self._settled(mark), f"the end of {mark}", HANG_LIMIT_S + 10 * CROWD)
        self.judge(mark)

    def ask(self, mark: str) -> None:
        """Prompt a new session."""
        self.position, self._made, self._heard = self.head(), 0, 0
        self.client.prompt_async(self.client.create_session(mark), f"ask for {mark}")

    def is_last(self, type_: str) -> bool:
        """Whether every agent so far has been heard of."""
        self._made += type_ == "intent.created"
        self._heard += type_ == self.last
        return 0 < self._made == self._heard

    def _answer(self, request: ModelRequest) -> Step | None:
        """The session asks for each agent, each agent works once, and who goes on does nothing again."""
        prompts = [json.dumps(each) for each in request.messages if each.get("role") == "user"]
        script = _SCRIPT.search(" ".join(prompts))
        if script is None or not request.has_tools:
            return None
        what, mark = script.groups()
        is_first = len(prompts) == 1 and not request.since_user()
        if what == "work of":
            if not is_first:
                return Step(say=f"result of {mark}")
            return Step(calls=[(self.shell, {"command": f"echo {mark} >> {self.marks}", "description": "mark"})])
        # A result may be among what continues a turn.
        news = json.dumps(list(takewhile(lambda each: each.get("role") == "user", reversed(request.messages))))
        if not is_first and CONTINUED not in news:
            return Step(say="heard")
        known = set(_started(request))
        names = {f"{mark}.{at}": ("copy", "shared")[at % 2] for at in range(CROWD)}
        asks = [{"prompt": f"work of {name}", "title": name, "isolation": how} for name, how in names.items()]
        calls = [("agent_spawn", each) for each in asks if each["title"] not in known]
        return Step(calls=calls, say=None if calls else "heard")

    def _intents(self, mark: str) -> list[dict[str, Any]]:
        return [intent for intent in self.durable.lines("intents") if intent["title"].startswith(f"{mark}.")]

    def _settled(self, mark: str) -> bool:
        found = self._intents(mark)
        if not found or any(intent["ended"] is None for intent in found):
            return False
        wakes = {n["about"]: n["state"] for n in self.durable.lines("notices") if n["kind"] == "wake"}
        return all(wakes.get(intent["id"]) == "seen" for intent in found)

    def judge(self, mark: str) -> None:
        """Each agent has one session with one prompt, worked at most once, and its result is in one message."""
        found = self._intents(mark)
        titles, (parent,) = Counter(i["title"] for i in found), {i["parent"] for i in found}
        odd = [i for i in found if (i["state"], i["result"]) != ("completed", f"result of {i['title']}")]
        assert not odd, json.dumps([{name: i[name] for name in TOLD} for i in odd])
        given = [text for text in self.said(parent) if "<background-agent" in text]
        told = Counter(name for text in given for name in _RESULT.findall(text))
        prompts = [sum("work of" in text for text in self.said(i["session"])) for i in found]
        made = set(self.sessions()) - self.before - {parent} - {intent["session"] for intent in found}
        marks = Counter(self.marks.read_text().splitlines()) if self.marks.exists() else Counter[str]()
        self.lost += (titles - told).total()
        self.doubled += (told - titles).total() + (marks - titles).total() + len(made) + sum(n > 1 for n in prompts)
        self.seen += told.total()
        assert (self.lost, self.doubled) == (0, 0), (mark, told, prompts, marks, made)
        self.before = set(self.sessions())

    def said(self, session: str) -> list[str]:
        """The messages to a session."""
        return [json.dumps(each) for each in self.client.messages(session) if each["info"]["role"] == "user"]

    def sessions(self) -> list[str]:
        """All sessions."""
        return [str(each["id"]) for each in self.client.sessions()]

    def figures(self) -> dict[str, Any]:
        """With how many results were seen."""
        return super().figures() | {"seen": self.seen}


class Crowd2(Crowd):
    """The terminal asks, and starts the service again if that was killed."""

    victims = ("sidecar", "service", "terminal")
    shell = "shell"
    client: Any
    screen: Terminal
    killed, windows, quiet = 0, 0, (0, 0.0)
    """The last process of OpenCode 2 that was killed; the last position in the log, and when it was seen first."""

    def ask(self, mark: str) -> None:
        """Type the prompt."""
        self.position, self._made, self._heard = self.head(), 0, 0
        self.mark, self.screen = mark, window(self.client)
        self.screen.wait_for(READY)
        self.screen.wait_for("Mock 1 Mock")
        self.screen.press(f"ask for {mark}".encode())
        self.screen.wait_for(f"ask for {mark}")
        self.screen.press(ENTER)

    def kill(self, victim: str) -> None:
        """A terminal that ended is opened again, with the session."""
        if victim == "sidecar":
            return super().kill(victim)
        killed = self.screen.process.pid if victim == "terminal" else self.service()
        os.kill(killed, signal.SIGKILL)
        self.kills += 1
        for child in (self.screen.process, self.client.process):
            if child.pid == killed:
                child.wait()  # a terminal takes a service that nobody waited for, a zombie, for one that runs
        self.killed = killed
        try:
            wait_until(self._is_back, f"{victim} after a kill", GIVES_UP_S)
        except TimeoutError:
            self.stalled()

    def _is_back(self) -> bool:
        if self.screen.process.poll() is not None:
            self._open()
        return self.service() != self.killed

    def stalled(self) -> None:
        """A person opens another terminal, until one has started the service again."""
        self.windows += 1
        self.screen.close()
        for _ in range(TERMINALS):
            with suppress(TimeoutError):
                wait_until(self._is_back, "a service", STARTS_S)
                return
            self.screen.close()
        raise TimeoutError(f"{TERMINALS} terminals did not start the service again: {self.screen.lines()}")

    def _open(self) -> None:
        """Open a terminal with the session that asked."""
        self.screen.close()
        words = ("query", "--type", "human.input", "--text", f"ask for {self.mark}")
        asked = wait_until(lambda: self.durable.lines(*words), f"who asked for {self.mark}")
        self.screen = window(self.client, "--session", asked[0]["event"]["payload"]["session"])

    def _settled(self, mark: str) -> bool:
        """A person also looks if nothing is recorded any more."""
        if super()._settled(mark):
            return True
        if (head := self.head()) != self.quiet[0]:
            self.quiet = head, time.monotonic()
        elif time.monotonic() > self.quiet[1] + STALL_S:
            self.stalled()
            self.quiet = head, time.monotonic()
        return False

    def figures(self) -> dict[str, Any]:
        """With how many terminals a person opened because nothing happened."""
        return super().figures() | {"windows": self.windows}

    def judge(self, mark: str) -> None:
        """Ask the service that runs now."""
        self.service()
        self.client.wait(self._intents(mark)[0]["parent"])
        super().judge(mark)
        self.screen.close()

    def service(self) -> int:
        """The process of the service; the client's next requests go to it."""

        told = json.loads(self.client.registration.read_bytes())
        self.client.port = int(told["url"].rpartition(":")[2])
        return int(told["pid"])

    def said(self, session: str) -> list[str]:
        """The messages to a session."""
        return [each["text"] for each in self.client.messages(session) if each["type"] == "user"]

    def sessions(self) -> list[str]:
        """All sessions."""
        return [str(each["id"]) for each in self.client.api("GET", "/api/session?limit=10000")["data"]]


@contextmanager
def of_opencode_1(path: Path) -> Iterator[Crowd]:
    """The crowds of one OpenCode 1 and one home."""
    with (
        ModelServer() as model,
        DurableStream(path / "home") as durable,
        with_plugin(binary_path(), model, durable, SETTINGS) as client,
    ):
        yield Crowd(durable, client, model)


@contextmanager
def of_opencode_2(path: Path) -> Iterator[Crowd]:
    """The crowds of one OpenCode 2 and one home."""
    with ModelServer() as model, DurableStream(path / "home") as durable:
        durable.home.mkdir(mode=0o700)
        (durable.home / "config.toml").write_text(SETTINGS)
        durable.start()
        with two_with_plugin(model, durable) as client:
            crowd = Crowd2(durable, client, model)
            try:
                yield crowd
            finally:
                with suppress(ProcessLookupError):
                    os.kill(crowd.service(), signal.SIGTERM)


@pytest.mark.torture
@pytest.mark.parametrize("opencode", [of_opencode_1, of_opencode_2])
def test_each_result_of_a_crowd_is_seen_once_whoever_is_killed_and_when(tmp_path: Path, opencode: Any) -> None:
    with opencode(tmp_path) as crowd:
        crowd.life(crowd.victims[1], f"crowd {SEED}")
        assert len(crowd.durable.lines("intents")) == crowd.seen, "none came later"
        note(opencode.__name__, **crowd.figures())
