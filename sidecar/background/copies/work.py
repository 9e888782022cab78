"""What is in a copy and in a result: makes the copy, and finds what was changed in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from sidecar.background.copies import applying, files, repository
from sidecar.background.copies.store import LINK, Change, CopyError, Store, Version, changed, plain
from streams.system.files import write_durably

T = TypeVar("T")

MAX_DIFF: Final = 64 * 1024
"""Maximum length of a diff that the log keeps, in characters; the result has the whole diff."""

MAX_FILES: Final = 200
"""Maximum number of files listed."""

MAX_NAMED: Final = 20
"""Maximum number of files that are named as left out, or in no result."""

MAX_CONTENT: Final = 256 << 20
"""A changed file that is larger, in bytes, is in no result."""

_RACY_NS: Final = 50_000_000
"""A file that changed so shortly before the copy was ready could change again without a sign of it."""

_THREADS: Final = 2
_PART: Final = 100
_MAX_WHY: Final = 200

_KINDS: Final = {LINK: "link"}

_MODES: Final = frozenset({"100644", "100755", LINK})
_NAME: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

MANIFEST: Final = "manifest.json"
RESULT: Final = "result.json"


class Copy(NamedTuple):
    """A private copy."""

    name: str
    """The intent that began it. Others may continue in it."""
    directory: str
    """The session's directory in the copy."""
    root: str
    """The copy's root directory."""
    top: str
    """The user's directory that was copied."""
    left_out: list[str]
    """What could not be copied."""


class Entry(NamedTuple):
    """A file of a copy: its version, and, for a link, its text in the user's directory."""

    version: Version
    text: str | None = None

    def content(self, path: str) -> bytes | str:
        return path if self.text is None else os.fsencode(self.text)

    def as_json(self, path: str) -> list[Any]:
        return [self.version, files.signature(os.lstat(path)), self.text]


class Manifest(NamedTuple):
    """What a copy was when the agent began."""

    top: str
    root: str
    made: int
    listed: list[str]
    nested: list[str]
    """The repositories in it, and in ``heads`` what each pointed to."""
    heads: dict[str, str]
    files: dict[str, Any]
    """Each file: its version, its signature in the copy, and, for a link, its text in the user's directory."""
    marks: dict[str, str]
    """What git ignores in it, each with its mark."""
    restored: list[str]
    """The files that have changes of the work before."""


# --- making ---


def make(place: Path, top: str, directory: str, listed: Sequence[str], project: str) -> Copy:
    found = repository.repository_of(top)
    root = f"{place}/files{top}"
    store = repository.make_store(place / "store", top, found, place.parent)
    there = files.walk(store, top, store.tracked(), listed)
    there.check(root)
    os.makedirs(root)
    files.surround(top, root)
    for each in there.folders:
        os.mkdir(f"{root}/{each}")

    def copied(path: str) -> Entry | None:
        try:
            return _copied(store, top, root, path, there.files[path])
        except OSError as error:
            there.odd[path] = str(error.strerror)
            return None

    entries = {path: entry for path, entry in _of_each(there.files, copied).items() if entry is not None}
    for each in (*there.hosts, *(each for each in there.ignored if files.is_below(each, listed))):
        try:
            files.copy_whole(each, top, root)
        except (OSError, shutil.Error) as error:
            there.odd[each] = str(error.args[-1])[:_MAX_WHY]
    there.check(root)
    save(store, root, entries)
    for each in ("", *there.nested):
        if (inner := repository.repository_of(os.path.join(top, each))) is not None:
            repository.write_git(os.path.join(root, each, ".git"), inner, place.parent, "" if each else project)
    known = listed_in(root, entries)
    begin(place, Manifest(top, root, 0, list(listed), there.nested, {}, known, {}, []))
    work = os.path.normpath(os.path.join(root, os.path.relpath(directory, top)))
    return Copy(place.name, work, root, top, [plain(each) for each in there.odd][:MAX_NAMED])


def _copied(store: Store, top: str, root: str, path: str, info: os.stat_result) -> Entry:
    if not stat.S_ISLNK(info.st_mode):
        return Entry(files.take(store, f"{top}/{path}", f"{root}/{path}"))
    text = os.readlink(f"{top}/{path}")
    os.symlink(files.led(text, path, top, root), f"{root}/{path}")
    return Entry(files.version_of_link(store, text), text)


