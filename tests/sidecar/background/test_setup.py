"""Copies that are made ready with the user's own commands, with the real git and the real shell."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from sidecar.background.copies.copies import Copies
from sidecar.background.copies.effects import CopyActs
from sidecar.background.copies.setup import MAX_DONE, MAX_OUTPUT, Setup
from sidecar.background.hosts.host import HostAbsent
from sidecar.background.hosts.hosts import Hosts
from sidecar.processes import mark_of
from tests.sidecar.background.projects import ID, repository, write

UNTIL_KILLED = "mkfifo held; echo $$ > pid.log; echo > begun.log; read _ < held"


KILLED = """
import asyncio, sys
from pathlib import Path
from sidecar.background.copies.copies import Copies
from tests.sidecar.background.test_setup import isolate, ran
asyncio.run(ran(isolate(Copies(Path(sys.argv[1])), sys.argv[3]), Path(sys.argv[2])))
"""
"""A sidecar in which these commands run."""


@contextmanager
def killable(script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", script, *arguments]) as process:
        try:
            yield process
        finally:
            process.kill()


class Asker:
    def __init__(self, variables: dict[str, str] | None = None) -> None:
        self.given, self.wanted = variables, True

    async def variables(self, intent: str) -> Mapping[str, str]:
        if self.given is None:
            raise HostAbsent("no OpenCode")
        return self.given

    def is_wanted(self, intent: str) -> bool:
        return self.wanted


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "project", {"a.txt": "one\n", "lock.txt": "old\n", ".gitignore": "*.log\nout/\n"})


ENVIRONMENT = {"PATH": os.environ["PATH"], "WHOSE": "ada"}


def isolate(copies: Copies, *commands: str, asker: Asker | None = None, seconds: float = 60.0) -> CopyActs:
    asker = asker or Asker(ENVIRONMENT)
    return CopyActs(copies, cast(Hosts, None), asker.variables, asker.is_wanted, lambda _: "", Setup(commands, seconds))


async def ran(acts: CopyActs, project: Path) -> dict[str, Any]:
    return await acts.isolate({"intent": ID, "directory": str(project)}, "key")


async def collected(copies: Copies, made: dict[str, Any]) -> dict[str, Any]:
    return await copies.collect(ID, made["name"])


def in_copy(copies: Copies, project: Path) -> Path:
    return Path(f"{copies.place(ID)}/files{project}")


async def appears(path: Path) -> str:
    while not (path.exists() and path.read_text().strip()):
        await asyncio.sleep(0.01)
    return path.read_text()


async def test_the_commands_run_in_the_copy_with_the_environment_of_the_one_that_asked(
    copies: Copies, project: Path
) -> None:
    tell = 'echo "$WHOSE $DURABLE_STREAM_PROJECT $PWD$OPENCODE_SERVER_PASSWORD"'
    asker = Asker(ENVIRONMENT | {"GIT_DIR": "/elsewhere", "OPENCODE_SERVER_PASSWORD": "secret"})
    made = await ran(isolate(copies, tell, "git status --short", asker=asker), project)
    (told, status) = made["setup"]
    assert (told["output"], told["code"]) == (f"ada {project} {made['root']}\n", 0)
    assert (status["code"], status["output"]) == (0, "")


async def test_what_they_change_is_not_the_agents_change_and_keeps_no_copy(copies: Copies, project: Path) -> None:
    write(project / "a.txt", "uncommitted\n")
    commands = (
        "echo new > lock.txt; echo made > generated.txt; rm a.txt",
        "mkdir -p out node_modules/p; echo x > out/built; echo x > some.log; echo x > node_modules/p/i.js",
    )
    made = await ran(isolate(copies, *commands), project)
    root = Path(made["root"])
    write(root / "lock.txt", "new\nby the agent\n")
    found = await collected(copies, made)
    assert [each["file"] for each in found["files"]] == ["lock.txt"] and "+by the agent" in found["diff"]
    assert "kept" not in found and not root.exists()
    write(project / "lock.txt", "new\n")
    assert await copies.apply(ID) == ["lock.txt"]
    assert (project / "lock.txt").read_text() == "new\nby the agent\n" and not (project / "generated.txt").exists()
    assert (project / "a.txt").read_text() == "uncommitted\n"


async def test_what_the_agent_did_to_an_ignored_file_of_theirs_is_not_lost(copies: Copies, project: Path) -> None:
    made = await ran(isolate(copies, "mkdir out; echo x > out/built; echo y > out/other"), project)
    write(Path(made["root"], "out/built"), "by the agent\n")
    found = await collected(copies, made)
    assert [each["file"] for each in found["unsaved"]] == ["out"] and Path(found["kept"]).is_dir()


async def test_a_command_that_fails_ends_the_work_with_its_output(copies: Copies, project: Path) -> None:
    found = await ran(isolate(copies, "true", "echo about to; echo cannot >&2; exit 3", "touch never"), project)
    assert "cannot" in found["failed"] and "3" in found["failed"]
    assert [run["code"] for run in found["setup"]] == [0, 3] and "about to" in found["setup"][1]["output"]
    assert not copies.place(ID).exists() and not list((copies.place(ID).parent).glob("int_*"))


async def test_only_the_end_of_long_output_is_kept(copies: Copies, project: Path) -> None:
    found = await ran(isolate(copies, "seq 9999", "seq 9999; exit 1"), project)
    done, failed = (run["output"] for run in found["setup"])
    assert done.endswith("9998\n9999\n") and done[0] == failed[0] == "…"
    assert len(done) == MAX_DONE + 1 and len(failed) == MAX_OUTPUT + 1


async def test_a_command_that_takes_too_long_is_stopped_with_what_it_started(
    copies: Copies, project: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    found = await ran(isolate(copies, f"(echo $$ > {pid}; mkfifo held; read _ < held) & wait", seconds=1.0), project)
    assert "setup_minutes" in found["failed"] and found["setup"][0]["code"] is None
    assert not mark_of(int(pid.read_text())) and list(copies.place(ID).parent.glob("int_*")) == []


async def test_cancelled_work_stops_its_command(copies: Copies, project: Path) -> None:
    asker = Asker(ENVIRONMENT)
    running = asyncio.create_task(ran(isolate(copies, UNTIL_KILLED, asker=asker), project))
    pid = int(await appears(in_copy(copies, project) / "pid.log"))
    asker.wanted = False
    found = await running
    assert found["failed"] and not mark_of(pid) and not copies.place(ID).exists()


async def test_after_a_kill_of_the_sidecar_the_old_command_ends_and_all_begins_again(
    copies: Copies, project: Path
) -> None:
    root = copies.place(ID)
    note = root.with_suffix(".setup")
    with killable(KILLED, str(root.parent), str(project), UNTIL_KILLED) as sidecar:
        pid = int(await appears(in_copy(copies, project) / "pid.log"))
        sidecar.kill()
    assert mark_of(pid) and note.exists(), "the command outlives the sidecar"
    made = await ran(isolate(copies, "echo again > some.log"), project)
    assert (
        not mark_of(pid)
        and Path(made["root"], "some.log").read_text() == "again\n"
        and not Path(made["root"], "pid.log").exists()
    )
    assert [run["code"] for run in made["setup"]] == [0] and not note.exists()


async def test_a_note_that_was_cut_off_or_of_another_process_ends_nothing(copies: Copies, project: Path) -> None:
    note = copies.place(ID).with_suffix(".setup")
    for left in ("{", json.dumps({"pid": os.getpid(), "mark": "another"})):
        write(note, left)
        assert (await ran(isolate(copies, "true"), project))["root"] and not note.exists()


async def test_without_the_environment_the_work_waits(copies: Copies, project: Path) -> None:
    absent = Asker()
    assert await ran(isolate(copies, "true", asker=absent), project) == {"absent": True}
    assert not copies.place(ID).exists()
    assert (await ran(isolate(copies, asker=absent), project))["root"], "without commands nothing is asked"
