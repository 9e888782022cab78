"""Git worktrees for background work: a copy of the project to edit, and the changes made in it.

A worktree starts as a copy of the tracked files in the user's directory, including uncommitted changes. It also gets
OpenCode's own files that git does not track, such as an ``opencode.json`` with permissions, so that background work
follows the same rules as the user's sessions; these copies never count as changes of the agent. Nothing in a worktree
leads out of it. The agent's changes are kept as the commit ``refs/durable-stream/<intent>`` in the user's repository,
where no branch list shows it. A worktree is removed only if everything in it is saved, or is as it was in the
beginning. Only ``apply`` changes the user's files.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from sidecar.background.intents.texts import with_kinds
from sidecar.background.worktrees import applying, lfs, modules
from sidecar.background.worktrees import files as worktree_files
from sidecar.background.worktrees.git import Git, WorktreeError, find, nul, plain
from sidecar.background.worktrees.modules import INDEX

__all__ = ["MAX_DIFF", "MAX_FILES", "Worktree", "WorktreeError", "Worktrees", "whole_diff"]

P = ParamSpec("P")
T = TypeVar("T")

_ID: Final = re.compile(r"int_[0-9a-f]{4,64}")

MAX_DIFF: Final = 64 * 1024
"""Maximum length of a diff that the log keeps, in characters; git has the whole diff."""

MAX_FILES: Final = 200
"""Maximum number of files listed."""

_COPIED: Final = "durable-stream-copied"
"""The file in git's folder of a worktree that lists the copies as JSON: each name with its digest."""

_MADE: Final = "durable-stream-made"
"""The file beside it that lists what the user's setup wrote and git ignores: each name with its mark."""