def save(store: Store, root: str, entries: Mapping[str, Entry]) -> None:
    contents = {entry.version.content: entry.content(f"{root}/{path}") for path, entry in entries.items()}
    store.save(contents)


def listed_in(root: str, entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {path: entry.as_json(f"{root}/{path}") for path, entry in entries.items()}


def begin(place: Path, manifest: Manifest) -> None:
    heads = {each: repository.heads_of(os.path.join(manifest.root, each)) for each in ("", *manifest.nested)}
    clock = place / "clock"
    clock.write_bytes(b"")  # the disk has a clock of its own
    now = clock.stat().st_mtime_ns
    write(place / MANIFEST, manifest._replace(heads=heads, made=now)._asdict())


# --- collecting ---


def now_in(store: Store, manifest: Manifest, found: files.Found) -> dict[str, Entry]:
    """The files of a copy as they are now."""

    def look(path: str) -> Entry:
        info, known = found.files[path], manifest.files.get(path)
        at = f"{manifest.root}/{path}"
        if known is not None:
            version, seen, text = known
            if seen == files.signature(info) and max(info.st_mtime_ns, info.st_ctime_ns) < manifest.made - _RACY_NS:
                return Entry(Version(*version), text)
        if not stat.S_ISLNK(info.st_mode):
            return Entry(files.take(store, at))
        text = os.readlink(at)
        if (
            known is not None
            and known[2] is not None
            and text == files.led(known[2], path, manifest.top, manifest.root)
        ):
            return Entry(Version(*known[0]), known[2])
        if text.startswith(f"{manifest.root}/"):
            text = os.path.relpath(text, os.path.dirname(at))
        return Entry(files.version_of_link(store, text), text)

    return _of_each(found.files, look)


def _of_each(paths: Collection[str], do: Callable[[str], T]) -> dict[str, T]:
    """What ``do`` returns for each path, in some threads. Each gets many at a time, because to hand one over costs more
    than to copy a small file."""
    names = list(paths)
    parts = [names[at : at + _PART] for at in range(0, len(names), _PART)]
    with ThreadPoolExecutor(_THREADS) as pool:
        done = pool.map(lambda part: [do(each) for each in part], parts)
        return dict(zip(names, chain.from_iterable(done), strict=True))


def collect(place: Path, result: Path) -> dict[str, str]:
    """Store a result on its own. Returns what is in no result, and why."""
    manifest, store = read_manifest(place), Store(place / "store")
    found = files.walk(store, manifest.root, manifest.files, manifest.listed)
    lost = dict(found.odd)
    made = [each for each in found.nested if each not in manifest.nested]
    lost |= dict.fromkeys(made, "a repository of its own")
    for path in [each for each in found.files if each not in manifest.files and files.is_below(each, made)]:
        del found.files[path]
    now = now_in(store, manifest, found)
    before = {path: Version(*each[0]) for path, each in manifest.files.items()}
    after = {path: entry.version for path, entry in now.items()}
    changes: dict[str, Change] = {
        path: (before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    }
    for path in list(changes):
        if not applying.is_name(path):
            lost[path] = "no name for a file"
        elif path in found.files and found.files[path].st_size > MAX_CONTENT:
            lost[path] = "too large for a result"
        else:
            continue
        del changes[path]
    save(store, manifest.root, {path: now[path] for path in changes if path in now})
    changes = _without_hosts(store, changes)
    _store_result(store, manifest.top, changes, result)
    marks = files.marks(manifest.root, [each for each in found.ignored if not files.is_below(each, manifest.listed)])
    lost |= {path: "ignored by git" for path, mark in marks.items() if manifest.marks.get(path) != mark}
    for each, heads in manifest.heads.items():
        if repository.heads_of(os.path.join(manifest.root, each)) != heads:
            lost[each or "."] = "commits, branches or stashes"
    return lost


def _without_hosts(store: Store, changes: Mapping[str, Change]) -> dict[str, Change]:
    """The changes without what OpenCode itself, and not the agent, wrote into its own files."""
    found = dict[str, Change]()
    for path, (before, after) in changes.items():
        new = after
        if os.path.basename(path) in files.CONFIG and before and after and LINK not in (before.mode, after.mode):
            agents = files.without_schema(store.load(before.content), store.load(after.content))
            if agents is not None:
                new = Version(after.mode, store.name(agents))
                store.save({new.content: agents})
        if new != before:
            found[path] = before, new
    return found


def _store_result(store: Store, top: str, changes: Mapping[str, Change], result: Path) -> None:
    """Store a result so that it needs neither the copy nor the user's repository."""
    draft = result.with_name(f"{result.name}.new")
    for each in (draft, result):
        if each.exists():
            shutil.rmtree(each)
    if not changes:
        return
    draft.mkdir(mode=0o700, parents=True)
    own = Store.make(draft / "store", store.form)
    own.take(store, {each.content for pair in changes.values() for each in pair if each is not None})
    write(draft / RESULT, {"top": top, "changes": changes, "trees": own.trees(changes)})
    draft.rename(result)


def packed(result: Path) -> dict[str, Any]:
    """A result as JSON, for another machine."""
    found, store = read_result(result), Store(result / "store")
    names = {each.content for pair in changes_of(found).values() for each in pair if each is not None}
    pack = b64encode(store.packed(sorted(names))).decode()
    return {"form": store.form, "changes": found["changes"], "pack": pack}


def unpack(given: Mapping[str, Any], top: str, result: Path, of: Sequence[str]) -> None:
    """Store the result of another machine, for the files below ``top``; nothing, if it is there. ``of`` names machine
    and intent.

    Raises:
        CopyError: the bytes are not a result; ``apply-unsafe``: a path leads out of the directory.
    """
    if (result / RESULT).exists():
        return
    draft = result.with_name(f"{result.name}.new")
    if draft.exists():
        shutil.rmtree(draft)
    try:
        changes = {str(path): changed(*pair) for path, pair in given["changes"].items()}
        names = {each.content for pair in changes.values() for each in pair if each is not None}
        modes = {each.mode for pair in changes.values() for each in pair if each is not None}
        if given["form"] not in ("sha1", "sha256") or not modes <= _MODES or not all(map(_NAME.fullmatch, names)):
            raise ValueError
        pack = b64decode(given["pack"], validate=True)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise CopyError("copy-failed", f"what {of[0]} sent is not a result of background work") from None
    for path in changes:
        if "\0" in path or not applying.is_name(path):
            raise CopyError("apply-unsafe", f"{path!a} cannot be the name of a file; nothing was changed")
    draft.mkdir(mode=0o700, parents=True)
    own = Store.make(draft / "store", given["form"])
    own.unpack(pack, names)
    write(draft / RESULT, {"top": top, "changes": changes, "trees": own.trees(changes), "of": list(of)})
    draft.rename(result)


def summary(result: Path) -> dict[str, Any]:
    if not (result / RESULT).exists():
        return {"saved": False, "files": [], "count": 0, "diff": "", "is_cut": False}
    found, store = read_result(result), Store(result / "store")
    first, second = found["trees"]
    kinds = {
        path: _KINDS.get(each.mode) for path, pair in changes_of(found).items() for each in pair if each is not None
    }
    rows = [
        {"file": plain(path), "added": added, "removed": removed} | ({"kind": kind} if (kind := kinds[path]) else {})
        for path, added, removed in store.counts((first, second))
    ]
    diff = store.diff((first, second))
    shown = {"diff": diff[:MAX_DIFF], "is_cut": len(diff) > MAX_DIFF}
    return {"saved": True, "files": rows[:MAX_FILES], "count": len(rows), **shown}


# --- files of ours ---


def write(path: Path, content: Any) -> None:
    write_durably(path, json.dumps(content).encode())


def read_manifest(place: Path) -> Manifest:
    return Manifest(**json.loads((place / MANIFEST).read_bytes()))


def read_result(result: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((result / RESULT).read_bytes())
    except FileNotFoundError:
        raise CopyError("no-changes", f"there is no result of {result.name}") from None
    return found


def taken_from(result: Path) -> tuple[list[str], str]:
    """The machine and the intent that a result was taken over from (empty if it is of this home), and the directory
    that it changes."""
    found = read_result(result)
    return list(found.get("of") or ()), str(found["top"])


def changes_of(result: Mapping[str, Any]) -> dict[str, Change]:
    return {path: changed(*pair) for path, pair in result["changes"].items()}
