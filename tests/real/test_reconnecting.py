"""Background work with the real client after kill -9 of the sidecar, while an OpenCode has not linked back yet.

A suspended OpenCode stands for one that is slow to link.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.home import Home
from sidecar.link.client import ControlClient
from streams.identity import system_identity
from tests.real.background import ended, intents, one, spawn, with_plugin
from tests.real.durable import DurableStream, is_alive, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode

pytestmark = pytest.mark.real_opencode


@pytest.fixture(scope="module")
def client(
    opencode_binary: Path, model: ModelServer, durable: DurableStream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealOpenCode]:
    with with_plugin(opencode_binary, model, durable, root=tmp_path_factory.mktemp("root")) as opencode:
        yield opencode


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def outcomes(durable: DurableStream, session: str) -> list[str]:
    """How the turns of a session ended."""
    events = [record["event"]["payload"] for record in durable.lines("query", "--type", "turn.ended")]
    return [each["outcome"] for each in events if each["session"] == session]


def restarted(durable: DurableStream) -> None:
    """Kill the sidecar, and wait for the next one."""
    killed = durable.wait_running()
    os.kill(killed, signal.SIGKILL)
    durable.wait_running([killed])
    durable.wait_linked()


def test_work_that_is_cancelled_before_its_opencode_links_back_is_stopped(
    client: RealOpenCode, durable: DurableStream, model: ModelServer
) -> None:
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:cut-off SAY:late"))
    running = one(durable, "running", parent)
    model.wait_held("cut-off")
    with suspended(durable.status()["headless"][0]):
        restarted(durable)
        durable.cli("intents", running["id"], "--cancel")
        wait_until(lambda: asked(durable, "opencode.abort"), "the attempt to stop it")
    one(durable, "cancelled", parent)
    wait_until(lambda: outcomes(durable, running["session"]) == ["aborted"], "the end of its turn")
    assert not list((durable.home / "copies").glob("int_*"))
    model.release("cut-off")


def asked(durable: DurableStream, kind: str) -> bool:
    events = [record["event"] for record in durable.lines("query", "--type", "effect.requested")]
    return kind in [event["payload"]["kind"] for event in events]


def test_of_two_windows_only_the_one_that_hosts_the_session_is_asked(
    client: RealOpenCode, opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    parent = client.create_session("parent")
    client.prompt(parent, spawn("HOLD:windows SAY:forty two"))
    one(durable, "running", parent)
    with with_plugin(opencode_binary, model, durable, root=client.root) as other:  # the same user, the same project
        with suspended(client.pid):
            other.sessions()  # loads the plugin
            restarted(durable)
            wait_until(lambda: other.pid in [link["pid"] for link in durable.status()["links"]], "the other one's link")
            model.release("windows")
            one(durable, "completed", parent)
            wait_until(lambda: durable.lines("query", "--type", "message.postponed"), "that nobody may be asked")
        wait_until(lambda: [n["state"] for n in durable.lines("notices") if n["kind"] == "wake"] == ["seen"], "it")
        client.prompt(parent, "SAY:after")
        turns = [r["event"] for r in durable.log(parent) if r["event"]["type"] == "turn.started"]
        mine = [turn["metadata"]["pid"] for turn in turns if turn["payload"]["session"] == parent]
        assert mine == [client.pid] * len(mine) and len(mine) >= 3
    assert len(intents(durable, parent)) == 1


UNASKED = "link.scripts_may = ['spawn']\n[gardener]\nenabled = true\n"


async def commanded(home: Home, **work: Any) -> str:
    """Ask for work as a command over the network does: no session and no terminal asks. The intent's id."""
    async with await ControlClient.connect(home, version="x", nonce=system_identity().nonce) as control:
        return str((await control.request("spawn", work))["id"])


def test_work_for_which_nobody_asks_waits_until_an_opencode_is_open_that_may_do_it(
    client: RealOpenCode, durable: DurableStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [each for each in os.environ["PATH"].split(os.pathsep) if not Path(each, "opencode").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(places))  # the sidecar finds no OpenCode that it could start
    client.sessions()  # loads the plugin
    durable.wait_linked()
    with suspended(client.pid):
        (durable.home / "config.toml").write_text(UNASKED)
        headless = durable.status()["headless"]
        durable.stop()
        wait_until(lambda: not any(map(is_alive, headless)), "the end of the headless OpenCode")
        durable.stop()  # it may have started a sidecar before it ended, which would find an OpenCode
        durable.start()
    durable.wait_linked()
    ill = client.create_session("ill")
    reads = " ".join(f"CALL:read {json.dumps({'filePath': f'missing {n}'})}" for n in range(12))
    with suspended(durable.wait_running()):  # it hears of the failures only after the end of their OpenCode
        client.prompt(ill, f"{reads} THEN: SAY:nothing is there")
        client.kill9()
    told = {"prompt": "SAY:nobody asked", "directory": str(client.project), "isolation": "shared"}
    alone = asyncio.run(commanded(Home(durable.home), **told))

    def waiting() -> dict[str, str]:
        return {each["id"]: each["parent"] for each in durable.lines("intents") if each["waits"] == "environment"}

    wait_until(lambda: len(waiting()) == 2, "both that wait")
    assert waiting()[alone] is None and ill in waiting().values()
    client.start()
    client.sessions()  # loads the plugin
    wait_until(lambda: list(waiting()) == [alone], "the gardener's work to go on")
    gardened = next(each["id"] for each in intents(durable) if each["parent"] == ill)
    assert [each["state"] for each in ended(durable, gardened)] == ["completed"]
    assert list(waiting()) == [alone], "that of nobody has the rights of the sidecar, not of this OpenCode"
    durable.cli("intents", alone, "--resume")
    assert [each["result"] for each in ended(durable, alone)] == ["nobody asked"]
