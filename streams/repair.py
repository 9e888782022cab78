"""What ``repair`` does about each thing that can be wrong with a store, and what it leaves alone. Pure.

Only what is provably safe is done: nothing that was acknowledged is cut, and
what is taken away is kept in ``repaired/`` (a torn tail, as at every opening, in ``torn/``).

=============================================  ======================================================================
found                                          done, because
=============================================  ======================================================================
``store.json`` lost or damaged                 written anew, if every record verifies and it is clear which store is
                                               the truth: the only one, or the longer one, which begins as the other
an incomplete tail above head                  cut off: it was never acknowledged
a head file lost or damaged                    written anew, if every record verifies
sqlite's file damaged, every row whole         the rows copied into a new file, which is verified before it takes over
a copy that a migration did not finish         set aside, if its last record stands in the log as it does in the copy
drafts of files that were replaced by rename   set aside: what they were to replace is there, or is judged by itself
damaged cursors and snapshots                  set aside: they are hints, and may be lost
cursors and snapshots beyond the last record   set aside, and told: what they had read is lost
a search index damaged or ahead of the log     deleted: the sidecar makes it anew from the log
=============================================  ======================================================================

Anything else is told with the reason why nothing is done: a record at or
below head that is corrupt, tampered or missing was acknowledged, and only a backup
has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from streams.findings import Finding
from streams.store import NOTHING
from streams.stores.directory import MANIFEST, Backend, Kept, Manifest
from streams.stores.presence import LeftAlone

Action = Literal["write manifest", "open", "copy rows", "set aside", "delete"]

FILES: Final[dict[Backend, tuple[str, ...]]] = {
    "jsonl": ("log", "head"),
    "sqlite": ("sqlite-head", "log.db-shm", "log.db-wal", "log.db", "search.db-shm", "search.db-wal", "search.db"),
}
"""What a backend has in the store's directory, in the order in which it is set aside."""

HEAD_OF: Final[dict[Backend, str]] = {"jsonl": "head", "sqlite": "sqlite-head"}
HEAD_FILES: Final = frozenset(HEAD_OF.values())
SIDE_FILES: Final[dict[Backend, tuple[str, ...]]] = {"jsonl": (), "sqlite": ("log.db-wal", "sqlite-head")}
"""What must be moved away with a lost log, so that another one is taken."""

MOST_TOLD: Final = 20
"""Faults that are told one by one; ``verify`` tells them all."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One backend's store, verified: ``head`` is its last record, ``faults`` what was found in its own files."""

    head: int = NOTHING
    records: int = 0
    faults: tuple[Finding, ...] = ()
    pruned: int = 0

    @property
    def lost(self) -> tuple[Finding, ...]:
        """The faults that no repair can undo."""
        return tuple(fault for fault in self.faults if fault.kind != "torn" and not _is_head(fault))

    @property
    def is_sound(self) -> bool:
        """Whether every record below head verifies."""
        return not self.lost

    @property
    def only_indexes(self) -> bool:
        """Whether every row of a sqlite store verifies, and yet SQLite finds fault with the file."""
        whole = self.records > 0 and self.records + self.pruned == self.head + 1
        return whole and bool(self.lost) and all(fault.position is None for fault in self.lost)


@dataclass(frozen=True, slots=True)
class Facts:
    """What lies in a store's directory. File names are relative to it."""

    manifest: Manifest | None = None
    manifest_is_damaged: bool = False
    stores: dict[Backend, StoreFacts] = field(default_factory=dict)
    """Those of which something is there; only the truth is verified where ``store.json`` names it."""
    copies: frozenset[Backend] = frozenset()
    """Stores whose last record stands in the other one just as it does in them; an empty one counts."""
    drafts: tuple[str, ...] = ()
    damaged_hints: tuple[str, ...] = ()
    hints_ahead: tuple[str, ...] = ()
    furthest_hint: int = NOTHING
    last_known: int | None = None
    """The log's last record as its head file has it, which may be there without the log."""
    left_alone: LeftAlone | None = None
    """The head file of a log that is gone, ``store.json`` with it."""
    side_files: tuple[str, ...] = ()
    """Of what a backend has beside its log (``SIDE_FILES``), what lies there."""
    search_fault: Literal["damaged", "ahead"] | None = None
    """``ahead``: it has indexed records that the log does not hold."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was found. Where nothing is done, ``action`` is ``None``, and ``text`` says why and what to do.

    ``paths`` are what is set aside or deleted; ``manifest`` is what is written.
    """

    found: str
    action: Action | None
    text: str
    paths: tuple[str, ...] = ()
    manifest: Manifest | None = None

    def as_json(self) -> dict[str, Any]:
        """``{found, action, text, paths}``; ``action`` is null where nothing is done."""
        return {name: value for name, value in asdict(self).items() if name != "manifest"}


