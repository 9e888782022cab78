"""The guard against agents that are not pure."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from datetime import datetime as moment
from pathlib import Path
from time import time as now
from typing import Any
from uuid import uuid4

import pytest

from sidecar.agents.purity import check_agent, check_source
from sidecar.background.intents.intents import IntentAgent
from tests.sidecar.agents.agents import Counter, Other, Watcher
from tests.sidecar.agents.crashing_process import Clerk
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


def test_the_agent_of_the_crash_matrix_is_pure() -> None:
    given = [{"type": type_, "payload": {"n": 1}} for type_ in ("plain", "honest", "unsafe")]
    assert check_agent(Clerk, given) == []


def test_the_agent_of_intents_is_pure() -> None:
    register = {"intent": "int_1", "title": "t", "directory": "/", "prompt": "p", "parent": "ses_1", "agent": "build"}
    given = [
        {"type": "intent.register", "payload": register},
        {"type": "intent.cancel", "payload": {"intent": "int_1"}},
        {"type": "tick", "payload": {"now": 1}},
    ]
    findings = check_agent(IntentAgent, given, wrap=lambda spec, make: make())
    assert findings == []


def _helper() -> float:
    return time.time()


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


def _time_time(self: Any) -> Any:
    return time.time()


def _from_time_import_time(self: Any) -> Any:
    return now()


def _time_monotonic(self: Any) -> Any:
    return time.monotonic()


def _datetime_now(self: Any) -> Any:
    return str(moment.now())


def _datetime_datetime_now(self: Any) -> Any:
    return str(datetime.datetime.now())


def _random(self: Any) -> Any:
    return random.random()


def _uuid(self: Any) -> Any:
    return str(uuid.uuid4())


def _from_uuid_import_uuid4(self: Any) -> Any:
    return str(uuid4())


def _urandom(self: Any) -> Any:
    return os.urandom(4).hex()


def _environ(self: Any) -> Any:
    return os.environ.get("HOME")


def _socket(self: Any) -> Any:
    return socket.socket().fileno()


def _open(self: Any) -> Any:
    return open(os.devnull).read()


def _hash(self: Any) -> Any:
    return hash("x")


def _asyncio(self: Any) -> Any:
    return asyncio.run(asyncio.sleep(0))


def _a_function(self: Any) -> Any:
    return _helper()


IMPURE: list[Callable[[Any], Any]] = [
    _time_time,
    _from_time_import_time,
    _time_monotonic,
    _datetime_now,
    _datetime_datetime_now,
    _random,
    _uuid,
    _from_uuid_import_uuid4,
    _urandom,
    _environ,
    _socket,
    _open,
    _hash,
    _asyncio,
    _a_function,
]


@pytest.mark.parametrize("value", IMPURE)
def test_the_source_gives_an_impure_agent_away(value: Callable[[Any], Any]) -> None:
    assert check_source(type("Impure", (Base,), {"value": value}))


def _file(self: Any) -> Any:
    try:
        return Path(os.devnull).read_text()
    except RuntimeError:
        return 0  # that it was caught hides nothing


@pytest.mark.parametrize("value", [_file, _time_time, _random, _uuid, _socket, _open])
def test_what_runs_is_watched_too(value: Callable[[Any], Any]) -> None:
    findings = check_agent(type("Impure", (Base,), {"value": value}), [{"type": "go", "payload": {}}])
    assert [one for one in findings if one.where == "receive"]


def test_a_receive_that_changes_the_state_is_found() -> None:
    class Changes(Base):
        def value(self) -> int:
            self.seen += 1
            return self.seen

    findings = check_agent(Changes, [{"type": "go", "payload": {}}])
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
    assert now() > 0 and time.time() > 0 and random.random() >= 0
    assert Path(__file__).read_text()
