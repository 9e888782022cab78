"""``query``: finds the matching events in all streams."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.arguments import streams_option
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.filters import ActorsOption, SinceOption, TypesOption, UntilOption, filter_of
from sidecar.cli.shared.project import ProjectOption

if RUNS:
    from sidecar.cli.printing.records import Lines
    from sidecar.cli.shared.project import NOTHING_THERE, project_streams
    from sidecar.read.find_by_id import catalog_of, empty_text, find_stream, newest
    from sidecar.read.kinds import repeats
    from streams.query import Filter
    from streams.store import Record
    from streams.trace import parse_traceparent


async def query(
    run: Run,
    words: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The same as --text TEXT.")] = None,
    types: TypesOption = None,
    actors: ActorsOption = None,
    streams: Annotated[list[str] | None, streams_option("Only this stream; repeatable.")] = None,
    project: ProjectOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only events with this text in a payload value (case-insensitive)."),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="TRACE", help="Only events of this trace: its id (32 hex digits) or a traceparent."),
    ] = None,
    internal: Annotated[
        bool,
        typer.Option("--internal", help="With a text: also search the records of the agents, `agent/NAME`."),
    ] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the newest N matches.")] = None,
) -> None:
    """Find events in all streams, oldest first.

    A text is searched in what people, models and tools said and did. The agents' own records, and those that only say
    that a call started, repeat that, so they are searched only with --internal, or if --stream names their stream.
    """
    if words is not None and text is not None:
        raise typer.BadParameter("give the text once: as TEXT or with --text")
    text = words if text is None else text
    trace_id = None if trace is None else _trace_id(trace)
    reader = run.reader
    chosen = {await find_stream(reader, stream) for stream in streams or ()}
    if project is not None and (inside := project_streams((await catalog_of(reader))[0], project)) is not None:
        chosen = chosen & inside if streams else inside
        if not chosen:
            run.nothing(NOTHING_THERE.format(project))
            return
    about = {"streams": tuple(sorted(chosen)), "text": text, "trace_id": trace_id}
    wanted = await filter_of(reader, types=types, actors=actors, since=since, until=until, **about)
    lines = Lines(run.out, with_stream=True, found=text)
    hidden = 0

    def fits(record: Record) -> bool:
        nonlocal hidden
        is_hidden = text is not None and not internal and not streams and repeats(record.event)
        hidden += is_hidden
        return not is_hidden

    is_all = wanted == Filter(streams=wanted.streams)
    if limit is None:
        async for record in reader.query(wanted):
            if not fits(record):
                continue
            # If every record is printed, the ones that this record refers to were already printed.
            if not is_all:
                await lines.look_up(reader, record)
            lines.print(record)
    else:
        known, _ = await newest(reader, wanted, limit, fits)
        await lines.look_up(reader, *known)
        for record in known:
            lines.print(record)
    if hidden:
        note(f"{hidden} more in records that repeat others; `--internal` shows them.")
    if not lines.printed:
        run.nothing("No event matches." if reader.head >= 0 else f"The log is empty: {await empty_text(reader)}.")


def _trace_id(given: str) -> str:
    """The trace id in ``given``, which is a trace id or a traceparent.

    Raises:
        BadParameter: ``given`` is neither a trace id nor a traceparent.
    """
    text = given.strip().lower()
    found = parse_traceparent(text if "-" in text else f"00-{text}-{'1' * 16}-01")
    if found is None:
        raise typer.BadParameter(f"{given!r} is neither a trace id of 32 hex digits nor a traceparent")
    return found.trace_id
