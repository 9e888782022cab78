"""``show``: one event whole, with its cause and effects."""

from __future__ import annotations

import typer

from sidecar.cli.shared.arguments import EventArgument
from sidecar.cli.shared.command import JsonFlag, home_of


async def show(context: typer.Context, event: EventArgument, json: JsonFlag = False) -> None:
    """Print one event whole, with its cause and effects."""
    from sidecar.cli.shared.output import Output
    from sidecar.cli.shared.records import headline, no_cause, outline
    from sidecar.views.select import find_event, open_reader
    from sidecar.views.wording import iso_time, local_time
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
        ("cause", f"{cause.event.id}  {headline(cause)}" if cause else no_cause(record)),
        *(("effect", f"{effect.event.id}  {headline(effect)}") for effect in effects),
    ]
    for name, value in facts:
        out.prose(f"  {name:11}", " ".join(value.splitlines()))
    for name, content in (("payload", shown.payload), ("metadata", shown.metadata)):
        out.text(name, "bold")
        for line in outline(content, "  "):
            out.text(line)
