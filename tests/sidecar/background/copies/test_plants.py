"""Nothing that is planted in a repository, in a copy, in the user's settings or in the environment runs or counts."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sidecar.background.copies.copying import CopyError, Found, Private, snapshot
from tests.sidecar.background.copies.plants import FILES, HOOKS, SETTINGS, Traps, control, target
from tests.sidecar.background.projects import git, write
from tools.install_git import is_new

pytestmark = pytest.mark.usefixtures("each_git")

SILENT = {"alias-of-a-command", "merge-tool"}
"""Planted, but no command of this test runs them."""
NEW = {"configured-hook", "index-hook", "refs-hook"}
"""Only new gits run them."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target(tmp_path_factory.mktemp("plants"))


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template.parent / "other", tmp_path / "other", symlinks=True)
    return shutil.copytree(template, tmp_path / "project", symlinks=True)


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    return Traps(tmp_path / "traps", tmp_path / "other")


def nothing(_: Path) -> None:
    """Plant nothing."""


def shown(project: Path, place: Path, plant: Callable[[Path], object] = nothing) -> tuple[Private, Found, str]:
    """An agent plants this and changes these files, which are shown, with the diff."""
    write(project / "mine.txt", "mine\n")
    copy = Private(project / "src", place)
    root = copy.root
    assert copy.session == root / "src"
    plant(root)
    write(root / "src/m.py", "one\ntwo\nTHREE\n")
    write(root / "src/new.py")
    write(root / "ä b.txt")
    (root / "a.txt").unlink()
    write(root / ".gitattributes", "* filter=odd diff=odd merge=odd\n*.py filter=clean\n")
    found, diff = copy.collect(), copy.diff()
    assert found.changes >= {"src/m.py", "src/new.py", "ä b.txt", "a.txt", ".gitattributes"}
    assert "\n--- a/src/m.py\n+++ b/src/m.py\n@@ -1,3 +1,3 @@\n one\n" in diff
    return copy, found, diff


def cycle(project: Path, place: Path, plant: Callable[[Path], object] = nothing) -> str:
    """The same, and exactly what was shown changes, and changes back. Returns the diff."""
    kept = everything(project / ".git")
    copy, found, diff = shown(project, place, plant)
    write(project / "src/m.py", "ZERO\none\ntwo\nthree\n")
    before = snapshot(project)
    copy.apply()
    after = snapshot(project)
    assert {each for each in before | after if before.get(each) != after.get(each)} == found.changes
    assert after["src/m.py"] == (False, b"ZERO\none\ntwo\nTHREE\n") and after["m.py"] == (False, b"other\n")
    assert copy.apply() == []
    copy.undo()
    assert snapshot(project) == before
    write(project / "src/m.py", FILES["src/m.py"])
    assert everything(project / ".git") == kept, "nothing of ours is in the user's repository"
    return diff


def everything(root: Path) -> dict[str, bytes]:
    files = (Path(place, each) for place, _, names in os.walk(root) for each in names)
    return {str(each): each.read_bytes() for each in files if each.is_file()}


def test_each_trap_would_run(project: Path, traps: Traps, home: Path) -> None:
    assert len(SETTINGS) >= 36
    expected = {each.name for each in SETTINGS} - SILENT - (set() if is_new("git") else NEW)
    fired = {each.name for each in SETTINGS if each.control and control(project, each, traps, home)}
    assert not ",".join(sorted(fired ^ expected))


def test_nothing_runs_that_is_planted_in_the_repository(project: Path, traps: Traps, tmp_path: Path) -> None:
    for name in HOOKS:
        traps.program(name, project / ".git/hooks" / name)
    with (project / ".git/config").open("a") as file:
        file.write(traps.text() + "[core]\n\tworktree = ..\n[extensions]\n\tworktreeConfig = true\n")
    write(project / ".git/config.worktree", traps.text())
    write(project / ".git/modules/mod/config", traps.text())
    write(project / ".git/info/attributes", "* filter=clean diff=command\n")
    write(
        project / ".git/info/grafts",
        f"{git(project, '--git-dir=.git', '--work-tree=.', 'rev-parse', 'HEAD').strip()}\n",
    )
    write(project / ".lfsconfig", f"[lfs]\n\turl = ext::{traps.program('lfs')}\n")
    traps.ran  # noqa: B018 - forgets what this test itself ran
    assert cycle(project, tmp_path / "place")
    assert not traps.ran


def test_nothing_runs_that_the_user_has_set(project: Path, traps: Traps, home: Path, tmp_path: Path) -> None:
    for name in (".gitconfig", ".config/git/config"):
        write(home / name, traps.text())
    write(home / ".config/git/attributes", "* filter=clean diff=command\n")
    assert cycle(project, tmp_path / "place")
    assert not traps.ran


