"""``read``: prints a session as a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sidecar.cli.shared.arguments import OptionalSession, RedactOption
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.project import ProjectOption

if RUNS:
    from sidecar.cli.printing.output import Output
    from sidecar.cli.printing.pager import page
    from sidecar.cli.printing.transcript import (
        conversation_of,
        format_of,
        is_ending,
        notes_of,
        redaction_of,
        transcript_bytes,
        written_to,
    )
    from sidecar.cli.shared.identity import own_identity
    from sidecar.cli.shared.project import newest_stream, shown_directory
    from sidecar.read.find_by_id import catalog_of
    from sidecar.read.story.past import named
    from sidecar.read.transcript.model import Reading, Session


Form = Literal["markdown", "html", "json"]
"""The formats of a transcript."""


async def read(
    run: Run,
    stream: OptionalSession = None,
    form: Annotated[
        Form | None, typer.Option("--format", help="The format to write. The default in a pipe is Markdown.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show outputs, diffs and reasoning in full.")] = False,
    children: Annotated[
        bool, typer.Option("--children", help="Show child sessions inline, at the point where they ran.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to this file, which must not exist yet; its extension selects the format.",
        ),
    ] = None,
    redact: RedactOption = False,
    project: ProjectOption = None,
    pager: Annotated[bool, typer.Option("--pager/--no-pager", help="Use a pager for long sessions.")] = True,
) -> None:
    """Read a session as a conversation.

    Shows prompts, complete answers, commands with their output, and edits as diffs. Shows who approved what and
    how long agents waited for that. Shows only the results of child sessions, unless --children is given.
    """
    if stream is not None and project is not None:
        raise typer.BadParameter("give a stream or `--project`, not both")
    out, reader = run.out, run.reader
    shown = out.terminal and form is None and output is None
    about = await named(reader, stream or await newest_stream(reader, project, tell=not shown))
    roots, proof = await conversation_of(reader, about, redaction_of(wanted=redact))
    notes = await notes_of(reader, about.family.stream)
    reading = Reading(full=full, children=children, now_ms=own_identity().now_ms(), notes=notes, proof=proof)
    if shown:
        # The project of background work, not its copy; what is redacted is in the records alone.
        where = roots[0].directory if redact and roots else (await catalog_of(reader))[0].directory(about.family.stream)
        _show(out, roots, reading, shown_directory(where), pager=pager)
    else:
        written = "json" if out.json else format_of(form, output)
        with written_to(output) as file:
            file.writelines(transcript_bytes(roots, reading, written))
        if output is not None:
            hint = (
                ""
                if form or out.json or is_ending(output)
                else "; for another format, use --format, or a file name that ends in .html or .json"
            )
            note(f"Wrote {written} to {output}{hint}.")


def _show(out: Output, roots: list[Session], reading: Reading, where: str, *, pager: bool) -> None:
    from sidecar.cli.printing.transcript_text import transcript_rows

    rows = transcript_rows(out.console, roots, reading, where)
    page((out.styled(row) for row in rows), out.console.height, wanted=pager)
