"""Private copies as background work has them: made, continued, applied once, taken away after what ran in them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from sidecar.background import effects
from sidecar.background.copies import effects as copy_effects
from sidecar.background.copies.copies import Copies, CopyError
from sidecar.background.copies.effects import CopyActs
from sidecar.background.copies.setup import Setup
from sidecar.background.effects import HostActs
from sidecar.background.hosts.host import HostError, Status
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.intents.state import intent_of
from sidecar.background.intents.texts import changes_text, notice_text
from tests.sidecar.background.projects import ID, git, repository, tree, write
from tests.sidecar.background.support import PLAIN, Only

OTHER = "int_fedcba987654"
ARGS = {"intent": ID, "session": "ses_1", "stop": True, "work": "/work", "name": ID}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "shop/project", {"a.txt": "one\ntwo\nthree\n", "sub/b.txt": "b\n"})


def acts_of(copies: Any, host: Any = None, project: str = "") -> CopyActs:
    return CopyActs(copies, cast(Hosts, Only(host)), cast(Any, None), bool, lambda _: project, Setup())


# --- where a copy stands ---


async def test_a_copy_finds_above_it_what_the_users_directory_finds(copies: Copies, project: Path) -> None:
    config = {"plugin": ["../shared/guard.js", "../../far/x.js"]}
    write(project / "opencode.json", json.dumps(config))
    for name in ("shared/guard.js", "secret/key", "AGENTS.md", ".opencode/plugins/p.js"):
        write(project.parent / name, "kept\n")
    made = await copies.make(ID, str(project / "sub"), project="abc123")
    above = Path(made.root).parent
    assert made.root.endswith(f"/files{project}") and made.directory == f"{made.root}/sub"
    assert sorted(each.name for each in above.iterdir()) == [".opencode", "AGENTS.md", "project", "shared"]
    assert (above / "shared/guard.js").read_text() == (above / ".opencode/plugins/p.js").read_text() == "kept\n"
    assert Path(made.root, ".git/opencode").read_text() == "abc123"


async def test_the_project_s_id_of_opencode_is_kept_and_others_are_not_made_up(copies: Copies, project: Path) -> None:
    found = await acts_of(copies, project="known").isolate({"intent": ID, "directory": str(project)}, "key")
    assert Path(found["root"], ".git/opencode").read_text() == "known"
    write(project / ".git/opencode", "noted")
    assert Path((await copies.make(ID, str(project))).root, ".git/opencode").read_text() == "noted"


async def test_outside_of_a_repository_only_work_that_insists_gets_a_copy(copies: Copies, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    write(plain / "a.txt", "one\n")
    args = {"intent": ID, "directory": str(plain)}
    assert await acts_of(copies).isolate(args, "key") == {}
    made = await acts_of(copies).isolate(args | {"always": True}, "key")
    write(Path(made["root"], "a.txt"))
    assert (await copies.collect(ID))["count"] == 1 and await copies.apply(ID) == ["a.txt"]


async def test_a_path_that_becomes_too_long_and_rules_that_cannot_be_copied_refuse_the_copy(
    copies: Copies, project: Path, tmp_path: Path
) -> None:
    for make in (lambda: os.mkfifo(project / "opencode.json"), lambda: _deep(project)):
        make()
        with pytest.raises(CopyError) as raised:
            await copies.make(ID, str(project))
        assert raised.value.code == "copy-failed"
        (project / "opencode.json").unlink(missing_ok=True)


def _deep(project: Path) -> None:
    """The longest path that can be opened there."""
    here = project
    while (left := 4090 - len(os.fsencode(here))) > 1:
        here /= "d" * min(left - 1, 200)
        here.mkdir()


async def test_our_own_home_is_in_no_copy(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"dotfile": "x\n"})
    write(user / "home [1]/token", "secret")
    made = await Copies(user / "home [1]/copies").make(ID, str(user))
    assert tree(Path(made.root)) == {"dotfile": "x\n"}


# --- what counts as changed ---

CONFIG = '{\n  // mine\n  "permission": {"bash": "ask"}\n}\n'
BY_OPENCODE = CONFIG.replace("{", '{\n  "$schema": "https://opencode.ai/config.json",', 1)


@pytest.mark.parametrize("name", ["opencode.json", ".opencode/opencode.jsonc"])
async def test_what_opencode_writes_into_its_own_files_is_no_change_of_the_agent(
    name: str, copies: Copies, tmp_path: Path
) -> None:
    project = repository(tmp_path / "project", {name: CONFIG, ".opencode/agent/a.md": "be kind\n"})
    write(project / ".opencode/node_modules/p/index.js", "plugin\n")
    root = Path((await copies.make(ID, str(project))).root)
    assert (root / ".opencode/node_modules/p/index.js").exists(), "a plugin needs it"
    for each in (".gitignore", "package.json", "node_modules/q/index.js"):
        write(root / ".opencode" / each)
    write(root / name, BY_OPENCODE)
    assert await copies.collect(ID) == {"saved": False, "files": [], "count": 0, "diff": "", "is_cut": False}
    root = Path((await copies.make(ID, str(project))).root)
    write(root / name, BY_OPENCODE.replace("ask", "deny"))
    found = await copies.collect(ID)
    assert "$schema" not in found["diff"] and '+  "permission": {"bash": "deny"}' in found["diff"]
    assert await copies.apply(ID) == [name]
    assert (project / name).read_text() == CONFIG.replace("ask", "deny")


async def test_a_result_needs_neither_the_copy_nor_the_repository(copies: Copies, project: Path) -> None:
    write(project / "untracked.txt", "mine\n")
    root = Path((await copies.make(ID, str(project))).root)
    write(root / "a.txt", "one\ntwo\nthree\nfour\n")
    (root / "sub/b.txt").unlink()
    found = await copies.collect(ID)
    assert found["saved"] and not root.exists() and git(project, "status", "--short") == "?? untracked.txt\n"
    shutil.rmtree(project / ".git")
    assert "+four" in await copies.diff(ID)
    write(project / "a.txt", "zero\none\ntwo\nthree\n")
    assert sorted(await copies.apply(ID)) == ["a.txt", "sub/b.txt"]
    assert tree(project) == {"a.txt": "zero\none\ntwo\nthree\nfour\n", "untracked.txt": "mine\n"}
    write(project / "a.txt", "mine\nzero\none\ntwo\nthree\nfour\n")
    assert sorted(await copies.undo(ID)) == ["a.txt", "sub/b.txt"]
    assert (project / "sub/b.txt").exists() and (project / "a.txt").read_text() == "mine\nzero\none\ntwo\nthree\n"


async def test_what_is_in_no_result_is_named_and_keeps_the_copy(copies: Copies, project: Path) -> None:
    write(project / ".gitignore", "*.log\nout/\n")
    root = Path((await copies.make(ID, str(project))).root)
    write(root / "only.log")
    write(root / "out/node_modules/x.js")
    write(root / "out/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n")
    git(root, "commit", "--allow-empty", "-qm", "mine")
    repository(root / "inner")
    found = await copies.collect(ID)
    assert sorted(each["file"] for each in found["unsaved"]) == [".", "inner", "only.log"]
    assert (found["saved"], found["unsaved_count"], found["kept"]) == (False, 3, str(root)) and root.exists()
    await copies.discard(ID, ID)
    await copies.sweep()
    assert not root.exists() and not list((copies.place(ID).parent / "gone").iterdir())


# --- applying ---


async def test_two_people_apply_it_once(copies: Copies, project: Path) -> None:
    root = Path((await copies.make(ID, str(project))).root)
    write(root / "a.txt", "one\ntwo\nthree\nfour\n")
    await copies.collect(ID)
    done = await asyncio.gather(*(copies.apply(ID) for _ in range(4)))
    assert sorted(done) == [[], [], [], ["a.txt"]] and (project / "a.txt").read_text().count("four") == 1
    assert await copies.undo(ID) == ["a.txt"]
    with pytest.raises(CopyError) as raised:
        await copies.undo(ID)
    assert raised.value.code == "no-changes" and (project / "a.txt").read_text() == "one\ntwo\nthree\n"


async def test_of_a_project_that_moved_nothing_is_said_to_be_done(copies: Copies, project: Path) -> None:
    root = Path((await copies.make(ID, str(project))).root)
    write(root / "a.txt")
    await copies.collect(ID)
    moved = project.rename(project.with_name("moved"))
    with pytest.raises(CopyError) as raised:
        await copies.apply(ID)
    assert raised.value.code == "copy-failed" and str(project) in str(raised.value)
    assert "+by the agent" in await copies.diff(ID)
    moved.rename(project)
    assert await copies.apply(ID) == ["a.txt"]
    await copies.discard(ID)
    assert not copies.result(ID).exists()


# --- work that is continued, and work in work ---


@pytest.mark.parametrize("applied", [False, True])
async def test_a_copy_of_continued_work_has_the_changes_of_before(applied: bool, copies: Copies, project: Path) -> None:
    root = Path((await copies.make(ID, str(project))).root)
    write(root / "a.txt", "one\ntwo\nthree\nfirst\n")
    await copies.collect(ID)
    if applied:
        await copies.apply(ID)
    write(project / "new.txt", "made meanwhile\n")
    copy = {"name": ID, "directory": str(root)}
    before = {"intent": ID, "copy": copy, "saved": not applied, "kept": False}
    args = {"intent": OTHER, "directory": str(project), "continues": before}
    again = await acts_of(copies).isolate(args, "key")
    assert (again["root"], again["name"]) == (str(root), ID) and (root / "new.txt").exists()
    assert (root / "a.txt").read_text().endswith("first\n")
    write(root / "a.txt", "one\ntwo\nthree\nfirst\nsecond\n")
    found = await copies.collect(OTHER, ID)
    assert (("+first" in found["diff"]), "+second" in found["diff"]) == (not applied, True)
    assert await copies.apply(OTHER) == ["a.txt"]
    assert (project / "a.txt").read_text() == "one\ntwo\nthree\nfirst\nsecond\n"


async def test_a_copy_of_a_copy_outlives_it_and_its_result_is_then_the_users(copies: Copies, project: Path) -> None:
    first = await copies.make(ID, str(project))
    write(Path(first.root, "a.txt"), "one\ntwo\nthree\nfirst\n")
    git(Path(first.root), "add", "--all")
    second = await copies.make(OTHER, first.root)
    await copies.collect(ID)
    await copies.sweep()
    assert not Path(first.root).exists() and git(Path(second.root), "log", "--format=%s") == "first\n"
    write(Path(second.root, "sub/b.txt"), "b\nsecond\n")
    write(Path(second.root, "a.txt"), "zero\none\ntwo\nthree\nfirst\n")
    assert (await copies.collect(OTHER))["count"] == 2
    assert await copies.apply(ID) == ["a.txt"]
    assert sorted(await copies.apply(OTHER)) == ["a.txt", "sub/b.txt"]
    assert (project / "a.txt").read_text() == "zero\none\ntwo\nthree\nfirst\n"


# --- when it goes ---


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

    async def forget(self, directory: str) -> None:
        return

    async def abort(self, session: str, *, directory: str) -> None:
        self.aborts += 1
        if self.error is not None:
            raise self.error

    async def status(self, session: str) -> Status:
        said = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(said, HostError):
            raise said
        return said


class FakeCopies:
    def __init__(self, root: Path = Path("/work")) -> None:
        self.removed, self._root = False, root

    def place(self, name: str) -> Path:
        return self._root

    async def collect(self, *_: Any) -> dict[str, Any]:
        self.removed = True
        return {"saved": False}


async def collected(host: FakeHost, *, stop: bool = True) -> bool:
    """Whether the copy was removed; if not, the effect failed, and is tried again."""
    copies = FakeCopies()
    try:
        await acts_of(copies, host).collect({**ARGS, "stop": stop}, "key")
    except HostError:
        assert not copies.removed
    return copies.removed


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_effects, "_POLL_SECONDS", 0.0)


@pytest.mark.parametrize("status", ["idle", "absent"])
async def test_a_session_that_rests_or_has_no_process_is_collected(status: Status) -> None:
    assert await collected(FakeHost("busy", status))
    assert await collected(FakeHost(status, abort=HostError("the service is away")))


async def test_the_copy_of_a_session_that_does_not_stop_is_left() -> None:
    host = FakeHost("busy")
    assert not await collected(host)
    assert host.aborts > 1, "what begins meanwhile is stopped, too"


@pytest.mark.parametrize("stop", [True, False])
async def test_a_copy_goes_only_after_what_runs_there_was_ended(stop: bool) -> None:
    assert not await collected(FakeHost("idle", leave=HostError("it did not answer in time")), stop=stop)
    assert await collected(FakeHost("absent", leave=HostError("no service")), stop=stop)
    assert await collected(FakeHost("idle", leave=HostError("unknown to this version", permanent=True)), stop=stop)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which processes a tool started")
@pytest.mark.parametrize("mark", ["OPENCODE=1", "OPENCODE_TERMINAL=1"])
async def test_what_a_tool_left_running_in_a_copy_is_ended_and_named_and_nothing_else(
    tmp_path: Path, mark: str
) -> None:
    root, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    (root / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    name, _, value = mark.partition("=")
    ours = os.environ | {name: value}
    runs = [sys.executable, "-c", "print(flush=True); input()"]

    def start(directory: Path, environment: dict[str, str], runs: list[str] = runs) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(runs, cwd=directory, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload]
        assert process.stdout is not None and process.stdout.readline()
        return cast("subprocess.Popen[bytes]", process)

    # OpenCode starts the git of its snapshots in its own group, and ends here when its git does.
    git = (
        f"import os, subprocess; subprocess.run({runs!r}, cwd={str(root)!r}, env={{**os.environ, {name!r}: {value!r}}})"
    )
    opencode = start(elsewhere, dict(os.environ), [sys.executable, "-c", git])
    others = [start(elsewhere, ours), start(root, {**os.environ, name: "0"}), opencode]
    left = start(root / "sub", ours)
    try:
        acts = acts_of(FakeCopies(root), FakeHost("idle"))
        found = await acts.collect(dict(ARGS), "key")
        assert found["ended"] == [" ".join(runs)] and left.wait(10) == -signal.SIGKILL
        assert [each.poll() for each in others] == [None] * 3
        intent = intent_of({"intent": "int_1", "prompt": "p", "title": "t", "directory": "/p", "ts": 1})
        assert "input()" in notice_text(intent, "completed", {"result": "done", "changes": found})
    finally:
        for process in (*others, left):
            process.communicate(b"\n")


def test_what_is_only_in_a_kept_copy_is_told() -> None:
    unsaved = [{"file": "out/report.txt", "why": "ignored by git"}]
    kept = {
        "saved": False,
        "files": [],
        "count": 0,
        "diff": "",
        "kept": "/w/int_1",
        "unsaved": unsaved,
        "unsaved_count": 9,
    }
    intent = intent_of({"intent": "int_1", "prompt": "p", "title": "t", "directory": "/p", "ts": 1})
    said = "\n".join(changes_text(intent, kept))
    assert "/w/int_1" in said and "out/report.txt" in said and "8 more" in said
    saved = {**kept, "saved": True, "files": [{"file": "b.txt", "added": 1, "removed": 0}]}
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
