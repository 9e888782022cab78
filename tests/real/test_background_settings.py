"""Background work with the real client under other settings. Each test has a home of its own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.real.background import intents, one, spawn, with_plugin
from tests.real.durable import DurableStream, is_alive, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.proxy import RefusingProxy

pytestmark = pytest.mark.real_opencode


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        yield stream


@pytest.fixture
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    with with_plugin(opencode_binary, model, durable) as opencode:
        yield opencode


def test_a_silent_one_is_stopped(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> None:
    with with_plugin(opencode_binary, model, durable, "[phantom]\nsilence_minutes = 0.05\n") as client:
        client.prompt(client.create_session("parent"), spawn("HOLD:never SAY:late", "silent"))
        wait_until(lambda: [i["code"] for i in intents(durable)] == ["silence"], "the watchdog")
        model.release("never")


def test_stop_ends_a_headless_opencode_that_has_no_work(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    client.prompt(client.create_session("parent"), spawn("HOLD:work SAY:forty two"))
    model.wait_held("work")
    headless = durable.status()["headless"]
    assert durable.lines("stop") == [{"stopped": True, "pid": ANY}] and is_alive(headless)
    durable.wait_running()  # the headless OpenCode started another
    model.release("work")
    one(durable, "completed")
    wait_until(lambda: [each["state"] for each in durable.lines("notices")] == ["observed"], "the result to arrive")
    assert durable.status()["headless"] == headless
    durable.cli("stop")
    wait_until(lambda: not is_alive(headless), "the end of the headless OpenCode")


def test_in_the_users_own_opencode_it_stops_with_it_and_goes_on_in_the_next(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    (durable.home / "config.toml").write_text('[phantom]\nhost = "shim"\n')
    durable.stop()
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:lent SAY:forty two"))
    running = one(durable, "running")
    model.wait_held("lent")
    client.restart()
    assert one(durable, "resuming")["session"] == running["session"]
    model.release("lent")
    client.messages(parent)  # loads the plugin
    done = one(durable, "completed")
    assert (done["session"], done["resumes"]) == (running["session"], 1)
    wait_until(lambda: "background-agent" in json.dumps(client.messages(parent)), "the result")
    assert not (durable.home / "headless.json").exists()


def test_it_runs_behind_a_proxy_that_refuses_this_machine(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    with (
        RefusingProxy(model.port) as proxy,
        with_plugin(opencode_binary, model, durable, environment=proxy.environment) as client,
    ):
        parent = client.create_session("parent")
        client.prompt(parent, spawn("SAY:forty two"))
        one(durable, "completed")
        wait_until(lambda: "background-agent" in json.dumps(client.messages(parent)), "the result")
        # A sidecar that starts later takes the headless one for one of the same environment.
        os.kill(durable.wait_linked(), signal.SIGKILL)
        client.prompt(parent, spawn("SAY:again"))
        wait_until(lambda: [i["state"] for i in intents(durable)] == ["completed"] * 2, "the next work")
