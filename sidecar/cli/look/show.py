"""``show``: prints one event in full, with its cause and effects."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from sidecar.cli.shared.arguments import EventArgument
from sidecar.cli.shared.command import RUNS, Run

if RUNS:
    from sidecar.cli.printing.output import Output
    from sidecar.cli.printing.records import SHORT_ID, no_cause, outline
    from sidecar.read.ask_text import CHECKPOINT
    from sidecar.read.causes import asked_for
    from sidecar.read.changes.approvals import Approval, approval_of
    from sidecar.read.changes.edits import diff_lines
    from sidecar.read.find_by_id import find_event, newest
    from sidecar.read.rendering.content import Part
    from sidecar.read.rendering.describe import describe
    from sidecar.read.rendering.detail import detail
    from sidecar.read.rendering.timing import Timing
    from sidecar.read.wording import local_time, one_line
    from streams.query import Filter, describe_span
    from streams.store import Record

FACT_WIDTH = 12


async def show(
    run: Run,
    event: EventArgument,
    raw: Annotated[bool, typer.Option("--raw", help="Print the stored record with all its fields.")] = False,
) -> None:
    """Print one event in full, with its cause and effects.

    Prints the content first, then its details, and ids last.
    """
    out, reader = run.out, run.reader
    record = await find_event(reader, event)
    if out.json:
        out.object(record.as_json())
        return
    if raw:
        for line in outline(record.as_json()):
            out.text(line)
        return
    timing = Timing()
    shown = record.event
    cause = await reader.find_event(shown.causation_id) if shown.causation_id else None
    effects, _ = await newest(reader, Filter(causation_id=shown.id), sys.maxsize, after=record.position)
    [approvals] = await asked_for(reader, [record])
    asks = [each for approval in approvals for each in (approval.asked, approval.answer)]
    for known in (*asks, cause, record, *effects):
        if known is not None:
            timing.apply(known)
    if cause is not None and shown.type == cause.event.type == CHECKPOINT:
        approvals = [approval_of(cause, record)]
    found = detail(shown)
    out.text(f"{one_line(describe(shown).label)}  {shown.type}", "bold")
    before = ""
    for part in found.parts:
        if before not in ("", "command", part.kind):
            out.text()
        before = part.kind
        _print_part(out, part)
    out.text()
    _print_fact(out, "time", local_time(shown.ts, "%A, %d %B %Y %H:%M:%S"))
    _print_fact(out, "actor", shown.actor)
    for name, value in (*_timed(record, timing, approvals), *found.facts):
        _print_fact(out, name, value)
    for name, value in found.rest.items():
        if isinstance(value, dict | list) or (isinstance(value, str) and "\n" in value.strip("\n")):
            for line in outline({name: value}):
                out.text(line)
        else:
            _print_fact(out, name, *outline(value))
    _print_fact(out, "cause", _named(cause, timing) if cause else no_cause(record))
    for effect in effects:
        _print_fact(out, "effect", _named(effect, timing))
    out.text()
    for name, value in _ids(record, found.ids):
        _print_fact(out, name, value, style="dim")


def _timed(record: Record, timing: Timing, approvals: list[Approval]) -> list[tuple[str, str]]:
    """The time that a turn took or a step waited, and a person's answers."""
    event, facts = record.event, []
    if (took := timing.took_ms(event)) is not None:
        facts.append(("took", describe_span(took)))
    if waited := timing.waited_ms(event):
        facts.append(("waited", f"{describe_span(waited)} for you"))
    return facts + [("approval", f"{each.text} ({each.ask.permission})") for each in approvals]


def _ids(record: Record, named: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    event = record.event
    more = [
        ("event", event.id),
        *((name, value) for name, value in named if (name, value) != ("session", event.stream_id)),
        ("stream", f"{event.stream_id}, offset {record.offset}, position {record.position}"),
        ("belongs to", event.correlation_id),
        ("key", event.idempotency_key),
        ("trace", event.traceparent),
        ("through", event.source.adapter),
        ("recorded", ", ".join(f"{name} {value}" for name, value in event.metadata.items())),
        ("hash", record.hash),
    ]
    seen: set[str] = set()
    facts = []
    for name, value in more:
        if value and value not in seen:
            seen.add(value)
            facts.append((name, value))
    return facts


def _print_part(out: Output, part: Part) -> None:
    """Print a piece of the content, with its line breaks."""
    if part.kind == "diff":
        for line, style in diff_lines(part.text):
            out.text(line, style)
        return
    styles = {"aside": "dim", "command": "bold", "bad": "red"}
    for number, line in enumerate(part.text.rstrip("\n").split("\n")):
        prompt = ("$ " if not number else "  ") if part.kind == "command" else ""
        out.text(prompt + line, styles.get(part.kind, ""))


def _print_fact(out: Output, name: str, value: str, style: str = "") -> None:
    out.prose(f"{one_line(name):{FACT_WIDTH}} ", one_line(value), style)


def _named(record: Record, timing: Timing) -> str:
    """Another event on one line, with an id that is long enough to name the event in a command."""
    event = record.event
    line = describe(event, took_ms=timing.took_ms(event), waited_ms=timing.waited_ms(event))
    return f"{event.id[-SHORT_ID:]}  {line}"
