"""``status``: whether all is well, on one screen."""

from __future__ import annotations

from sidecar.cli.shared.command import RUNS, Run

if RUNS:
    from sidecar.cli.shared.state import gather_status, print_status


async def status(run: Run) -> int:
    """Show on one screen whether all is well.

    Shows the sidecar, its links, the log, and what is waiting for you. Also works without a running sidecar.
    """
    out = run.out
    found = await gather_status(run.any_home)
    if out.json:
        out.object(found)
    else:
        print_status(out, found)
    return 1 if found["problems"] else 0
