"""Runs git so that it sees only what it is pointed at, and so that it starts no other program.

Every call names its repository and its files (``GIT_DIR``, ``GIT_WORK_TREE``), so git looks for neither. Git reads no
configuration of the user or of the machine, except for a few values that decide how files are stored (``_TAKEN``). The
repository's own configuration cannot be turned off, so everything in it that could start a program or change what we
read is overridden. This includes filters: a filter is a command, it runs where an agent may write, and the agent may
choose with ``.gitattributes`` which files it gets. So files are stored and written as they are, apart from line ends.
It includes hooks, too, also those that newer gits read from the configuration.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bridge.opencode.link.protocol import RequestError

_SECONDS: Final = 120.0

_FIXED: Final = {
    # What would start a program.
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.sshCommand": "false",
    "core.gitProxy": "",
    "core.alternateRefsCommand": "false",
    "core.askPass": "",
    "core.pager": "cat",
    "credential.helper": "",
    "diff.external": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    # What would change what is read, or which files are seen.
    "attr.tree": "",
    "core.abbrev": "40",
    "core.attributesFile": "/dev/null",
    "core.bigFileThreshold": "512m",
    "core.checkStat": "default",
    "core.ignoreStat": "false",
    "core.quotePath": "false",
    "core.safecrlf": "false",
    "core.splitIndex": "false",
    "core.trustctime": "true",
    "core.untrackedCache": "false",
    "core.whitespace": "",
    "diff.ignoreSubmodules": "none",
    "diff.suppressBlankEmpty": "false",
    "i18n.commitEncoding": "UTF-8",
    "merge.conflictStyle": "merge",
    "worktree.useRelativePaths": "false",
}

_TAKEN: Final = {
    "core.autocrlf": ("false", {"true", "false", "input"}),
    "core.eol": ("native", {"lf", "crlf", "native"}),
}
"""Values that are taken from the user's configuration: the default, and which values are valid."""

_OFF: Final = {
    "filter": {"clean": "", "smudge": "", "process": "", "required": "false"},
    "hook": {"enabled": "false"},
}
"""What runs programs under a name that the repository chooses, and the values with which it does not."""