_DIFF: Final = (
    *("diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative"),
    *("--diff-algorithm=myers", "--ignore-submodules=none"),
)
_PATCH: Final = (*_DIFF, "--patch", "--full-index", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/")
"""A diff in which everything is fixed that a setting could change."""


def _as_worktree_error(do: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Say of a file that cannot be read or written what went wrong, as if git had said it."""

    @wraps(do)
    async def doing(*args: P.args, **more: P.kwargs) -> T:
        try:
            return await do(*args, **more)
        except OSError as error:
            raise WorktreeError("git-failed", f"{error.filename or 'a file'}: {error.strerror}") from None

    return doing


class Worktree(NamedTuple):
    """A worktree: the session's directory in the worktree, the worktree's root directory, and the commit from which it
    began."""

    directory: str
    root: str
    base: str
    repository: str
    """The repository's own folder, ``.git``, which outlives every worktree."""
    folder: str
    """What git keeps about the worktree, in the repository's folder."""
    top: str
    """The user's directory of which the worktree is a copy."""
    left_out: list[str]
    """Files of the user's that are not in the worktree, because they lead out of it or are too large, and submodules
    that the repository does not have here."""
    notes: list[str]
    """What else is not as in the user's directory, in words."""


class Worktrees:
    """All worktrees of a home, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @_as_worktree_error
    async def add(self, intent: str, directory: str, before: Mapping[str, Any] | None = None) -> Worktree | None:
        """Create the worktree of an intent. Replaces a worktree whose creation was cut off.

        If the intent continues the work ``before`` (see ``Intent.continues``), its worktree is in the same place. It
        has the changes of before, if the user has not applied them; they count as changes of this intent, too.

        Returns ``None`` if the directory is not in a git repository, or if the repository has no commit.

        Raises:
            WorktreeError: git refused.
        """
        old = before["worktree"] if before is not None else {}
        root = self.root(intent if before is None else Path(old["root"]).name)
        place = await find(directory)
        if place is None:
            return None
        git = Git(place.folder, place.top)
        try:
            head = await git.commit("HEAD")
        except WorktreeError:
            return None
        if before is not None and await asyncio.to_thread(_is_strange, root, old.get("folder") or ""):
            why = f"{root} has files that no worktree brought there; move it away, then continue the work"
            raise WorktreeError("worktree-changed", why)
        if before is not None and before["commit"]:
            base, commit = await git.commit(old["base"]), await git.commit(before["commit"])
        else:
            base = commit = await _uncommitted(git, head, f"before {intent}")
        await asyncio.to_thread(_remove, root, place.repository)
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        await git.run("worktree", "add", "--quiet", "--detach", "--no-checkout", str(root), commit)
        folder = await asyncio.to_thread(modules.folder_of, root)
        # A worktree can have settings of its own (``includeIf``), so the files are written with these known.
        worktree = Git(folder, str(root))
        await worktree.run("read-tree", "--reset", "-u", commit)
        top = Path(place.top)
        left_out = await modules.cut_links(worktree, top, root)
        shutil.copy2(Path(folder, "index"), Path(folder, INDEX))
        stores = [Path(each, "modules") for each in dict.fromkeys((place.folder, place.repository))]
        left_out += await modules.fill(worktree, top, stores, root, Path(folder))
        pointers = await lfs.fill(worktree, place.repository)
        own = await asyncio.to_thread(worktree_files.own_files, top, place.below)
        # The file may be tracked by the commit and no longer by the user's index, so ask the worktree.
        known = set(await worktree.names("ls-files", "-z"))
        wanted = [each for each in own if each not in known]
        copied, more = await asyncio.to_thread(worktree_files.copy, top, place.below, wanted, root)
        await asyncio.to_thread(_write, folder, _COPIED, copied)
        named = [plain(each) for each in (left_out + more)[: worktree_files.MAX_NAMED]]
        notes = _notes(pointers, await asyncio.to_thread(_hook, top, Path(place.repository), git.hooks))
        return Worktree(str(root / place.below), str(root), base, place.repository, folder, place.top, named, notes)

    @_as_worktree_error
    async def kept(self, before: Mapping[str, Any]) -> bool:
        """Whether the worktree of the work ``before`` is still there, whole, as that work left it.

        Raises:
            WorktreeError: the worktree no longer belongs to the repository (code ``worktree-changed``).
        """
        root, folder = Path(before["worktree"]["root"]), before["worktree"].get("folder") or ""
        if not before["kept"] or not await asyncio.to_thread(Path(folder, _COPIED).exists):
            return False
        await self._check(self.root(root.name), folder)
        return True

    @_as_worktree_error
    async def settle(self, intent: str, made: Worktree) -> Worktree:
        """Take a worktree as it is on disk now as its beginning, so that nothing of it counts as the agent's change.

        Raises:
            WorktreeError: git refused. The code is ``worktree-changed`` if the worktree no longer belongs to the
                repository.
        """
        root, folder = Path(made.root), made.folder
        await self._check(root, folder)
        index, copied = Path(folder, INDEX), await asyncio.to_thread(_listed, folder, _COPIED)
        scratch = Git(folder, made.root).with_index(index)
        await _stage(scratch, copied)
        head = await scratch.commit("HEAD")
        settled = await _commit(scratch, head, f"setup of {intent}")
        await scratch.run("update-ref", "--no-deref", "HEAD", settled)
        await asyncio.to_thread(shutil.copy2, index, Path(folder, "index"))
        saved = set(await scratch.names("ls-files", "-z"))
        await asyncio.to_thread(_remember, root, folder, saved, copied)
        # The changes of work that is continued, which are between its base and its head, are changes still.
        return made._replace(base=settled if made.base == head else made.base)

    @_as_worktree_error
    async def discard(self, intent: str, root: str, repository: str) -> None:
        """Remove a worktree (``root``; none if empty), whatever is in it, and the changes that are saved for an
        intent."""
        if root:
            await asyncio.to_thread(_remove, self.root(Path(root).name), repository)
        if await asyncio.to_thread(Path(repository).is_dir):
            await Git(repository).run("update-ref", "-d", _ref(intent))

    async def _check(self, root: Path, folder: str) -> None:
        if not await asyncio.to_thread(modules.is_ours, root, folder):
            raise WorktreeError("worktree-changed", f"the file {root}/.git is not the one that git wrote")

    @_as_worktree_error
    async def collect(
        self, intent: str, repository: str, base: str, folder: str | None = None, name: str = ""
    ) -> dict[str, Any]:
        """Save the agent's changes as a commit, and remove the worktree if nothing in it would be lost. Idempotent.

        ``name`` is the worktree's, if it has the name of another intent.

        Returns ``ref`` and ``commit`` (empty if nothing changed), ``files`` (at most ``MAX_FILES`` of
        ``{file, added, removed}``; the counts of a binary file are ``None``), ``count``, and ``diff`` (at most
        ``MAX_DIFF`` characters; ``is_cut`` if there is more). If the worktree was kept, ``kept`` is its directory, and
        ``unsaved`` says what is only there: some ``{file, why}``, and their number as ``unsaved_count``.

        Raises:
            WorktreeError: git refused; the worktree is still there. The code is ``worktree-changed`` if the worktree no
                longer belongs to the repository.
        """
        root, ref = self.root(name or intent), _ref(intent)
        git, lost = Git(repository), dict[str, str]()
        if is_there := await asyncio.to_thread(os.path.lexists, root):
            folder = folder or f"{repository}/worktrees/{root.name}"
            await self._check(root, folder)
            lost = await _save(Git(folder, str(root)), root, base, ref, f"Changes of {intent}", git)
        saved = await self._saved(git, base, ref)
        if is_there and not lost:
            try:
                await asyncio.to_thread(_remove, root, repository)
            except OSError as error:
                lost = {".": f"it could not be removed ({error.strerror})"}
        if lost:
            some = list(lost.items())[: worktree_files.MAX_NAMED]
            named = [{"file": plain(file), "why": why} for file, why in some]
            saved |= {"kept": str(root), "unsaved": named, "unsaved_count": len(lost)}
        return saved

    async def _saved(self, git: Git, base: str, ref: str) -> dict[str, Any]:
        try:
            commit = await git.commit(ref)
        except WorktreeError:
            return {"ref": "", "commit": "", "files": [], "count": 0, "diff": "", "is_cut": False}
        counted = [_counted(line) for line in await git.names(*_DIFF, "--numstat", "-z", base, commit)]
        files = with_kinds(counted, await git.names(*_DIFF, "--raw", "-z", base, commit))
        diff = await git.run(*_PATCH, base, commit)
        shown = {"diff": plain(diff[:MAX_DIFF]), "is_cut": len(diff) > MAX_DIFF}
        return {"ref": ref, "commit": commit, "files": files[:MAX_FILES], "count": len(files), **shown}

    @_as_worktree_error
    async def apply(self, intent: str, directory: str, worktree: Mapping[str, Any], commit: str = "") -> bool:
        """Apply the saved changes to the user's directory, all or none. Returns false if they had already been applied.

        Args:
            worktree: what ``add`` returned.
            commit: the commit that ``collect`` returned, and of which the user has seen the changes.

        Raises:
            WorktreeError: the code is ``no-changes`` if no changes are saved, or ``apply-conflict`` if the changes
                conflict with the files.
        """
        ref = _ref(intent)
        if not await asyncio.to_thread(Path(directory).is_dir):
            advice = f"in another directory of the repository, `git cherry-pick {ref}` applies the changes"
            raise WorktreeError("git-failed", f"the directory {directory} no longer exists; {advice}")
        repository = worktree["repository"]
        try:
            commit = await Git(repository).commit(commit or ref)
        except WorktreeError:
            raise WorktreeError("no-changes", f"no changes are saved as {ref}") from None
        try:
            return await applying.apply(Git(repository, worktree["top"]), worktree["base"], commit)
        except applying.Conflict as conflict:
            merge = f"commit your own changes, then `git cherry-pick {ref}` merges the two"
            advice = f"the changes conflict with the current files; {merge}"
            raise WorktreeError("apply-conflict", f"{advice} ({conflict})") from None

    def root(self, intent: str) -> Path:
        if not _ID.fullmatch(intent):
            raise WorktreeError("no-intent", f"{intent!r} is not an intent id")
        return self._folder / intent


async def whole_diff(repository: str, base: str, commit: str) -> str:
    """The whole diff of an intent's changes, as text that ``git apply`` reads.

    Raises:
        WorktreeError: the repository or the commit is gone.
    """
    return plain(await Git(repository).run(*_PATCH, "--binary", base, commit))


def _notes(pointers: Sequence[str], hook: Path | None) -> list[str]:
    """What an agent in a worktree, and who reads its result, must know."""
    notes = []
    if pointers:
        some = ", ".join(map(plain, pointers[:3])) + (" …" if len(pointers) > 3 else "")
        why = "is not in the repository here" if shutil.which("git-lfs") else "needs git-lfs, which is not installed"
        count = "1 file" if len(pointers) == 1 else f"{len(pointers)} files"
        notes.append(f"{count} of Git LFS had only a pointer in the worktree; the content {why}: {some}")
    if hook is not None:
        notes.append(f"the hook {plain(str(hook))} did not run; [phantom] setup can do what it does")
    return notes


def _hook(top: Path, repository: Path, hooks: str) -> Path | None:
    """The user's hook that git would run for a new worktree."""
    found = (repository if hooks == "hooks" else top) / Path(hooks).expanduser() / "post-checkout"
    if not os.access(found, os.X_OK) or not found.is_file():
        return None
    does = [line for line in found.read_text("utf-8", "replace").splitlines() if line.strip() and line[0] != "#"]
    # The hook that Git LFS installs does nothing that a worktree needs.
    return None if all("git-lfs" in line or "git lfs" in line for line in does) else found


async def _uncommitted(git: Git, head: str, message: str) -> str:
    """A commit with the tracked files as they are on disk; ``head`` if that is what they are."""
    with TemporaryDirectory() as temporary:
        index = Path(temporary, "index")
        scratch = git.with_index(index)
        try:
            shutil.copy2(Path(git.folder, "index"), index)  # with its times, from which git knows what has changed
        except FileNotFoundError:
            await scratch.run("read-tree", head)
        await _store(scratch, await _changed(scratch))
        return await _commit(scratch, head, message)


async def _commit(git: Git, head: str, message: str) -> str:
    tree = (await git.run("write-tree")).strip()
    if tree == await git.tree(head):
        return head
    return (await git.run("commit-tree", tree, "-p", head, "-m", message)).strip()


async def _changed(git: Git) -> list[str]:
    """The tracked files that differ from the index. Git looks into no submodule, since that would start it there."""
    return await lfs.changed(git, await git.names("diff-files", "--name-only", "-z", "--ignore-submodules=all"))


async def _store(git: Git, names: Iterable[str]) -> None:
    """Bring these names in the index up to date with the disk."""
    assert git.files is not None
    there, gone = await asyncio.to_thread(_sorted, Path(git.files), names)
    if gone:
        await git.run("update-index", "--force-remove", "-z", "--stdin", given=nul(gone))
    if there:
        await git.run("update-index", "--add", "-z", "--stdin", given=nul(there))


def _sorted(root: Path, names: Iterable[str]) -> tuple[list[str], list[str]]:
    there: list[str] = []
    gone: list[str] = []
    for name in dict.fromkeys(names):
        (there if applying.kind(root, name) in ("file", "link") else gone).append(name)
    return there, gone


async def _save(git: Git, root: Path, base: str, ref: str, message: str, repository: Git) -> dict[str, str]:
    """Save what is on disk as a commit; returns what could not be saved, and why."""
    copied = await asyncio.to_thread(_listed, git.folder, _COPIED)
    made = await asyncio.to_thread(_listed, git.folder, _MADE)
    with TemporaryDirectory() as temporary:
        index = Path(temporary, "index")
        shutil.copy2(Path(git.folder, INDEX), index)
        scratch = git.with_index(index)
        await _stage(scratch, copied, await _added(git, base))
        hosted = await _without_hosts(scratch, base)
        try:
            head = await git.commit("HEAD")
        except WorktreeError:
            head = base
        commit = await _commit(scratch, head, message)
        if await git.tree(commit) != await git.tree(base):
            await repository.run("update-ref", ref, commit)
        inner = [name for name, _ in await modules.listed(scratch)]
        same, changed = await modules.untouched(root, git.folder)
        saved = set(await scratch.names("ls-files", "-z")).difference(inner) | same
        lost = dict.fromkeys(changed, "a submodule")
        lost |= dict.fromkeys(set(await _changed(scratch)) - hosted, "changed while it was saved")
        return lost | await asyncio.to_thread(worktree_files.unsaved, root, saved, inner, copied, made)


async def _stage(git: Git, copied: Mapping[str, str], more: Iterable[str] = ()) -> None:
    """Bring the index up to date with what is on disk, and is neither ignored nor a copy."""
    assert git.files is not None
    names = [*await _changed(git), *await git.names("ls-files", "--others", "--exclude-standard", "-z"), *more]
    names += [name for name, _ in await modules.listed(git) if applying.kind(Path(git.files), name) != "directory"]
    # A name that ends with a slash is a repository of its own.
    await _store(git, (n for n in names if not n.endswith("/") and not worktree_files.is_own(n, copied)))


async def _without_hosts(git: Git, base: str) -> set[str]:
    """Take from the index what OpenCode itself, and not the agent, wrote into its own tracked files; their names."""
    found, entries = set[str](), ""
    changed = await git.names("diff-index", "--cached", "--diff-filter=M", "-z", "--no-renames", base)
    for about, name in zip(changed[::2], changed[1::2], strict=False):
        old, mode, before, after, _ = about.removeprefix(":").split(" ")
        if PurePath(name).name in worktree_files.CONFIG[:2] and old[:3] == mode[:3] == "100":
            texts = [await git.run("cat-file", "blob", each) for each in (before, after)]
            if (agents := worktree_files.without_schema(*texts)) is not None:
                content = await git.run("hash-object", "-w", "-t", "blob", "--stdin", "--no-filters", given=agents)
                entries += f"{mode} {content.strip()}\t{name}\0"
                found.add(name)
    if found:
        await git.run("update-index", "-z", "--index-info", given=entries)
    return found


async def _added(git: Git, base: str) -> list[str]:
    """What the agent itself added to its index, which can be files that git ignores."""
    try:
        return await git.names("diff-index", "--cached", "--name-only", "--diff-filter=A", "-z", base)
    except WorktreeError:  # the agent's index is broken, and what is on disk counts
        return []


def _write(folder: str, name: str, listed: Mapping[str, str]) -> None:
    Path(folder, name).write_text(json.dumps(listed))


def _remember(root: Path, folder: str, saved: set[str], copied: Mapping[str, str]) -> None:
    """Remember what is in a worktree and not saved, so that only later changes of it count."""
    _write(folder, _COPIED, {name: known and worktree_files.digest(root / name) for name, known in copied.items()})
    _write(folder, _MADE, worktree_files.marks(root, saved))


def _listed(folder: str, name: str) -> dict[str, str]:
    try:
        return dict(json.loads(Path(folder, name).read_bytes()))
    except FileNotFoundError:
        return {}


def _is_strange(root: Path, folder: str) -> bool:
    """Whether there is something in a worktree's place that is not that worktree. A session of OpenCode 2 can write
    there after its worktree was removed."""
    return os.path.lexists(root) and not modules.is_ours(root, folder) and (not root.is_dir() or any(root.iterdir()))


def _remove(root: Path, repository: str) -> None:
    if os.path.lexists(root):
        shutil.rmtree(root)
    modules.forget(Path(repository, "worktrees"), root)


def _ref(intent: str) -> str:
    return f"refs/durable-stream/{intent}"


def _counted(line: str) -> dict[str, Any]:
    added, removed, file = line.split("\t", 2)
    return {
        "file": plain(file),
        "added": int(added) if added.isdigit() else None,
        "removed": int(removed) if removed.isdigit() else None,
    }
