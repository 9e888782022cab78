"""Private copies for background work: a directory to edit, and the result of the work in it.

A copy has the user's files as they are, tracked or not, without those that git ignores. It stands at the user's own
path below a directory of ours, with links around it, so that OpenCode finds there what it finds in the user's
directory. A copy does not confine the agent: absolute paths, and links that lead out, reach the user's files as
OpenCode's rules allow.

What the user's files were, and what the agent made of them, is stored beside the copy. When the work ends, the result
is stored on its own, and the copy goes, unless something in it is in no result. Only ``apply`` and ``undo`` change the
user's files.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, ParamSpec, TypeVar

from sidecar.background.copies import applying, files, repository, work
from sidecar.background.copies.store import CopyError, Store, plain
from sidecar.background.copies.work import MAX_DIFF, MAX_FILES, Copy
from streams.system.files import make_directory

__all__ = ["MAX_DIFF", "MAX_FILES", "Copies", "Copy", "CopyError"]

log = logging.getLogger("sidecar.background")

P = ParamSpec("P")
T = TypeVar("T")

_SWEEP_SECONDS: Final = 1.0
_MAX_SWEEP_SECONDS: Final = 3600.0
"""How many seconds pass between two looks for copies that went, at first, and after repeated failures."""

_ID: Final = re.compile(r"int_[0-9a-f]{1,64}")


def _in_thread(do: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run in a thread. Say of a file that cannot be read or written what went wrong."""

    def doing(*args: P.args, **more: P.kwargs) -> T:
        try:
            return do(*args, **more)
        except OSError as error:
            raise CopyError("copy-failed", f"{error.filename or 'a file'}: {error.strerror}") from None

    @wraps(do)
    async def run(*args: P.args, **more: P.kwargs) -> T:
        return await asyncio.to_thread(doing, *args, **more)

    return run


