"""What ``prune`` and ``forget`` share: the flag, the words, and where else the records are."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.command import RUNS

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
