"""Git worktrees for background work: a copy of the project to edit, and the changes made in it.

A worktree starts as a copy of the tracked files in the user's directory, including uncommitted changes. It also gets
OpenCode's own files that git does not track, such as an ``opencode.json`` with permissions, so that background work
follows the same rules as the user's sessions; these copies never count as changes of the agent. The agent's changes are
kept as the commit ``refs/durable-stream/<intent>`` in the user's repository, where no branch list shows it.
Hooks of the repository do not run. Only ``apply`` changes the user's files.

Source: DESIGN 11 (isolation); FEATURES U25.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from sidecar.orchestrator.intent_texts import with_kinds

_ID: Final = re.compile(r"int_[0-9a-f]{4,64}")
_SECONDS: Final = 120.0

MAX_DIFF: Final = 64 * 1024
"""Maximum length of a diff that the log keeps, in characters; git has the whole diff."""

MAX_FILES: Final = 200
"""Maximum number of files listed."""


CONFIG: Final = ("opencode.json", "opencode.jsonc", ".opencode", "AGENTS.md", "CLAUDE.md")
"""What OpenCode reads in a session's directory and in each directory above it, up to the repository's root."""

_COPIED: Final = "durable-stream-copied"
"""The file in the worktree's git directory that lists the copies, each path followed by a NUL."""

_OWN: Final = (".gitignore", "package.json", "package-lock.json", "bun.lock", "node_modules")
"""What OpenCode itself writes into a ``.opencode`` directory."""


class WorktreeError(Exception):
    """Git failed; the text says how. ``code`` is stable, for programs."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Worktree(NamedTuple):
    """A worktree: the session's directory in the worktree, the worktree's root directory, and the commit from which it
    began."""

    directory: str
    root: str
    base: str
    repository: str
    """The repository's own folder, ``.git``, which outlives every worktree."""


class Worktrees:
    """All worktrees of a home, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def add(self, intent: str, directory: str) -> Worktree | None:
        """Create the worktree of an intent. Replaces a worktree whose creation was cut off.

        Returns ``None`` if the directory is not in a git repository, or if the repository has no commit.

        Raises:
            WorktreeError: git refused.
        """
        root = self._root(intent)
        try:
            top = (await _git(directory, "rev-parse", "--show-toplevel")).rstrip("\n")
            head = (await _git(directory, "rev-parse", "--verify", "HEAD^{commit}")).strip()
        except WorktreeError:
            return None
        await self._remove(top, root)
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # ``git stash create`` prints nothing if the user has no uncommitted changes.
        base = (await _git(directory, "stash", "create", f"before {intent}")).strip() or head
        await _git(directory, "worktree", "add", "--quiet", "--detach", str(root), base)
        below = (await _git(directory, "rev-parse", "--show-prefix")).rstrip("\n")
        await _copy_config(Path(top), below, root)
        repository = await _git(directory, "rev-parse", "--path-format=absolute", "--git-common-dir")
        return Worktree(str(root / below), str(root), base, repository.rstrip("\n"))

    async def collect(self, intent: str, repository: str, base: str) -> dict[str, Any]:
        """Save the agent's changes as a commit, and remove the worktree. Idempotent.

        Returns ``ref`` (empty if nothing changed), ``files`` (at most ``MAX_FILES`` of ``{file, added, removed}``; the
        counts of a binary file are ``None``), ``count`` and ``diff`` (at most ``MAX_DIFF`` characters).

        Raises:
            WorktreeError: git refused; the worktree is still there.
        """
        root, ref = self._root(intent), _ref(intent)
        if await asyncio.to_thread(root.exists):
            await _git(str(root), "add", "--all")
            await _leave_out_copies(root)
            head = (await _git(str(root), "rev-parse", "HEAD")).strip()
            tree = (await _git(str(root), "write-tree")).strip()
            kept = head
            if tree != (await _git(str(root), "rev-parse", f"{head}^{{tree}}")).strip():
                kept = (await _git(str(root), "commit-tree", tree, "-p", head, "-m", f"Changes of {intent}")).strip()
            if tree != (await _git(str(root), "rev-parse", f"{base}^{{tree}}")).strip():
                await _git(repository, "update-ref", ref, kept)
            await self._remove(repository, root)
        if not await self._has(repository, ref):
            return {"ref": "", "files": [], "count": 0, "diff": ""}
        counted = (await _git(repository, "diff", "--numstat", "-z", "--no-renames", base, ref)).split("\0")
        raw = await _git(repository, "diff-tree", "-r", "--raw", "-z", "--no-renames", base, ref)
        files = with_kinds([_counted(line) for line in counted if line], raw.split("\0"))
        diff = await _git(repository, "diff", "--no-color", "--no-ext-diff", base, ref)
        return {"ref": ref, "files": files[:MAX_FILES], "count": len(files), "diff": _plain(diff[:MAX_DIFF])}

    async def apply(self, intent: str, directory: str, base: str) -> bool:
        """Apply the saved changes to the user's directory, all or none. Returns false if they had already been applied.

        Raises:
            WorktreeError: the code is ``no-changes`` if no changes are saved, or ``apply-conflict`` if the changes
                conflict with the files.
        """
        ref = _ref(intent)
        if not await asyncio.to_thread(Path(directory).is_dir):
            advice = f"in another directory of the repository, `git cherry-pick {ref}` applies the changes"
            raise WorktreeError("git-failed", f"the directory {directory} no longer exists; {advice}")
        if not await self._has(directory, ref):
            raise WorktreeError("no-changes", f"no changes are saved as {ref}")
        top = (await _git(directory, "rev-parse", "--show-toplevel")).rstrip("\n")
        patch = await _git(directory, "diff", "--binary", "--no-color", "--no-ext-diff", base, ref)
        try:
            await _git(top, "apply", "--check", "--reverse", "-", given=patch)
        except WorktreeError:
            try:
                await _git(top, "apply", "--whitespace=nowarn", "-", given=patch)
            except WorktreeError as error:
                merge = f"commit your own changes, then `git cherry-pick {ref}` merges the two"
                advice = f"the changes conflict with the current files; {merge}"
                raise WorktreeError("apply-conflict", f"{advice} ({error})") from None
            return True
        return False

    def _root(self, intent: str) -> Path:
        if not _ID.fullmatch(intent):
            raise WorktreeError("no-intent", f"{intent!r} is not an intent id")
        return self._folder / intent

    async def _has(self, directory: str, ref: str) -> bool:
        try:
            await _git(directory, "rev-parse", "--verify", "--quiet", ref)
        except WorktreeError:
            return False
        return True

    async def _remove(self, directory: str, root: Path) -> None:
        if await asyncio.to_thread(root.exists):
            await asyncio.to_thread(shutil.rmtree, root)
        await _git(directory, "worktree", "prune")


async def _copy_config(top: Path, below: str, root: Path) -> None:
    """Copy the untracked ones of ``CONFIG`` from the user's directories into the worktree at ``root``."""
    levels = ["", *(f"{each}/" for each in accumulate(PurePath(below).parts, "{}/{}".format))]
    wanted = [f":(literal){level}{name}" for level in levels for name in CONFIG]
    found = await _git(str(top), "ls-files", "--others", "-z", "--", *wanted, ":(exclude,glob)**/node_modules/**")
    places = [f"{level}.opencode/" for level in levels]
    names = [each.rstrip("/") for each in found.split("\0") if each]
    copied = await asyncio.to_thread(_copied, top, names, places, root)
    (await _list_of_copies(root)).write_bytes(b"".join(os.fsencode(each) + b"\0" for each in copied))


