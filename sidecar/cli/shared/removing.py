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


def other_copies(home: Home) -> list[str]:
    """Where else than in the home the records may be: a prune does not reach there."""
    from sidecar.config import load_config

    if load_config(home.config_path).nats.mode == "off":
        return []
    return [
        "The mirror holds what is pruned as long as its limits say: `durable-stream mirror rebuild` removes it there."
    ]


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
