"""``diff``: what happened between two moments of a session, or what differs between two sessions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sidecar.cli.shared.arguments import SessionArgument
from sidecar.cli.shared.command import RUNS, Run, note

if RUNS:
    from sidecar.cli.printing.changes_text import print_diffs, print_on_terminal
    from sidecar.cli.printing.output import Column, Output
    from sidecar.cli.shared.moments import moment_of
    from sidecar.read.changes.changes import TurnChanges
    from sidecar.read.past.compare import compared
    from sidecar.read.past.moment import between, changed
    from sidecar.read.sessions import Sessions
    from sidecar.read.story.past import Past, asked
    from sidecar.read.wording import amount, lasted, money, one_line, plain_money
    from streams.log.reader import LogReader

SHOWN = 5
"""How many records of each session are shown from the first difference on."""


async def diff(
    run: Run,
    stream: SessionArgument,
    one: Annotated[
        str,
        typer.Argument(
            metavar="STREAM|N", help="Another session; or, with M, a moment: an event's number, from 0, or id."
        ),
    ],
    other: Annotated[str | None, typer.Argument(metavar="[M]", help="A later moment of the same session.")] = None,
) -> None:
    """Show what happened between two moments of a session, or what differs between two sessions.

    With two moments, shows the files that agents changed in between, as diffs, and counts what else happened; a pipe
    gets only the diffs. With two sessions, shows where they first differ in type or content, and their turns, tools,
    files, cost and time. Only reads the log.
    """
    out, reader = run.out, run.reader
    if other is not None:
        await _moments(out, reader, stream, one, other)
    else:
        _sessions(out, await asked(reader, compared, stream, one))


async def _moments(out: Output, reader: LogReader, session: str, one: str, other: str) -> None:
    moments = [await moment_of(reader, each) for each in (one, other)]

    def question(past: Past) -> tuple[dict[str, Any], list[TurnChanges], Sessions]:
        since, upto = sorted(moment(past) for moment in moments)
        return between(past, since, upto), changed(past, since, upto), past.at(upto).catalog

    found, turns, catalog = await asked(reader, question, session)
    if out.json:
        out.object(found)
        return
    since, upto = found["from"] + 1, found["to"] + 1
    tools = ", ".join(f"{count} {tool}" for tool, count in found["tools"].items())
    types = ", ".join(f"{count} {kind}" for kind, count in found["types"].items())
    summary = [
        f"events {since} to {upto - 1}, {lasted(found['ms'])}" if upto > since else "no events",
        *([f"{money(found['cost'])}, {amount(found['tokens'])} tokens"] if found["tokens"] else []),
        *([f"tools: {tools}" + (f" ({found['failed']} failed)" if found["failed"] else "")] if tools else []),
        *([f"events: {types}"] if types else []),
    ]
    if not out.terminal:
        print_diffs(out, turns)
        note("; ".join(summary))
        return
    print_on_terminal(out, catalog, turns, with_diffs=True)
    if turns:
        out.text()
    for line in summary:
        out.prose("", line, "dim")


def _sessions(out: Output, found: dict[str, Any]) -> None:
    if out.json:
        out.object(found)
        return
    sides = found["sides"]
    rows = [[name, *(str(side[name]) for side in sides)] for name in ("title", "records", "turns", "failed", "tokens")]
    rows.append(["cost", *((money if out.terminal else plain_money)(side["cost"]) for side in sides)])
    worked = [lasted(side["working_ms"]) if out.terminal else str(side["working_ms"]) for side in sides]
    rows.append(["turns took" if out.terminal else "working_ms", *worked])
    tools = dict.fromkeys(tool for side in sides for tool in side["tools"])
    files = dict.fromkeys(file for side in sides for file in side["files"])
    rows += [[f"tool {tool}", *(str(side["tools"].get(tool, 0)) for side in sides)] for tool in tools]
    rows += [[f"file {file}", *("changed" if file in side["files"] else "-" for side in sides)] for file in files]
    out.table([Column("" if out.terminal else "what"), *(Column(side["stream_id"]) for side in sides)], rows)
    if out.terminal:
        out.text()
    same = found["same"]
    if same is None:
        out.text("The two sessions did the same; only ids, times and places differ.")
        return
    out.text(f"The first {same} records are the same. Then:" if same else "They differ from the first record on:")
    for side, (sign, style) in enumerate((("-", "red"), ("+", "green"))):
        for row in [pair[side] for pair in found["rows"][:SHOWN] if pair[side] is not None]:
            out.text(f"{sign} {_line(row)}", style)


def _line(row: dict[str, Any]) -> str:
    said = f"{row['label']}: {row['text']}" if row["text"] else row["label"]
    return one_line(f"{row['actor']}  {said}")
