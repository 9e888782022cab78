"""What ``status`` says about the log's backend: a running or failed migration, and the old store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streams.errors import StreamError
from streams.log.copies import kept_facts
from streams.log.presence import located


def at_rest(store: Path) -> dict[str, Any] | None:
    """What ``store.json`` says, in the form that a running sidecar reports; ``None`` if it cannot be read."""
    try:
        manifest = located(store)
    except (StreamError, OSError):
        return None  # the error is reported by the code that reads the log
    if manifest is None:
        return None
    left = kept_facts(store, manifest)
    return {
        "backend": manifest.backend,
        "kept": left,
        "running": False,
        "failed": None,
        "failed_code": None,
        "progress": None,
    }


def failure(migration: dict[str, Any] | None) -> str | None:
    """The note on a failed migration; the log continues in its old store."""
    if not migration or not migration["failed"]:
        return None
    to, stays, why = migration["progress"]["to"], migration["backend"], migration["failed"]
    return f"the migration to {to} failed, and the log continues in {stays}: {why}"


def rows(migration: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Names and values for the screen; empty for a log that never migrated."""
    if not migration:
        return []
    if migration["running"]:
        progress = migration["progress"]
        done, total = progress["copied"], progress["head"] + 1
        share = f", {100 * done // total} %" if total > 0 else ""
        return [("moving", f"to {progress['to']} while recording: {done} of {total} records copied{share}")]
    kept = migration["kept"]
    if kept is None:
        return []
    if not kept.get("there", True):
        gone = f"store.json names the old {kept['backend']} store, but it no longer exists"
        return [("kept", f"{gone}; `durable-stream migrate --discard-old` removes the entry")]
    text = f"the old {kept['backend']} store, up to position {kept['head']}"
    return [("kept", f"{text}; `durable-stream migrate --discard-old` deletes it")]
