"""What ``prune`` and ``forget`` share: the flag, the counts in words, and where else the records are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import RUNS, note

if RUNS:
    from sidecar.home import Home

YesFlag = Annotated[
    bool, typer.Option("--yes", "-y", help="Apply the changes; without this option, only a preview is printed.")
]

SHOWN_STREAMS = 20

NOTHING_CHANGED = "Nothing was changed. Run it again with `--yes` to apply."


def other_copies(home: Home) -> list[str]:
    """The places outside the home that may also have the records. A prune does not reach these places."""
    from sidecar.config import load_config

    if load_config(home.config_path).nats.mode == "off":
        return []
    return [
        "The mirror keeps pruned records until it reaches its limits; `durable-stream mirror rebuild` removes them now."
    ]


def note_move(done: Mapping[str, Any]) -> None:
    """Report that the log migrated to sqlite before the removal."""
    if (backend := done.get("moved_from")) is not None:
        note(f"The log first migrated from {backend} to sqlite.")
