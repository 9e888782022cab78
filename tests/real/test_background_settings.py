"""Background work with the real client under other settings."""

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


@pytest.fixture(scope="module")
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    with with_plugin(opencode_binary, model, durable) as opencode:
        yield opencode


def settings(durable: DurableStream, text: str) -> None:
    """The next sidecar has these."""
    (durable.home / "config.toml").write_text(text)
    durable.stop()


def test_in_the_users_own_opencode_it_stops_with_it_and_goes_on_in_the_next(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    settings(durable, '[phantom]\nhost = "shim"\n')
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:lent SAY:forty two"))
    running = one(durable, "running", parent)
    model.wait_held("lent")
    client.restart()
    assert one(durable, "resuming", parent)["session"] == running["session"]
    model.release("lent")
    client.messages(parent)  # loads the plugin
    done = one(durable, "completed", parent)
    assert (done["session"], done["resumes"]) == (running["session"], 1)
    wait_until(lambda: "background-agent" in json.dumps(client.messages(parent)), "the result")
    assert not (durable.home / "headless.json").exists()


def test_stop_ends_a_headless_opencode_that_has_no_work(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    settings(durable, "")
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:work SAY:forty two"))
    model.wait_held("work")
    headless = durable.status()["headless"]
    assert durable.lines("stop") == [{"stopped": True, "pid": ANY}] and is_alive(headless)
    durable.wait_running()  # the headless OpenCode started another
    model.release("work")
    done = one(durable, "completed", parent)["id"]
    mine = lambda: [each["state"] for each in durable.lines("notices") if each["about"] == done]  # noqa: E731
    wait_until(lambda: mine() == ["observed"], "the result to arrive")
    assert durable.status()["headless"] == headless
    durable.cli("stop")
    wait_until(lambda: not is_alive(headless), "the end of the headless OpenCode")


def test_a_silent_one_is_stopped(client: RealOpenCode, durable: DurableStream, model: ModelServer) -> None:
    settings(durable, "[phantom]\nsilence_minutes = 0.05\n")
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:never SAY:late", "silent"))
    wait_until(lambda: [i["code"] for i in intents(durable, parent)] == ["silence"], "the watchdog")
    model.release("never")


def test_it_runs_behind_a_proxy_that_refuses_this_machine(
    opencode_binary: Path, model: ModelServer, tmp_path: Path
) -> None:
    with (
        RefusingProxy(model.port) as proxy,
        DurableStream(tmp_path / "home") as durable,
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
