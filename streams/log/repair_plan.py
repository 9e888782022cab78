"""Decides what ``repair`` does about each fault of a store, and what it leaves alone. Pure.

``repair`` does only what is provably safe: it removes nothing that was acknowledged, and keeps what it removes: a
torn tail in ``torn/``, as whenever a log is opened for writing, and everything else in ``repaired/``. Only a damaged
search index is deleted, because it can be rebuilt.

=============================================  ======================================================================
found                                          done, because
=============================================  ======================================================================
``store.json`` lost or damaged                 rewritten, if one store holds records and every record verifies
an incomplete tail above head                  cut off: it was never acknowledged
a head file lost or damaged                    rewritten, if every record verifies
sqlite's file damaged, every row whole         the rows copied into a new file, which is verified before it takes over
a copy that a migration did not finish         set aside, if the log verifies and is at least as long
drafts of files that were replaced by rename   set aside: the file to replace exists, or is a finding of its own
damaged cursors and snapshots                  set aside: they are hints, and may be lost
cursors and snapshots beyond the last record   set aside and reported: the records they read are lost
a search index damaged or ahead of the log     deleted: the sidecar rebuilds it from the log
=============================================  ======================================================================

``repair`` reports any other fault, with the reason for doing nothing: a corrupt, tampered or missing record at or below
head was acknowledged, and only a backup has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from streams.findings import Finding
from streams.log.presence import HEAD_FILES, LeftAlone
from streams.store import NOTHING
from streams.stores.directory import MANIFEST, Backend, Manifest

Action = Literal["write manifest", "open", "copy rows", "set aside", "delete"]

FILES: Final[dict[Backend, tuple[str, ...]]] = {
    "jsonl": ("log", "head"),
    "sqlite": ("sqlite-head", "log.db-shm", "log.db-wal", "log.db", "search.db-shm", "search.db-wal", "search.db"),
}
"""A backend's files in the store's directory, in the order in which ``repair`` sets them aside."""

MOST_TOLD: Final = 20
"""Maximum number of faults to list one by one; ``verify`` lists them all."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One verified store: ``head`` is the last position, ``faults`` are those of its own files."""

    head: int = NOTHING
    records: int = 0
    faults: tuple[Finding, ...] = ()
    pruned: int = 0

    @property
    def lost(self) -> tuple[Finding, ...]:
        return tuple(fault for fault in self.faults if fault.kind != "torn" and not _is_head(fault))

    @property
    def is_sound(self) -> bool:
        """True if every record below head passes verification."""
        return not self.lost

    @property
    def only_indexes(self) -> bool:
        """True if every row of a sqlite store passes verification, but SQLite finds faults in the file."""
        whole = self.records > 0 and self.records + self.pruned == self.head + 1
        return whole and bool(self.lost) and all(fault.position is None for fault in self.lost)


@dataclass(frozen=True, slots=True)
class Facts:
    """The contents of a store's directory. File names are relative to it."""

    manifest: Manifest | None = None
    manifest_is_damaged: bool = False
    stores: dict[Backend, StoreFacts] = field(default_factory=dict)
    drafts: tuple[str, ...] = ()
    damaged_hints: tuple[str, ...] = ()
    hints_ahead: tuple[str, ...] = ()
    furthest_hint: int = NOTHING
    left_alone: LeftAlone | None = None
    """The head file of a log whose other files are gone, ``store.json`` included."""
    has_wal: bool = False
    search_fault: Literal["damaged", "ahead"] | None = None
    """The search index's fault. ``ahead``: the index has records that the log does not hold."""


@dataclass(frozen=True, slots=True)
class Item:
    """One finding. If ``repair`` does nothing, ``action`` is ``None``, and ``text`` says why and what to do.

    ``paths`` are set aside or deleted; ``manifest`` is written.
    """

    found: str
    action: Action | None
    text: str
    paths: tuple[str, ...] = ()
    manifest: Manifest | None = None

    def as_json(self) -> dict[str, Any]:
        """``{found, action, text, paths}``; ``action`` is null if nothing is done."""
        return {name: value for name, value in asdict(self).items() if name != "manifest"}


def decide(facts: Facts, *, log_id: str) -> list[Item]:
    """List what to do, in order; empty for a sound store. ``log_id`` is for a new ``store.json``."""
    manifest = facts.manifest
    items: list[Item] = []
    if manifest is None:
        items += _without_manifest(facts, log_id)
        manifest = next((item.manifest for item in items if item.manifest is not None), None)
    if manifest is not None:
        items += _truth(facts, manifest)
        items += _other(facts, manifest)
    items += _beside(facts)
    return items


def _without_manifest(facts: Facts, log_id: str) -> Iterator[Item]:
    with_records = {name: store for name, store in facts.stores.items() if store.head > NOTHING or store.faults}
    damaged = (MANIFEST,) if facts.manifest_is_damaged else ()
    found = f"{MANIFEST} is {'damaged' if damaged else 'missing'}"
    if not with_records:
        if damaged:
            yield Item(
                found, "set aside", "there are no records, so the next start of the sidecar begins a new log", damaged
            )
        elif facts.left_alone is not None:
            yield Item(facts.left_alone.reason, None, facts.left_alone.hint)
        return
    bad = sorted(name for name, store in with_records.items() if not store.is_sound)
    if bad:
        why = (
            f"some records in {' and '.join(bad)} failed verification (see below), so it is uncertain which store "
            "is the log"
        )
        yield Item(found, None, f"{why}: restore {MANIFEST}, or the whole store, from a backup")
        for name in bad:
            yield from _lost(with_records[name], facts, backend=name)
        return
    if len(with_records) > 1:
        both = ", ".join(f"{name} up to position {store.head}" for name, store in sorted(with_records.items()))
        text = (
            f"there are two stores ({both}): restore {MANIFEST} from a backup, or move away the store that is not the "
            "log"
        )
        yield Item(found, None, f"{text} and run this command again")
        return
    [(name, store)] = with_records.items()
    text = (
        f"rewrite it: the log is in {name}, where all {store.records} records passed verification; the log gets a "
        "new id"
    )
    yield Item(found, "write manifest", text, damaged, Manifest(name, log_id))


