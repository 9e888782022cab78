"""Git as a calculator: it stores, compares and merges contents, and no more.

Git always works in a repository of ours, whose configuration we wrote, with an environment made from nothing. It has no
working tree, except where it says which names are ignored; there it reads the files ``.gitignore`` and nothing else.
Contents go in over a pipe, and each one that comes out is checked against its name. So no setting, hook or attribute
of the user's repository, or of a directory in which an agent writes, can change a result or start a program.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final, NamedTuple

from bridge.opencode.link.protocol import RequestError

LINK: Final = "120000"
"""Git's mode of a symbolic link."""

CONFIG: Final = (
    "[core]\n\trepositoryformatversion = 1\n\tbare = {bare}\n\tprotectNTFS = false\n\tprotectHFS = false\n"
    "\tbigFileThreshold = 16m\n\tcommitGraph = false\n[gc]\n\tauto = 0\n[extensions]\n\tobjectFormat = {form}\n"
)
_OURS: Final = "[core]\n\thooksPath = /dev/null\n[fastimport]\n\tunpackLimit = 1\n"

_SECONDS: Final = 120.0
_CHUNK: Final = 1 << 20

_DIFF: Final = ("-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--diff-algorithm=myers")


class CopyError(RequestError):
    """A private copy could not be made, read or applied; the text says why."""


class Version(NamedTuple):
    """What a file is: its mode as git writes it, and the name of its content."""

    mode: str
    content: str


Change = tuple[Version | None, Version | None]
"""A file before and after; ``None``: there is none."""


def changed(before: list[str] | None, after: list[str] | None) -> Change:
    """A change as JSON has it."""
    return Version(*before) if before else None, Version(*after) if after else None


