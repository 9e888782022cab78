"""The guard against agents that are not pure."""

from __future__ import annotations

import importlib.util
import linecache
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.checks.purity import check_agent, check_source
from sidecar.background.intents.intents import IntentAgent
from sidecar.config import PhantomConfig
from tests.sidecar.agents.agents import Counter, Other, Watcher
from tests.sidecar.agents.test_effects_of_agents import Looper

EVENTS = [
    {"type": "add", "payload": {"by": 3}},
    {"type": "tell", "payload": {"to": "other"}},
    {"type": "call", "payload": {"kind": "work"}},
    {"type": "effect.completed", "payload": {"result": {"n": 1}, "request": "r"}},
    {"type": "execution.step", "payload": {"status": "error"}},
]


@pytest.mark.parametrize("make", [Counter, Other, Watcher, Looper])
def test_our_own_agents_are_pure(make: Callable[[], Any]) -> None:
    assert check_agent(make, EVENTS) == []


def test_the_agent_of_intents_is_pure() -> None:
    register = {"intent": "int_1", "title": "t", "directory": "/", "prompt": "p", "parent": "ses_1", "agent": "build"}
    given = [
        {"type": "intent.register", "payload": register},
        {"type": "intent.cancel", "payload": {"intent": "int_1"}},
        {"type": "tick", "payload": {"now": 1}},
    ]
    findings = check_agent(lambda: IntentAgent(PhantomConfig()), given, wrap=lambda spec, make: make())
    assert findings == []


class Base:
    name = "impure"

    def __init__(self) -> None:
        self.seen = 0

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "impure.saw", "payload": {"n": self.value()}}]

    def value(self) -> Any:
        return 0

    def apply(self, event: dict[str, Any]) -> None:
        self.seen += 1


IMPURE = (
    *("time.time()", "now()", "str(moment.now())", "str(datetime.datetime.now())", "random.random()", "hash('x')"),
    *("str(uuid.uuid4())", "str(uuid4())", "os.urandom(4).hex()", "os.environ.get('HOME')", "open(os.devnull).read()"),
    *("socket.socket().fileno()", "asyncio.run(asyncio.sleep(0))", "helper()"),
)
"""What an agent may get its value from."""

SOURCE = """
import asyncio, datetime, os, random, socket, time, uuid
from datetime import datetime as moment
from pathlib import Path
from time import time as now
from uuid import uuid4
from tests.sidecar.agents.test_purity import Base

def helper():
    return time.time()

class Impure(Base):
    def value(self):
        try:
            return {}
        except RuntimeError:
            return 0  # that it was caught hides nothing
"""


def impure(directory: Path, value: str) -> type:
    """An agent that uses ``value``, in a file of its own, because the check reads the source."""
    path = directory / "impure.py"
    path.write_text(SOURCE.replace("{}", value))
    spec = importlib.util.spec_from_file_location("impure", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    linecache.clearcache()
    made: type = module.Impure
    return made


@pytest.mark.parametrize("value", IMPURE)
def test_the_source_gives_an_impure_agent_away(tmp_path: Path, value: str) -> None:
    assert check_source(impure(tmp_path, value))


@pytest.mark.parametrize(
    "value", ["Path(os.devnull).read_text()", *IMPURE[:1], *IMPURE[4:5], *IMPURE[6:7], "open('x')"]
)
def test_what_runs_is_watched_too(tmp_path: Path, value: str) -> None:
    findings = check_agent(impure(tmp_path, value), [{"type": "go", "payload": {}}])
    assert [one for one in findings if one.where == "receive"]


def test_a_receive_that_changes_the_state_is_found() -> None:
    class Changes(Base):
        def value(self) -> int:
            self.seen += 1
            return self.seen

    findings = check_agent(Changes, [{"type": "go", "payload": {}}])
    assert {one.where for one in findings} == {"receive"}


def test_a_second_call_that_returns_something_else_is_found() -> None:
    class Alternates(Base):
        def __init__(self) -> None:
            super().__init__()
            self._calls = 0  # not a part of the state

        def value(self) -> int:
            self._calls += 1
            return self._calls

    findings = check_agent(Alternates, [{"type": "go", "payload": {}}])
    assert {one.where for one in findings} == {"receive"}


def test_agents_that_differ_are_found() -> None:
    made: list[int] = []

    class Differs(Base):
        def __init__(self) -> None:
            super().__init__()
            made.append(1)
            self._number = len(made)

        def value(self) -> int:
            return self._number

    assert check_agent(Differs, [{"type": "go", "payload": {}}])


def test_a_state_that_a_snapshot_changes_is_found() -> None:
    class Keyed(Base):
        def __init__(self) -> None:
            self.seen = 0
            self._hidden = 0

        def apply(self, event: dict[str, Any]) -> None:
            self._hidden += 1

        def state(self) -> dict[str, Any]:
            return {"hidden": self._hidden}

        def load(self, state: dict[str, Any]) -> None:
            self._hidden = 0

    assert "load" in {one.where for one in check_agent(Keyed, [{"type": "go", "payload": {}}])}


def test_the_guard_is_gone_afterwards() -> None:
    check_agent(Counter, EVENTS)
    assert time.time() > 0 and random.random() >= 0
    assert Path(__file__).read_text()
