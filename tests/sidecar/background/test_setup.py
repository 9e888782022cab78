"""Copies that are made ready with the user's own commands, with the real git. A shell of the test's stands for the
plugin's, which has tests of its own: ``plugin-shim/test/copies.test.js``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from sidecar.background.copies.copies import Copies
from sidecar.background.copies.effects import CopyActs
from sidecar.background.copies.setup import MAX_DONE, MAX_OUTPUT, Setup
from sidecar.background.hosts.host import Call, HostAbsent
from sidecar.background.hosts.hosts import Hosts
from tests.sidecar.background.projects import ID, repository, write


class Plugin:
    """Runs the commands as the plugin does, but for one that is ``held``, which never ends."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.is_there, self.wanted, self.calls = is_there, True, list[tuple[str, dict[str, Any]]]()

    async def of(self, intent: str) -> Call:
        if not self.is_there:
            raise HostAbsent("no OpenCode")
        return self.call

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        self.calls.append((method, args))
        if method == "setup.stop":
            return {"code": None, "output": "begun"} if len(self.calls) > 1 else None
        if args["command"] == "held":
            await asyncio.sleep(0)
            return None
        options: dict[str, Any] = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT}
        process = await asyncio.create_subprocess_shell(args["command"], cwd=args["directory"], **options)
        said, _ = await process.communicate()
        return {"code": process.returncode, "output": said.decode()}

    def is_wanted(self, intent: str) -> bool:
        return self.wanted


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "project", {"a.txt": "one\n", "lock.txt": "old\n", ".gitignore": "*.log\nout/\n"})


def isolate(copies: Copies, *commands: str, plugin: Plugin | None = None, seconds: float = 60.0) -> CopyActs:
    plugin = plugin or Plugin()
    return CopyActs(copies, cast(Hosts, None), plugin.of, plugin.is_wanted, lambda _: "", Setup(commands, seconds))


async def ran(acts: CopyActs, project: Path) -> dict[str, Any]:
    return await acts.isolate({"intent": ID, "directory": str(project)}, "key")


async def collected(copies: Copies, made: dict[str, Any]) -> dict[str, Any]:
    return await copies.collect(ID, made["name"])


async def test_the_plugin_runs_the_commands_in_the_copy_after_it_has_stopped_those_of_an_earlier_attempt(
    copies: Copies, project: Path
) -> None:
    plugin = Plugin()
    made = await ran(isolate(copies, "pwd", "git status --short", plugin=plugin), project)
    (told, status) = made["setup"]
    assert (told["output"], told["code"]) == (f"{made['root']}\n", 0)
    assert (status["code"], status["output"]) == (0, "")
    first, second, _ = plugin.calls
    assert first == ("setup.stop", {"id": ID})
    about = {"id": ID, "command": "pwd", "directory": made["root"], "project": str(project)}
    assert second == ("setup.run", about)


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


async def test_a_command_that_takes_too_long_is_stopped(copies: Copies, project: Path) -> None:
    found = await ran(isolate(copies, "true", "held", "touch never", seconds=0.0), project)
    assert "minutes" in found["failed"] and "held" in found["failed"]
    assert [(run["code"], run["output"]) for run in found["setup"]] == [(0, ""), (None, "begun")]
    assert list(copies.place(ID).parent.glob("int_*")) == []


async def test_cancelled_work_stops_its_command(copies: Copies, project: Path) -> None:
    plugin = Plugin()
    plugin.wanted = False
    found = await ran(isolate(copies, "held", plugin=plugin), project)
    assert found["failed"] and "minutes" not in found["failed"] and not copies.place(ID).exists()
    assert [method for method, _ in plugin.calls] == ["setup.stop", "setup.run", "setup.stop"]


async def test_without_an_opencode_the_work_waits(copies: Copies, project: Path) -> None:
    absent = Plugin(is_there=False)
    assert await ran(isolate(copies, "true", plugin=absent), project) == {"absent": True}
    assert not copies.place(ID).exists()
    assert (await ran(isolate(copies, plugin=absent), project))["root"], "without commands nothing is asked"
