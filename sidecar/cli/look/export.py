"""``export``: writes a stream, and the streams joined to it, to a file that another home can read."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, Literal

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.arguments import RedactOption
from sidecar.cli.shared.command import Run, note
from sidecar.failure import Failure

if TYPE_CHECKING:
    from sidecar.background.intents.state import State
    from sidecar.read.find_by_id import Family
    from sidecar.read.story.past import Past
    from sidecar.read.transcript.model import Session
    from streams.log.reader import LogReader


WIDTH: Final = 832
"""How wide the timeline of a page is, in pixels: as wide as the text."""

ENDED: Final = ("completed", "error")


Form = Literal["jsonl", "markdown", "html", "otlp", "chrome-trace"]
"""The formats of an export."""


async def export(
    run: Run,
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
            help="jsonl: the records; markdown, html: the conversation, as in read --full --children, html with a "
            "timeline; otlp: a trace for OpenTelemetry; chrome-trace: one for ui.perfetto.dev.",
        ),
    ] = "jsonl",
    redact: RedactOption = False,
) -> None:
    """Write a stream, and the streams joined to it, to a file.

    By default, and with --json, writes JSON lines: a header, then the records; if the log is damaged, those before the
    damage. With --format markdown or html, writes
    the conversation in full, including everything that read would shorten or fold; html begins with the timeline and
    the changed files. With --format otlp or
    chrome-trace, writes when which turn, model, tool and child session ran; otlp has no texts.
    """
    from sidecar.cli.printing.transcript import written_to
    from sidecar.cli.shared.project import newest_stream
    from sidecar.read.find_by_id import family_of, find_stream
    from streams.log.directory import read_manifest

    if run.out.json and form != "jsonl":
        raise typer.BadParameter(
            f"`--json` means `--format jsonl`, so it cannot be combined with `--format {form}`; for the "
            "conversation as JSON, run `durable-stream read --format json`"
        )
    if redact and form not in ("markdown", "html"):
        raise typer.BadParameter("`--redact-paths` changes a conversation: give `--format html` or `--format markdown`")
    store = run.home.store_path
    reader = run.reader
    if stream is None:
        stream = await newest_stream(reader, None)
    else:
        stream = await find_stream(reader, stream)
    family = await family_of(reader, stream)
    manifest = read_manifest(store)
    with written_to(output) as file:
        if form == "jsonl":
            count = await _write(reader, family, manifest.log_id if manifest is not None else None, file)
            wrote = f"{count} records"
        elif form in ("otlp", "chrome-trace"):
            wrote = f"{await _write_trace(reader, family, form, file)} spans"
        else:
            await _write_conversation(reader, family, form, file, redact=redact)
            wrote = f"the conversation as {form}"
        if output is not None and reader.damage is not None and form != "jsonl":
            raise Failure("log-damaged", f"{output} was not written, because the log is damaged")
    if output is not None:
        before = "" if reader.damage is None else ", as far as the log can be read,"
        note(f"Wrote {wrote} of {len(family.streams)} stream{'s'[: len(family.streams) != 1]}{before} to {output}.")


async def _write_conversation(reader: LogReader, family: Family, form: Form, file: IO[bytes], *, redact: bool) -> None:
    from sidecar.background.reading import background_of, read_intents
    from sidecar.cli.printing.transcript import notes_of, proof_of, redaction_of, transcript_bytes
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.find_by_id import catalog_of, family_of
    from sidecar.read.past.drawing import STYLE
    from sidecar.read.story.changes import Changes
    from sidecar.read.story.conversation import Telling
    from sidecar.read.story.past import Named, asked
    from sidecar.read.transcript.html import files_html
    from sidecar.read.transcript.model import Reading

    now, redaction = own_identity().now_ms(), redaction_of(wanted=redact)
    catalog, _ = await catalog_of(reader)
    work, own = await read_intents(reader), catalog.own_session(family.stream)
    started = background_of(work, own.id, now) if own is not None and form == "html" else {}
    known = [catalog.sessions.get(name) for name in started]
    below = [Named(each.id, await family_of(reader, each.stream, session=each.id)) for each in known if each]

    def render(*pasts: Past) -> tuple[list[Session], str, str]:
        past, *beside = pasts if redaction is None else map(redaction.past, pasts)
        top = _timeline(past, beside, work, now) + files_html(Changes(past.at()).turns()) if form == "html" else ""
        return Telling(past.at()).whole(), proof_of(past), top

    about = Named(own.id if own is not None else family.stream, family)
    roots, proof, top = await asked(reader, render, about, *below)
    notes = await notes_of(reader, family.stream)
    reading = Reading(full=True, children=True, now_ms=now, notes=notes, proof=proof, top=top, style=STYLE)
    file.writelines(transcript_bytes(roots, reading, form))


def _timeline(past: Past, beside: list[Past], work: State, now: int) -> str:
    """The timeline that the page of a session shows, whose bars lead to the conversation."""
    from sidecar.background.reading import background_of
    from sidecar.read.past.drawing import figure
    from sidecar.read.past.lanes import Lanes, with_background
    from sidecar.read.story.timeline import Timeline

    found = Timeline(past.at()).spans()
    # The conversation has a place for an ask, and for a call once it has ended.
    shown = {span.id for span in found if span.kind == "wait" or (span.kind == "tool" and span.state in ENDED)}
    is_open = any(span.state == "waiting" for span in found)
    last = now if is_open else max((span.end or span.start for span in found), default=0)
    names = background_of(work, past.session, last)
    background = ((each.session, Timeline(each.at()).spans()) for each in beside if each.session in names)
    found = with_background(past.session, found, background, last)
    begin = min((span.start for span in found if span.kind != "session"), default=0)
    return figure(Lanes(found, last, begin), WIDTH, lambda span: f"#{span.event}" * (span.id in shown))


async def _write_trace(reader: LogReader, family: Family, form: Form, file: IO[bytes]) -> int:
    from sidecar.cli.printing.output import json_line
    from sidecar.read.past.traces import chrome, otlp
    from sidecar.read.story.past import Named, asked
    from sidecar.read.story.timeline import Timeline

    spans = await asked(reader, lambda past: Timeline(past.at()).spans(), Named(family.stream, family))
    last = max((span.end or 0 for span in spans if span.kind == "session"), default=0)
    file.write(json_line((otlp if form == "otlp" else chrome)(spans, last)))
    return len(spans)


async def _write(reader: LogReader, family: Family, log_id: str | None, file: IO[bytes]) -> int:
    from sidecar.care.export_files import Seal, header
    from sidecar.care.removal import background_history
    from sidecar.cli.printing.output import json_line
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.find_by_id import catalog_of, records_of

    seal = Seal()
    head = reader.head
    catalog, _ = await catalog_of(reader)
    sessions = {name: catalog.sessions[name].stream for name in catalog.sessions_of(family.streams)}
    beside = await background_history(reader, sessions, log_id)
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
