"""Background work does no more than the session that asks for it: each way to forbid a tool, with both versions.

``RAN`` is what the forbidden command would print. Each way is tried directly, and then by background work that the
tool starts in a copy. Without a ban, and with one of the session alone, the command line also starts work, in the
shared files, and background work does itself: how rights come to work does not depend on what gave them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.real.background import intents, spawns, two_with_plugin, with_plugin
from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.opencode2 import RealOpenCode2
from tests.sidecar.background.test_rights import matches
from tools.install_opencode import VERSION_2, binary_path

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


GUARDS = {
    1: """export default async () => ({ "tool.execute.before": async (input, output) => {
  if (["bash", "shell"].includes(input.tool) && output.args.command.includes(NAME)) throw new Error("guarded");
} });""",
    2: """export default { id: NAME, setup: async (ctx) => { await ctx.tool.hook("execute.before", (event) => {
  if (["bash", "shell"].includes(event.tool) && JSON.stringify(event).includes(NAME)) throw new Error("guarded");
}); } };""",
}
"""A plugin that refuses each command with its name, for either version of OpenCode."""

FORBIDS = "export const FORBIDS = true;"


def plant(project: Path, version: int, name: str, *, imports: str = "", at: str = ".opencode/plugin") -> None:
    """Write a guard plugin, which loads only if what it ``imports`` is there."""
    text = GUARDS[version].replace("NAME", json.dumps(name))
    (project / at).mkdir(parents=True, exist_ok=True)
    (project / at / f"{name}.js").write_text((f"import {json.dumps(imports)};\n" if imports else "") + text)


def plant_three(project: Path, version: int) -> list[str]:
    """Plant guards of which git has nothing: one in a named file, one that imports another file, and one that imports a
    package from a folder of many files."""
    files = project / ".opencode" / "node_modules" / "big" / "lib"
    for folder in (project / "policy", files):
        folder.mkdir(parents=True)
    (project / "policy" / "rule.js").write_text(FORBIDS)
    (files.parent / "index.js").write_text(FORBIDS)
    for number in range(51):
        (files / f"{number}.js").touch()
    plant(project, version, "importing", imports="../../policy/rule.js")
    plant(project, version, "packaged", imports="big")
    if version == 2:  # it loads no single file that a project's configuration names
        return ["importing", "packaged"]
    plant(project, version, "named", at="guards")
    (project / "opencode.json").write_text(json.dumps({"plugin": ["./guards/named.js"]}))
    return ["importing", "packaged", "named"]


def guarded(tool: str, names: list[str]) -> str:
    """A script that runs a command for each name, and starts work that does in a copy of the project."""
    calls = " ".join(
        f"CALL:{tool} {json.dumps({'command': f'echo {name} ran-$((40+2))', 'description': 'c'})}" for name in names
    )
    return f"{calls} {spawns(calls, isolation='copy')}"


def assert_guarded(durable: DurableStream, parent: str, said: str, missing: str = "") -> None:
    """Nothing that a guard forbids ran, in the session or in its work; work that lacks the guard ``missing`` is not
    started."""
    assert "guarded" in said and RAN not in said, "the guard does not hold in the session itself"
    wait_until(lambda: [i["id"] for i in intents(durable, parent) if i["ended"]], "the end of the work")
    (work,) = intents(durable, parent)
    if missing or work["state"] != "completed":
        assert (work["state"], work["code"], work["session"]) == ("failed", "plugin-missing", None), work["reason"]
        assert missing in work["reason"]
    else:
        assert "guarded" in work["result"] and RAN not in work["result"]


def test_a_guard_plugin_of_opencode_1_holds_in_background_work_or_the_work_is_refused(
    one: RealOpenCode, durable: DurableStream
) -> None:
    names = plant_three(one.project, 1)
    for missing in ("", "hidden"):
        if missing:
            leave_out(one.project)
            plant(one.project, 1, "hidden", imports="../../ignored/rule.js")
        one.request("POST", "/instance/dispose")
        parent = one.create_session("parent")
        said = json.dumps(one.prompt(parent, guarded("bash", [*names, *filter(None, [missing])])))
        assert_guarded(durable, parent, said, missing)
    clear(one.project)
    one.request("POST", "/instance/dispose")


def test_a_guard_plugin_of_opencode_2_holds_in_background_work_or_the_work_is_refused(
    two: RealOpenCode2, two_durable: DurableStream
) -> None:
    names = plant_three(two.project, 2)
    for missing in ("", "hidden"):
        if missing:
            leave_out(two.project)
            plant(two.project, 2, "hidden", imports="../../ignored/rule.js")
        two.api("POST", f"/api/location/reload?location[directory]={two.project}")
        parent = two.new_session()
        two.prompt(parent, guarded("shell", [*names, *filter(None, [missing])]))
        two.wait(parent)
        said = next(json.dumps(m) for m in reversed(two.messages(parent)) if m["type"] == "assistant")
        assert_guarded(two_durable, parent, said, missing)
        if missing:
            loaded = [each["directory"] for each in two.api("GET", "/api/debug/location")]
            assert [each for each in loaded if str(two_durable.home) in each] == [], "no directory of refused work"
    clear(two.project)
    two.api("POST", f"/api/location/reload?location[directory]={two.project}")


def leave_out(project: Path) -> None:
    """Write a file that git ignores, so that no copy of the project has it."""
    (project / "ignored").mkdir()
    (project / "ignored" / "rule.js").write_text(FORBIDS)
    (project / ".git" / "info" / "exclude").write_text("ignored/\n")


def clear(project: Path) -> None:
    """Remove everything that was planted."""
    for name in (".opencode", "policy", "guards", "ignored"):
        shutil.rmtree(project / name, ignore_errors=True)
    (project / "opencode.json").unlink(missing_ok=True)


def script(tool: str, way: str) -> str:
    """A script that runs the command, and starts work that does, and in some ways work that starts such work, or tries
    to start an agent that the session may not start."""
    below = spawns(spawns(shell(tool), "below", isolation="shared"), "hands on", isolation="shared")
    named = [spawns(shell(tool), "named", agent="careful")] if way == "session" else []
    more = [below] if way in FULL else []
    return " ".join([shell(tool), spawns(shell(tool), "tool", isolation="copy"), *more, *named])


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
    agent: dict[str, Any] = {"agent": "careful"} if way == "agent" else {}

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


MATCHER = re.compile(
    rb"function [\w$]+\([\w$]+,[\w$]+\)\{(?:(?!function ).){0,300}?"
    rb"\( \.\*\)\?(?:(?!function ).){0,80}?\.test\([\w$]+\)\}"
)
RUN = (
    "const [functions, pairs] = JSON.parse(require('fs').readFileSync(0)); console.log(JSON.stringify(functions.map("
    "(text) => { const matches = eval(`(${text})`); return pairs.map(([text, glob]) => matches(text, glob)); })))"
)


def test_globs_match_as_in_the_code_of_both_versions(opencode_binary: Path) -> None:
    draw = Random(47)
    pairs = [
        ["".join(draw.choices("ab/\\* ?~.$(\n\U0001f511", k=draw.randint(0, 5))) for _ in "ab"] for _ in range(20_000)
    ]
    functions = []
    for program in (opencode_binary, binary_path(VERSION_2)):
        code = program.read_bytes()
        near = [code[max(0, at - 400) : at + 200] for at in occurrences(code, b"( .*)?")]
        found = [match[0].decode() for each in near if (match := MATCHER.search(each))]
        assert found, program
        functions += found
    said = subprocess.run(
        ["node", "-e", RUN], input=json.dumps([functions, pairs]).encode(), capture_output=True, check=True
    )
    wanted = [matches(text, glob) for text, glob in pairs]
    assert sum(wanted) > 500 and json.loads(said.stdout) == [wanted] * len(functions)


def occurrences(code: bytes, wanted: bytes) -> Iterator[int]:
    at = -1
    while (at := code.find(wanted, at + 1)) >= 0:
        yield at