class Store:
    """A repository of ours at ``folder``, which exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.form = "sha256" if "= sha256" in (folder / "config").read_text() else "sha1"

    @classmethod
    def make(cls, folder: Path, form: str = "sha1", lenders: bytes = b"") -> Store:
        """Make a store, which borrows the objects of the ``lenders``."""
        (folder / "objects/info").mkdir(parents=True)
        (folder / "refs/heads").mkdir(parents=True)
        (folder / "info").mkdir()
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
        (folder / "config").write_text(CONFIG.format(bare="true", form=form) + _OURS)
        (folder / "objects/info/alternates").write_bytes(lenders)
        return cls(folder)

    def run(
        self,
        *arguments: str,
        given: bytes = b"",
        place: str | None = None,
        codes: Collection[int] = (0,),
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        """What git prints.

        Raises:
            CopyError: git failed.
        """
        try:
            done = subprocess.run(  # noqa: S603 - no shell
                ["git", *arguments],  # noqa: S607 - the user's git
                input=given,
                capture_output=True,
                cwd=place or self.folder,
                env=self._environment() | dict(more or {}),
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CopyError("copy-failed", f"git {arguments[0]} took more than {_SECONDS:.0f} s") from None
        except OSError as error:
            raise CopyError("copy-failed", f"git cannot be run ({error.strerror})") from None
        if done.returncode not in codes:
            text = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
            raise CopyError("copy-failed", f"git {arguments[0]}: {text or f'code {done.returncode}'}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        # A relative entry would be a directory in which an agent may write.
        places = [each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if each.startswith("/")]
        return {
            "PATH": os.pathsep.join(places),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_DIR": str(self.folder),
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_OPTIONAL_LOCKS": "0",
        }

    # --- contents ---

    def hash(self, size: int) -> Any:
        """What makes the name of a content of this size, once it is updated with the content."""
        return hashlib.new(self.form, b"blob %d\0" % size, usedforsecurity=False)

    def name(self, content: bytes) -> str:
        total = self.hash(len(content))
        total.update(content)
        return str(total.hexdigest())

    def save(self, contents: Mapping[str, bytes | str]) -> None:
        """Store those of these contents that are in no repository yet, given or in the file of a path.

        Raises:
            CopyError: a file no longer has the content of this name, or git failed.
        """
        if not (missing := self._missing(contents)):
            return
        with subprocess.Popen(
            ["git", "fast-import", "--quiet", "--done"],  # noqa: S607 - the user's git
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            env=self._environment(),
        ) as importing:
            assert importing.stdin is not None
            try:
                for each in missing:
                    _import(importing.stdin, contents[each])
                importing.stdin.write(b"done\n")
            finally:
                importing.stdin.close()
        if importing.returncode or self._missing(missing):
            raise CopyError("copy-failed", "a file changed while it was saved; try again")

    def take(self, other: Store, names: Collection[str]) -> None:
        """Store contents that another store has. Their names are made anew from what they are.

        Raises:
            CopyError: one is another content: somebody planted it in the user's repository.
        """
        self.unpack(other.packed(names), names)

    def packed(self, names: Collection[str]) -> bytes:
        """Contents as one text."""
        given = "".join(f"{each}\n" for each in names).encode()
        return self.run("pack-objects", "-q", "--stdout", "--window=0", given=given)

    def unpack(self, pack: bytes, names: Collection[str]) -> None:
        """Store what ``packed`` made of these contents; see ``take``."""
        self.run("index-pack", "--stdin", given=pack)
        if lost := self._missing(names):
            raise _planted(lost[0])

    def _missing(self, names: Collection[str]) -> list[str]:
        found = self.run("cat-file", "--batch-check", given="".join(f"{each}\n" for each in names).encode())
        return [line.split()[0].decode() for line in found.splitlines() if line.endswith(b" missing")]

    def load(self, name: str) -> bytes:
        """A content.

        Raises:
            CopyError: it is not there, or is another one: somebody planted it in the user's repository.
        """
        content = self.run("cat-file", "blob", name)
        if self.name(content) != name:
            raise _planted(name)
        return content

    def merged(self, now: str, before: str, after: str) -> bytes | None:
        """``now`` with the changes between the two others; ``None`` if these meet others in the same place."""
        with TemporaryDirectory(dir=self.folder) as place:
            for label, name in (("yours", now), ("before", before), ("agents", after)):
                Path(place, label).write_bytes(self.load(name))
            try:
                return self.run("merge-file", "-p", "-q", "yours", "before", "agents", place=place)
            except CopyError:
                return None

    # --- names ---

    def tracked(self) -> set[str]:
        """The names in the index; empty if it cannot be read."""
        try:
            return set(_names(self.run("ls-files", "--sparse", "-z")))
        except CopyError:
            (self.folder / "index").unlink(missing_ok=True)
            return set()

    def ignored(self, top: str, names: Collection[str]) -> set[str]:
        """Those of these names below ``top`` that the files ``.gitignore`` there, and the user's own rules, ignore."""
        if not names:
            return set()
        found = self.run(
            *("check-ignore", "--no-index", "-z", "--stdin"),
            given=b"".join(b"./%b\0" % os.fsencode(each) for each in names),
            place=top,
            codes=(0, 1),
            more={"GIT_WORK_TREE": top, "GIT_INDEX_FILE": str(self.folder / "none")},
        )
        return {each.removeprefix("./") for each in _names(found)}

    # --- differences ---

    def trees(self, changes: Mapping[str, Change]) -> tuple[str, str]:
        """Two trees with the changed files alone, before and after."""
        return self._tree(changes, 0), self._tree(changes, 1)

    def _tree(self, changes: Mapping[str, Change], side: int) -> str:
        given = bytearray()
        for path, pair in changes.items():
            if (version := pair[side]) is not None:
                given += f"{version.mode} {version.content}\t".encode() + os.fsencode(path) + b"\0"
        with TemporaryDirectory(dir=self.folder) as place:
            index = {"GIT_INDEX_FILE": f"{place}/index"}
            self.run("update-index", "-z", "--index-info", given=bytes(given), more=index)
            return self.run("write-tree", more=index).decode().strip()

    def counts(self, trees: tuple[str, str]) -> Iterator[tuple[str, int | None, int | None]]:
        """Each changed file with the number of lines that were added and removed; ``None`` if it is no text."""
        for line in _names(self.run("diff-tree", *_DIFF, "--numstat", "-z", *trees)):
            added, removed, path = line.split("\t", 2)
            yield path, int(added) if added.isdigit() else None, int(removed) if removed.isdigit() else None

    def diff(self, trees: tuple[str, str], *more: str) -> str:
        """The difference as text. What is not UTF-8 in it becomes replacement characters."""
        patch = ("--patch", "--full-index", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/", *more)
        return self.run("diff-tree", *_DIFF, *patch, *trees).decode("utf-8", "replace")


def quoted(path: str) -> bytes:
    """A path as git reads it in a file of paths."""
    return b'"%b"\n' % b"".join(b"\\%03o" % byte for byte in os.fsencode(path))


def plain(text: str) -> str:
    """Text that JSON can hold. Bytes that are not UTF-8 become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _planted(name: str) -> CopyError:
    return CopyError("copy-failed", f"the object {name} of the repository is not what its name says")


def _names(printed: bytes) -> list[str]:
    return [os.fsdecode(each) for each in printed.split(b"\0") if each]


def _import(git: IO[bytes], content: bytes | str) -> None:
    if isinstance(content, bytes):
        git.write(b"blob\ndata %d\n%b\n" % (len(content), content))
        return
    with open(content, "rb") as file:
        left = os.fstat(file.fileno()).st_size
        git.write(b"blob\ndata %d\n" % left)
        while left > 0:
            part = file.read(min(left, _CHUNK)) or bytes(min(left, _CHUNK))  # it became shorter: another content
            git.write(part)
            left -= len(part)
    git.write(b"\n")
