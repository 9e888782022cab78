"""What ``prune`` and ``forget`` share: the flag, the counts in words, and where else the records are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.shared.command import note

if TYPE_CHECKING:
    from sidecar.home import Home

YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Apply it; without it you get a preview.")]

SHOWN_STREAMS = 20

NOTHING_CHANGED = "Nothing was changed. Run it again with `--yes` to apply."


def kept_store(home: Home) -> str | None:
    """The store that the last move left, in words; ``None`` where nothing of it can hold payloads (any more)."""
    from streams.log.copies import holds_payloads
    from streams.log.directory import read_manifest

    manifest = read_manifest(home.store_path)
    if manifest is None or manifest.kept is None or not holds_payloads(home.store_path, manifest.kept.backend):
        return None
    return f"the old {manifest.kept.backend} store that the last move left"


def other_copies(home: Home) -> list[str]:
    """Where else than in the log its records may be: a prune does not reach there."""
    from sidecar.config import load_config

    found = []
    if (kept := kept_store(home)) is not None:
        told = f"{kept[0].upper()}{kept[1:]} still holds what was pruned since"
        found.append(f"{told}: `durable-stream migrate --discard-old` deletes it.")
    if load_config(home.config_path).nats.mode != "off":
        found.append(
            "The mirror holds what is pruned as long as its limits say: "
            "`durable-stream mirror rebuild` removes it there."
        )
    return found


def note_move(done: Mapping[str, Any]) -> None:
    """Say so where the log moved to sqlite before something was removed from it."""
    if (backend := done.get("moved_from")) is not None:
        note(f"The log moved from {backend} to sqlite first.")


def records_text(count: int) -> str:
    """How many records, in words."""
    return "1 record" if count == 1 else f"{count} records"


def streams_text(count: int) -> str:
    """How many streams, in words."""
    return "1 stream" if count == 1 else f"{count} streams"
