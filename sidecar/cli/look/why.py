"""``why``: what led to an event."""

from __future__ import annotations

from sidecar.cli.shared.arguments import EventArgument
from sidecar.cli.shared.command import RUNS, Run, note

if RUNS:
    from sidecar.cli.printing.records import Lines, begins_a_chain, no_cause
    from sidecar.read.causes import causes, with_approvals
    from sidecar.read.find_by_id import find_event


async def why(run: Run, event: EventArgument) -> None:
    """Print what led to an event, oldest first.

    Prints the event's cause, the cause of that event, and so on, back to the original input. If a step asked a person
    something, the question and the answer come before the step.
    """
    out, reader = run.out, run.reader
    chain = await causes(reader, await find_event(reader, event))
    first = chain[0]
    if not out.json and (first.event.causation_id or not begins_a_chain(first)):
        line = f"(the cause of {first.event.id}: {no_cause(first)})"
        if out.terminal:
            out.text(line, "yellow")
        else:
            note(line)
    lines = Lines(out)
    for depth, record in enumerate(await with_approvals(reader, chain)):
        await lines.look_up(reader, record)
        lines.print(record, depth=depth)
