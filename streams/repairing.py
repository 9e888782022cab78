"""Looking at a whole store for ``repair``, and doing what ``streams/repair.py`` decides. The caller holds the locks.

Every action may be cut off by a kill and done again by the next run: files are
set aside by renames, ``store.json`` and a damaged database are replaced by one, and
a tail is cut as every opening cuts it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from streams.backends import open_backend
from streams.errors import BadStore, ForeignStore, StoreUnavailable
from streams.repair import FILES, HEAD_OF, SIDE_FILES, Facts, Item, StoreFacts
from streams.store import NOTHING
from streams.stores.directory import MANIFEST, Backend, Manifest, read_manifest, write_manifest
from streams.stores.disk import make_directory, sync_directory
from streams.stores.hints import REPAIRED, Hints
from streams.stores.jsonl_reader import JsonlReader
from streams.stores.presence import left_alone
from streams.stores.segment_files import list_segments
from streams.stores.segments import read_head
from streams.stores.sqlite_files import LOG_FILE, SEARCH_FILE, holds_log
from streams.stores.sqlite_reader import SqliteReader
from streams.stores.sqlite_repair import SearchFault, copy_rows, search_fault
from streams.stores.store_verify import is_newer
from streams.stores.stored import Stored
from streams.verify import Verification, is_of_records

Progress = Callable[[int], None]


def leftovers(store: Path) -> list[str]:
    """What killed processes left and ``repair`` takes away, relative to ``store``; quick, and only of a store at rest.

    Raises:
        ForeignStore: as ``read_manifest``, or a file is a symbolic link.
        OSError: a file cannot be read.
    """
    manifest = read_manifest(store)
    hints = Hints(store)
    whole = {hint.name for hint in hints.known()}
    found = [*_drafts(store, manifest), *(f"hints/{path.name}" for path in hints.files() if path.name not in whole)]
    if manifest is not None:
        kept = manifest.kept.backend if manifest.kept is not None else None
        others = [name for name in FILES if name not in (manifest.backend, kept) and _is_there(store, name)]
        found += [f"{'log' if name == 'jsonl' else LOG_FILE} (a copy that a migration began)" for name in others]
    return found


def is_begun(store: Path) -> bool:
    """Whether anything of a log lies in the directory. Quick: nothing is opened.

    Raises:
        ForeignStore: the store is foreign or newer, or ``store.json`` is a symbolic link.
    """
    manifest, damaged = _manifest(store)
    if manifest is not None or damaged:
        return True
    # Drafts are not asked for: by their names alone they may be somebody else's.
    files = (store / "head", store / LOG_FILE, *Hints(store).files())
    return any(map(os.path.lexists, files)) or bool(list_segments(store / "log")) or left_alone(store) is not None


async def examine(store: Path, progress: Progress | None = None) -> Facts:
    """What lies in the directory. The truth is verified; without a ``store.json`` both backends' stores are.

    ``progress`` is called with the number of bytes verified since its last call.

    Raises:
        ForeignStore: the store is foreign or newer, or a file of it is a symbolic link.
        StoreUnavailable, OSError: a file cannot be read.
    """
    manifest, damaged = await asyncio.to_thread(_manifest, store)
    there: list[Backend] = [backend for backend in FILES if _is_there(store, backend)]
    stores: dict[Backend, StoreFacts] = {}
    for backend in there:
        if manifest is None or manifest.backend == backend:
            stores[backend] = await _verified(store, backend, progress)
        else:
            stores[backend] = StoreFacts(await _head(store, backend))
    if manifest is not None and manifest.kept is not None and manifest.kept.backend in stores:
        live = stores.get(manifest.backend)
        if live is None or not (live.is_sound or live.only_indexes):
            # It may be what is left of the log.
            stores[manifest.kept.backend] = await _verified(store, manifest.kept.backend, progress)
    copies: list[Backend] = [
        backend for backend in stores if len(stores) == 2 and await _is_copy(store, backend, stores)
    ]
    truth, head = _truth(manifest, stores)
    hints = Hints(store)
    known = hints.known()
    whole = {hint.name for hint in known}
    ahead = {f"hints/{name}": until for name, _, until in hints.lost()}
    if truth is not None and (stores[truth].is_sound or stores[truth].only_indexes):
        # Of a log that is damaged it is not known how far it went: brought back from a backup, it may reach them.
        ahead |= {f"hints/{name}": until for name, until in known if until > head}
    return Facts(
        manifest=manifest,
        manifest_is_damaged=damaged,
        stores=stores,
        copies=frozenset(copies),
        drafts=tuple(_drafts(store, manifest)),
        damaged_hints=tuple(f"hints/{path.name}" for path in hints.files() if path.name not in whole),
        hints_ahead=tuple(sorted(ahead)),
        last_known=_last_known(store, manifest),
        left_alone=left_alone(store) if manifest is None and not stores else None,
        furthest_hint=max(ahead.values(), default=NOTHING),
        side_files=tuple(name for names in SIDE_FILES.values() for name in names if (store / name).exists()),
        search_fault=await _search_fault(store, stores[truth]) if truth == "sqlite" else None,
    )


@dataclass(slots=True)
class Repairing:
    """One run over ``store``; what it takes away lies in ``aside``, which is made when it is needed."""

    store: Path
    aside: Path | None = None

    async def carry_out(self, item: Item) -> None:
        """Do what ``item`` says; doing it again changes nothing.

        Raises:
            StreamError, OSError: it cannot be done; what was wrong still is.
        """
        match item.action:
            case "write manifest":
                assert item.manifest is not None
                await asyncio.to_thread(self._write_manifest, item.manifest, item.paths)
            case "open":
                # Opening cuts the tail, keeps it in torn/, and writes the head file.
                manifest = read_manifest(self.store)
                await (await open_backend(self.store, "jsonl" if manifest is None else manifest.backend)).close()
            case "copy rows":
                await self._copy_rows()
            case "set aside":
                await asyncio.to_thread(self._set_aside, item.paths)
            case "delete":
                await asyncio.to_thread(self._delete, item.paths)
            case None:
                raise ValueError("nothing is to be done")

    def _write_manifest(self, manifest: Manifest, damaged: tuple[str, ...]) -> None:
        self._set_aside(damaged)
        write_manifest(self.store, manifest)

    async def _copy_rows(self) -> None:
        fresh = self._aside() / "new"
        make_directory(fresh)
        await asyncio.to_thread(copy_rows, self.store, fresh / LOG_FILE)
        old, new = await _verified(self.store, "sqlite", None), await _verified(fresh, "sqlite", None)
        if new.lost or (new.head, new.records) != (old.head, old.records):
            raise StoreUnavailable(
                f"the copy of {self.store / LOG_FILE} does not verify, so it stays as it was",
                "restore the store from a backup",
            )
        await asyncio.to_thread(self._replace_database, fresh)

    def _replace_database(self, fresh: Path) -> None:
        path = self.store / LOG_FILE
        # A second name, then a rename: at no moment is the log without a database.
        os.link(path, self._aside() / LOG_FILE)
        sync_directory(self._aside())
        (fresh / LOG_FILE).replace(path)
        sync_directory(self.store)
        for left in fresh.iterdir():
            left.unlink()
        fresh.rmdir()

    def _set_aside(self, names: tuple[str, ...]) -> None:
        for name in names:
            path = self.store / name
            if not path.exists():
                continue
            target = self._aside() / name
            if target.parent != self._aside():
                make_directory(target.parent)
            path.rename(target)
            sync_directory(target.parent)
            sync_directory(path.parent)

    def _aside(self) -> Path:
        if self.aside is None:
            directory = self.store / REPAIRED
            make_directory(directory)
            taken = [int(path.name) for path in directory.iterdir() if path.name.isdigit()]
            self.aside = directory / str(max(taken, default=0) + 1)
            make_directory(self.aside)
        return self.aside

    def _delete(self, names: tuple[str, ...]) -> None:
        for name in names:
            (self.store / name).unlink(missing_ok=True)
        sync_directory(self.store)


def _manifest(store: Path) -> tuple[Manifest | None, bool]:
    """What ``store.json`` says, and whether it is there and damaged."""
    try:
        return read_manifest(store), False
    except ForeignStore as error:
        if (store / MANIFEST).is_symlink() or is_newer(store / MANIFEST) or "damaged" not in error.reason:
            raise
        return None, True


def _is_there(store: Path, backend: Backend) -> bool:
    if backend == "sqlite":
        return holds_log(store / LOG_FILE, alone=True)
    return (store / "head").exists() or bool(list_segments(store / "log"))


def _truth(manifest: Manifest | None, stores: dict[Backend, StoreFacts]) -> tuple[Backend | None, int]:
    """The store that holds the log, as far as that is known, and its last record."""
    if manifest is not None:
        found = stores.get(manifest.backend)
        return (None, NOTHING) if found is None else (manifest.backend, found.head)
    return max(((name, store.head) for name, store in stores.items()), key=lambda one: one[1], default=(None, NOTHING))


async def _verified(store: Path, backend: Backend, progress: Progress | None) -> StoreFacts:
    verification = Verification(store, progress, backend=backend, alone=True)
    faults = [finding async for finding in verification.run() if is_of_records(finding)]
    summary = verification.summary
    return StoreFacts(summary.head, summary.records, tuple(faults), summary.pruned)


def _reader(store: Path, backend: Backend) -> SqliteReader | JsonlReader:
    return SqliteReader(store, alone=True) if backend == "sqlite" else JsonlReader(store)


async def _head(store: Path, backend: Backend) -> int:
    reader = _reader(store, backend)
    try:
        return await asyncio.to_thread(lambda: reader.head)
    except (BadStore, OSError):
        return NOTHING
    finally:
        await reader.close()


async def _is_copy(store: Path, backend: Backend, stores: dict[Backend, StoreFacts]) -> bool:
    """Whether the other store holds this one's last record, which its hash makes the end of the same history."""
    other: Backend = "jsonl" if backend == "sqlite" else "sqlite"
    head = stores[backend].head
    if head > stores[other].head:
        return False
    mine, theirs = await _record_at(store, backend, head), await _record_at(store, other, head)
    return (head == NOTHING and mine is None) or (mine is not None and mine == theirs)


