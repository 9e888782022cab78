"""``state``: what a session knew at one moment."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

import typer

from sidecar.cli.look.streams import STATUS_STYLES
from sidecar.cli.shared.arguments import SessionArgument
from sidecar.cli.shared.command import RUNS, Run

if RUNS:
    from collections.abc import Iterator

    from sidecar.background.reading import running_at
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.moments import moment_of
    from sidecar.cli.shared.project import shown_directory
    from sidecar.read.past.moment import latest
    from sidecar.read.past.moment import state as state_of
    from sidecar.read.story.past import Past, asked
    from sidecar.read.sums import total_of
    from sidecar.read.transcript.markdown import markdown_lines
    from sidecar.read.transcript.model import Reading, Session
    from sidecar.read.wording import amount, lasted, local_time, money, one_line, printable

LAST_LINES, LAST_TURNS = 12, 2
"""How many lines of the conversation are shown, of how many turns."""


async def state(
    run: Run,
    stream: SessionArgument,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="N|EVENT",
            help="After the session's event N, counted from 0, or after this event.",
        ),
    ] = None,
) -> None:
    """Show what a session knew at one moment: now, or at any event of its past.

    Shows its title and turn, what it asked, which children were running, the files that it had changed, what it had
    cost, and the last lines of the conversation. Only reads the log. Commands may have changed files unseen.
    """
    out, reader = run.out, run.reader
    moment = await moment_of(reader, at)

    def latest_of(past: Past) -> tuple[str, dict[str, Any], list[Session]]:
        own = latest(past, moment(past), LAST_TURNS)
        return past.session, state_of(past, moment(past)), [own] if own is not None else []

    session, found, recent = await asked(reader, latest_of, stream)
    reading = Reading(now_ms=found["ts"])
    position = found["position"]
    found["work"] = await running_at(reader, session, position) if position is not None else []
    if out.json:
        out.object(found | {"last": _last(recent, reading)})
    elif out.terminal:
        width = max(len(name) for name, _, _ in _facts(found))
        for name, text, style in _facts(found):
            out.prose(f"{name:<{width}}  ", text, style)
        out.text()
        _print_last(out, recent, reading)
    else:
        for name, text, _ in _facts(found):
            out.cells(name, text)
        for line in _last(recent, reading):
            out.cells("last", line)


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Each line's name, text and style."""
    yield "session", f"{found['title'] or '(no title)'} ({found['stream_id']})", "bold"
    if where := shown_directory(found["directory"]):
        yield "directory", where, ""
    if (event := found["event"]) is not None:
        said = f"{event['label']}: {event['text']}" if event["text"] else event["label"]
        yield "at", f"event {found['at']}, the last is {found['records'] - 1}, {local_time(found['ts'])}, {said}", ""
    yield "status", found["status"], STATUS_STYLES.get(found["status"], "")
    if (turn := found["turn"]) is not None:
        yield "turn", f"{turn['number']}, {turn['state']}: {one_line(turn['prompt']) or '(prompt unknown)'}", ""
    for ask in found["asks"]:
        yield "asks", f"{ask['text']}, for {lasted(found['ts'] - ask['since_ms'])}", STATUS_STYLES["waiting"]
    for child in found["sessions"]:
        if child["depth"] and child["status"] in ("active", "waiting"):
            yield "child", f"{child['status']}: {child['title'] or '(no title)'} ({child['id']})", ""
    for work in found["work"]:
        yield "background", f"{work['state']}: {work['title']} ({work['id']})", ""
    for file in found["files"]:
        lines = "rewritten" if file["added"] is None else f"+{file['added']} −{file['removed']}"
        yield "file", f"{file['file']} {lines}", ""
    tokens = total_of(found["tokens"])
    worked = f"turns took {lasted(found['working_ms'])} together, asks waited {lasted(found['waiting_ms'])}"
    yield "so far", f"{money(found['cost'])}, {amount(tokens)} tokens, {worked}", ""


def _last(recent: list[Session], reading: Reading) -> list[str]:
    """The last lines of the conversation, as Markdown."""
    return [printable(line) for line in deque(markdown_lines(recent, reading), LAST_LINES) if line]


def _print_last(out: Output, recent: list[Session], reading: Reading) -> None:
    from sidecar.cli.printing.transcript_text import transcript_rows

    for row in deque(transcript_rows(out.console, recent, reading, ""), LAST_LINES):
        out.line(row)