def decide(facts: Facts, *, log_id: str) -> list[Item]:
    """What to do, in the order in which to do it; nothing for a sound store. ``log_id`` is for a new ``store.json``."""
    manifest = facts.manifest
    items: list[Item] = []
    if manifest is None:
        items += _without_manifest(facts, log_id)
        manifest = next((item.manifest for item in items if item.manifest is not None), None)
    if manifest is not None:
        items += _truth(facts, manifest)
        items += _way_back(facts, manifest)
        items += _other(facts, manifest)
    items += _beside(facts)
    return items


def _without_manifest(facts: Facts, log_id: str) -> Iterator[Item]:
    with_records = {name: store for name, store in facts.stores.items() if store.head > NOTHING or store.faults}
    damaged = (MANIFEST,) if facts.manifest_is_damaged else ()
    found = f"{MANIFEST} is {'damaged' if damaged else 'missing'}"
    if not with_records:
        if damaged:
            yield Item(found, "set aside", "no records lie there: the next start begins a new log", damaged)
        elif facts.left_alone is not None:
            yield Item(facts.left_alone.reason, None, facts.left_alone.hint)
        return
    bad = sorted(name for name, store in with_records.items() if not store.is_sound)
    if bad:
        why = f"the records in {' and '.join(bad)} do not all verify (see below), so which log it was is not proved"
        yield Item(found, None, f"{why}: restore {MANIFEST}, or the whole store, from a backup")
        for name in bad:
            yield from _lost(with_records[name], facts, backend=name)
        return
    longest = max(with_records, key=lambda name: (with_records[name].head, name == "sqlite"))
    others = [name for name in with_records if name != longest]
    if any(name not in facts.copies for name in others):
        why = "two logs lie there, in jsonl and in sqlite, and neither begins as the other"
        yield Item(found, None, f"{why}: restore {MANIFEST} from a backup, or move the log that is not yours away")
        return
    kept = Kept(others[0], with_records[others[0]].head) if others else None
    which = f"the log lies in {longest}, where all {with_records[longest].records} records verify"
    older = f"; {others[0]} begins the same and is kept" if others else ""
    text = f"write it anew: {which}{older}; the log gets a new id"
    yield Item(found, "write manifest", text, damaged, Manifest(longest, log_id, kept))


def _truth(facts: Facts, manifest: Manifest) -> Iterator[Item]:
    store = facts.stores.get(manifest.backend)
    if store is None:
        yield _gone(facts, manifest)
        return
    if manifest.backend == "sqlite":
        if store.only_indexes:
            found = f"log.db: {_cut(store.lost[0].reason)}; every row verifies"
            yield Item(found, "copy rows", "copy the rows into a new file, verify that, and keep the old one aside")
        else:
            yield from _lost(store, facts, backend="sqlite")
    else:
        yield from _lost(store, facts)
    safe = store.is_sound
    for fault in store.faults:
        if fault.kind == "torn":
            why = f"it was never acknowledged: {'cut it off and keep it in torn/' if safe else 'it stays'}"
            if Path(fault.file).name == "log.db":  # a removal that was cut off
                why = "finish it" if safe else "it stays"
        elif _is_head(fault):
            why = "every record verifies: write it anew; records lost at the very end could not be noticed"
            why = why if safe else "it stays"
        else:
            continue
        rest = "" if safe else ", because the log is damaged below: restore that first"
        yield Item(_cut(str(fault)), "open" if safe else None, why + rest)


def _lost(store: StoreFacts, facts: Facts, *, backend: Backend = "jsonl") -> Iterator[Item]:
    why = {
        "corrupt": "it was acknowledged, so it is not cut: restore the file from a backup",
        "tampered": "what was written there cannot be known: restore the file from a backup, and ask who changed it",
        "missing": "only a backup has what is missing: restore the store from it",
    }
    for fault in store.lost[:MOST_TOLD]:
        text = why.get(fault.kind, "restore the store from a backup")
        if backend == "sqlite" and fault.kind == "missing" and fault.position == store.head + 1:
            copied = "copy log.db-wal, then " if "log.db-wal" in facts.side_files else ""
            text += f"; without one: {copied}move sqlite-head away, and the log goes on after {store.head}"
        yield Item(str(fault), None, text)
    if len(store.lost) > MOST_TOLD:
        yield Item(f"{len(store.lost) - MOST_TOLD} more faults", None, "`durable-stream verify` tells them all")


