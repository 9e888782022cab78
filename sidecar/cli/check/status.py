"""``status``: whether all is well, on one screen."""

from __future__ import annotations

import typer

from sidecar.cli.shared.command import RUNS, JsonFlag, named_home

if RUNS:
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.state import gather_status, print_status


async def status(context: typer.Context, json: JsonFlag = False) -> int:
    """Show on one screen whether all is well.

    Shows the sidecar, its links, the log, and what is waiting for you. Also works without a running sidecar.
    """
    out = Output(json)
    found = await gather_status(named_home(context))
    if json:
        out.object(found)
    else:
        print_status(out, found)
    return 1 if found["problems"] else 0
