"""``costs``: what sessions cost, by day, project, model, agent or session."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.filters import SinceOption, filter_of

if RUNS:
    from sidecar.background.reading import costs_of
    from sidecar.cli.printing.output import Column
    from sidecar.cli.shared.project import shown_directory
    from sidecar.read.find_by_id import catalog_of, empty_text
    from sidecar.read.wording import amount, money, plain_money


Way = Literal["day", "project", "model", "agent", "session"]
"""What costs are added up by."""


async def costs(
    run: Run,
    by: Annotated[Way, typer.Option("--by", help="What the costs are added up by.")] = "day",
    since: SinceOption = None,
) -> None:
    """Show what sessions cost.

    Each step counts once, on the day it ran, in the project and the session that it was done for: child sessions and
    background work count in the session that started them.
    """
    out, reader = run.out, run.reader
    found = await costs_of(reader, by, await filter_of(reader, since=since))
    sums = found.sums()
    if out.json:
        for each in sums:
            out.object({"by": by} | each.as_json())
    elif sums:
        catalog, _ = await catalog_of(reader)
        columns = [Column(name, right=True) for name in ("cost", "tokens", "steps", "sessions")] + [Column(by)]
        rows = []
        for each in sums:
            key, cost, numbers = each.key, plain_money(each.cost), [each.count, each.steps, len(each.roots)]
            if out.terminal:
                key = (shown_directory(key) if by == "project" else key) or "(not known)"
                cost = money(each.cost)
            rows.append([cost, *(amount(n) if out.terminal else str(n) for n in numbers), key])
            if by == "session":
                rows[-1].append(catalog.sessions[key].title if key in catalog.sessions else "")
        out.table(columns + [Column("title")] * (by == "session"), rows)
        if out.terminal and len(sums) > 1:
            total = found.total()
            out.text(f"together {money(total.cost)}, {amount(total.count)} tokens", "dim")
    if found.is_partial:
        note("Without the model calls with which OpenCode 2 makes titles and compactions.")
    if not sums:
        run.nothing(
            "No step was recorded in that time."
            if since and reader.head >= 0
            else f"No costs: {await empty_text(reader)}."
        )
