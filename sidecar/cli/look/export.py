"""``export``: writes a stream, and the streams joined to it, to a file that another home can read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.arguments import RedactOption
from sidecar.cli.shared.command import JsonFlag, home_of, note

if TYPE_CHECKING:
    from sidecar.read.select import Family
    from streams.log.reader import LogReader


class Form(StrEnum):
    """The formats of an export."""

    jsonl = "jsonl"
    markdown = "markdown"
    html = "html"
    otlp = "otlp"
    chrome = "chrome-trace"


async def export(
    context: typer.Context,
    stream: Annotated[
        str | None,
        typer.Argument(
            metavar="[STREAM]",
            help="A stream's id, or a unique prefix or suffix of it; default: the current project's newest stream.",
            autocompletion=complete.streams,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to this file, which must not exist yet; default: stdout."
        ),
    ] = None,
    form: Annotated[
        Form,
        typer.Option(
            "--format",
            help="jsonl: the records; markdown, html: the conversation, as in read --full --children; otlp: a trace "
            "for OpenTelemetry; chrome-trace: one for ui.perfetto.dev.",
        ),
    ] = Form.jsonl,
    redact: RedactOption = False,
    json: JsonFlag = False,
) -> None:
    """Write a stream, and the streams joined to it, to a file.

    By default, and with --json, writes JSON lines: a header, then the records. With --format markdown or html, writes
    the conversation in full, including everything that read would shorten or fold. With --format otlp or
    chrome-trace, writes when which turn, model, tool and child session ran; otlp has no texts.
    """
    from sidecar.cli.printing.transcript import written_to
    from sidecar.cli.shared.project import newest_stream
    from sidecar.read.select import family_of, find_stream, open_reader
    from streams.log.directory import read_manifest

    if json and form is not Form.jsonl:
        raise typer.BadParameter(
            f"`--json` means `--format jsonl`, so it cannot be combined with `--format {form.value}`; for the "
            "conversation as JSON, run `durable-stream read --format json`"
        )
    if redact and form not in (Form.markdown, Form.html):
        raise typer.BadParameter("`--redact-paths` changes a conversation: give `--format html` or `--format markdown`")
    store = home_of(context).store_path
    reader = open_reader(store)
    if stream is None:
        stream = await newest_stream(reader, None)
    else:
        stream = await find_stream(reader, stream)
    family = await family_of(reader, stream)
    manifest = read_manifest(store)
    with written_to(output) as file:
        if form is Form.jsonl:
            count = await _write(reader, family, manifest.log_id if manifest is not None else None, file)
            wrote = f"{count} records"
        elif form in (Form.otlp, Form.chrome):
            wrote = f"{await _write_trace(reader, family, form, file)} spans"
        else:
            await _write_conversation(reader, family, form, file, redact=redact)
            wrote = f"the conversation as {form}"
    if output is not None:
        note(f"Wrote {wrote} of {len(family.streams)} stream{'s'[: len(family.streams) != 1]} to {output}.")


async def _write_conversation(reader: LogReader, family: Family, form: str, file: IO[bytes], *, redact: bool) -> None:
    from sidecar.cli.printing.transcript import conversation_of, notes_of, transcript_bytes
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.transcript.model import Reading

    roots, proof, fault = await conversation_of(reader, family, redact=redact)
    if fault is not None:
        raise fault
    notes = await notes_of(reader, family.stream)
    reading = Reading(full=True, children=True, now_ms=own_identity().now_ms(), notes=notes, proof=proof)
    file.writelines(transcript_bytes(roots, reading, form))


async def _write_trace(reader: LogReader, family: Family, form: Form, file: IO[bytes]) -> int:
    from sidecar.cli.printing.output import json_line
    from sidecar.read.past.spans import Spans
    from sidecar.read.past.traces import chrome, otlp
    from sidecar.read.select import records_of

    spans, last = Spans(), 0
    async for record in records_of(reader, family):
        spans.apply(record)
        last = max(last, record.event.ts)
    file.write(json_line((otlp if form is Form.otlp else chrome)(spans.found, last)))
    return len(spans.found)


async def _write(reader: LogReader, family: Family, log_id: str | None, file: IO[bytes]) -> int:
    from sidecar.care.exported import Seal, header
    from sidecar.care.retaining import told_beside
    from sidecar.cli.printing.output import json_line
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.select import records_of

    seal = Seal()
    head = reader.head
    known = family.catalog.sessions.items()
    sessions = {name: each.stream for name, each in known if each.stream in family.streams}
    beside = await told_beside(reader, sessions, log_id)
    first = header(family.stream, [*family.streams], log_id, own_identity().now_ms())
    file.write(seal.line(json_line(first)))

    def write_beside(before: int) -> None:
        while beside and beside[0][0] < before:
            file.write(seal.line(json_line({"event": beside.pop(0)[1].fields()})))

    async for record in records_of(reader, family, up_to=head):
        write_beside(record.position)
        file.write(seal.line(json_line(record.as_json())))
    write_beside(head + 1)
    file.write(seal.last())
    return seal.records
