"""Shell completion of streams, sessions, events, types, actors, background work and checkpoints.

Completion runs each time the Tab key is pressed, so it reads a bounded part of the log, and ignores whatever cannot be
read. The command itself reports such errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from sidecar.read.story.catalog import Catalog
    from streams.event import StreamEvent
    from streams.log.reader import LogReader

NEWEST = 3000
"""How many of the newest records are read. Reading that many takes about a twentieth of a second."""

MOST_EVENTS = 30
"""Maximum number of events to offer before anything is typed. After that, every match is offered."""

_SHORT_ID = 6

_LEAST_WHOLE = 3
"""Whole event ids are offered once this many characters are typed, because the first two are the same for decades."""

T = TypeVar("T")

Offer = tuple[str, str]
"""A value, and the text that some shells show next to it."""


def streams(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return _fitting(_titles(ctx)[0], incomplete)


def sessions(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Stream ids, and ids of child sessions once something is typed."""
    found, inside = _titles(ctx)
    return _fitting(inside | found if incomplete else found, incomplete)


def events(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Event ids, the newest first: their last characters, as a terminal shows them, and any whole ids that begin with
    what was typed.

    The typed characters may be the beginning of a whole id or of a short one, so both are offered.
    """
    short: dict[str, str] = {}
    whole: dict[str, str] = {}
    for event in reversed(_newest(ctx)):
        shown = f"{event.actor} {event.type}"
        if event.id[-_SHORT_ID:].startswith(incomplete):
            short.setdefault(event.id[-_SHORT_ID:], shown)
            if not incomplete and len(short) >= MOST_EVENTS:
                break
        if len(incomplete) >= _LEAST_WHOLE and event.id.startswith(incomplete):
            whole[event.id] = shown
    return list((short | whole).items())


def types(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Recently recorded event types, and the groups of these types, such as ``agent.*``."""
    found = {event.type for event in _newest(ctx)}
    groups = {f"{name.rpartition('.')[0]}.*" for name in found if "." in name}
    return _fitting(_plain(found | groups), incomplete)


def actors(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return _fitting(_plain({event.actor for event in _newest(ctx)}), incomplete)


def intents(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Ids of recent background work, the newest first."""
    return _recent(ctx, incomplete, "intent.created", "intent", "title")


def checkpoints(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Ids of what recently waited for a person, the newest first."""
    return _recent(ctx, incomplete, "message.queued", "message", "text", "chk_")


def _recent(ctx: typer.Context, incomplete: str, type_: str, name: str, title: str, begin: str = "") -> list[Offer]:
    made = [event.payload for event in reversed(_newest(ctx)) if event.type == type_ and name in event.payload]
    found = {str(each[name]): str(each.get(title, "")) for each in made}
    return _fitting({name: text for name, text in found.items() if name.startswith(begin)}, incomplete)


def _fitting(found: dict[str, str], incomplete: str) -> list[Offer]:
    return [(name, _shown(title)) for name, title in found.items() if name.startswith(incomplete)]


def _shown(title: str) -> str:
    return " ".join(title.split()) if title.isprintable() else ""


def _plain(names: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(sorted(names), "")


def _titles(ctx: typer.Context) -> tuple[dict[str, str], dict[str, str]]:
    """The titles of all streams, the newest first, and of all sessions."""
    from sidecar.read.find_by_id import ask_catalog

    def question(catalog: Catalog) -> tuple[dict[str, str], dict[str, str]]:
        sessions = {session.id: session.title for session in catalog.sessions.values()}
        catalog.streams.values()  # read all at once
        own = {name: catalog.own_session(name) for name in catalog.newest_first()}
        return {name: each.title if each is not None else "" for name, each in own.items()}, sessions

    return _read(ctx, lambda reader: ask_catalog(reader, question)) or ({}, {})


def _newest(ctx: typer.Context) -> list[StreamEvent]:
    """The newest events, oldest first."""
    from streams.query import Filter

    records = _read(ctx, lambda reader: reader.newest(Filter(), NEWEST))
    return [record.event for record in records or ()]


def _read(ctx: typer.Context, question: Callable[[LogReader], Awaitable[T]]) -> T | None:
    """What a question returns of the log; ``None`` if the log cannot be read. If it is damaged, what comes before
    counts."""
    import asyncio

    from sidecar.home import Home
    from sidecar.private_files import HomeError
    from streams.errors import StreamError
    from streams.log.reader import LogReader

    async def read(reader: LogReader) -> T:
        try:
            return await question(reader)
        finally:
            await reader.close()

    with suppress(StreamError, HomeError, OSError):
        # Typer runs no callbacks during completion, so read --home from the parsed parameters.
        return asyncio.run(read(LogReader(Home(ctx.find_root().params.get("home")).store_path, to_damage=True)))
    return None