_IDENTITY: Final = {
    f"GIT_{role}_{what}": "durable-stream" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


class WorktreeError(RequestError):
    """Git failed; the text says how."""


class Git:
    """Git with a fixed repository folder and fixed files.

    Args:
        folder: the ``GIT_DIR``: a repository's ``.git``, or what git keeps there about one worktree.
        files: the directory that has the files. ``None``: only the repository itself is read and written.
    """

    def __init__(self, folder: str, files: str | None = None, *, index: Path | None = None) -> None:
        self.folder, self.files = folder, files
        self._settings: dict[str, str] | None = None
        self._index = index
        self.hooks = "hooks"
        """Where the user keeps the hooks, which do not run; known after the first command."""

    def with_index(self, index: Path) -> Git:
        """The same, with this file as the index."""
        other = Git(self.folder, self.files, index=index)
        other._settings = self._settings
        return other

    async def run(self, *arguments: str, given: str | None = None) -> str:
        """What a command prints.

        Raises:
            WorktreeError: the command failed.
        """
        if self._settings is None:
            # Which settings there are can depend on the repository folder (``includeIf``), so ask with the same one.
            listed = await _run(self._files, self._place(), "config", "--list", "-z")
            self._settings = _settings(listed)
            said = [each.partition("\n")[2] for each in listed.split("\0") if each.startswith("core.hookspath\n")]
            self.hooks = said[-1] if said else self.hooks
        environment = self._place() | _closed(self._settings)
        return await _run(self._files, environment, *arguments, given=given)

    async def commit(self, name: str) -> str:
        return (await self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")).strip()

    async def tree(self, name: str) -> str:
        return (await self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{tree}}")).strip()

    async def names(self, *arguments: str) -> list[str]:
        return [each for each in (await self.run(*arguments)).split("\0") if each]

    @property
    def _files(self) -> str:
        return self.files or self.folder

    def _place(self) -> dict[str, str]:
        # Without files, the folder itself stands for them, because git would take the current directory.
        place = {"GIT_DIR": self.folder, "GIT_WORK_TREE": self._files}
        return place | ({"GIT_INDEX_FILE": str(self._index)} if self._index is not None else {})


class Place(NamedTuple):
    """Where a directory of the user belongs."""

    top: str
    below: str
    folder: str
    repository: str


async def find(directory: str) -> Place | None:
    """The repository of one of the user's directories: the nearest one above, as git would find it.

    Git itself is not asked to look, because a repository's own settings can tell it that its files are elsewhere.

    Raises:
        WorktreeError: this git is too old to be told what it may read.
    """
    here = await asyncio.to_thread(Path(directory).resolve)
    asked = ("rev-parse", "--path-format=absolute")
    for top in (here, *here.parents):
        if await asyncio.to_thread(os.path.exists, top / ".git"):
            try:
                git = Git(f"{top}/.git", str(top))
                folder = (await git.run(*asked, "--absolute-git-dir")).removesuffix("\n")
                repository = (await git.run(*asked, "--git-common-dir")).removesuffix("\n")
            except WorktreeError:  # a folder that only has the name
                continue
            if not folder.startswith("/"):
                raise WorktreeError("git-failed", "background work in a worktree needs git 2.31 or later")
            below = str(here.relative_to(top))
            return Place(str(top), "" if below == "." else below, folder, repository)
    return None


def nul(names: Iterable[str]) -> str:
    """Names in the form that options such as ``-z`` and ``--stdin`` read."""
    return "".join(f"{name}\0" for name in names)


def plain(text: str) -> str:
    """Text that JSON can hold. Bytes that are not UTF-8 become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _settings(listed: str) -> dict[str, str]:
    """What of the configuration is kept, and the filters and hooks that are to be turned off."""
    found = {name: default for name, (default, _) in _TAKEN.items()}
    excludes = str(Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser(), "git/ignore"))
    off: dict[str, str] = {}
    known = {name.lower(): name for name in _TAKEN}
    for each in listed.split("\0"):
        key, _, value = each.partition("\n")
        if key in known and value.lower() in _TAKEN[known[key]][1]:
            found[known[key]] = value.lower()
        elif key == "core.excludesfile":
            excludes = str(Path(value).expanduser())
        elif key.count(".") > 1:
            name = key[: key.rindex(".")]
            off |= {f"{name}.{each}": none for each, none in _OFF.get(name.partition(".")[0], {}).items()}
    return found | off | {"core.excludesFile": excludes}


def _closed(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment in which git reads only the repository's own configuration, and what we set."""
    given = {**_FIXED, **settings}
    pairs = {
        name: text
        for number, (key, value) in enumerate(given.items())
        for name, text in ((f"GIT_CONFIG_KEY_{number}", key), (f"GIT_CONFIG_VALUE_{number}", value))
    }
    return {
        **pairs,
        "GIT_CONFIG_COUNT": str(len(given)),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        # An object that is not there is an error. Fetching it would run what the configuration names.
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_LITERAL_PATHSPECS": "1",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
    }


async def _run(directory: str, more: Mapping[str, str], *arguments: str, given: str | None = None) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # A relative entry would be a directory in which an agent may write.
    places = own.get("PATH", os.defpath).split(os.pathsep)
    own["PATH"] = os.pathsep.join(each for each in places if each.startswith("/"))
    limits = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    limits |= dict.fromkeys(("GIT_TRACE2", "GIT_TRACE2_EVENT", "GIT_TRACE2_PERF"), "0")
    if "GIT_DIR" in more:
        limits["GIT_CEILING_DIRECTORIES"] = str(Path(directory).parent)
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", "--no-pager", *arguments),
            cwd=directory,
            env={**own, **_IDENTITY, **limits, **more},
            stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise WorktreeError("git-failed", f"git cannot be run in {directory} ({error.strerror})") from None
    try:
        sent = None if given is None else given.encode("utf-8", "surrogateescape")
        out, said = await asyncio.wait_for(process.communicate(sent), _SECONDS)
    except TimeoutError:
        raise WorktreeError("git-failed", f"git {arguments[0]} took more than {_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        text = " ".join(said.decode("utf-8", "replace").split())[:300]
        raise WorktreeError("git-failed", f"git {arguments[0]}: {text or f'code {process.returncode}'}")
    return out.decode("utf-8", "surrogateescape")
