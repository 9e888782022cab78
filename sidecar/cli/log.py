"""``log``: what happened in a stream, oldest first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.command import JsonFlag, home_of, note

if TYPE_CHECKING:
    from sidecar.cli.shared.output import Output
    from sidecar.cli.shared.records import Lines
    from sidecar.views.select import Family


async def log(
    context: typer.Context,
    stream: Annotated[
        str | None,
        typer.Argument(
            metavar="[STREAM]",
            help="A stream's or child session's id, or its unique beginning or end; without it the newest stream.",
            autocompletion=complete.sessions,
        ),
    ] = None,
    from_offset: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="Begin at this offset of the stream.")
    ] = 0,
    last: Annotated[int | None, typer.Option("--last", "-n", metavar="N", min=0, help="Only the newest N.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new records until Ctrl-C.")] = False,
    only: Annotated[bool, typer.Option("--only", help="Leave out streams that were joined to this one later.")] = False,
    json: JsonFlag = False,
) -> None:
    """Print what happened in a stream, oldest first.

    Child sessions are included and numbered, as are streams that were joined to this one later.
    Of a child session's id, only what it and those below it did.
    """
    from sidecar.cli.shared.output import Output
    from sidecar.cli.shared.records import Lines
    from sidecar.views.select import (
        Ambiguous,
        SelectError,
        family_of,
        find_session,
        first,
        newest,
        newest_stream,
        open_reader,
        pruned_text,
        records_of,
    )
    from streams.store import NOTHING

    out = Output(json)
    lines = Lines(out)
    store = home_of(context).store_path
    reader = open_reader(store)
    session = None
    if stream is None:
        stream = await newest_stream(reader)
        note(f"The newest stream is {stream}.")
    try:
        stream, session = await find_session(reader, stream)
    except Ambiguous:
        raise
    except SelectError:
        if not follow:
            raise
        note(f"There is no stream {stream!r} yet: waiting for it. End with Ctrl-C.")
    family = await family_of(reader, stream, only=only, session=session)
    gone = (await reader.removed()).get(stream)
    if gone is not None and (told := pruned_text(stream, gone)) is not None:
        note(told)
    if follow and last is None:
        await _follow(store, family, lines, out, from_offset=from_offset)
        return
    after = NOTHING
    head = reader.head
    if from_offset:
        start = await first(reader.read(stream, from_offset=from_offset))
        after = head if start is None else start.position - 1
    records = records_of(reader, family, after=after, up_to=head)
    if last is None:
        async for record in records:
            lines.print(record, family.depth(record), family.place(record))
    else:
        kept, fault = await newest(records, last)
        for record in kept:
            lines.print(record, family.depth(record), family.place(record))
        if fault is not None:
            raise fault
    if follow:
        out.flush()
        await _follow(store, family, lines, out, after=head)
    elif not lines.printed and last != 0:
        note(f"Nothing to print: {stream} has no record at or after offset {from_offset}.")


async def _follow(
    store: Path, family: Family, lines: Lines, out: Output, *, from_offset: int = 0, after: int | None = None
) -> None:
    from sidecar.cli.shared.follow import follow
    from streams.log.reader import LogReader
    from streams.store import NOTHING

    began = from_offset == 0
    async for record in follow(store, after=NOTHING if after is None else after):
        joined = family.apply(record)
        began = began or (record.event.stream_id == family.stream and record.offset >= from_offset)
        if not began:
            continue
        for stream in joined:
            # What a stream held before it was joined would otherwise never be told.
            async for earlier in LogReader(store).read(stream):
                if earlier.position < record.position:
                    lines.print(earlier, family.depth(earlier), family.place(earlier))
        if record in family:
            lines.print(record, family.depth(record), family.place(record))
            out.flush()
