"""Commands that read records: ``log``, ``show``, ``query``, ``why``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.command import Failure, JsonFlag, complain, home_of

if TYPE_CHECKING:
    from sidecar.cli.output import Output
    from sidecar.cli.records import Lines
    from sidecar.cli.select import Family
    from streams.store import Record
    from streams.stores.jsonl_reader import JsonlReader

StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="A stream's id, or its unique beginning or end.")]
EventArgument = Annotated[str, typer.Argument(metavar="EVENT", help="An event's id, or its unique beginning or end.")]


async def log(
    context: typer.Context,
    stream: StreamArgument,
    from_offset: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="Begin at this offset of the stream.")
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new records until Ctrl-C.")] = False,
    only: Annotated[bool, typer.Option("--only", help="Leave out streams that were joined to this one later.")] = False,
    json: JsonFlag = False,
) -> None:
    """Print what happened in a stream, oldest first.

    Child sessions are included, and streams that were joined to this one later.
    """
    from sidecar.cli.output import Output
    from sidecar.cli.records import Lines
    from sidecar.cli.select import family_of, find_stream, first, open_reader, records_of
    from streams.store import NOTHING

    out = Output(json)
    lines = Lines(out)
    store = home_of(context).store_path
    reader = open_reader(store)
    try:
        stream = await find_stream(reader, stream)
    except Failure:
        if not follow:
            raise
        complain(f"there is no stream {stream!r} yet: waiting for it; end with Ctrl-C")
    family = await family_of(reader, stream, only=only)
    if follow:
        await _follow(store, family, from_offset, lines, out)
        return
    after = NOTHING
    if from_offset:
        start = await first(reader.read(stream, from_offset=from_offset))
        if start is None:
            return
        after = start.position - 1
    async for record in records_of(reader, family, after=after):
        lines.print(record, family.depth(record))


async def _follow(store: Path, family: Family, from_offset: int, lines: Lines, out: Output) -> None:
    from sidecar.cli.follow import follow
    from streams.stores.jsonl_reader import JsonlReader

    began = from_offset == 0
    async for record in follow(store):
        joined = family.apply(record)
        began = began or (record.event.stream_id == family.stream and record.offset >= from_offset)
        if not began:
            continue
        for stream in joined:
            # What a stream held before it was joined would otherwise never be told.
            async for earlier in JsonlReader(store).read(stream):
                if earlier.position < record.position:
                    lines.print(earlier, family.depth(earlier))
        if record in family:
            lines.print(record, family.depth(record))
            out.flush()


async def show(context: typer.Context, event: EventArgument, json: JsonFlag = False) -> None:
    """Print one event whole, with its cause and effects."""
    from sidecar.cli.output import Output, iso_time, local_time
    from sidecar.cli.records import headline, outline
    from sidecar.cli.select import find_event, open_reader
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
        _line(out, f"  {name:11}{value}")
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
        typer.Option("--type", metavar="TYPE", help="Event type, or agent.* for all below; repeatable."),
    ] = None,
    actors: Annotated[
        list[str] | None, typer.Option("--actor", metavar="NAME", help="Who did it: user, build, …; repeatable.")
    ] = None,
    streams: Annotated[
        list[str] | None, typer.Option("--stream", metavar="STREAM", help="Only this stream; repeatable.")
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
    from collections import deque

    from sidecar.cli.output import Output
    from sidecar.cli.records import Lines
    from sidecar.cli.select import find_stream, open_reader
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
        return
    newest: deque[Record] = deque(maxlen=limit)
    async for record in reader.query(wanted):
        newest.append(record)
    for record in newest:
        lines.print(record)


async def why(context: typer.Context, event: EventArgument, json: JsonFlag = False) -> None:
    """Print what led to an event, oldest first.

    Its cause, that one's cause, and so on, to the input that began it.
    """
    from sidecar.cli.output import Output
    from sidecar.cli.records import Lines
    from sidecar.cli.select import find_event, open_reader

    out = Output(json)
    reader = open_reader(home_of(context).store_path)
    chain = await causes(reader, await find_event(reader, event))
    first = chain[0]
    if not json and (first.event.causation_id or not _begins_a_chain(first)):
        out.text(f"(the cause of {first.event.id}: {_no_cause(first)})", "yellow")
    lines = Lines(out)
    for depth, record in enumerate(chain):
        lines.print(record, depth)


async def causes(reader: JsonlReader, record: Record) -> list[Record]:
    """``record`` and what led to it, oldest first; ends where a cause is unknown or not in this log.

    Most causes stand in the effect's own stream, so that is read as a whole, once for the links and once for
    the records, instead of the log once for each cause.
    """
    chain = [record]
    seen = {record.event.id}
    while True:
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


def _line(out: Output, text: str) -> None:
    from sidecar.cli.output import one_line

    indent = text[: len(text) - len(text.lstrip())]
    out.text(indent + one_line(text) if "\n" in text else text)