def test_nothing_runs_that_the_environment_names(
    project: Path, traps: Traps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in traps.variables().items():
        monkeypatch.setenv(name, value)
    traps.program("git", project / "git")
    traps.program("git", project / "src/git")
    monkeypatch.setenv("PATH", f".:src:{os.environ['PATH']}:")
    monkeypatch.chdir(project)
    other = everything(tmp_path / "other")
    assert cycle(project, tmp_path / "place")
    assert not traps.ran and everything(tmp_path / "other") == other


def hostile(root: Path, traps: Traps) -> str:
    """A repository made with the write tool alone, whose settings name programs; the text of a ``.git`` that leads to
    it."""
    write(root / ".g/HEAD", "ref: refs/heads/main\n")
    write(root / ".g/config", "[core]\n\trepositoryformatversion = 0\n" + traps.text())
    write(root / ".g/objects/info/x")
    write(root / ".g/refs/heads/y")
    return "gitdir: .g\n"


@pytest.mark.parametrize("how", ["settings", "planted", "deleted", "other", "link", "directory"])
def test_nothing_runs_that_the_agent_plants(how: str, project: Path, traps: Traps, tmp_path: Path) -> None:
    other = everything(tmp_path / "other")

    def plant(root: Path) -> None:
        link = root / ".git"
        if how == "settings":
            for name in HOOKS:
                traps.program(name, link / "hooks" / name)
            git(root, "update-index", "--assume-unchanged", "src/m.py")
            git(root, "update-index", "--skip-worktree", "m.py")
            write(link / "config", (link / "config").read_text() + traps.text())
            write(link / "info/attributes", "* filter=clean diff=command\n")
            write(link / "index.lock", "")
            traps.ran  # noqa: B018 - forgets what this test itself ran
        else:
            shutil.rmtree(link)
        if how == "planted":
            write(link, hostile(root, traps))
        elif how == "other":
            write(link, f"gitdir: {tmp_path}/other/.git\n")
        elif how == "link":
            link.symlink_to(tmp_path / "other/.git")
        elif how == "directory":
            hostile(root, traps)
            (root / ".g").rename(link)
        for name in ("mod", "nested"):  # a submodule, and a directory that is no repository yet
            write(root / name / "x")
            shutil.rmtree(root / name / ".git", ignore_errors=True)
            write(root / name / ".git", hostile(root / name, traps))

    cycle(project, tmp_path / "place", plant)
    assert not traps.ran and everything(tmp_path / "other") == other


def test_other_bytes_than_an_object_is_named_for_are_never_applied(project: Path, tmp_path: Path) -> None:
    text = b"by the agent\n"
    name = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    (planted := project / ".git/objects" / name[:2] / name[2:]).parent.mkdir(exist_ok=True)
    planted.write_bytes(zlib.compress(b"blob 5\0evil\n"))
    copy = Private(project, tmp_path / "place")
    write(copy.root / "a.txt")
    with pytest.raises(CopyError):
        copy.collect()
    assert (copy.root / "a.txt").read_text() == "by the agent\n" and not copy.result.exists()
    assert (project / "a.txt").read_text() == "second a.txt\n"


# --- settings ---

DIFF = {"noprefix": "true", "mnemonicPrefix": "true", "relative": "true", "context": "0", "interHunkContext": "50"}
DIFF |= {"orderFile": "/dev/null", "suppressBlankEmpty": "true"}
CORE = {"quotePath": "true", "whitespace": "trailing-space", "ignoreStat": "true", "splitIndex": "true", "abbrev": "4"}
CORE |= {"untrackedCache": "true", "safecrlf": "true"}
LINES = {"core.autocrlf": "true", "core.eol": "crlf", "apply.whitespace": "fix", "apply.ignoreWhitespace": "change"}
LINES |= {"merge.conflictStyle": "odd", "i18n.commitEncoding": "latin1"}
ALONE = {f"diff.{key}": value for key, value in DIFF.items()} | {f"core.{key}": value for key, value in CORE.items()}


def odd(value: str) -> str:
    """Every setting of these kinds that git knows, with this value."""
    known = subprocess.run(["git", "help", "--config"], check=True, capture_output=True, text=True).stdout.split()
    kinds = (
        r"(diff|apply|core|merge|color|status|format|index|commit|add|checkout|submodule|ls-refs|trace2?|extensions|"
    )
    kinds += (
        r"fastimport|fetch|gc|pack|protocol|safe|sparse|unpack|receive|feature|i18n|log|attr|blame|fsck|init|hook)\."
    )
    plain = [each.replace("<driver>", "odd").replace("<name>", "odd") for each in known if re.match(kinds, each)]
    keys = [each for each in plain if re.fullmatch(r"[\w.-]+", each)]
    keys += ["filter.odd.clean", "filter.odd.smudge", "filter.odd.process", "filter.odd.required"]
    keys += ["diff.odd.command", "diff.odd.textconv", "diff.odd.binary", "merge.odd.driver"]
    assert len(keys) > 150
    return "".join(_setting(key, value) for key in keys)


def _setting(key: str, value: str) -> str:
    section, _, name = key.rpartition(".")
    head, _, below = section.partition(".")
    return (f'[{head} "{below}"]\n' if below else f"[{head}]\n") + f"\t{name} = {value}\n"


def test_no_setting_matters(project: Path, traps: Traps, home: Path, tmp_path: Path) -> None:
    expected = cycle(project, tmp_path / "plain")
    places = [project / ".git/config", home / ".gitconfig"]
    was = [each.read_text() if each.exists() else "" for each in places]
    alone = [_setting(*each) for each in ALONE.items()]
    several = ["".join(_setting(*each) for each in LINES.items()), "[odd\n"]
    several += [odd(each) for each in ("true", "0", str(traps.program("odd")))]
    for number, text in enumerate((*alone, *several)):
        for place, before in zip(places, was, strict=True):
            write(place, before + text)
        place = tmp_path / str(number)
        assert (shown(project, place)[2] if text in alone else cycle(project, place)) == expected, text
    assert not traps.ran
