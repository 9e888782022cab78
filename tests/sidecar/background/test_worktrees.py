"""Worktrees with the real git: what they begin with, what is kept, and what is made in the user's files."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from sidecar.background import effects
from sidecar.background.effects import HostActs
from sidecar.background.hosts.host import HostError, Status
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.intents.state import intent_of
from sidecar.background.intents.texts import changes_text, told
from sidecar.background.worktrees import effects as worktree_effects
from sidecar.background.worktrees.effects import WorktreeActs
from sidecar.background.worktrees.setup import Setup
from sidecar.background.worktrees.worktrees import Worktree, WorktreeError, Worktrees
from tests.sidecar.background.projects import ID, git, write
from tests.sidecar.background.support import PLAIN, Only

T = TypeVar("T")
NEXT = "int_ba9876543210"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    (path / "sub").mkdir(parents=True)
    git(path, "init", "-q")
    (path / "a.txt").write_text("one\ntwo\n")
    (path / "sub/b.txt").write_text("b\n")
    (path / ".gitignore").write_text("*.log\n")
    git(path, "add", ".")
    git(path, "commit", "-qm", "first")
    hook = path / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch " + str(tmp_path / "hooked") + "\n")
    hook.chmod(0o755)
    return path


def run(awaitable: Awaitable[T]) -> T:
    async def main() -> T:
        return await awaitable

    return asyncio.run(main())


def added(worktrees: Worktrees, project: Path) -> Worktree:
    found = run(worktrees.add(ID, str(project)))
    assert found is not None
    return found


def test_it_begins_with_uncommitted_changes_and_leaves_the_users_files_alone(
    worktrees: Worktrees, project: Path, tmp_path: Path
) -> None:
    (project / "a.txt").write_text("one\nTWO\n")
    made = added(worktrees, project / "sub")
    root = Path(made.root)
    assert made.directory == str(root / "sub") + "/" or made.directory == str(root / "sub")
    assert (root / "a.txt").read_text() == "one\nTWO\n"
    (root / "sub/b.txt").write_text("B\n")
    (root / "new.txt").write_text("new\n")
    found = run(worktrees.collect(ID, made.repository, made.base))
    assert [each["file"] for each in found["files"]] == ["new.txt", "sub/b.txt"]
    assert "+new" in found["diff"] and not root.exists()
    assert git(project, "status", "--short") == " M a.txt\n" and git(project, "branch", "--list").count("\n") == 1
    assert git(project, "worktree", "list").count("\n") == 1 and git(project, "stash", "list") == ""
    assert not (tmp_path / "hooked").exists()
    again = run(worktrees.collect(ID, made.repository, made.base))
    assert again == found
    assert run(worktrees.apply(ID, str(project / "sub"), made._asdict())) is True
    assert (project / "new.txt").exists() and (project / "sub/b.txt").read_text() == "B\n"
    assert (project / "a.txt").read_text() == "one\nTWO\n"
    assert run(worktrees.apply(ID, str(project), made._asdict())) is False


def test_commits_of_the_agent_are_kept(worktrees: Worktrees, project: Path) -> None:
    made = added(worktrees, project)
    root = Path(made.root)
    (root / "a.txt").write_text("committed\n")
    git(root, "commit", "-qam", "by the agent")
    found = run(worktrees.collect(ID, made.repository, made.base))
    assert found["count"] == 1
    assert git(project, "log", "-1", "--format=%s", found["ref"]) == "by the agent\n"


def test_a_making_that_was_cut_off_is_made_again(worktrees: Worktrees, project: Path) -> None:
    (Path(added(worktrees, project).root) / "half.txt").write_text("left over")
    made = added(worktrees, project)
    assert sorted(each.name for each in Path(made.root).iterdir()) == [".git", ".gitignore", "a.txt", "sub"]


def test_opencodes_own_untracked_files_are_in_the_worktree_and_are_no_changes_of_the_agent(
    worktrees: Worktrees, project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "skills"
    outside.mkdir()
    for name in (".opencode/agent/a.md", ".opencode/node_modules/p/index.js", "sub/AGENTS.md", "other/opencode.json"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / ".opencode/skills").symlink_to(outside)
    (project / ".opencode/gone.md").symlink_to(tmp_path / "nothing")
    (project / "sub/.opencode").mkdir()
    (project / "sub/.opencode/package.json").write_text("tracked")
    git(project, "add", "sub/.opencode")
    git(project, "commit", "-qm", "second")
    (project / "opencode.json").write_text('{"permission": {"bash": "ask"}}')
    (project / ".git/info/exclude").write_text("opencode.json\n")
    made = added(worktrees, project / "sub")
    root = Path(made.root)
    assert (root / "opencode.json").read_text() == '{"permission": {"bash": "ask"}}'
    assert (root / ".opencode/agent/a.md").is_file() and (root / "sub/AGENTS.md").is_file()
    assert (root / ".opencode/node_modules/p/index.js").is_file()
    assert made.left_out == [".opencode/skills"] and not os.path.lexists(root / ".opencode/skills"), "it leads out"
    assert not (root / "other").exists(), "OpenCode does not look there"
    for name in (".opencode/package.json", "sub/.opencode/.gitignore"):
        (root / name).write_text("by OpenCode")
    (root / "sub/.opencode/package.json").write_text("changed by the agent")
    (root / ".opencode/agent/b.md").write_text("by the agent")
    (root / "a.txt").write_text("changed\n")
    git(root, "add", "--all")
    git(root, "commit", "-qm", "by the agent")
    found = run(worktrees.collect(ID, made.repository, made.base))
    assert [each["file"] for each in found["files"]] == [".opencode/agent/b.md", "a.txt", "sub/.opencode/package.json"]
    assert run(worktrees.apply(ID, str(project), made._asdict())) is True
    assert (project / ".opencode/agent/b.md").is_file() and (project / "a.txt").read_text() == "changed\n"
    assert (project / ".opencode/agent/a.md").is_file(), "the user's files are still there"


def before(made: Worktree, commit: str = "", *, is_kept: bool = False) -> dict[str, Any]:
    return {"worktree": made._asdict(), "commit": commit, "kept": is_kept}


def test_work_that_goes_on_has_the_changes_of_before_in_the_same_place(worktrees: Worktrees, project: Path) -> None:
    write(project / "a.txt", "uncommitted\n")
    made = added(worktrees, project / "sub")
    write(Path(made.root, "sub/b.txt"), "first\n")
    write(Path(made.root, "new.txt"), "new\n")
    first = run(worktrees.collect(ID, made.repository, made.base, made.folder))
    again = run(worktrees.add(NEXT, str(project / "sub"), before(made, first["commit"])))
    assert again is not None and (again.directory, again.base) == (made.directory, made.base)
    assert Path(again.root, "new.txt").exists() and Path(again.root, "a.txt").read_text() == "uncommitted\n"
    write(Path(again.root, "sub/b.txt"), "second\n")
    second = run(worktrees.collect(NEXT, again.repository, again.base, again.folder, ID))
    assert second["ref"].endswith(NEXT) and [each["file"] for each in second["files"]] == ["new.txt", "sub/b.txt"]
    assert not Path(made.root).exists()
    assert run(worktrees.apply(NEXT, str(project / "sub"), again._asdict(), second["commit"])) is True
    assert (project / "sub/b.txt").read_text() == "second\n" and (project / "new.txt").exists()


def test_what_was_written_after_the_worktree_was_gone_is_not_overwritten(worktrees: Worktrees, project: Path) -> None:
    made = added(worktrees, project)
    run(worktrees.collect(ID, made.repository, made.base, made.folder))
    stray = write(Path(made.root, "sub/again.txt"), "by a person's prompt\n")
    with pytest.raises(WorktreeError) as raised:
        run(worktrees.add(NEXT, str(project), before(made)))
    assert raised.value.code == "worktree-changed" and stray.exists()
    shutil.rmtree(Path(made.root, "sub"))
    assert run(worktrees.add(NEXT, str(project), before(made))) is not None, "an empty directory is no loss"
    Path(made.folder, "durable-stream-copied").unlink()
    assert run(worktrees.add(NEXT, str(project), before(made))) is not None, "a making that was cut off"


def test_a_git_that_cannot_be_told_what_to_read_is_not_used(
    worktrees: Worktrees, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "bin/git"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho --path-format=absolute; echo .git\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(old.parent), prepend=":")
    with pytest.raises(WorktreeError) as raised:
        run(worktrees.add(ID, str(project)))
    assert raised.value.code == "git-failed"


def test_binary_files_and_odd_names(worktrees: Worktrees, project: Path) -> None:
    made = added(worktrees, project)
    (Path(made.root) / "ä b\n.bin").write_bytes(b"\x00\xff\xfe")
    (Path(made.root) / "latin.txt").write_bytes(b"caf\xe9\n")
    found = run(worktrees.collect(ID, made.repository, made.base))
    assert {each["file"]: each["added"] for each in found["files"]} == {"latin.txt": 1, "ä b\n.bin": None}
    run(worktrees.apply(ID, str(project), made._asdict()))
    assert (project / "latin.txt").read_bytes() == b"caf\xe9\n"
    assert (project / "ä b\n.bin").read_bytes() == b"\x00\xff\xfe"


def test_where_there_can_be_none(worktrees: Worktrees, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert run(worktrees.add(ID, str(tmp_path / "plain"))) is None
    git(tmp_path / "plain", "init", "-q")
    assert run(worktrees.add(ID, str(tmp_path / "plain"))) is None
    for odd in ("../x", "int_", "int_00/../.."):
        with pytest.raises(WorktreeError):
            run(worktrees.add(odd, str(tmp_path / "plain")))


ARGS = {"intent": "int_1", "session": "ses_1", "stop": True, "work": "/work", "repository": "/r", "base": "b"}


class FakeHost:
    """A session that says these things about itself, the last one for ever."""

    def __init__(
        self, *statuses: Status | HostError, abort: HostError | None = None, leave: HostError | None = None
    ) -> None:
        self.statuses, self.error, self.aborts, self.fault = list(statuses), abort, 0, leave
        self.left: list[bool] = []

    async def leave(self, session: str, *, directory: str, is_last: bool) -> None:
        self.left.append(is_last)
        if self.fault is not None:
            raise self.fault

    async def abort(self, session: str, *, directory: str) -> None:
        self.aborts += 1
        if self.error is not None:
            raise self.error

    async def status(self, session: str) -> Status:
        said = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(said, HostError):
            raise said
        return said


class FakeWorktrees:
    def __init__(self, root: Path = Path("/work")) -> None:
        self.removed, self._root = False, root

    def root(self, name: str) -> Path:
        return self._root

    async def collect(self, *_: Any) -> dict[str, Any]:
        self.removed = True
        return {"ref": ""}


async def collected(host: FakeHost, *, stop: bool = True) -> bool:
    """Whether the worktree was removed; if not, the effect failed, and is tried again."""
    worktrees = FakeWorktrees()
    acts = WorktreeActs(cast(Worktrees, worktrees), cast(Hosts, Only(host)), cast(Any, None), bool, Setup())
    try:
        await acts.collect({**ARGS, "stop": stop}, "key")
    except HostError:
        assert not worktrees.removed
    return worktrees.removed


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree_effects, "_POLL_SECONDS", 0.0)


@pytest.mark.parametrize("status", ["idle", "absent"])
async def test_a_session_that_rests_or_has_no_process_is_collected(status: Status) -> None:
    assert await collected(FakeHost("busy", status))
    assert await collected(FakeHost(status, abort=HostError("the service is away")))


async def test_the_worktree_of_a_session_that_does_not_stop_is_left() -> None:
    host = FakeHost("busy")
    assert not await collected(host)
    assert host.aborts > 1, "what begins meanwhile is stopped, too"


@pytest.mark.parametrize("stop", [True, False])
async def test_a_worktree_goes_only_after_what_runs_there_was_ended(stop: bool) -> None:
    assert not await collected(FakeHost("idle", leave=HostError("it did not answer in time")), stop=stop)
    assert await collected(FakeHost("absent", leave=HostError("no service")), stop=stop)
    assert await collected(FakeHost("idle", leave=HostError("unknown to this version", permanent=True)), stop=stop)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which processes a tool started")
@pytest.mark.parametrize("mark", ["OPENCODE=1", "OPENCODE_TERMINAL=1"])
async def test_what_a_tool_left_running_in_a_worktree_is_ended_and_named_and_nothing_else(
    tmp_path: Path, mark: str
) -> None:
    root, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    (root / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    name, _, value = mark.partition("=")
    ours = os.environ | {name: value}
    runs = [sys.executable, "-c", "print(flush=True); input()"]

    def start(directory: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(runs, cwd=directory, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload]
        assert process.stdout is not None and process.stdout.readline()
        return cast("subprocess.Popen[bytes]", process)

    others = [start(elsewhere, ours), start(root, {**os.environ, name: "0"})]
    left = start(root / "sub", ours)
    try:
        acts = WorktreeActs(
            cast(Worktrees, FakeWorktrees(root)), cast(Hosts, Only(FakeHost("idle"))), cast(Any, None), bool, Setup()
        )
        found = await acts.collect(dict(ARGS), "key")
        assert found["ended"] == [" ".join(runs)] and left.wait(10) == -signal.SIGKILL
        assert [each.poll() for each in others] == [None, None]
        intent = intent_of({"intent": "int_1", "prompt": "p", "title": "t", "directory": "/p", "ts": 1})
        assert "input()" in told(intent, "completed", {"result": "done", "changes": found})
    finally:
        for process in (*others, left):
            process.communicate(b"\n")


def test_what_is_only_in_a_kept_worktree_is_told() -> None:
    unsaved = [{"file": "out/report.txt", "why": "ignored by git"}]
    kept = {"ref": "", "files": [], "count": 0, "diff": "", "kept": "/w/int_1", "unsaved": unsaved, "unsaved_count": 9}
    intent = intent_of({"intent": "int_1", "prompt": "p", "title": "t", "directory": "/p", "ts": 1})
    said = "\n".join(changes_text(intent, kept))
    assert "/w/int_1" in said and "out/report.txt" in said and "8 more" in said
    saved = {**kept, "ref": "refs/durable-stream/int_1", "files": [{"file": "b.txt", "added": 1, "removed": 0}]}
    said = "\n".join(changes_text(intent, saved))
    assert "b.txt" in said and "out/report.txt" in said


@pytest.mark.parametrize(
    ("args", "leaves", "aborts"), [({}, [False], 1), ({"late": True}, [False], 3), ({"isolated": True}, [], 1)]
)
async def test_a_turn_that_begins_after_a_late_abort_is_aborted(
    args: dict[str, Any], leaves: list[bool], aborts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "LATE_SECONDS", 0.0)
    host = FakeHost("idle", "busy", "busy", "idle")
    acts = HostActs(cast(Hosts, Only(host)), PLAIN, print)
    assert await acts.abort({"session": "ses_1", "directory": "/p", **args}, "key") == {}
    assert (host.aborts, host.left) == (aborts, leaves)