async def _record_at(store: Path, backend: Backend, position: int) -> Stored | None:
    reader = _reader(store, backend)
    try:
        found: AsyncIterator[list[Stored]] = reader.copy_out(after=position - 1, most=1)
        async for records in found:
            return records[0] if records[0].position == position else None
    except (BadStore, OSError):
        return None
    finally:
        await reader.close()
    return None


def _last_known(store: Path, manifest: Manifest | None) -> int | None:
    """The log's last record by its head file, which outlives its records."""
    head = None if manifest is None else read_head(store / HEAD_OF[manifest.backend])
    return None if head is None else head.position


async def _search_fault(store: Path, log: StoreFacts) -> SearchFault | None:
    fault = await asyncio.to_thread(search_fault, store, log.head)
    # How far a damaged log goes is not known: brought back from a backup, it may reach what is indexed.
    return None if fault == "ahead" and not (log.is_sound or log.only_indexes) else fault


def _drafts(store: Path, manifest: Manifest | None) -> list[str]:
    """Files that a killed process was about to rename, and SQLite's files whose database is gone.

    Not those of a log that may be the truth: they may hold records, and a database that is brought back needs them.
    """
    found = [path for path in (*store.glob("*.new"), *(store / "hints").glob("*.new")) if path.is_file()]
    for name in (LOG_FILE, SEARCH_FILE):
        is_needed = name == LOG_FILE and (manifest is None or manifest.backend == "sqlite")
        if not (store / name).exists() and not is_needed:
            found += [path for path in store.glob(f"{name}-*") if path.stat().st_size]
    return sorted(str(path.relative_to(store)) for path in found)