def _copied(top: Path, names: list[str], places: list[str], root: Path) -> list[str]:
    """Copy these files and return what is not to count as a change of the agent: the copies, and what OpenCode itself
    will write into the ``.opencode`` directories, ``places``.

    A link to a directory becomes a link to the same directory. A ``node_modules`` becomes a link, because it can be
    large.

    Raises:
        WorktreeError: a file cannot be copied. Without it, the agent might do what the user forbids.
    """
    done = []
    for name in (*names, *(f"{place}node_modules" for place in places if (top / place).is_dir())):
        source, target = top / name, root / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir() and not os.path.lexists(target):
                target.symlink_to(source.resolve())
            elif source.is_file():
                shutil.copy2(source, target)
            else:
                continue  # a link to nothing, or a directory that is there already
        except OSError as error:
            raise WorktreeError("config-not-copied", f"cannot copy {source} into the worktree: {error}") from None
        done.append(name)
    own = [f"{place}{name}" for place in places if (root / place).is_dir() for name in _OWN]
    return done + [name for name in own if not os.path.lexists(root / name)]


async def _leave_out_copies(root: Path) -> None:
    """Take the copies of OpenCode's own files out of the index of a worktree."""
    listed = await _list_of_copies(root)
    given = os.fsdecode(listed.read_bytes()) if listed.exists() else ""
    if given:
        quiet = ("--cached", "--quiet", "--force", "--ignore-unmatch", "-r")
        read = ("--pathspec-from-file=-", "--pathspec-file-nul")
        await _git(str(root), "--literal-pathspecs", "rm", *quiet, *read, given=given)


async def _list_of_copies(root: Path) -> Path:
    return Path((await _git(str(root), "rev-parse", "--absolute-git-dir")).rstrip("\n")) / _COPIED


def _ref(intent: str) -> str:
    return f"refs/durable-stream/{intent}"


def _plain(text: str) -> str:
    """Text that JSON can hold. Bytes that are not UTF-8 become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _counted(line: str) -> dict[str, Any]:
    added, removed, file = line.split("\t", 2)
    return {
        "file": _plain(file),
        "added": int(added) if added.isdigit() else None,
        "removed": int(removed) if removed.isdigit() else None,
    }


async def _git(directory: str, *arguments: str, given: str | None = None) -> str:
    """Run git in a directory, without hooks, without prompts, and without environment variables that another git
    set."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    name = "durable-stream"
    who = {f"GIT_{role}_{what}": name for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    quiet = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", *quiet, *arguments),
            cwd=directory,
            env={**own, **who, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
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
