"""``changes``: the files that agents changed, and who approved what."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.arguments import OptionalFamily, limit_option
from sidecar.cli.shared.command import RUNS, Run
from sidecar.cli.shared.filters import SinceOption, UntilOption, filter_of
from sidecar.cli.shared.project import NOTHING_THERE, ProjectOption, project_or_here

if RUNS:
    from sidecar.cli.printing.changes_text import print_diffs, print_on_terminal, print_rows
    from sidecar.read.find_by_id import catalog_of, empty_text
    from sidecar.read.story.changes import Changes
    from sidecar.read.story.moment import Moment
    from sidecar.read.story.past import named
    from sidecar.read.story.reading import ask


async def changes(
    run: Run,
    stream: OptionalFamily = None,
    since: SinceOption = None,
    until: UntilOption = None,
    project: ProjectOption = None,
    limit: Annotated[int | None, limit_option("turns")] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Also print the diffs; in a pipe, print only the diffs.")
    ] = False,
) -> None:
    """Show the files that agents changed, and who approved what.

    Groups the changes by session and turn. Also lists the commands that a person approved or rejected, but not the
    files that those commands changed, which are unknown.
    """
    if stream is not None and project is not None:
        raise typer.BadParameter("give a stream or `--project`, not both")
    out, reader = run.out, run.reader
    catalog, _ = await catalog_of(reader)
    wanted = await filter_of(reader, since=since, until=until)
    chosen = project_or_here(catalog, project, stream)
    if stream is not None:
        _, family = await named(reader, stream)
        streams, only = family.streams, family.session
    else:
        streams, only = {*catalog.streams} if chosen is None else chosen, None
    turns = await ask(
        reader,
        lambda story: Changes(Moment(story, streams, story.head, only), wanted=wanted).turns(limit, with_diffs=diff),
    )
    if out.json:
        for turn in turns:
            session = catalog.sessions.get(turn.session)
            title = session.title if session is not None else ""
            out.object(turn.as_json() | {"title": title, "directory": catalog.directory(turn.stream)})
    elif out.terminal:
        print_on_terminal(out, catalog, turns, with_diffs=diff)
    elif diff:
        print_diffs(out, turns)
    else:
        print_rows(out, turns)
    if not turns:
        when = "" if since is None and until is None else " in that time"
        nothing = (
            NOTHING_THERE.format(project) if not chosen and chosen is not None else f"No agent changed a file{when}."
        )
        run.nothing(nothing if reader.head >= 0 else f"The log is empty: {await empty_text(reader)}.")
