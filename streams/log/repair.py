"""Repairs a store: ``examine`` inspects it, ``repair_plan.decide`` chooses the actions, and ``RepairRun`` carries them
out.

The caller holds the locks. If a kill interrupts an action, the next run repeats the action.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streams.errors import BadStore, ForeignStore, StoreUnavailable
from streams.log.backends import open_backend
from streams.log.beside import is_newer
from streams.log.presence import left_alone
from streams.log.repair_plan import FILES, Facts, Item, StoreFacts
from streams.log.verify import Verification, is_of_records
from streams.store import NOTHING
from streams.stores.directory import MANIFEST, Backend, Manifest, read_manifest, write_manifest
from streams.stores.hints import REPAIRED, Hints
from streams.stores.jsonl.reader import JsonlReader
from streams.stores.jsonl.segments import list_segments
from streams.stores.sqlite.files import LOG_FILE, SEARCH_FILE, holds_log
from streams.stores.sqlite.reader import SqliteReader
from streams.stores.sqlite.repair import SearchFault, copy_rows, search_fault
from streams.system.files import make_directory, sync_directory

Progress = Callable[[int], None]


def leftovers(store: Path) -> list[str]:
    """Leftovers of killed processes that ``repair`` removes, relative to ``store``. Quick. Call this only for a store
    that no process has open.

    Raises:
        ForeignStore: see ``read_manifest``; also raised if a file is a symbolic link.
        OSError: a file cannot be read.
    """
    manifest = read_manifest(store)
    hints = Hints(store)
    whole = hints.known()
    found = [*_drafts(store, manifest), *(f"hints/{path.name}" for path in hints.files() if path.name not in whole)]
    if manifest is not None:
        kept = manifest.kept.backend if manifest.kept is not None else None
        others = [name for name in FILES if name not in (manifest.backend, kept) and _is_there(store, name)]
        found += [f"{'log' if name == 'jsonl' else LOG_FILE} (a copy that a migration began)" for name in others]
    return found


def is_begun(store: Path) -> bool:
    """True if the directory holds any part of a log. Quick: it opens no file.

    Raises:
        ForeignStore: another program or a newer version wrote the store, or ``store.json`` is a symbolic link.
    """
    manifest, damaged = _manifest(store)
    if manifest is not None or damaged:
        return True
    # Drafts do not count, because their names alone do not prove that they are ours.
    files = (store / "head", store / LOG_FILE, *Hints(store).files())
    return any(map(os.path.lexists, files)) or bool(list_segments(store / "log")) or left_alone(store) is not None


async def examine(store: Path, progress: Progress | None = None) -> Facts:
    """Examine the directory and verify the log; without a ``store.json``, both backends' stores.

    ``progress`` is called with the number of bytes verified since its last call.

    Raises:
        ForeignStore: another program or a newer version wrote the store, or one of its files is a symbolic link.
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
    truth, head = _log_of(manifest, stores)
    hints = Hints(store)
    whole = hints.known()
    ahead = {f"hints/{name}": until for name, _, until in hints.lost()}
    if truth is not None and (stores[truth].is_sound or stores[truth].only_indexes):
        # A hint beyond head is wrong only if the log is sound: a damaged log may reach it once restored from a backup.
        ahead |= {f"hints/{name}": until for name, until in whole.items() if until > head}
    return Facts(
        manifest=manifest,
        manifest_is_damaged=damaged,
        stores=stores,
        drafts=tuple(_drafts(store, manifest)),
        damaged_hints=tuple(f"hints/{path.name}" for path in hints.files() if path.name not in whole),
        hints_ahead=tuple(sorted(ahead)),
        left_alone=left_alone(store) if manifest is None and not stores else None,
        furthest_hint=max(ahead.values(), default=NOTHING),
        has_wal=(store / f"{LOG_FILE}-wal").exists(),
        search_fault=await _search_fault(store, stores[truth]) if truth == "sqlite" else None,
    )


@dataclass(slots=True)
class RepairRun:
    """One repair of ``store``. What is removed, except a torn tail or a search index, is kept in ``aside``."""

    store: Path
    aside: Path | None = None

    async def carry_out(self, item: Item) -> None:
        """Carry out ``item``; repeating it changes nothing.

        Raises:
            StreamError, OSError: the repair failed; the fault remains.
        """
        match item.action:
            case "write manifest":
                assert item.manifest is not None
                await asyncio.to_thread(self._write_manifest, item.manifest, item.paths)
            case "open":
                # Opening the store cuts off the torn tail, keeps a copy of the tail in torn/, and writes the head file.
                manifest = read_manifest(self.store)
                await (await open_backend(self.store, "jsonl" if manifest is None else manifest.backend)).close()
            case "copy rows":
                await self._copy_rows()
            case "set aside":
                await asyncio.to_thread(self._set_aside, item.paths)
            case "delete":
                await asyncio.to_thread(self._delete, item.paths)
            case None:
                raise ValueError("there is nothing to do")

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
                f"the copy of {self.store / LOG_FILE} failed verification, so the original was left unchanged",
                "restore the store from a backup",
            )
        await asyncio.to_thread(self._replace_database, fresh)

    def _replace_database(self, fresh: Path) -> None:
        path = self.store / LOG_FILE
        # Link the old file under a second name before the rename, so that the log is never without a database.
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


def _log_of(manifest: Manifest | None, stores: dict[Backend, StoreFacts]) -> tuple[Backend | None, int]:
    if manifest is not None:
        found = stores.get(manifest.backend)
        return (None, NOTHING) if found is None else (manifest.backend, found.head)
    return max(((name, store.head) for name, store in stores.items()), key=lambda one: one[1], default=(None, NOTHING))


async def _verified(store: Path, backend: Backend, progress: Progress | None) -> StoreFacts:
    verification = Verification(store, backend=backend, alone=True)
    faults = [finding async for finding in verification.run(progress) if is_of_records(finding)]
    summary = verification.summary
    return StoreFacts(summary.head, summary.records, tuple(faults), summary.pruned)


async def _head(store: Path, backend: Backend) -> int:
    reader = SqliteReader(store, alone=True) if backend == "sqlite" else JsonlReader(store)
    try:
        return await asyncio.to_thread(lambda: reader.head)
    except (BadStore, OSError):
        return NOTHING
    finally:
        await reader.close()


async def _search_fault(store: Path, log: StoreFacts) -> SearchFault | None:
    fault = await asyncio.to_thread(search_fault, store, log.head)
    # An index beyond head is wrong only if the log is sound: a damaged log may reach it once restored from a backup.
    return None if fault == "ahead" and not (log.is_sound or log.only_indexes) else fault


def _drafts(store: Path, manifest: Manifest | None) -> list[str]:
    """Files that a killed process was about to rename, and SQLite's files whose database is gone.

    Excludes files that may belong to the log, because they may hold records that a restored database needs.
    """
    found = [path for path in (*store.glob("*.new"), *(store / "hints").glob("*.new")) if path.is_file()]
    for name in (LOG_FILE, SEARCH_FILE):
        is_needed = name == LOG_FILE and (manifest is None or manifest.backend == "sqlite")
        if not (store / name).exists() and not is_needed:
            found += [path for path in store.glob(f"{name}-*") if path.stat().st_size]
    return sorted(str(path.relative_to(store)) for path in found)
