"""Verify ``store.json``, which names the log."""

from __future__ import annotations

from pathlib import Path

import orjson

from streams.errors import ForeignStore
from streams.findings import Finding
from streams.log.completeness import RESTORE, left_files
from streams.stores.directory import FORMAT, MANIFEST, read_manifest
from streams.system.files import read_file


def manifest_finding(store: Path, *, has_log: bool) -> Finding | None:
    """What is wrong with ``store.json``; ``has_log`` says whether the database exists.

    Raises:
        ForeignStore: a newer or older version or another program wrote it.
    """
    path = store / MANIFEST
    try:
        manifest = read_manifest(store)
    except ForeignStore as error:
        if error.is_not_ours or is_of_another_format(path):
            raise
        return Finding("corrupt", str(path), None, None, None, error.reason)
    if manifest is None and (left := left_files(store)):
        reason = f"{', '.join(left)} is left of a log that cannot be opened without this file: {RESTORE}"
        return Finding("missing", str(path), None, None, None, reason)
    if manifest is not None and not has_log:
        return Finding("missing", str(path), None, None, None, f"it names a log whose database is missing: {RESTORE}")
    return None


def is_of_another_format(path: Path) -> bool:
    try:
        found = orjson.loads(read_file(path))
    except orjson.JSONDecodeError:
        return False
    form = found.get("format") if isinstance(found, dict) else None
    return isinstance(form, int) and form != FORMAT
