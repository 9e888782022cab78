"""What is in a worktree: what was only there when it ends, what is copied into it, and that nothing leads out of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.worktrees import files as worktree_files
from sidecar.background.worktrees.worktrees import Worktree, WorktreeError, Worktrees
from tests.sidecar.background.projects import ID, added, collected, git, repository, tree, write


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = repository(
        tmp_path / "project", {"a.txt": "one\n", ".gitignore": "out/\n*.log\nnode_modules\n__pycache__\n"}
    )
    git(path, "submodule", "add", "-q", str(repository(tmp_path / "module")), "mod")
    git(path, "commit", "-qm", "with a submodule")
    return path


def _module(root: Path) -> None:
    git(root, "submodule", "--quiet", "update", "--init")


def _edited_module(root: Path) -> None:
    _module(root)
    write(root / "mod/a.txt")


def _nested(root: Path) -> None:
    repository(root / "app")


def _forced(root: Path) -> None:
    write(root / "out/report.txt")
    git(root, "add", "--force", "out/report.txt")


@pytest.mark.parametrize(
    ("does", "saved", "unsaved"),
    [
        (lambda root: None, [], []),
        (lambda root: write(root / "b.txt"), ["b.txt"], []),
        (lambda root: write(root / "mod/new.txt"), [], ["mod"]),
        (_module, [], []),
        (lambda root: git(root / "mod", "commit", "--allow-empty", "-qm", "one"), [], ["mod"]),
        (_edited_module, [], ["mod"]),
        (_nested, [], ["app"]),
        (lambda root: (write(root / "b.txt"), write(root / "out/report.txt")), ["b.txt"], ["out/report.txt"]),
        (_forced, ["out/report.txt"], []),
        (lambda root: os.mkfifo(root / "pipe"), [], ["pipe"]),
        (lambda root: write(root / "node_modules/dep/index.js"), [], []),
        (lambda root: write(root / "out/CACHEDIR.TAG", worktree_files._TAG.decode()), [], []),
        (lambda root: repository(root / "node_modules"), [], ["node_modules"]),
        (lambda root: write(root / "AGENTS.md"), [], ["AGENTS.md"]),
    ],
)
async def test_a_worktree_is_removed_only_if_nothing_is_lost(
    does: Callable[[Path], Any], saved: list[str], unsaved: list[str], worktrees: Worktrees, project: Path
) -> None:
    write(project / "AGENTS.md", "be kind\n")
    made = await added(worktrees, project)
    root = Path(made.root)
    does(root)
    before = tree(root)
    found = await collected(worktrees, made)
    assert [each["file"] for each in found["files"]] == saved
    assert [each["file"] for each in found.get("unsaved", [])] == unsaved
    assert found.get("kept") == (made.root if unsaved else None)
    if unsaved:
        again = await collected(worktrees, made)
        # The commit has the time at which it was made.
        assert tree(root) == before and {**again, "commit": found["commit"]} == found, "it can be collected again"
    else:
        assert not root.exists() and not Path(made.folder).exists()
        assert git(project, "worktree", "list").count("\n") == 1
    git(project, "fsck", "--connectivity-only")


@pytest.mark.parametrize(
    ("to", "tracked"), [("../../skills", True), ("/absolute", False), ("notes", True), ("gone", False)]
)
async def test_no_link_leads_out_of_a_worktree(
    to: str, tracked: bool, worktrees: Worktrees, project: Path, tmp_path: Path
) -> None:
    outside = write(tmp_path / "skills/s.md", "mine").parent
    write(project / "notes/n.md", "tracked\n")
    git(project, "add", "notes")
    git(project, "commit", "-qm", "notes")
    link = project / ".opencode/skills"
    link.parent.mkdir()
    link.symlink_to({"/absolute": str(outside), "notes": "../notes"}.get(to, to))
    if tracked:
        git(project, "add", "--all")
        git(project, "commit", "-qm", "a link")
    made = await added(worktrees, project)
    root = Path(made.root)
    for place, directories, files in os.walk(root):
        for each in (*directories, *files):
            assert Path(place, each).resolve().is_relative_to(root), each
    if to == "notes":
        assert (root / ".opencode/skills/n.md").read_text() == "tracked\n"
    elif to != "gone":
        assert made.left_out == [".opencode/skills"]
    found = await collected(worktrees, made)
    assert (found["count"], found.get("unsaved")) == (0, None), "a link that is left out is no change"


@pytest.mark.parametrize(("name", "tracked"), [("opencode.json", True), (".opencode/agent/a.md", False)])
async def test_no_background_work_without_its_rules(
    name: str, tracked: bool, worktrees: Worktrees, project: Path, tmp_path: Path
) -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).symlink_to(write(tmp_path / "dotfiles/opencode.json", "{}").parent)
    if tracked:
        git(project, "add", "--all")
        git(project, "commit", "-qm", "a link")
    with pytest.raises(WorktreeError) as raised:
        await added(worktrees, project)
    assert raised.value.code == "config-not-copied"


async def test_copies_have_a_limit(worktrees: Worktrees, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree_files, "MAX_COPIED", 1000)
    with write(project / ".opencode/huge.bin", "").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    write(project / ".opencode/node_modules/dep/index.js", "x" * 600)
    write(project / ".opencode/command/c.md", "small")
    made = await added(worktrees, project)
    assert sorted(made.left_out) == [".opencode/huge.bin", ".opencode/node_modules"]
    assert sorted(each for each in tree(Path(made.root)) if each.startswith(".opencode/")) == [".opencode/command/c.md"]


# --- applying ---


async def _changes(worktrees: Worktrees, project: Path, does: Callable[[Path], Any]) -> Worktree:
    made = await added(worktrees, project)
    does(Path(made.root))
    await collected(worktrees, made)
    return made


def _to_file(root: Path) -> None:
    git(root, "rm", "-qr", "d")
    write(root / "d")


def _to_directory(root: Path) -> None:
    (root / "a.txt").unlink()
    write(root / "a.txt/b.txt")


@pytest.mark.parametrize(
    ("agent", "user", "conflict"),
    [
        (lambda root: (root / "a.txt").chmod(0o755), lambda top: write(top / "a.txt", "mine\n"), False),
        (lambda root: (root / "d/b.txt").unlink(), lambda top: write(top / "d/b.txt", "mine\n"), True),
        (_to_file, lambda top: None, False),
        (_to_directory, lambda top: None, False),
        (lambda root: write(root / "new/x.txt"), lambda top: write(top / "new", "mine\n"), True),
        (lambda root: write(root / "new/x.txt"), lambda top: (top / "new").symlink_to("d"), True),
        (lambda root: write(root / "d/b.txt"), lambda top: (top / "d").rename(top / "e"), True),
        (lambda root: write(root / "new.txt"), lambda top: write(top / "new.txt", "mine\n"), True),
        (lambda root: (root / "a.txt").write_bytes(b"\0\1"), lambda top: (top / "a.txt").write_bytes(b"\0\2"), True),
    ],
)
async def test_all_or_nothing_is_applied(
    agent: Callable[[Path], Any], user: Callable[[Path], Any], conflict: bool, worktrees: Worktrees, project: Path
) -> None:
    write(project / "d/b.txt", "b\n")
    git(project, "add", "--all")
    git(project, "commit", "-qm", "second")
    made = await _changes(worktrees, project, lambda root: (agent(root), write(root / "zz.txt")))
    user(project)
    before, staged = tree(project), git(project, "diff", "--cached")
    if conflict:
        with pytest.raises(WorktreeError) as raised:
            await worktrees.apply(ID, str(project), made._asdict())
        assert raised.value.code == "apply-conflict" and tree(project) == before
    else:
        assert await worktrees.apply(ID, str(project), made._asdict())
        assert (project / "zz.txt").exists() and not await worktrees.apply(ID, str(project), made._asdict())
    assert git(project, "diff", "--cached") == staged


async def test_an_error_while_writing_puts_everything_back(
    worktrees: Worktrees, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await _changes(
        worktrees,
        project,
        lambda root: (write(root / "a.txt"), (root / ".gitignore").unlink(), write(root / "z/z.txt")),
    )
    before, replace = tree(project), Path.replace

    def full(self: Path, target: Path) -> Path:
        if target == project / "z/z.txt":
            raise OSError(28, "No space left on device", str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(WorktreeError):
        await worktrees.apply(ID, str(project), made._asdict())
    assert tree(project) == before
