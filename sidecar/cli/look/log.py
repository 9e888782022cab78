"""``log``: what happened in a stream, or in all of them, oldest first."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.arguments import OptionalSession
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.filters import ActorsOption, SinceOption, TypesOption, UntilOption, filter_of
from sidecar.cli.shared.project import ProjectOption

if RUNS:
    from sidecar.cli.printing.headed import headed_lines
    from sidecar.cli.printing.output import Output
    from sidecar.cli.printing.records import Lines
    from sidecar.cli.shared.follow import follow
    from sidecar.cli.shared.project import named_project, newest_stream, waiting_lines
    from sidecar.read.find_by_id import (
        Family,
        SelectError,
        empty_text,
        family_of,
        find_session,
        first,
        moves_sessions,
        newest,
        pruned_text,
        records_of,
    )
    from streams.log.reader import LogReader
    from streams.query import Filter
    from streams.store import NOTHING

FOLLOWED_LAST = 10
"""How many of the existing records ``log --follow`` prints first if no stream is named."""


async def log(
    run: Run,
    stream: OptionalSession = None,
    from_offset: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="Start at this offset in the stream.")
    ] = 0,
    last: Annotated[
        int | None, typer.Option("--last", "-n", metavar="N", min=0, help="Only the newest N events.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep printing new records (without STREAM, of all streams) until Ctrl-C."),
    ] = False,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="POSITION", min=-1, help="Only what follows this position; -1: everything."),
    ] = None,
    types: TypesOption = None,
    actors: ActorsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    project: ProjectOption = None,
    only: Annotated[bool, typer.Option("--only", help="Leave out streams that were later joined to this one.")] = False,
) -> None:
    """Print what happened in a stream, oldest first.

    Includes and numbers child sessions. A session whose parent was unknown has its own stream, which joins its root's
    stream once the parent is known; such streams are included too. With a child session's id, prints only the records
    of that session and its descendants. With --follow but no STREAM, keeps printing new records of all streams,
    including new sessions. With --after but no STREAM, prints every record of all streams, in the order of their
    positions; whoever goes on after the last position that was printed (with --json) misses and repeats nothing.
    """
    out = run.out
    reader = run.reader
    wanted = await filter_of(reader, types=types, actors=actors, since=since, until=until)
    if stream is not None and project is not None:
        raise typer.BadParameter("give a stream or `--project`, not both")
    if after is not None and (from_offset or last is not None):
        raise typer.BadParameter("give `--after` without `--from` and `--last`")
    if after is not None and after > reader.head:
        raise typer.BadParameter(
            f"the newest record of this log has the position {reader.head}, so none follows {after}"
        )
    if stream is None and (follow or after is not None):
        if from_offset:
            raise typer.BadParameter("`--from` is an offset in one stream, so name the stream")
        most = 0 if after is not None else FOLLOWED_LAST if last is None else last
        await _follow_all(reader, out, wanted, most, project, after, stays=follow)
        return
    lines = Lines(out, is_past=not follow or last is not None)
    session = None
    if stream is None:
        stream = await newest_stream(reader, project)
    try:
        stream, session = await find_session(reader, stream)
    except SelectError as error:
        if not follow or error.code == "ambiguous":
            raise
        note(f"No stream matches {stream!r} yet. Waiting for the stream; press Ctrl-C to stop.")
    family = await family_of(reader, stream, only=only, session=session)
    gone = (await reader.removed()).get(stream)
    if gone is not None and (loss := pruned_text(stream, gone)) is not None:
        note(loss)
    if follow and last is None:
        await _follow(
            reader, family, lines, out, wanted, from_offset=from_offset, after=after, in_order=after is not None
        )
        return
    head = await _print(reader, family, lines, wanted, from_offset, last, NOTHING if after is None else after)
    if follow:
        out.flush()
        await _follow(reader, family, lines, out, wanted, after=head)
    elif not lines.printed and last != 0:
        fitting = "that matches" if from_offset == 0 else f"that matches at or after offset {from_offset}"
        run.nothing(f"Nothing to print: {stream} has no record {fitting}.")
    await _note_waiting(reader, out, family.streams)


async def _print(
    reader: LogReader, family: Family, lines: Lines, wanted: Filter, from_offset: int, last: int | None, after: int
) -> int:
    """Print the existing records; return the position up to which the log was read."""
    head = reader.head
    if from_offset:
        start = await first(reader.read(family.stream, from_offset=from_offset))
        after = head if start is None else start.position - 1
    if last is None:
        async for record in records_of(reader, family, up_to=head):
            lines.learn(record)
            if record.position > after and wanted.matches(record.event):
                lines.print(record, family.place_of(record))
        lines.print_running()
        return head
    records, _ = await newest(
        reader, family.filter(wanted), last, lambda record: record.position <= head and record in family, after=after
    )
    await lines.look_up(reader, *records)
    for record in records:
        lines.print(record, family.place_of(record))
    lines.print_running()
    return head


async def _note_waiting(reader: LogReader, out: Output, streams: set[str] | None) -> None:
    for line in await waiting_lines(reader, streams):
        if out.terminal:
            out.prose("", line, "bold yellow")
        else:
            note(line)


async def _follow(
    reader: LogReader,
    family: Family,
    lines: Lines,
    out: Output,
    wanted: Filter,
    *,
    from_offset: int = 0,
    after: int | None = None,
    in_order: bool = False,
) -> None:
    """``in_order``: never print a record after one with a higher position."""
    began = from_offset == 0
    async for record in follow(reader.store, after=NOTHING if after is None else after):
        joined = await family.follow(reader, record)
        lines.learn(record)
        began = began or (record.event.stream_id == family.stream and record.offset >= from_offset)
        if not began:
            continue
        for stream in () if in_order else joined:
            # Print the earlier records of a stream that has just joined, because they would otherwise never be shown.
            async for earlier in LogReader(reader.store).read(stream):
                lines.learn(earlier)
                if earlier.position < record.position and wanted.matches(earlier.event):
                    lines.print(earlier, family.place_of(earlier))
        if record in family and wanted.matches(record.event):
            lines.print(record, family.place_of(record))
            out.flush()


async def _follow_all(
    reader: LogReader,
    out: Output,
    wanted: Filter,
    last: int,
    project: str | None,
    after: int | None,
    *,
    stays: bool,
) -> None:
    """Print the newest records of all streams, or those after a position, then each new record if it ``stays``, with a
    heading wherever the session changes."""
    head = reader.head
    lines = await headed_lines(out, reader, wanted, named_project(project), everything=after is not None)
    if last:
        records, _ = await newest(
            reader, lines.filter(), last, lambda record: record.position <= head and lines.fits(record)
        )
        await lines.look_up(reader, *records)
        for record in records:
            await lines.print_headed(record)
    if after is not None and not stays:
        async for record in reader.read_all(after=after):
            if lines.fits(record):
                await lines.print_headed(record)
        return
    await lines.print_waiting()
    if head == NOTHING:
        note(f"{await empty_text(reader)}. Waiting for the first record.")
    which = "all sessions" if lines.project is None else f"the sessions in {lines.project.root}"
    note(f"Following {which}. Press Ctrl-C to stop.")
    out.flush()
    async for record in follow(reader.store, after=head if after is None else after):
        if record.position > head and moves_sessions(record):
            await lines.choose()
        lines.learn(record)
        if lines.fits(record):
            await lines.look_up(reader, record)
            await lines.print_headed(record, fresh=True)
            out.flush()
