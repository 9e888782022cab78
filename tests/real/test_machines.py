"""Background work on another machine: asked for by a model and by a person here, done by a real OpenCode there, told
here, answered from here; and whichever sidecar or server is killed meanwhile. OpenCode 1, a real nats-server.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mirrors import unsynced
from tests.nats_servers import TOKEN, RealServer, real_server
from tests.real.background import refused, spawn
from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode

pytestmark = pytest.mark.real_opencode

ASKS = {"permission": {"bash": {"*": "allow", "touch asked*": "ask"}}}


class Machines(NamedTuple):
    """The machine that asks, and the one that works, each with its OpenCode."""

    server: RealServer
    laptop: DurableStream
    here: RealOpenCode
    desk: DurableStream
    there: RealOpenCode


@pytest.fixture(scope="module")
def machines(opencode_binary: Path, model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    place = tmp_path_factory.mktemp("machines")
    with real_server(place / "nats", jetstream=unsynced(place / "nats")) as server:
        homes = []
        for name, allow in (("laptop", "{}"), ("desk", '{ laptop = ["answer", "cancel", "signal", "spawn"] }')):
            (place / name).mkdir(mode=0o700)
            (place / name / "config.toml").write_text(
                f'team.machine = "{name}"\nmachines.allow = {allow}\n[nats]\nmode = "external"\n'
                f'servers = ["nats://{TOKEN}@127.0.0.1:{server.port}"]\nack_wait_seconds = 1\n'
            )
            homes.append(DurableStream(place / name))
        with homes[0] as laptop, homes[1] as desk:
            laptop.start()  # it says which tools there are
            how: dict[str, Any] = {"plugin_scope": "global"}
            with (
                RealOpenCode(opencode_binary, model.port, plugins={PLUGIN: laptop.plugin()}, **how) as here,
                # Its plugin starts the sidecar there, so the sidecar may do what this OpenCode may.
                RealOpenCode(opencode_binary, model.port, plugins={PLUGIN: desk.plugin()}, config=ASKS, **how) as there,
            ):
                laptop.terminal = here.environment()
                desk.terminal = there.environment()
                there.create_session()
                wait_until(lambda: desk.running(), "the sidecar there")
                wait_until(lambda: named(laptop) and named(desk), "both names")
                yield Machines(server, laptop, here, desk, there)
                for durable, client in ((laptop, here), (desk, there)):
                    durable.end_with(client)


def named(durable: DurableStream) -> bool:
    machines = (durable.lines("status")[0]["nats"] or {}).get("machines")
    return machines is not None and machines["problem"] == ""


def on_desk(machines: Machines, *words: str) -> list[dict[str, Any]]:
    return machines.laptop.lines("intents", "--on", "desk", *words)


def messages(machines: Machines, parent: str) -> list[str]:
    """The messages about background work in the parent's history. The scripted model repeats them in its answers."""
    found = [json.dumps(each) for each in machines.here.messages(parent) if each["info"]["role"] == "user"]
    return [each for each in found if "<background-agent" in each]


def test_a_model_asks_another_machine_and_is_woken_here(machines: Machines, model: ModelServer) -> None:
    parent = machines.here.create_session("parent")
    shell = {"command": "echo two > made.txt && pwd", "description": "make a file"}
    prompt = f"CALL:bash {json.dumps(shell)}THEN: SAY:the answer is 42"
    machines.here.prompt(parent, spawn(prompt, on=f"desk:{machines.there.project}"))
    wait_until(lambda: messages(machines, parent), "the result in the parent's history")
    (told,) = messages(machines, parent)
    (done,) = on_desk(machines)
    assert "> the answer is 42" in told and "+two" in told and f"intents {done['id']} --on desk --apply" in told
    asked_by = done["asked_by"]
    assert (asked_by["machine"], asked_by["session"], asked_by["on"], done["depth"]) == ("laptop", parent, "desk", 1)
    assert done["parent"] is None and done["asked_by"]["root"] == done["root"]
    assert done["state"] == "completed" and machines.laptop.lines("intents") == []
    wait_until(lambda: any("<background-agent" in str(each.body) for each in model.of(parent)), "the parent's answer")
    diff = machines.laptop.cli("intents", "--on", "desk", done["id"], "--diff")
    assert "+two" in diff
    project = machines.here.project
    for said in ("Changed 1 file", "already been applied"):
        applied = machines.laptop._run("intents", "--on", "desk", done["id"], "--apply", cwd=project)
        assert said in applied.stdout, applied.stderr
        assert (project / "made.txt").read_text() == "two\n" and not (machines.there.project / "made.txt").exists()
    taken = machines.laptop._run("intents", "--on", "desk", done["id"][:7], "--undo", cwd=project)
    assert "Took back 1 file" in taken.stdout and not (project / "made.txt").exists()
    (project / "made.txt").write_text("mine\n")
    conflict = machines.laptop._run("intents", "--on", "desk", done["id"], "--apply", cwd=project)
    assert "[apply-conflict]" in conflict.stderr and (project / "made.txt").read_text() == "mine\n"
    (project / "made.txt").unlink()


