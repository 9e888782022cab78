"""Makes a change of files true in the user's directory as it is now: three versions of each file, all files or none.

The new files are written beside the old ones, and only names change after that. A journal says what is under way, so
that what a killed process left half done is put back, or finished, by ``settle``. No link is followed. A name is taken
only while nothing has it, and a file that somebody changed meanwhile is put back, so no edit of the user's is lost.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.background.copies.files import kind_of
from sidecar.background.copies.store import LINK, Change, CopyError, Store, Version, changed
from streams.system import locks
from streams.system.files import write_all, write_durably

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNSEEN: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Characters that some disks leave out of a name."""

JOURNAL: Final = "steps.json"
_RECORD: Final = "applied.json"

Seen = tuple[int, int, int, int]
"""What changes with a file of the user's, except by a new name."""


class Step(NamedTuple):
    """One file that is exchanged: its path, the new file beside it, where the old one goes meanwhile, and what the new
    one was when it was written."""

    path: str
    new: str | None
    old: str | None
    written: Seen | None = None


class Current(NamedTuple):
    """The user's file as it is now."""

    version: Version | None
    seen: Seen | None = None
    content: bytes = b""


def apply(
    store: Store,
    top: str,
    changes: Mapping[str, Change],
    folder: Path,
    moment: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Make ``changes`` in the files below ``top``. Returns the files that were changed; none, if all were so before.

    Args:
        store: has the contents, and gets those that the user's files have now.
        folder: where the journal is, and the record of what was applied.
        moment: called with ``staged``, and with each path before it is exchanged.

    Raises:
        CopyError: nothing was changed. ``apply-conflict``: the user changed the same; ``apply-unsafe``: a change leads
            out of the directory.
    """
    with _settled(top, folder) as tree:
        return _put(store, tree, changes, folder, lambda done: [*_applied(folder), done], moment)


def undo(store: Store, top: str, folder: Path, moment: Callable[[str], None] = lambda _: None) -> list[str]:
    """Take back what ``apply`` changed last; see there.

    Raises:
        CopyError: nothing was changed. ``no-changes``: nothing is applied.
    """
    with _settled(top, folder) as tree:
        if not (applied := _applied(folder)):
            raise CopyError("no-changes", "nothing of it is applied")
        changes = {path: changed(after, before) for path, (before, after) in applied[-1].items()}
        done = _put(store, tree, changes, folder, lambda _: applied[:-1], moment)
        if not done:
            _record(folder, applied[:-1])
        return done


def is_applied(folder: Path) -> bool:
    """Whether something was applied and not taken back."""
    return bool(_applied(folder))


def settle(top: str, folder: Path) -> None:
    """Put back or finish what a killed process left half done; nothing, if nothing was.

    Raises:
        CopyError: it cannot be done.
    """
    if (folder / JOURNAL).exists():
        with _settled(top, folder):
            return


@contextmanager
def _settled(top: str, folder: Path) -> Iterator[_Tree]:
    """The user's files, to which nobody else applies anything meanwhile."""
    try:
        lock = os.open(top, _DIRECTORY)
    except OSError as error:
        why = f"nothing was changed, because {top} cannot be opened ({error.strerror}); move the project back"
        raise CopyError("copy-failed", why) from None
    try:
        while not locks.take(lock):
            continue
        tree = _Tree(top)
        _settle(tree, folder)
        yield tree
    finally:
        os.close(lock)


def _put(
    store: Store,
    tree: _Tree,
    changes: Mapping[str, Change],
    folder: Path,
    record: Callable[[dict[str, Change]], Any],
    moment: Callable[[str], None],
) -> list[str]:
    there = {path: tree.current(store, path, changes) for path in changes}
    store.save({each.version.content: each.content for each in there.values() if each.version is not None})
    plan: dict[str, tuple[Current, Version | None]] = {}
    for path, (before, after) in changes.items():
        wanted = _merged(store, path, before, after, there[path].version)
        _check(store, tree.top, path, wanted)
        if wanted != there[path].version:
            plan[path] = there[path], wanted
    if plan:
        steps = _exchange(store, tree, plan, folder, moment)
        done = {path: (current.version, wanted) for path, (current, wanted) in plan.items()}
        _write_journal(folder, steps, record(done))
        _settle(tree, folder)
    return list(plan)


class _Tree:
    """The user's files, each reached from directory to directory, and never through a link."""

    def __init__(self, top: str) -> None:
        self.top = top

    @contextmanager
    def above(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The directory of a path, opened, and the name in it.

        Raises:
            FileNotFoundError, NotADirectoryError: there is no such directory; the latter also for a link.
        """
        at = os.open(self.top, _DIRECTORY)
        try:
            *parts, name = path.split("/")
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=at)
                new = os.open(part, _DIRECTORY, dir_fd=at)
                os.close(at)
                at = new
            yield at, name
        finally:
            os.close(at)

    def info(self, path: str) -> os.stat_result | None:
        try:
            with self.above(path) as (at, name):
                return os.stat(name, dir_fd=at, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def nearest(self, path: str) -> str:
        """The nearest directory above a path that is there; empty, or ends with a slash."""
        while path := os.path.dirname(path):
            info = self.info(path)
            if info is not None and stat.S_ISDIR(info.st_mode):
                return f"{path}/"
        return ""

    def current(self, store: Store, path: str, changes: Mapping[str, Change]) -> Current:
        """A file as it is now.

        Raises:
            CopyError: something else has its place.
        """
        parts = path.split("/")
        for above in ("/".join(parts[:number]) for number in range(1, len(parts))):
            info = self.info(above)
            if info is not None and not stat.S_ISDIR(info.st_mode):
                if above in changes:  # it goes, or it has come already, or it is a conflict of its own
                    return Current(None)
                raise CopyError("apply-conflict", f"{path}: {above} is not a directory; nothing was changed")
        info = self.info(path)
        if info is None or stat.S_ISDIR(info.st_mode):  # taking its place fails later, unless all in it goes
            return Current(None)
        with self.above(path) as (at, name):
            if stat.S_ISLNK(info.st_mode):
                content = os.fsencode(os.readlink(name, dir_fd=at))
            elif stat.S_ISREG(info.st_mode):
                opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
                with open(opened, "rb") as file:
                    info, content = os.fstat(opened), file.read()
            else:
                raise CopyError("apply-conflict", f"{path} is not a file; nothing was changed")
        return Current(Version(kind_of(info.st_mode), store.name(content)), _seen(info), content)

    def write(self, store: Store, path: str, wanted: Version, old: Seen | None) -> Seen:
        """Write a new file."""
        content = store.load(wanted.content)
        with self.above(path) as (at, name):
            if wanted.mode == LINK:
                os.symlink(content, os.fsencode(name), dir_fd=at)
                return _seen(os.stat(name, dir_fd=at, follow_symlinks=False))
            new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            file = os.open(name, new, 0o777 if wanted.mode == "100755" else 0o666, dir_fd=at)
            try:
                if old is not None and not stat.S_ISLNK(old[3]):
                    mode = old[3] & 0o666
                    os.fchmod(file, mode | (mode & 0o444) >> 2 if wanted.mode == "100755" else mode)
                write_all(file, content)
                os.fsync(file)
                return _seen(os.fstat(file))
            finally:
                os.close(file)

    def move(self, path: str, goal: str) -> None:
        with self.above(path) as (at, name), self.above(goal) as (to, new):
            os.rename(name, new, src_dir_fd=at, dst_dir_fd=to)

    def name(self, path: str, goal: str) -> None:
        """Give a file another name, which nothing has.

        Raises:
            FileExistsError: something has it.
        """
        with self.above(path) as (at, name), self.above(goal, make=True) as (to, new):
            os.link(name, new, src_dir_fd=at, dst_dir_fd=to, follow_symlinks=False)
            os.unlink(name, dir_fd=at)

    def remove(self, path: str) -> None:
        with self.above(path) as (at, name):
            os.unlink(name, dir_fd=at)

    def tidy(self, path: str) -> None:
        """Remove the directories above a path that are empty, as git does."""
        while path := os.path.dirname(path):
            try:
                with self.above(path) as (at, name):
                    os.rmdir(name, dir_fd=at)
            except OSError:
                return


def _seen(info: os.stat_result) -> Seen:
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode


# --- deciding ---


def _merged(
    store: Store, path: str, before: Version | None, after: Version | None, now: Version | None
) -> Version | None:
    """The version with the changes of both."""
    if now == before:
        return after
    if now == after:
        return now
    why = f"{path}: you edited the same lines since; nothing was changed. `--diff` shows its changes"
    conflict = CopyError("apply-conflict", why)
    if before is None or after is None or now is None or LINK in (before.mode, after.mode, now.mode):
        raise conflict
    mode = after.mode if now.mode == before.mode else now.mode
    if now.content in (before.content, after.content):
        return Version(mode, after.content)
    if before.content == after.content:
        return Version(mode, now.content)
    merged = store.merged(now.content, before.content, after.content)
    if merged is None:
        raise conflict
    name = store.name(merged)
    store.save({name: merged})
    return Version(mode, name)


def is_name(path: str) -> bool:
    """Whether a path is one for a file of the user's: on no disk, a part of it means a repository's folder."""
    plain = [_UNSEEN.sub("", part).rstrip(". ").lower() for part in path.split("/")]
    return not any(part in ("", ".git", "git~1") for part in plain) and ".." not in path.split("/")


def _check(store: Store, top: str, path: str, wanted: Version | None) -> None:
    """Refuse what would lead out of the user's directory.

    Raises:
        CopyError: the code is ``apply-unsafe``.
    """
    if not is_name(path):
        raise CopyError("apply-unsafe", f"{path!a} cannot be the name of a file; nothing was changed")
    if wanted is None or wanted.mode != LINK:
        return
    text = os.fsdecode(store.load(wanted.content))
    parts = text.split("/")
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    real = os.path.realpath(os.path.join(top, os.path.dirname(path), text))
    leads_out = text.startswith("/") or ".." in parts[ups:] or ups > path.count("/")
    if leads_out or not f"{real}/".startswith(f"{top}/") or "/.git/" in f"{real[len(top) :]}/":
        raise CopyError("apply-unsafe", f"{path} is a link that leads out, to {text!a}; nothing was changed")


# --- acting ---


def _exchange(
    store: Store,
    tree: _Tree,
    plan: Mapping[str, tuple[Current, Version | None]],
    folder: Path,
    moment: Callable[[str], None],
) -> list[Step]:
    """Exchange the files. After an error, the old ones are put back."""
    steps = _steps(tree, plan, folder.name)
    _write_journal(folder, steps)
    path = ""
    try:
        for number, step in enumerate(steps):  # the new contents are complete before the first name changes
            path, (current, wanted) = step.path, plan[step.path]
            if step.new is not None and wanted is not None:
                steps[number] = step._replace(written=tree.write(store, step.new, wanted, current.seen))
        _write_journal(folder, steps)
        moment("staged")
        for step in steps:
            path, (current, wanted) = step.path, plan[step.path]
            moment(path)
            if step.old is not None:
                tree.move(path, step.old)
                _check_same(tree, path, step.old, current)
                if wanted is None:
                    tree.tidy(path)
            if step.new is not None:
                tree.name(step.new, path)
        for step in steps:  # an editor that had the file open may have written into the old one
            path = step.path
            if step.old is not None:
                _check_same(tree, path, step.old, plan[path][0])
    except OSError as error:
        _settle(tree, folder)
        why = "something else has its place now" if isinstance(error, FileExistsError) else str(error.strerror)
        raise CopyError("apply-conflict", f"{path}: {why}; nothing was changed") from None
    except CopyError:
        _settle(tree, folder)
        raise
    return steps


def _steps(tree: _Tree, plan: Mapping[str, tuple[Current, Version | None]], token: str) -> list[Step]:
    steps = list[Step]()
    gone = sorted((path for path, (_, wanted) in plan.items() if wanted is None), reverse=True)
    for number, path in enumerate([*gone, *sorted(plan.keys() - set(gone))]):
        current, wanted = plan[path]
        # A file can take the place of a directory: then the old files of that go where it stays.
        parts = path.split("/")
        above = ("/".join(parts[:end]) for end in range(1, len(parts)))
        stays = next((each for each in above if each in plan and plan[each][1] is not None), path)
        near = f"{tree.nearest(stays)}.durable-stream-{token}-{number}"
        steps.append(Step(path, wanted and f"{near}.new", current.version and f"{near}.old"))
    return steps


def _check_same(tree: _Tree, path: str, old: str, current: Current) -> None:
    info = tree.info(old)
    if info is None or _seen(info) != current.seen:
        raise CopyError("apply-conflict", f"{path} was changed meanwhile; nothing was changed")


def _write_journal(folder: Path, steps: list[Step], record: Any = None) -> None:
    write_durably(folder / JOURNAL, json.dumps({"steps": steps, "record": record}).encode())


def _applied(folder: Path) -> list[dict[str, list[list[str] | None]]]:
    """What was applied and not taken back, oldest first: what each file was and is."""
    try:
        found: list[dict[str, list[list[str] | None]]] = json.loads((folder / _RECORD).read_bytes())
    except FileNotFoundError:
        return []
    return found


def _record(folder: Path, applied: Any) -> None:
    write_durably(folder / _RECORD, json.dumps(applied).encode())


def _settle(tree: _Tree, folder: Path) -> None:
    """Drop the old files if all was done, or else put them back and take ours away."""
    try:
        journal: dict[str, Any] = json.loads((folder / JOURNAL).read_bytes())
    except FileNotFoundError:
        return
    record, moved_aside = journal["record"], list[str]()
    try:
        for step in reversed([Step(*each) for each in journal["steps"]]):
            if record is None:
                moved_aside += _put_back(tree, step)
            elif step.old is not None and tree.info(step.old) is not None:
                tree.remove(step.old)
            if step.new is not None and tree.info(step.new) is not None:
                tree.remove(step.new)
            tree.tidy(step.path)
    except OSError as error:
        why = f"{tree.top}: what was half applied cannot be put back ({error.strerror}); it is safe to try again"
        raise CopyError("copy-failed", why) from None
    if record is not None:
        _record(folder, record)
    (folder / JOURNAL).unlink()
    if moved_aside:
        why = "a file was made in its place meanwhile; the one of before is now"
        raise CopyError("apply-conflict", f"{why} {', '.join(moved_aside)}, and nothing else was changed")


def _put_back(tree: _Tree, step: Step) -> list[str]:
    """Give the user's file its name again. Returns where it is, if another file has that name now."""
    info = tree.info(step.path)
    # If the user has edited it since, it stays, beside the one of before.
    if info is not None and step.written is not None and _seen(info) == tuple(step.written):
        tree.remove(step.path)
        tree.tidy(f"{step.path}/x")
    if step.old is None or tree.info(step.old) is None:
        return []
    tree.tidy(f"{step.path}/x")
    try:
        tree.name(step.old, step.path)
    except OSError:  # something else is there now
        return [step.old]
    return []
