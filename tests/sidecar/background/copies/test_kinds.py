"""Every kind of repository and file: the copy is as the user's files are, and exactly what was shown is applied."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.background.copies.copying import Found, Private, snapshot
from tests.sidecar.background.projects import git, repository, write
from tests.streams.sizes import size
from tools.install_git import is_new

FILES = {"a.txt": "1\n2\n3\n4\n5\n6\n7\n", "sub/b": "b\n"}


def nothing(*_: Any) -> None:
    """Do nothing."""


@dataclass
class Kind:
    """A directory to copy."""

    at: Path
    agent: Callable[[Path], Any] = nothing
    """What the agent does in the copy, besides what it does in every copy."""
    check: Callable[[Path, Found], Any] = nothing
    """Looks at the user's files and what was found, when the changes were applied."""
    other: set[str] = field(default_factory=set)
    """What is different in the copy."""
    is_repository: bool = True
    listed: tuple[str, ...] = ()


KINDS: dict[str, Callable[[Path], Kind]] = {}


def kind(make: Callable[[Path], Kind]) -> Callable[[Path], Kind]:
    KINDS[make.__name__] = make
    return make


def base(place: Path, *options: str) -> Path:
    place.mkdir(parents=True)
    git(place, "init", "-qb", "main", *options)
    for name, text in FILES.items():
        write(place / name, text)
    return commit(place)


def commit(top: Path) -> Path:
    git(top, "add", "--all")
    git(top, "commit", "-qm", "more")
    return top


# --- repositories ---


@kind
def plain(place: Path) -> Kind:
    top = base(place)
    write(top / "untracked", "u")
    write(top / "sub/b", "changed")
    return Kind(top)


@kind
def a_directory_below_the_top(place: Path) -> Kind:
    return Kind(base(place) / "sub")


@kind
def no_commit(place: Path) -> Kind:
    place.mkdir()
    git(place, "init", "-q")
    write(place / "a.txt", FILES["a.txt"])
    git(place, "add", ".")
    return Kind(place)


@kind
def no_repository(place: Path) -> Kind:
    return Kind(write(place / "a.txt", FILES["a.txt"]).parent, is_repository=False)


@kind
def detached(place: Path) -> Kind:
    git(top := base(place), "checkout", "-q", "--detach")
    return Kind(top)


@kind
def packed(place: Path) -> Kind:
    git(top := base(place), "gc", "-q")
    return Kind(top)


@kind
def a_linked_worktree(place: Path) -> Kind:
    git(base(place / "main"), "worktree", "add", "-qb", "other", "../linked")
    write(place / "linked/x", "x")
    return Kind(place / "linked")


@kind
def a_worktree_of_a_bare_repository(place: Path) -> Kind:
    git(base(place / "main"), "clone", "-q", "--bare", ".", "../bare.git")
    git(place / "bare.git", "worktree", "add", "-q", "../tree", "main")
    return Kind(place / "tree")


@kind
def a_bare_repository(place: Path) -> Kind:
    git(base(place / "main"), "clone", "-q", "--bare", ".", "../bare.git")
    return Kind(place / "bare.git", is_repository=False)


@kind
def a_repository_that_says_its_files_are_elsewhere(place: Path) -> Kind:
    git(top := base(place / "top"), "config", "core.worktree", str(place))
    return Kind(top, is_repository=False)


@kind
def shallow(place: Path) -> Kind:
    top = base(place / "main")
    write(top / "a.txt", "0\n" + FILES["a.txt"])
    commit(top)
    git(place, "clone", "-q", "--depth", "1", f"file://{top}", "clone")
    return Kind(place / "clone")


@kind
def partial(place: Path) -> Kind:
    top = base(place / "main")
    write(top / "sub/b", "second\n")
    git(commit(top), "config", "uploadpack.allowFilter", "true")
    git(place, "clone", "-q", "--filter=blob:none", f"file://{top}", "clone")
    before = sorted((place / "clone/.git/objects").rglob("*"))

    def check(*_: Any) -> None:
        assert sorted((place / "clone/.git/objects").rglob("*")) == before, "nothing was fetched"

    return Kind(place / "clone", check=check)


@kind
def objects_of_another_repository(place: Path) -> Kind:
    git(place.parent, "clone", "-q", "--shared", str(base(place / "main")), str(place / "clone"))
    return Kind(place / "clone")


@kind
def sha256(place: Path) -> Kind:
    return Kind(base(place, "--object-format=sha256"))