def test_a_person_asks_another_machine_and_answers_it_whoever_is_killed(machines: Machines) -> None:
    laptop, desk = machines.laptop, machines.desk
    parent = machines.here.create_session("parent")
    machines.here.prompt(parent, "SAY:hello")
    prompt = 'CALL:bash {"command": "touch asked", "description": "d"}THEN: SAY:it was allowed'
    where = ("--on", "desk", "--directory", str(machines.there.project))
    spawned = (
        "spawn",
        prompt,
        *where,
        "--parent",
        parent,
        "--key",
        "once",
        "--isolation",
        "shared",
        "--title",
        "touch it",
        "--json",
    )
    (first,) = map(json.loads, laptop.cli(*spawned).splitlines())
    (again,) = map(json.loads, laptop.cli(*spawned).splitlines())
    assert first["id"] == again["id"]
    wait_until(lambda: laptop.lines("checkpoints", "--on", "desk"), "the question there")
    (asks,) = laptop.lines("checkpoints", "--on", "desk")
    assert (asks["kind"], asks["intent"]) == ("permission", first["id"])
    wait_until(lambda: [each for each in laptop.lines("notices") if asks["id"] in each["text"]], "the question here")
    killed = [machines.kill() for machines in (Killed(desk), Killed(laptop))]
    machines.server.kill()
    machines.server.start()
    assert desk.wait_running(killed) and laptop.wait_running(killed)
    wait_until(lambda: named(laptop) and named(desk), "both names")
    wait_until(lambda: answered(laptop, asks["id"]), "the answer's way")
    wait_until(lambda: messages(machines, parent), "the result in the parent's history")
    (told,) = messages(machines, parent)
    assert "it was allowed" in told and (machines.there.project / "asked").exists()
    known = [each for each in desk.lines("checkpoints", "--all") if each["id"] == asks["id"]]
    assert [(each["by"], each["via"]) for each in known] == [("user", {"channel": "machine", "machine": "laptop"})]
    assert refused(laptop, "checkpoints", "--on", "desk", asks["id"], "--answer", "once") == "already-answered"
    assert refused(laptop, "intents", "--on", "desk", first["id"], "--cancel") == "has-ended"
    assert refused(desk, "spawn", "SAY:x", "--on", "laptop", "--directory", "/") == "not-allowed"


def test_work_elsewhere_may_do_no_more_than_the_session_that_asks(machines: Machines) -> None:
    deny = [{"permission": "bash", "pattern": "*", "action": "deny"}]
    parent = machines.here.create_session("careful", permission=deny)
    script = 'CALL:bash {"command": "touch forbidden", "description": "d"}THEN: SAY:it tried'
    where = f"desk:{machines.there.project}"
    machines.here.prompt(parent, spawn(script, "forbidden", on=where, isolation="shared"))
    wait_until(lambda: messages(machines, parent), "the result in the parent's history")
    assert not (machines.there.project / "forbidden").exists()
    (work,) = [each for each in on_desk(machines) if each["title"] == "forbidden"]
    assert work["state"] == "completed"


def answered(laptop: DurableStream, checkpoint: str) -> bool:
    done = laptop._run("checkpoints", "--on", "desk", checkpoint, "--answer", "once")
    return done.returncode == 0 or "[already-answered]" in done.stderr


class Killed(NamedTuple):
    durable: DurableStream

    def kill(self) -> int:
        pid = self.durable.running()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid
