"""``demo``: play, show and verify a recorded session in a temporary home."""

from __future__ import annotations

import typer

from sidecar.cli.shared.command import RUNS

if RUNS:
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.demo import demo as run


async def demo(context: typer.Context) -> int:
    """Play a recorded session in a temporary home, kill the sidecar halfway, and verify the log."""
    return await run(Output())
