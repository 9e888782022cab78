"""``demo``: a recorded session is played, shown and verified in a home of its own."""

from __future__ import annotations

import typer


async def demo(context: typer.Context) -> int:
    """Play a recorded session in a temporary home, kill the sidecar halfway, and verify the log."""
    from sidecar.cli.shared.demo import demo as run
    from sidecar.cli.shared.output import Output

    return await run(Output())
