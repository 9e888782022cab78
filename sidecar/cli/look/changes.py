"""``changes``: the files that agents changed, and who approved what."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.arguments import OptionalFamily, limit_option
from sidecar.cli.shared.command import RUNS, Run
from sidecar.cli.shared.filters import SinceOption, UntilOption, filter_of
from sidecar.cli.shared.project import NOTHING_THERE, ProjectOption, project_or_here

if RUNS:
    from collections.abc import AsyncIterator

    from sidecar.cli.printing.changes_text import print_diffs, print_on_terminal, print_rows
    from sidecar.read.catalog import Catalog
    from sidecar.read.changes.changes import TYPES, Changes
    from sidecar.read.select import catalog_of, empty_text, family_of, find_session, records_of
    from streams.log.reader import LogReader
    from streams.query import Filter
    from streams.store import Record


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
    found = Changes(wanted, with_diffs=diff)
    async for record in await _records(reader, catalog, stream, wanted, chosen):
        found.apply(record)
    turns = found.turns()[-limit if limit else 0 :]
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


async def _records(
    reader: LogReader, catalog: Catalog, stream: str | None, wanted: Filter, chosen: set[str] | None
) -> AsyncIterator[Record]:
    """Yield the records to fold: the records of ``stream``, or of all ``chosen`` streams with records in the wanted
    period.
    """
    if stream is not None:
        stream, session = await find_session(reader, stream)
        return records_of(reader, await family_of(reader, stream, session=session))
    if wanted.since_ms is None and chosen is None:
        return reader.query(Filter(types=TYPES))
    # A turn may have begun before --since, so read each stream with later records from its beginning.
    later = tuple(
        each.id
        for each in catalog.streams.values()
        if each.last_ts >= (wanted.since_ms or 0) and (chosen is None or each.id in chosen)
    )
    return reader.query(Filter(types=TYPES, streams=later or ("",)))
