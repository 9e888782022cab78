"""The options that choose events: type, actor, time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.command import RUNS

if RUNS:
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.find_by_id import first
    from sidecar.read.story.catalog import Catalog
    from sidecar.read.story.reading import ask_to_damage
    from streams.log.reader import LogReader
    from streams.query import Filter, parse_moment

_EARLIEST_MS = 1_672_531_200_000  # 2023: OpenCode did not exist yet

TypesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="An event type, or a prefix such as agent.*; repeatable.",
        autocompletion=complete.types,
    ),
]
ActorsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--actor",
        metavar="NAME",
        help="Only events by this actor, such as user or build; repeatable.",
        autocompletion=complete.actors,
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only events since this time: an age (90s, 2h, 7d) or an ISO time."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only events before this time.")]


async def filter_of(
    reader: LogReader,
    *,
    types: Sequence[str] | None = None,
    actors: Sequence[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    **more: Any,
) -> Filter:
    """Build a filter of the records of ``reader`` from the options; ``more`` has further fields of ``Filter``.

    Raises:
        BadParameter: a time cannot be read.
    """
    now = own_identity().now_ms()
    try:
        since_ms = parse_moment(since, now) if since else None
        until_ms = parse_moment(until, now) if until else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    times = await _believed(reader, now) if since or until else {}
    more |= {"since_ms": since_ms, "until_ms": until_ms, "times": times}
    return Filter(types=tuple(types or ()), actors=tuple(actors or ()), **more)


async def _believed(reader: LogReader, now: int) -> dict[str, int]:
    """For each record whose time cannot be true, by the event's id: the time of the record before it.

    Nothing was recorded before OpenCode existed, or later than now. Only a clock that was set wrongly says so.
    """
    found: dict[str, int] = {}
    # Reading the wanted records reports damage.
    wrong, _ = await ask_to_damage(reader, lambda story: Catalog(story).with_times_outside(_EARLIEST_MS, now))
    for stream in wrong:
        before = await first(reader.read_all(after=stream.first_position - 2))
        last = 0 if before is None else found.get(before.event.id, before.event.ts)
        async for record in reader.read(stream.id):
            if _EARLIEST_MS <= record.event.ts <= now:
                last = record.event.ts
            elif _EARLIEST_MS <= last <= now:
                found[record.event.id] = last
    return found
