"""``query``: events of all streams that fit."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.command import JsonFlag, home_of, note


async def query(
    context: typer.Context,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Event type, or agent.* for all below; repeatable.",
            autocompletion=complete.types,
        ),
    ] = None,
    actors: Annotated[
        list[str] | None,
        typer.Option(
            "--actor", metavar="NAME", help="Who did it: user, build, …; repeatable.", autocompletion=complete.actors
        ),
    ] = None,
    streams: Annotated[
        list[str] | None,
        typer.Option(
            "--stream", metavar="STREAM", help="Only this stream; repeatable.", autocompletion=complete.streams
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="From then on: 90s, 2h, 7d ago, or an ISO time.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="Before then.")] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Text in the payload; case does not matter.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the newest N of what is found.")] = None,
    json: JsonFlag = False,
) -> None:
    """Find events in all streams, oldest first."""
    from sidecar.cli.shared.output import Output
    from sidecar.cli.shared.records import Lines
    from sidecar.views.select import EMPTY_HINT, find_stream, newest, open_reader
    from streams.identity import system_identity
    from streams.query import Filter, parse_moment

    now = system_identity().now_ms()
    try:
        since_ms = parse_moment(since, now) if since else None
        until_ms = parse_moment(until, now) if until else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    reader = open_reader(home_of(context).store_path)
    wanted = Filter(
        types=tuple(types or ()),
        streams=tuple([await find_stream(reader, stream) for stream in streams or ()]),
        actors=tuple(actors or ()),
        since_ms=since_ms,
        until_ms=until_ms,
        text=text,
    )
    lines = Lines(Output(json), with_stream=True)
    if limit is None:
        async for record in reader.query(wanted):
            lines.print(record)
    else:
        known, fault = await reader.newest(wanted, limit), None
        if known is None:
            known, fault = await newest(reader.query(wanted), limit)
        kept = known
        for record in kept:
            lines.print(record)
        if fault is not None:
            raise fault
    if not lines.printed:
        note("No event fits." if reader.head >= 0 else f"The log is empty: {EMPTY_HINT}.")