@kind
def reftable(place: Path) -> Kind:
    if not is_new("git"):
        pytest.skip("this git has no reftable")
    return Kind(base(place, "--ref-format=reftable"))


@kind
def sparse(place: Path) -> Kind:
    top = base(place)
    write(top / "far/f", "f")
    git(commit(top), "sparse-checkout", "set", "--cone", "--sparse-index", "sub")
    return Kind(top, lambda copy: _holds(not (copy / "far").exists()))


@kind
def a_split_index(place: Path) -> Kind:
    git(top := base(place), "update-index", "--split-index")
    write(top / "n", "n")
    git(top, "add", "n")
    return Kind(top)


@kind
def an_index_that_cannot_be_read(place: Path) -> Kind:
    (base(place) / ".git/index").write_bytes(b"DIRCgarbage")
    return Kind(place, is_repository=False)


@kind
def a_submodule(place: Path) -> Kind:
    git(top := base(place / "top"), "submodule", "add", "-q", str(base(place / "module")), "mod")
    write(commit(top) / "mod/dirty", "d")

    def agent(copy: Path) -> None:
        write(copy / "mod/a.txt")
        assert git(copy / "mod", "rev-parse", "HEAD") == git(top / "mod", "rev-parse", "HEAD")

    return Kind(top, agent, lambda top, found: _holds((top / "mod/a.txt").read_text() == "by the agent\n"))


@kind
def a_submodule_itself(place: Path) -> Kind:
    return Kind(a_submodule(place).at / "mod")


@kind
def a_nested_repository(place: Path) -> Kind:
    repository(base(place) / "nest", {"f": "f"})
    return Kind(place, lambda copy: write(copy / "nest/f"), lambda top, found: _holds("nest/f" in found.changes))


@kind
def a_repository_that_the_agent_makes(place: Path) -> Kind:
    return Kind(
        base(place),
        lambda copy: repository(copy / "new", {"x": "x"}),
        lambda top, found: _holds(_named("new", found) and not (top / "new").exists()),
    )


@kind
def commits_of_the_agent(place: Path) -> Kind:
    return Kind(
        base(place),
        lambda copy: git(copy, "commit", "-qam", "by the agent"),
        lambda top, found: _holds(len(found.only_here) == 1 and git(top, "log", "--oneline").count("\n") == 1),
    )


# --- files ---


@kind
def ignored_files(place: Path) -> Kind:
    top = base(place)
    write(top / ".gitignore", "*.log\nout/\n!keep.log\n/.venv\nnode_modules\n")
    for name in ("x.log", "keep.log", "out/tracked", "out/no", ".venv/lib/p", ".venv/bin/run", "sub/node_modules/n"):
        write(top / name, "mine\n")
    (top / ".venv/bin/run").chmod(0o755)
    (top / ".venv/lib64").symlink_to("lib")
    (top / "node_modules").symlink_to("../elsewhere")
    os.mkfifo(top / ".venv/pipe")
    write(top / "sub/.gitignore", "private\n")
    write(top / "sub/private", "mine\n")
    write(top / ".git/info/exclude", "excluded\n")
    write(top / "excluded", "mine\n")
    git(top, "add", "--force", "out/tracked")
    commit(top)

    def agent(copy: Path) -> None:
        assert (copy / "node_modules").resolve() == top.parent / "elsewhere"
        for name in ("y.log", ".venv/new", "out/tracked", ".venv/lib/p", "sub/node_modules/n"):
            write(copy / name)
        write(copy / ".gitignore", "*.log\nout/\n")

    def check(top: Path, found: Found) -> None:
        assert found.changes == {"a.txt", "new\ndir/ä", "out/tracked", ".gitignore"} and found.only_here == ["y.log"]
        assert (top / ".venv/lib/p").read_text() == "mine\n"

    other = {"x.log", "excluded", "sub/private", "node_modules"}
    return Kind(top, agent, check, other, listed=(".venv", "node_modules", "sub/node_modules", "out", "not/there"))


