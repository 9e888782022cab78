"""Background work does no more than the session that asks for it: each way to forbid a tool, with both versions.

``RAN`` is what the forbidden command would print. Each way is tried directly, and then by background work that the
tool starts in a worktree. Without a ban, and with one of the session alone, the command line also starts work, in the
shared files, and background work does itself: how rights come to work does not depend on what gave them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.real.background import intents, spawns, two_with_plugin, with_plugin
from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.opencode2 import RealOpenCode2

pytestmark = pytest.mark.real_opencode

RAN = "ran-42"
DENY = {"permission": {"bash": "deny"}}
AGENT = {"agent": {"careful": {"mode": "all", "description": "careful", **DENY}}}
WAYS = ("nothing", "agent", "session", "config")
FULL = ("nothing", "session")
"""What forbids the shell. The configuration is last, because it stays."""


@pytest.fixture(scope="module")
def one(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    with with_plugin(opencode_binary, model, durable, config=AGENT) as client:
        yield client


@pytest.fixture(scope="module")
def two_durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableStream]:
    with DurableStream(tmp_path_factory.mktemp("two") / "home") as stream:
        yield stream


@pytest.fixture(scope="module")
def two(model: ModelServer, two_durable: DurableStream) -> Iterator[RealOpenCode2]:
    two_durable.start()
    with two_with_plugin(model, two_durable, config=AGENT) as client:
        yield client


def shell(tool: str) -> str:
    """A script that runs the command; the answer has what it printed."""
    return f"CALL:{tool} {json.dumps({'command': 'echo ran-$((40+2))', 'description': 'count'})}"


def script(tool: str, way: str) -> str:
    """A script that runs the command, and starts work that does, and in some ways work that starts such work, or tries
    to start an agent that the session may not start."""
    below = spawns(spawns(shell(tool), "below", isolation="shared"), "hands on", isolation="shared")
    named = [spawns(shell(tool), "named", agent="careful")] if way == "session" else []
    more = [below] if way in FULL else []
    return " ".join([shell(tool), spawns(shell(tool), "tool", isolation="worktree"), *more, *named])


def did(
    durable: DurableStream, parent: str, directory: Path, ask: Callable[[], str], tool: str, way: str
) -> dict[str, bool]:
    """Where the command ran: in the session itself, and in each background work that came from it."""
    said = {"direct": ask()}
    if way in FULL:
        words = ("--title", "command", "--isolation", "shared", "--directory", str(directory))
        durable.lines("spawn", shell(tool), *words, "--parent", parent)
    works = {"tool", "command", "below", "hands on"} if way in FULL else {"tool"}
    wait_until(lambda: len(intents(durable, parent)) == len(works), "all work")
    wait_until(lambda: all(i["ended"] for i in intents(durable, parent)), "the end of all work")
    for intent in intents(durable, parent):
        assert intent["state"] == "completed", intent["reason"]
        said[intent["title"]] = intent["result"]
    assert set(said) == works | {"direct"}
    said.pop("hands on", None)
    assert ("[agent-denied]" in said["direct"]) is (way == "session")
    return {title: RAN in text for title, text in said.items()}


def test_what_the_environment_of_an_opencode_forbids_it_forbids_its_background_work(
    one: RealOpenCode, opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    first = one.create_session("from an OpenCode whose environment forbids nothing")
    told = json.dumps({"command": "echo password:[$OPENCODE_SERVER_PASSWORD]", "description": "tell"})
    work = f"{shell('bash')} CALL:bash {told}"
    one.prompt(first, f"{spawns(work, isolation='shared')}THEN: SAY:started")
    wait_until(lambda: [i["result"] for i in intents(durable, first) if i["ended"]], "the end of its work")
    said = intents(durable, first)[0]["result"]
    assert RAN in said and "password:[]" in said, "and no password of the server that runs it"
    forbids = {"OPENCODE_PERMISSION": json.dumps(DENY["permission"])}
    with with_plugin(opencode_binary, model, durable, config=AGENT, environment=forbids) as client:
        parent = client.create_session("parent")

        def ask() -> str:
            return json.dumps(client.prompt(parent, script("bash", "environment")))

        found = did(durable, parent, client.project, ask, "bash", "environment")
        assert found == dict.fromkeys(found, False)


@pytest.mark.parametrize("way", WAYS)
def test_what_opencode_1_refuses_a_session_it_refuses_its_background_work(
    one: RealOpenCode, durable: DurableStream, way: str
) -> None:
    if way == "config":
        (one.project / "opencode.json").write_text(json.dumps(DENY))
        one.request("POST", "/instance/dispose")
    denied = [{"permission": what, "pattern": "*", "action": "deny"} for what in ("bash", "task")]
    parent = one.create_session("parent", **({"permission": denied} if way == "session" else {}))
    agent = {"agent": "careful"} if way == "agent" else {}

    def ask() -> str:
        return json.dumps(one.prompt(parent, script("bash", way), **agent))

    found = did(durable, parent, one.project, ask, "bash", way)
    assert found == dict.fromkeys(found, way == "nothing")


@pytest.mark.parametrize("way", WAYS)
def test_what_opencode_2_refuses_a_session_it_refuses_its_background_work(
    two: RealOpenCode2, two_durable: DurableStream, way: str
) -> None:
    if way == "config":
        (two.project / "opencode.json").write_text(json.dumps(DENY))
        two.stop_in()
        two.start()
    parent = two.new_session()
    if way == "session":
        rules = [{"action": what, "resource": "*", "effect": "deny"} for what in ("shell", "subagent")]
        two.api("PATCH", f"/api/session/{parent}", {"permissions": rules})
    if way == "agent":
        two.api("POST", f"/api/session/{parent}/agent", {"agent": "careful"})

    def ask() -> str:
        two.prompt(parent, script("shell", way))
        two.wait(parent)
        return next(json.dumps(m) for m in reversed(two.messages(parent)) if m["type"] == "assistant")

    found = did(two_durable, parent, two.project, ask, "shell", way)
    assert found == dict.fromkeys(found, way == "nothing")
