"""``reservations``: which session holds which paths of a project, on all machines that share them."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.command import RUNS, Run

if RUNS:
    from sidecar.cli.printing.output import Column
    from sidecar.cli.shared.control import control
    from sidecar.read.wording import local_time


async def reservations(
    run: Run,
    release: Annotated[
        str | None,
        typer.Option("--release", metavar="SESSION", help="Release all that a session holds; the beginning of its id."),
    ] = None,
) -> None:
    """List the paths that sessions have reserved, so that no other agent edits them, oldest first.

    Starts a sidecar if none is running. With [worker] log = "team", those of all machines.
    """
    out = run.out
    async with control(run.home, "run the same command again") as client:
        if release is not None:
            found = await client.request("reservation_release", {"session": release})
        else:
            found = await client.request("reservations", {})
    rows = found["reservations"]
    if out.json:
        for row in rows:
            out.object(row)
    elif release is not None:
        out.text(f"Released: {', '.join(row['path'] for row in rows)}")
    elif not rows:
        run.nothing("Nothing is reserved.")
    else:
        out.table(
            tuple(Column(name) for name in ("path", "until", "machine", "session", "title", "why", "project")),
            [
                (
                    row["path"],
                    local_time(row["until"], "%H:%M"),
                    *(row[name] or "-" for name in ("machine", "session", "title", "why", "project")),
                )
                for row in rows
            ],
        )