@kind
def links(place: Path) -> Kind:
    top = base(place / "top")
    write(place / "outside/f", "mine\n")
    for name, text in {
        **{"in": "a.txt", "directory": "sub", "dangling": "nowhere", "out": "../outside"},
        **{"absolute": f"{top}/a.txt", "absolute-out": "/etc/passwd", "sub/up": "../a.txt", "loop": "loop"},
    }.items():
        (top / name).symlink_to(text)
    commit(top)

    def agent(copy: Path) -> None:
        assert (copy / "out").resolve() == place / "outside" and (copy / "absolute").resolve() == copy / "a.txt"
        (copy / "new-link").symlink_to("sub/b")
        (copy / "new-absolute").symlink_to(copy / "a.txt")
        (copy / "dangling").unlink()
        (copy / "in").unlink()
        (copy / "in").symlink_to("sub/b")

    def check(top: Path, found: Found) -> None:
        found_links = [str((top / each).readlink()) for each in ("new-link", "new-absolute", "in")]
        assert found_links == ["sub/b", "a.txt", "sub/b"] and not (top / "dangling").is_symlink()

    return Kind(top, agent, check, other=({"out", "absolute"}))


@kind
def modes(place: Path) -> Kind:
    top = base(place)
    write(top / "run", "#!/bin/sh\n").chmod(0o755)
    write(top / "private", "p").chmod(0o600)
    write(top / "read-only", "r").chmod(0o444)

    def agent(copy: Path) -> None:
        (copy / "run").chmod(0o644)
        write(copy / "private")
        write(copy / "x").chmod(0o755)
        (copy / "read-only").chmod(0o755)

    def check(top: Path, found: Found) -> None:
        assert stat.S_IMODE((top / "private").stat().st_mode) == 0o600
        assert os.access(top / "x", os.X_OK) and not (top / "run").stat().st_mode & 0o111
        assert (top / "read-only").stat().st_mode & 0o100

    return Kind(top, agent, check)


NAMES = [b"a\nb", b"\xff\xfe", b"Case", b"case", b"CASE", b"-dash", b":colon", b"sp ace ", b"q\"uo'te", b"back\\slash"]
NAMES += [
    b"tab\t",
    b"*glob?[x]",
    b"\xc3\xa9",
    b"e\xcc\x81",
    b"git~1",
    b"...",
    b"!x",
    b"#y",
    b"x" * 255,
    b"\x01",
    b"$HOME",
]
NAMES += [b":(top)a", b"a => b", b'"', b"nul", b"con.txt", b"{a,b}", b"100644 x"]


@kind
def names(place: Path) -> Kind:
    top = base(place)
    for name in NAMES:
        (top / os.fsdecode(name)).write_bytes(name)
    if len({*top.iterdir()}) < len(NAMES):
        pytest.skip("this disk keeps no names that differ in their case only")
    git(top, "-c", "core.protectNTFS=false", "add", ".")
    edited = [os.fsdecode(name) for name in NAMES if name not in (b"git~1", b"...")]

    def agent(copy: Path) -> None:
        for name in edited:
            write(copy / name)
        write(copy / os.fsdecode(b"d\xff/n\n"), "x")

    return Kind(top, agent, lambda top, found: _holds({*edited, os.fsdecode(b"d\xff/n\n")} <= found.changes))


@kind
def empty_directories(place: Path) -> Kind:
    (base(place) / "e1/e2").mkdir(parents=True)
    return Kind(place, lambda copy: (copy / "e3").mkdir(), lambda top, found: _holds(not found.only_here))


@kind
def line_ends_and_encodings(place: Path) -> Kind:
    git(top := base(place), "config", "core.autocrlf", "true")
    write(top / ".gitattributes", "*.t text eol=crlf\n*.u working-tree-encoding=UTF-16 text\n*.id ident\n")
    for name, data in {"w": b"a\r\nb\r\n", "x.t": b"1\n2\r\n3\r\n", "z.id": b"$Id$\n", "mixed": b"\r\r\n\n"}.items():
        (top / name).write_bytes(data)
    (top / "y.u").write_bytes("a\nb\n".encode("utf-16"))
    commit(top)

    def agent(copy: Path) -> None:
        (copy / "x.t").write_bytes(b"1\n2\r\n3\r\nagent\r\n")
        (copy / "y.u").write_bytes("a\nb\nc\n".encode("utf-16"))

    def check(top: Path, found: Found) -> None:
        assert (top / "x.t").read_bytes() == b"1\n2\r\n3\r\nagent\r\n"
        assert (top / "y.u").read_bytes().decode("utf-16") == "a\nb\nc\n"

    return Kind(top, agent, check)