class Copies:
    """All copies and results of a home, below ``folder``. Each method may be called again after it was cut off."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inside = re.compile(rf"{re.escape(os.path.realpath(folder))}/int_[0-9a-f]+/files(/.*)", re.DOTALL)
        # A thread goes on after the task that waits for it was cancelled, so the next one waits for its end.
        self._locks = defaultdict[str, threading.Lock](threading.Lock)

    def place(self, name: str) -> Path:
        """Where the copy of an intent is."""
        return self._folder / _checked(name)

    def result(self, intent: str) -> Path:
        """Where the result of an intent is."""
        return self._folder / "results" / _checked(intent)

    @_in_thread
    def make(
        self,
        intent: str,
        directory: str,
        *,
        listed: Sequence[str] = (),
        project: str = "",
        name: str = "",
        restore: str = "",
    ) -> Copy:
        """Make the copy of an intent. Replaces a copy whose making was cut off.

        Args:
            listed: paths in the project that are copied as they are, and whose changes are in no result.
            project: the id of the project in OpenCode.
            name: the intent whose copy's place it takes, if the work is continued.
            restore: the intent whose result the copy has, too; it counts as change of this one.

        Raises:
            CopyError: it cannot be made; ``apply-conflict`` if that result conflicts with the user's files.
        """
        place, directory = self.place(name or intent), os.path.realpath(directory)
        top = repository.top_of(directory) or directory
        with self._locks[place.name]:
            self._remove(place)
            make_directory(self._folder)
            place.mkdir(mode=0o700)
            copy = work.make(place, top, directory, listed, project)
            if restore:
                self._restore(place, restore)
        return copy

    @_in_thread
    def has_repository(self, directory: str) -> bool:
        """Whether a directory belongs to a repository."""
        return repository.top_of(os.path.realpath(directory)) is not None

    def _restore(self, place: Path, intent: str) -> None:
        manifest, result = work.read_manifest(place), self.result(intent)
        changes = work.changes_of(work.read_result(result))
        applying.apply(Store(result / "store"), manifest.root, changes, place)
        work.write(place / work.MANIFEST, manifest._replace(restored=list(changes))._asdict())

    @_in_thread
    def is_whole(self, name: str) -> bool:
        """Whether a copy is there."""
        return (self.place(name) / work.MANIFEST).exists()

    @_in_thread
    def settle(self, name: str) -> None:
        """Take a copy as it is on disk now as its beginning, so that nothing of it counts as the agent's change, except
        for the result that was restored in it."""
        place = self.place(name)
        with self._locks[name]:
            manifest, store = work.read_manifest(place), Store(place / "store")
            found = files.walk(store, manifest.root, manifest.files, manifest.listed)
            old = {path: manifest.files[path] for path in manifest.restored if path in manifest.files}
            now = work.now_in(store, manifest, found)
            new = {path: each for path, each in now.items() if path not in manifest.restored}
            work.save(store, manifest.root, new)
            marks = files.marks(manifest.root, found.ignored)
            known = old | work.listed_in(manifest.root, new)
            work.begin(place, manifest._replace(files=known, nested=found.nested, marks=marks))

    @_in_thread
    def collect(self, intent: str, name: str = "") -> dict[str, Any]:
        """Store the result of an intent, and remove its copy if nothing in it would be lost.

        ``name`` is the intent that began the copy, if another did.

        Returns ``saved`` (whether there is a result), ``files`` (at most ``MAX_FILES`` of ``{file, added, removed}``;
        the counts of a binary file are ``None``; ``kind`` if it is or was no ordinary file), ``count``, and ``diff``
        (at most ``MAX_DIFF`` characters; ``is_cut`` if there is more). If the copy was kept, ``kept`` is its directory,
        and ``unsaved`` says what is only there: some ``{file, why}``, and their number as ``unsaved_count``.

        Raises:
            CopyError: the copy is still there.
        """
        place, lost = self.place(name or intent), dict[str, str]()
        with self._locks[place.name]:
            root = ""
            if (place / work.MANIFEST).exists():
                root = work.read_manifest(place).root
                lost = work.collect(place, self.result(intent))
            summary = work.summary(self.result(intent))
            if root and not lost:
                self._remove(place)
        if lost:
            named = [{"file": plain(file), "why": why} for file, why in list(lost.items())[: work.MAX_NAMED]]
            summary |= {"kept": plain(root), "unsaved": named, "unsaved_count": len(lost)}
        return summary

    @_in_thread
    def diff(self, intent: str) -> str:
        """The whole difference that an intent made, as text that ``git apply`` reads.

        Raises:
            CopyError: the intent has no result.
        """
        result = self.result(intent)
        first, second = work.read_result(result)["trees"]
        return Store(result / "store").diff((first, second), "--binary")

    @_in_thread
    def packed(self, intent: str) -> str:
        """The result of an intent as text, for another machine.

        Raises:
            CopyError: the intent has no result.
        """
        return json.dumps(work.packed(self.result(intent)))

    @_in_thread
    def unpack(self, machine: str, intent: str, text: str, directory: str) -> str:
        """Take over the result of an intent of another machine, for the project of a directory here. Returns the name
        under which ``apply`` and ``undo`` know it.

        Raises:
            CopyError: the bytes are not a result.
        """
        top = _top_of(directory)
        name = _elsewhere(machine, intent, top)
        try:
            given = json.loads(text)
        except ValueError:
            given = {}
        with self._locks[name]:
            work.unpack(given, top, self.result(name), (machine, intent))
        return name

    @_in_thread
    def unpacked(self, machine: str, intent: str, directory: str) -> str:
        """The name of the result that was taken over for the project of a directory, of the intent of another machine
        whose id begins with ``intent``.

        Raises:
            CopyError: none was, or several were (``no-changes``).
        """
        top, found = _top_of(directory), set[str]()
        for each in (self._folder / "results").glob(f"int_*/{work.RESULT}"):
            of, its_top = work.taken_from(each.parent)
            if its_top == top and of[:1] == [machine] and of[1].startswith(intent):
                found.add(each.parent.name)
        if len(found) != 1:
            why = "several results" if found else "no result"
            raise CopyError("no-changes", f"{why} of {machine} whose id begins with {intent[:40]!a} applied in {top}")
        return found.pop()

    def top_of(self, intent: str) -> str:
        """Whose files a result changes. Raises ``CopyError`` without a result."""
        return self._top(self.result(intent))

    @_in_thread
    def apply(self, intent: str, moment: Callable[[str], None] = lambda _: None) -> list[str]:
        """Apply a result to the user's files, all or none. Returns the files that were changed; none, if all were so
        before. ``moment``: see ``applying.apply``.

        Raises:
            CopyError: nothing was changed. The code is ``no-changes`` without a result.
        """
        result = self.result(intent)
        changes = work.changes_of(work.read_result(result))
        done = applying.apply(Store(result / "store"), self._top(result), changes, result, moment)
        return [plain(each) for each in done]

    @_in_thread
    def undo(self, intent: str, moment: Callable[[str], None] = lambda _: None) -> list[str]:
        """Take back what ``apply`` changed last, and leave later edits of the user's. Returns the files that were
        changed.

        Raises:
            CopyError: nothing was changed. The code is ``no-changes`` if nothing was applied.
        """
        result = self.result(intent)
        return [plain(each) for each in applying.undo(Store(result / "store"), self._top(result), result, moment)]

    @_in_thread
    def is_applied(self, intent: str) -> bool:
        """Whether something of a result was applied to the user's files and not taken back."""
        return applying.is_applied(self.result(intent))

    @_in_thread
    def discard(self, intent: str, name: str = "") -> None:
        """Remove the result of an intent, and the copy that ``name`` began, whatever is in it.

        Raises:
            CopyError: nothing was removed, because the result is half applied, and its directory is gone.
        """
        result = self.result(intent)
        if (result / work.RESULT).exists():
            applying.settle(self._top(result), result)
        self._remove(result)
        if name:
            with self._locks[name]:
                self._remove(self.place(name))

    @_in_thread
    def recover(self) -> None:
        """Put back or finish what a killed process left half applied. What cannot be, is tried again by ``apply``."""
        for found in sorted((self._folder / "results").glob("*/" + applying.JOURNAL)):
            try:
                applying.settle(self._top(found.parent), found.parent)
            except CopyError as error:
                log.warning("the result of %s is half applied: %s", found.parent.name, error)

    async def sweep(self) -> None:
        """Remove what went; large copies take minutes. Ends at once when it is cancelled: the next one goes on."""
        stopped = threading.Event()
        try:
            await self._sweep(stopped.is_set)
        finally:
            stopped.set()

    async def keep_swept(self) -> None:
        """Remove what goes, also what earlier processes left, until cancelled."""
        pause = _SWEEP_SECONDS
        while True:
            try:
                await self.sweep()
            except CopyError as error:
                pause = min(2 * pause, _MAX_SWEEP_SECONDS)
                log.warning("a copy that went is still there (%s)", error)
            await asyncio.sleep(pause)

    @_in_thread
    def _sweep(self, stopped: Callable[[], bool]) -> None:
        gone = self._folder / "gone"
        for each in gone.iterdir() if gone.is_dir() else ():
            files.remove(str(each), stopped)

    def _top(self, result: Path) -> str:
        """Whose files a result changes: the user's, or those of the copy in which the work was started, while it is
        there."""
        top = str(work.read_result(result)["top"])
        while not os.path.isdir(top) and (inside := self._inside.fullmatch(top)) is not None:
            top = inside[1]
        return top

    def _remove(self, path: Path) -> None:
        """Take a directory away at once; ``sweep`` removes it later, since that can take minutes."""
        if os.path.lexists(path):
            gone = self._folder / "gone"
            gone.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.rename(Path(mkdtemp(dir=gone), path.name))


def _top_of(directory: str) -> str:
    """The project of a directory."""
    real = os.path.realpath(directory)
    return repository.top_of(real) or real


def _elsewhere(machine: str, intent: str, top: str) -> str:
    return f"int_{sha256(chr(0).join((machine, intent, top)).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def _checked(intent: str) -> str:
    if not _ID.fullmatch(intent):
        raise CopyError("no-intent", f"{intent!r} is not an intent id")
    return intent