def _gone(facts: Facts, manifest: Manifest) -> Item:
    found = f"{MANIFEST} says that the log lies in {manifest.backend}, which is not there"
    text = "restore the store from a backup"
    for name, store in facts.stores.items():
        if store.head > NOTHING and (manifest.kept is None or manifest.kept.backend != name):
            until = f"up to position {store.head}; what was recorded after it is lost"
            text += f"; without one: move {MANIFEST} away and run this again, which takes the log in {name}, {until}"
    return Item(found, None, text)


def _way_back(facts: Facts, manifest: Manifest) -> Iterator[Item]:
    """The store that the log was moved from, where the log itself is lost. To take it is the user's choice.

    What was recorded since the move is in the log alone: a backup of that may still have it.
    """
    live, kept = facts.stores.get(manifest.backend), manifest.kept
    if kept is None or kept.backend not in facts.stores or (live is not None and (live.is_sound or live.only_indexes)):
        return
    old = facts.stores[kept.backend]
    found = f"{kept.backend}: the store that the log was moved from, kept as it was at position {kept.head}"
    if not old.is_sound or old.head < kept.head:
        yield Item(found, None, "it is damaged, too, so it does not help: restore the store from a backup")
        return
    beside = (name for name in SIDE_FILES[manifest.backend] if name in facts.side_files)
    files = (*(_shown(manifest.backend) if live is not None else ()), *beside)
    names = " and ".join(filter(None, (", ".join(files), MANIFEST)))
    text = f"it is whole, with {old.records} records. Without a backup: move {names} away and run this again, "
    text += (
        "which takes it (`migrate --rollback` needs the log itself); what was pruned or forgotten since is there again"
    )
    if facts.last_known is None or facts.last_known < old.head:
        text += f", and what was recorded after position {old.head} is lost"
    elif facts.last_known == old.head:
        text += f", and no record is lost: {HEAD_OF[manifest.backend]} knows of none after it"
    else:
        text += f", and the {facts.last_known - old.head} recorded after it, up to {facts.last_known}, are lost"
    yield Item(found, None, text)


def _other(facts: Facts, manifest: Manifest) -> Iterator[Item]:
    """The store that is not the truth: kept after a migration, or a copy that one did not finish."""
    truth = facts.stores.get(manifest.backend)
    for name, store in facts.stores.items():
        if name == manifest.backend or truth is None or (manifest.kept is not None and manifest.kept.backend == name):
            continue
        found = f"{name}: a store that {MANIFEST} does not name, with {store.head + 1} records"
        if name in facts.copies:
            text = "set it aside: a migration that was not finished left it, and the log holds all that it holds"
            yield Item(found, "set aside", text, FILES[name])
        elif truth.head > NOTHING or store.head > NOTHING:
            text = f"its records are not those of the log: if {MANIFEST} came from a backup, restore the whole store"
            yield Item(found, None, f"{text}; else move {' and '.join(_shown(name))} away by hand")


def _beside(facts: Facts) -> Iterator[Item]:
    if facts.drafts:
        text = "set aside: a process that was killed left it"
        yield from (Item(f"{draft}: a draft", "set aside", text, (draft,)) for draft in facts.drafts)
    for hint in facts.damaged_hints:
        yield Item(f"{hint}: damaged", "set aside", "set it aside: what it says is folded from the log again", (hint,))
    for hint in facts.hints_ahead:
        found = f"{hint}: made when the log was longer (up to position {facts.furthest_hint}) than what is left of it"
        text = "set it aside; records at the end of the log are lost: only a backup has them"
        yield Item(found, "set aside", text, (hint,))
    if facts.search_fault is not None:
        files = tuple(file for file in FILES["sqlite"] if file.startswith("search"))
        text = "delete it: the sidecar makes it anew, and until then a search reads the log"
        ahead = "the search index knows records that the log does not hold: the log was cut, or is an older copy"
        found = "the search index is damaged" if facts.search_fault == "damaged" else ahead
        yield Item(f"search.db: {found}", "delete", text, files)


def _shown(name: Backend) -> tuple[str, ...]:
    return ("log/", "head") if name == "jsonl" else ("log.db",)


def _is_head(fault: Finding) -> bool:
    return Path(fault.file).name in HEAD_FILES


def _cut(text: str) -> str:
    """A reason without its advice, which the item gives itself."""
    return text.split("; ")[0]