@kind
def large_files(place: Path) -> Kind:
    """As Git LFS writes them: a pointer, and a file with its content."""
    top = base(place)
    write(top / ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    write(top / "pointer.bin", f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 5\n")
    (top / "real.bin").write_bytes(os.urandom(1 << 10) * 17_000)  # more than what git calls a big file
    commit(top)

    def agent(copy: Path) -> None:
        with (copy / "real.bin").open("r+b") as file:
            file.seek(5)
            file.write(b"agent")

    return Kind(top, agent, lambda top, found: _holds((top / "real.bin").read_bytes()[5:10] == b"agent"))


@kind
def neither_file_nor_link(place: Path) -> Kind:
    os.mkfifo(base(place) / "pipe")
    sockets = []

    def agent(copy: Path) -> None:
        os.mkfifo(copy / "new-pipe")

    here = Path.cwd()
    os.chdir(place)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("socket")
            sockets.append("socket")
    finally:
        os.chdir(here)
    return Kind(place, agent, lambda top, found: _holds(_named("new-pipe", found)))


@kind
def files_that_become_something_else(place: Path) -> Kind:
    top = base(place)
    for name in ("to-directory", "to-link", "from-directory/in", "link-to-directory/in"):
        write(top / name, "x")

    def agent(copy: Path) -> None:
        for name in ("from-directory", "link-to-directory"):
            shutil.rmtree(copy / name)
        for name in ("to-directory", "to-link"):
            (copy / name).unlink()
        write(copy / "from-directory")
        write(copy / "to-directory/y")
        (copy / "to-link").symlink_to("a.txt")
        (copy / "link-to-directory").symlink_to("sub")

    def check(top: Path, found: Found) -> None:
        assert (top / "to-directory/y").exists() and (top / "from-directory").is_file()
        assert (top / "to-link").is_symlink() and (top / "link-to-directory").is_symlink()

    return Kind(top, agent, check)


GITS = size("GITS", 1)
"""With how many gits each kind is copied: with one, every other kind with the system's."""
CELLS = [
    pytest.param(name, which, id=f"{name}-{which}")
    for number, name in enumerate(KINDS)
    for which in (("newest", "system") if number % 2 or name == "reftable" else ("system", "newest"))[:GITS]
]


@pytest.mark.parametrize(("name", "each_git"), CELLS, indirect=["each_git"])
def test_a_copy_is_as_the_users_files_are(name: str, each_git: str, tmp_path: Path) -> None:
    made = KINDS[name](tmp_path / "project")
    copy = Private(made.at, tmp_path / "place", *made.listed)
    top, root = copy.top, copy.root
    mine, theirs = snapshot(top), snapshot(root)
    differs = {each for each in mine.keys() | theirs.keys() if mine.get(each) != theirs.get(each)}
    assert differs == made.other
    os.mkfifo(root / "only-here")
    assert copy.collect() == (set(), ["only-here"]), "nothing was done yet"
    (root / "only-here").unlink()
    if made.is_repository:
        _same_repository(top, root)
    write(root / "new\ndir/ä", "\r\n\0x")
    if has := (root / "a.txt").exists():
        write(root / "a.txt", (root / "a.txt").read_text() + "agent\n")
    made.agent(root)
    if has:
        write(top / "a.txt", "user\n" + (top / "a.txt").read_text())
    before = snapshot(top)
    found = copy.collect()
    assert ("+agent\n" in copy.diff()) == has
    copy.apply()
    after = snapshot(top)
    changed = {each for each in before.keys() | after.keys() if before.get(each) != after.get(each)}
    assert changed == found.changes and "new\ndir/ä" in changed
    if has:
        assert (top / "a.txt").read_text().startswith("user\n") and (top / "a.txt").read_text().endswith("agent\n")
    made.check(top, found)
    assert copy.apply() == [], "a second time, there is nothing to write"
    copy.undo()
    assert snapshot(top) == before


def _holds(what: object) -> None:
    assert what


def _named(name: str, found: Found) -> bool:
    return any(each == name or each.startswith((f"{name} ", f"{name}/")) for each in found.only_here)


def _same_repository(top: Path, root: Path) -> None:
    """The agent's git sees the same commits and branches, and can commit."""
    for command in (("rev-list", "--all", "HEAD"), ("symbolic-ref", "-q", "HEAD"), ("for-each-ref",)):
        mine, theirs = (
            subprocess.run(["git", *command], cwd=each, capture_output=True, text=True, check=False)
            for each in (top, root)
        )
        assert (mine.returncode, mine.stdout) == (theirs.returncode, theirs.stdout), command
