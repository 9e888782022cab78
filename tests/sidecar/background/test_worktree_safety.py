"""What an agent, a repository or a setting could make git do in a worktree: run programs, change other repositories,
change other files than those that were shown. Tried with the system's git and with the newest one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from sidecar.background.worktrees.worktrees import WorktreeError, Worktrees, whole_diff
from tests.sidecar.background.projects import ID, Marker, added, collected, git, newest_git, repository, tree, write
from tools.install_git import is_new


@pytest.fixture(autouse=True, params=["system", "newest"])
def used(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The git that is used."""
    if request.param == "newest":
        monkeypatch.setenv("PATH", f"{newest_git()}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home directory, which is a repository itself, as some people keep their settings."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    path = repository(tmp_path / "user", {"dotfile": "set\n"})
    write(path / "secret.key", "secret")
    return path


@pytest.fixture
def project(home: Path) -> Path:
    return repository(home / "project", {"src/m.py": "one\ntwo\nthree\n", "m.py": "other\n", "a.txt": "a\n"})


@pytest.fixture
def worktrees(home: Path) -> Worktrees:
    return Worktrees(home / "durable/worktrees")


@pytest.fixture
def marker(tmp_path: Path) -> Marker:
    return Marker(tmp_path / "marker")


def planted(root: Path, marker: Marker) -> str:
    """A repository made with the write tool alone, whose filters are programs."""
    settings = f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = {marker}\n\thooksPath = {marker.program.parent}\n"
    filters = "".join(f'[filter "{name}"]\n\tclean = {marker}\n\tsmudge = {marker}\n' for name in ("e", "e=f"))
    write(root / ".g/HEAD", "ref: refs/heads/main\n")
    write(root / ".g/config", settings + filters)
    write(root / ".g/objects/info/x")
    write(root / ".g/refs/heads/y")
    write(root / ".gitattributes", "* filter=e\na.txt filter=e=f\n")
    return "gitdir: .g\n"


@pytest.mark.parametrize("how", ["planted", "deleted", "other", "link", "directory"])
async def test_a_worktree_whose_git_file_was_changed_is_not_used(
    how: str, worktrees: Worktrees, project: Path, home: Path, tmp_path: Path, marker: Marker
) -> None:
    other = repository(tmp_path / "other")
    write(other / "n.txt")
    git(other, "add", "n.txt")
    made = await added(worktrees, project)
    root, link = Path(made.root), Path(made.root, ".git")
    before = [git(each, "status", "--porcelain") for each in (home, other, project)]
    given = planted(root, marker)
    link.unlink()
    if how == "planted":
        link.write_text(given)
    elif how == "other":
        link.write_text(f"gitdir: {other}/.git\n")
    elif how == "link":
        link.symlink_to(other / ".git")
    elif how == "directory":
        (root / ".g").rename(link)
    write(root / "a.txt")
    with pytest.raises(WorktreeError) as raised:
        await collected(worktrees, made)
    assert raised.value.code == "worktree-changed" and (root / "a.txt").read_text() == "by the agent\n"
    assert not marker.ran
    assert [git(each, "status", "--porcelain") for each in (home, other, project)] == before


@pytest.mark.parametrize("where", ["repository", "user"])
async def test_no_filter_runs_although_the_agent_chooses_its_files(
    where: str, worktrees: Worktrees, project: Path, home: Path, marker: Marker
) -> None:
    place = project / ".git/config" if where == "repository" else home / ".gitconfig"
    with place.open("a") as file:
        for name in ("odd", "o=d"):
            file.write(f'[filter "{name}"]\n\tclean = {marker}\n\tsmudge = {marker}\n\trequired = true\n')
            file.write(f"\tprocess = {marker}\n")
        file.write(f'[diff "odd"]\n\tcommand = {marker}\n\ttextconv = {marker}\n[merge "odd"]\n\tdriver = {marker}\n')
    write(project / "src/m.py", "zero\none\ntwo\nthree\n")
    made = await added(worktrees, project)
    root = Path(made.root)
    write(root / ".gitattributes", "* filter=odd diff=odd merge=odd\na.txt filter=o=d\n")
    write(root / "src/m.py", "zero\none\ntwo\nthree\nfour\n")
    write(root / "a.txt")
    found = await collected(worktrees, made)
    assert found["count"] == 3 and not root.exists()
    write(project / "src/m.py", "MINE\nzero\none\ntwo\nthree\n")
    assert await worktrees.apply(ID, str(project), made._asdict())
    assert (project / "src/m.py").read_text() == "MINE\nzero\none\ntwo\nthree\nfour\n"
    assert not marker.ran


async def test_no_filter_runs_that_only_worktrees_have(worktrees: Worktrees, project: Path, marker: Marker) -> None:
    git(project, "config", "includeIf.gitdir:**/worktrees/**.path", "only-there")
    write(project / ".git/only-there", f'[filter "odd"]\n\tclean = {marker}\n\tsmudge = {marker}\n')
    write(project / ".gitattributes", "* filter=odd\n")
    git(project, "add", "--all")
    git(project, "commit", "-qm", "attributes")
    made = await added(worktrees, project)
    write(Path(made.root, "a.txt"))
    assert (await collected(worktrees, made))["count"] == 1 and not marker.ran


@pytest.mark.parametrize("where", ["repository", "included", "own", "user"])
async def test_no_hook_runs_that_stands_in_the_configuration(
    where: str, worktrees: Worktrees, project: Path, home: Path, marker: Marker
) -> None:
    events = "".join(f"\tevent = {each}\n" for each in ("reference-transaction", "post-index-change", "post-checkout"))
    hooks = "".join(f'[hook "{name}"]\n{events}\tcommand = {marker}\n\tenabled = true\n' for name in ("o", "o.d=D d"))
    if where == "user":
        (home / ".gitconfig").write_text(hooks)
    else:
        write(project / ".git/hooked", hooks)
        # Of the repository, of the worktree that is made, and of both.
        path = {"repository": "include.path", "own": "includeIf.gitdir:**/worktrees/**.path"}
        git(project, "config", path.get(where, "includeIf.gitdir:**/.git/**.path"), "hooked")
    made = await added(worktrees, project)
    write(Path(made.root, "a.txt"))
    assert (await collected(worktrees, made))["count"] == 1
    assert await worktrees.apply(ID, str(project), made._asdict())
    await worktrees.discard(ID, made.root, made.repository)
    assert not marker.ran
    other = project.parent / "other"
    git(project, "worktree", "add", "-q", str(other))
    git(other, "read-tree", "HEAD")
    assert bool(marker.ran) == is_new("git"), "git by itself runs them"


async def test_no_attributes_of_another_tree_count(worktrees: Worktrees, project: Path) -> None:
    write(project / ".gitattributes", "* eol=crlf\n")
    git(project, "add", "--all")
    git(project, "commit", "-qm", "attributes")
    git(project, "config", "attr.tree", git(project, "rev-parse", "HEAD").strip())
    git(project, "rm", "-q", ".gitattributes")
    git(project, "commit", "-qm", "none")
    made = await added(worktrees, project)
    assert Path(made.root, "a.txt").read_bytes() == b"a\n"


async def test_a_repository_planted_where_the_user_works_runs_nothing(
    worktrees: Worktrees, project: Path, marker: Marker
) -> None:
    sub = project / "src"
    planted(sub, marker)
    (sub / ".g").rename(sub / ".git")
    git(sub, "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "commit", "-q", "--allow-empty", "-m", "x")
    write(sub / "new.txt")
    blob = git(sub, "hash-object", "-w", "--no-filters", "m.py").strip()
    git(sub, "-c", "core.fsmonitor=false", "update-index", "--add", "--cacheinfo", f"100644,{blob},m.py")
    write(sub / "m.py", "changed\n")
    made = await added(worktrees, sub)
    write(Path(made.root, "m.py"))
    await collected(worktrees, made)
    await worktrees.apply(ID, str(sub), made._asdict())
    assert not marker.ran


async def test_git_is_not_started_in_a_submodule(worktrees: Worktrees, project: Path, marker: Marker) -> None:
    git(project, "submodule", "add", "-q", str(repository(project.parent / "module")), "mod")
    git(project, "commit", "-qm", "with a submodule")
    made = await added(worktrees, project)
    mod = Path(made.root, "mod")
    write(mod / ".git", planted(mod, marker))
    write(mod / "a.txt")
    found = await collected(worktrees, made)
    assert not marker.ran and found["ref"] == "" and (mod / "a.txt").exists()
    assert found["unsaved"] == [{"file": "mod", "why": "a submodule"}]


async def test_a_hostile_repository_runs_nothing(worktrees: Worktrees, project: Path, marker: Marker) -> None:
    for hook in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change", "post-merge"):
        write(project / ".git/hooks" / hook, f"#!/bin/sh\nexec {marker}\n").chmod(0o755)
    for key in (
        *("core.fsmonitor", "core.sshCommand", "core.editor", "core.pager", "core.gitProxy", "core.askPass"),
        *("core.alternateRefsCommand", "diff.external", "gpg.program", "credential.helper", "sequence.editor"),
        *("uploadpack.packObjectsHook", "remote.evil.uploadpack", "remote.evil.receivepack", "alias.diff-tree"),
    ):
        git(project, "config", key, str(marker))
    for key, value in (
        ("commit.gpgSign", "true"),
        ("remote.evil.url", str(project.parent / "nowhere")),
        ("remote.evil.promisor", "true"),
        ("extensions.partialClone", "evil"),
        ("core.worktree", str(project.parent)),
        ("core.ignoreStat", "true"),
    ):
        subprocess.run(["git", "config", "--file", ".git/config", key, value], cwd=project, check=True)
    before = git(project.parent, "status", "--porcelain")
    made = await added(worktrees, project)
    write(Path(made.root, "a.txt"))
    found = await collected(worktrees, made)
    assert [each["file"] for each in found["files"]] == ["a.txt"]  # type: ignore[attr-defined]
    assert await worktrees.apply(ID, str(project), made._asdict())
    assert not marker.ran and git(project.parent, "status", "--porcelain") == before


def _keys() -> list[str]:
    """Every setting of these kinds that git knows."""
    known = subprocess.run(["git", "help", "--config"], check=True, capture_output=True, text=True).stdout.split()
    kinds = r"(diff|apply|core|merge|color|status|format|index|commit|add|checkout|submodule|ls-refs|trace2?)\."
    plain = [each.replace("<driver>", "odd").replace("<name>", "odd") for each in known if re.match(kinds, each)]
    return [each for each in plain if re.fullmatch(r"[\w.-]+", each)] + [
        *("filter.odd.clean", "filter.odd.smudge", "filter.odd.process", "filter.odd.required"),
        *("diff.odd.command", "diff.odd.textconv", "diff.odd.binary", "merge.odd.driver"),
    ]


_UNUSABLE = {"core.bare", "core.repositoryformatversion", "core.worktree", "core.sparsecheckout"}
"""With an odd value of these in its own configuration, no git works in a repository."""


def _odd(place: Path, value: str, *, own: bool) -> None:
    """Give every setting this value, except where not even ``git status`` works with it."""
    for key in _keys():
        if own and key.lower() in _UNUSABLE:
            continue
        section, _, name = key.rpartition(".")
        head, _, sub = section.partition(".")
        with place.open("a") as file:
            file.write(f'[{head} "{sub}"]\n' if sub else f"[{head}]\n")
            file.write(f"\t{name} = {value}\n")


async def _cycle(worktrees: Worktrees, project: Path, marker: Marker) -> None:
    """An agent changes these files, they are shown, and exactly they change."""
    write(project / "mine.txt")
    made = await added(worktrees, project / "src")
    root = Path(made.root)
    write(root / "src/m.py", "one\ntwo\nTHREE\n")
    write(root / "src/new.py")
    write(root / "ä b.txt")
    (root / "a.txt").unlink()
    write(root / ".gitattributes", "*.py filter=odd diff=odd merge=odd\n")
    before = tree(project)
    found = await collected(worktrees, made)
    shown = {each["file"] for each in found["files"]}  # type: ignore[attr-defined]
    assert shown == {"src/m.py", "src/new.py", "ä b.txt", "a.txt", ".gitattributes"} and "kept" not in found
    diff = await whole_diff(made.repository, made.base, str(found["commit"]))
    assert diff == str(found["diff"]) and "\n--- a/src/m.py\n+++ b/src/m.py\n@@ -1,3 +1,3 @@\n one\n" in diff
    assert await worktrees.apply(ID, str(project / "src"), made._asdict(), str(found["commit"])) is True
    after = tree(project)
    assert {each for each in before | after if before.get(each) != after.get(each)} == shown
    assert after["src/m.py"].replace("\r", "") == "one\ntwo\nTHREE\n" and after["m.py"] == "other\n"
    assert await worktrees.apply(ID, str(project / "src"), made._asdict(), str(found["commit"])) is False
    assert not marker.ran


@pytest.mark.parametrize("value", ["true", "0", "marker"])
async def test_no_setting_of_the_user_matters(
    value: str, worktrees: Worktrees, project: Path, home: Path, marker: Marker
) -> None:
    _odd(home / ".gitconfig", str(marker) if value == "marker" else value, own=False)
    await _cycle(worktrees, project, marker)


DIFF = {"noprefix": "true", "mnemonicPrefix": "true", "relative": "true", "context": "0", "interHunkContext": "50"}
DIFF |= {"orderFile": "/dev/null", "suppressBlankEmpty": "true"}
CORE = {"quotePath": "true", "whitespace": "trailing-space", "ignoreStat": "true", "splitIndex": "true", "abbrev": "4"}
CORE |= {"untrackedCache": "true", "safecrlf": "true"}
LINES = {"core.autocrlf": "true", "core.eol": "crlf", "apply.whitespace": "fix", "apply.ignoreWhitespace": "change"}
LINES |= {"merge.conflictStyle": "odd", "i18n.commitEncoding": "latin1"}


@pytest.mark.parametrize(
    "settings",
    [
        {f"diff.{key}": value for key, value in DIFF.items()},
        {f"core.{key}": value for key, value in CORE.items()},
        LINES,
    ],
    ids=["diff", "core", "lines"],
)
async def test_no_setting_of_the_repository_matters(
    settings: dict[str, str], worktrees: Worktrees, project: Path, marker: Marker
) -> None:
    for key, value in settings.items():
        git(project, "config", key, value)
    await _cycle(worktrees, project, marker)


async def test_what_is_applied_is_what_was_shown(worktrees: Worktrees, project: Path) -> None:
    made = await added(worktrees, project)
    write(Path(made.root, "a.txt"))
    found = await collected(worktrees, made)
    git(project, "update-ref", str(found["ref"]), git(project, "commit-tree", "HEAD^{tree}", "-m", "other").strip())
    assert await worktrees.apply(ID, str(project), made._asdict(), str(found["commit"]))
    assert (project / "a.txt").read_text() == "by the agent\n"


async def test_an_index_of_the_agent_hides_no_change(worktrees: Worktrees, project: Path) -> None:
    made = await added(worktrees, project)
    root = Path(made.root)
    git(root, "update-index", "--assume-unchanged", "a.txt")
    git(root, "update-index", "--skip-worktree", "m.py")
    write(root / "a.txt")
    write(root / "m.py")
    write(Path(made.folder, "index.lock"))
    assert (await collected(worktrees, made))["count"] == 2