def _truth(facts: Facts, manifest: Manifest) -> Iterator[Item]:
    store = facts.stores.get(manifest.backend)
    if store is None:
        yield _gone(manifest)
        return
    if manifest.backend == "sqlite":
        if store.only_indexes:
            found = f"log.db: {store.lost[0].reason.partition('; ')[0]}; every row passed verification"
            yield Item(found, "copy rows", "copy the rows into a new file, verify that file, and set the old one aside")
        else:
            yield from _lost(store, facts, backend="sqlite")
    else:
        yield from _lost(store, facts)
    safe = store.is_sound
    for fault in store.faults:
        if fault.kind == "torn":
            why = f"it was never acknowledged: {'cut it off and keep it in torn/' if safe else 'it stays'}"
            if Path(fault.file).name == "log.db":  # the fault in ``log.db`` is a removal that was interrupted
                why = "finish it" if safe else "it stays"
        elif _is_head(fault):
            why = "every record passed verification: rewrite it; a loss of records at the very end would go unnoticed"
            why = why if safe else "it stays"
        else:
            continue
        rest = "" if safe else ", because the log is damaged (see below): restore the log first"
        yield Item(str(fault).split("; ")[0], "open" if safe else None, why + rest)


def _lost(store: StoreFacts, facts: Facts, *, backend: Backend = "jsonl") -> Iterator[Item]:
    why = {
        "corrupt": "it was acknowledged, so it is not cut off: restore the file from a backup",
        "tampered": "the original content is unknown: restore the file from a backup, and find out who changed it",
        "missing": "only a backup has the missing records: restore the store from one",
    }
    for fault in store.lost[:MOST_TOLD]:
        text = why.get(fault.kind, "restore the store from a backup")
        if backend == "sqlite" and fault.kind == "missing" and fault.position == store.head + 1:
            copied = "copy log.db-wal, then " if facts.has_wal else ""
            text += (
                f"; without a backup: {copied}move sqlite-head away, and the log continues after position {store.head}"
            )
        yield Item(str(fault), None, text)
    if len(store.lost) > MOST_TOLD:
        yield Item(f"{len(store.lost) - MOST_TOLD} more faults", None, "`durable-stream verify` lists them all")


def _gone(manifest: Manifest) -> Item:
    found = f"{MANIFEST} says that the log is in {manifest.backend}, but that log is missing"
    return Item(found, None, "restore the store from a backup")


def _other(facts: Facts, manifest: Manifest) -> Iterator[Item]:
    """The findings about a store that a migration left behind, or that it had not finished."""
    truth = facts.stores.get(manifest.backend)
    is_lost = truth is None or not (truth.is_sound or truth.only_indexes)
    for name, store in facts.stores.items():
        if name == manifest.backend:
            continue
        is_kept = manifest.kept is not None and manifest.kept.backend == name
        what = "left behind by the last migration" if is_kept else f"not named in {MANIFEST}"
        found = f"{name}: a store {what}, up to position {store.head}"
        if is_lost and store.head > NOTHING:
            files = " and ".join((*_shown(manifest.backend), MANIFEST))
            text = (
                f"without a backup, move {files} away and run this command again, which then uses this store if all "
                "of its records pass verification; "
            )
            yield Item(
                found,
                None,
                f"{text}what was recorded, pruned or forgotten since the migration is unknown to this store",
            )
        elif is_kept or truth is None or truth.head == store.head == NOTHING:
            continue
        elif store.head <= truth.head and not is_lost:
            text = "set it aside: an unfinished migration left it behind, and the log is intact"
            yield Item(found, "set aside", text, FILES[name])
        else:
            text = f"this store is longer than the log: if {MANIFEST} came from a backup, restore the whole store"
            yield Item(found, None, f"{text}; otherwise move {' and '.join(_shown(name))} away by hand")


def _beside(facts: Facts) -> Iterator[Item]:
    if facts.drafts:
        text = "set it aside: a killed process left it behind"
        yield from (Item(f"{draft}: a draft", "set aside", text, (draft,)) for draft in facts.drafts)
    for hint in facts.damaged_hints:
        yield Item(f"{hint}: damaged", "set aside", "set it aside: its content is rebuilt from the log", (hint,))
    for hint in facts.hints_ahead:
        found = f"{hint}: made when the log was longer than it is now (up to position {facts.furthest_hint})"
        text = "set it aside; records at the end of the log are lost, and only a backup has them"
        yield Item(found, "set aside", text, (hint,))
    if facts.search_fault is not None:
        files = tuple(file for file in FILES["sqlite"] if file.startswith("search"))
        text = "delete it: the sidecar rebuilds it; until then, searches read the log"
        ahead = "the search index has records that the log lacks: the log was cut, or is an older copy"
        found = "the search index is damaged" if facts.search_fault == "damaged" else ahead
        yield Item(f"search.db: {found}", "delete", text, files)


def _shown(name: Backend) -> tuple[str, ...]:
    return ("log/", "head") if name == "jsonl" else ("log.db", "log.db-wal", "sqlite-head")


def _is_head(fault: Finding) -> bool:
    return Path(fault.file).name in HEAD_FILES
