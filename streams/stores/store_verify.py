"""Verifying what lies beside the records: ``store.json``, and hints that know more than the log does."""

from __future__ import annotations

from pathlib import Path

import orjson

from streams.errors import ForeignStore
from streams.findings import Finding
from streams.stores.directory import MANIFEST, NEWEST, read_manifest
from streams.stores.disk import read_file
from streams.stores.hints import Hints


def manifest_finding(store: Path, *, has_log: bool) -> Finding | None:
    """What is wrong with ``store.json``; ``has_log`` says whether the backend's files are there.

    Raises:
        ForeignStore: it was written by a newer version.
    """
    path = store / MANIFEST
    try:
        manifest = read_manifest(store)
    except ForeignStore as error:
        if is_newer(path):
            raise
        return Finding("corrupt", str(path), None, None, None, error.reason)
    if manifest is None and has_log:
        reason = "a log without it is not opened; `durable-stream repair` writes it anew if every record verifies"
        return Finding("missing", str(path), None, None, None, reason)
    if manifest is not None and not has_log:
        reason = f"it says that the log lies in {manifest.backend}, which is not there: restore the store from a backup"
        return Finding("missing", str(path), None, None, None, reason)
    return None


def is_newer(path: Path) -> bool:
    """Whether a manifest that cannot be used was written by a newer version."""
    try:
        found = orjson.loads(read_file(path))
    except orjson.JSONDecodeError:
        return False
    form = found.get("format") if isinstance(found, dict) else None
    return isinstance(form, int) and form > NEWEST


def lost_finding(store: Path, last: int) -> Finding | None:
    """Whether a cursor or snapshot stands after ``last``, the last record that is there: what it had read is lost.

    That tells of lost records which the log itself cannot tell of, such as those of a WAL that was deleted.
    """
    known, name = max(((hint.position, hint.name) for hint in Hints(store).known()), default=(last, ""))
    if known <= last:
        return None
    records = f"record {known} was" if known == last + 1 else f"records {last + 1} to {known} were"
    reason = f"{records} written and are lost: this was made when the log held them"
    return Finding("missing", str(store / "hints" / name), None, last + 1, None, reason)
