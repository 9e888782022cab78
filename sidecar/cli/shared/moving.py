"""What ``status`` says of the log's backend: a running move, a failed one, and the store that a move left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streams.errors import StreamError
from streams.log.copies import kept_facts
from streams.log.presence import located


def at_rest(store: Path) -> dict[str, Any] | None:
    """What ``store.json`` says, in the form in which a running sidecar tells it; ``None`` where it cannot be said."""
    try:
        manifest = located(store)
    except (StreamError, OSError):
        return None  # which is reported where the log is read
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
    """The note on a move that failed; the log continues where it was."""
    if not migration or not migration["failed"]:
        return None
    to, stays, why = migration["progress"]["to"], migration["backend"], migration["failed"]
    return f"the log was not moved to {to} and continues in {stays}: {why}"


def rows(migration: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Names and values for the screen; none for a log that never moved."""
    if not migration:
        return []
    if migration["running"]:
        progress = migration["progress"]
        done, total = progress["copied"], progress["head"] + 1
        share = f", {100 * done // total} %" if total > 0 else ""
        return [("moving", f"to {progress['to']} while it records: {done} of {total} records copied{share}")]
    kept = migration["kept"]
    if kept is None:
        return []
    if not kept.get("there", True):
        gone = f"store.json names the old {kept['backend']} store, but it is not there any more"
        return [("kept", f"{gone}; `durable-stream migrate --discard-old` ends that")]
    text = f"the old {kept['backend']} store, up to position {kept['head']}"
    return [("kept", f"{text}; `durable-stream migrate --discard-old` deletes it")]
