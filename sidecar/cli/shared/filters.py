"""The options that choose events: type, actor, time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.shared import complete

if TYPE_CHECKING:
    from streams.query import Filter

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


def filter_of(
    *,
    types: Sequence[str] | None = None,
    actors: Sequence[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    **more: Any,
) -> Filter:
    """Build a filter from the options; ``more`` has further fields of ``Filter``.

    Raises:
        BadParameter: a time cannot be read.
    """
    from sidecar.cli.shared.identity import own_identity
    from streams.query import Filter, parse_moment

    now = own_identity().now_ms()
    try:
        since_ms = parse_moment(since, now) if since else None
        until_ms = parse_moment(until, now) if until else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return Filter(types=tuple(types or ()), actors=tuple(actors or ()), since_ms=since_ms, until_ms=until_ms, **more)
