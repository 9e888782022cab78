"""Commands that read records: ``log``, ``show``, ``query``, ``why``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.command import Ambiguous, Failure, JsonFlag, home_of, note

if TYPE_CHECKING:
    from sidecar.cli.shared.output import Output
    from sidecar.cli.shared.records import Lines
    from sidecar.views.select import Family
    from streams.log.reader import LogReader
    from streams.store import Record

StreamArgument = Annotated[
    str,
    typer.Argument(
        metavar="STREAM", help="A stream's id, or its unique beginning or end.", autocompletion=complete.streams
    ),
]
EventArgument = Annotated[
    str,
    typer.Argument(
        metavar="EVENT", help="An event's id, or its unique beginning or end.", autocompletion=complete.events
    ),
]


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
    except Failure:
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


async def show(context: typer.Context, event: EventArgument, json: JsonFlag = False) -> None:
    """Print one event whole, with its cause and effects."""
    from sidecar.cli.shared.output import Output, iso_time, local_time
    from sidecar.cli.shared.records import headline, outline
    from sidecar.views.select import find_event, open_reader
    from streams.query import Filter

    out = Output(json)
    reader = open_reader(home_of(context).store_path)
    record = await find_event(reader, event)
    if json:
        out.object(record.as_json())
        return
    shown = record.event
    cause = await reader.find_event(shown.causation_id) if shown.causation_id else None
    effects = [effect async for effect in reader.query(Filter(causation_id=shown.id))]
    out.text(f"{shown.type}  {shown.id}", "bold")
    facts = [
        ("time", f"{local_time(shown.ts)} ({iso_time(shown.ts)})"),
        ("actor", f"{shown.actor} (through {shown.source.adapter})"),
        ("place", f"offset {record.offset} of {shown.stream_id}, position {record.position}"),
        ("hash", record.hash),
        ("key", shown.idempotency_key),
        ("trace", shown.traceparent or "-"),
        ("belongs to", shown.correlation_id or "-"),
        ("cause", f"{cause.event.id}  {headline(cause)}" if cause else _no_cause(record)),
        *(("effect", f"{effect.event.id}  {headline(effect)}") for effect in effects),
    ]
    for name, value in facts:
        out.prose(f"  {name:11}", " ".join(value.splitlines()))
    for name, content in (("payload", shown.payload), ("metadata", shown.metadata)):
        out.text(name, "bold")
        for line in outline(content, "  "):
            out.text(line)


def _no_cause(record: Record) -> str:
    if record.event.causation_id:
        return f"{record.event.causation_id}, which is not in this log"
    return "none: it begins a chain" if _begins_a_chain(record) else "unknown"


def _begins_a_chain(record: Record) -> bool:
    """Whether nothing in the log could have caused it: a person's input, a root session, what a link says of itself."""
    event = record.event
    if event.type.startswith("lifecycle.session."):
        return not event.payload.get("parent")
    return event.type in ("human.input", "lineage.linked", "capture.gap", "opencode.unreadable")


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
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Found in the payload, whatever its case.")] = None,
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


async def why(context: typer.Context, event: EventArgument, json: JsonFlag = False) -> None:
    """Print what led to an event, oldest first.

    Its cause, that one's cause, and so on, to the input that began it.
    """
    from sidecar.cli.shared.output import Output
    from sidecar.cli.shared.records import Lines
    from sidecar.views.select import find_event, open_reader

    out = Output(json)
    reader = open_reader(home_of(context).store_path)
    chain = await causes(reader, await find_event(reader, event))
    first = chain[0]
    if not json and (first.event.causation_id or not _begins_a_chain(first)):
        out.text(f"(the cause of {first.event.id}: {_no_cause(first)})", "yellow")
    lines = Lines(out)
    for depth, record in enumerate(chain):
        lines.print(record, depth)


async def causes(reader: LogReader, record: Record) -> list[Record]:
    """``record`` and what led to it, oldest first; ends where a cause is unknown or not in this log.

    Without an index: most causes stand in the effect's own stream, so that is read as a whole, once for the
    links and once for the records, instead of the log once for each cause.
    """
    chain = [record]
    seen = {record.event.id}
    while True:
        if reader.is_indexed:
            cause = chain[-1].event.causation_id
            above = await reader.find_event(cause) if cause is not None and cause not in seen else None
            if above is None:
                return chain[::-1]
            seen.add(above.event.id)
            chain.append(above)
            continue
        stream = chain[-1].event.stream_id
        links = {r.event.id: r.event.causation_id async for r in reader.read(stream)}
        wanted: list[str] = []
        cause = chain[-1].event.causation_id
        while cause in links and cause not in seen:
            wanted.append(cause)
            seen.add(cause)
            cause = links[cause]
        found = {r.event.id: r async for r in reader.read(stream) if r.event.id in seen} if wanted else {}
        chain += [found[identifier] for identifier in wanted]
        elsewhere = await reader.find_event(cause) if cause is not None and cause not in seen else None
        if elsewhere is None:
            return chain[::-1]
        seen.add(elsewhere.event.id)
        chain.append(elsewhere)
