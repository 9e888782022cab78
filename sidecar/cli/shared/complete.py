"""Shell completion of streams, sessions, events, types, actors, background work and checkpoints.

Completion runs each time the Tab key is pressed, so it reads the sidecar's last catalog and a
bounded part of the log, and ignores whatever cannot be read. The command itself
reports such errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sidecar.read.catalog import Catalog
    from streams.event import StreamEvent

NEWEST = 3000
"""How many of the newest records are read. Reading that many takes about a twentieth of a second."""

MOST_EVENTS = 30
"""Maximum number of events to offer before anything is typed. After that, every match is offered."""

_SHORT_ID = 6

_LEAST_WHOLE = 3
"""Whole event ids are offered once this many characters are typed, because the first two are the same for decades."""

Offer = tuple[str, str]
"""A value, and the text that some shells show next to it."""


def streams(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return _fitting(_stream_titles(_read(ctx)[0]), incomplete)


def sessions(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Stream ids, and ids of child sessions once something is typed."""
    catalog, _ = _read(ctx)
    found = _stream_titles(catalog)
    if incomplete:
        found = {session.id: session.title for session in catalog.sessions.values()} | found
    return _fitting(found, incomplete)


def events(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Event ids, the newest first: their last characters, as a terminal shows them, and any whole ids that begin with
    what was typed.

    The typed characters may be the beginning of a whole id or of a short one, so both are offered.
    """
    short: dict[str, str] = {}
    whole: dict[str, str] = {}
    for event in reversed(_read(ctx)[1]):
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
    found = {event.type for event in _read(ctx)[1]}
    groups = {f"{name.rpartition('.')[0]}.*" for name in found if "." in name}
    return _fitting(_plain(found | groups), incomplete)


def actors(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return _fitting(_plain({event.actor for event in _read(ctx)[1]}), incomplete)


def intents(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Ids of recent background work, the newest first."""
    return _recent(ctx, incomplete, "intent.created", "intent", "title")


def checkpoints(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Ids of what recently waited for a person, the newest first."""
    return _recent(ctx, incomplete, "message.queued", "message", "text", "chk_")


def _recent(ctx: typer.Context, incomplete: str, type_: str, name: str, title: str, begin: str = "") -> list[Offer]:
    made = [event.payload for event in reversed(_read(ctx)[1]) if event.type == type_ and name in event.payload]
    found = {str(each[name]): str(each.get(title, "")) for each in made}
    return _fitting({name: text for name, text in found.items() if name.startswith(begin)}, incomplete)


def _fitting(found: dict[str, str], incomplete: str) -> list[Offer]:
    return [(name, _shown(title)) for name, title in found.items() if name.startswith(incomplete)]


def _shown(title: str) -> str:
    return " ".join(title.split()) if title.isprintable() else ""


def _plain(names: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(sorted(names), "")


def _stream_titles(catalog: Catalog) -> dict[str, str]:
    newest_first = sorted(catalog.streams.values(), key=lambda stream: stream.last_position, reverse=True)
    return {s.id: own.title if (own := catalog.own_session(s.id)) is not None else "" for s in newest_first}


def _read(ctx: typer.Context) -> tuple[Catalog, list[StreamEvent]]:
    """The streams and sessions, and the newest events, oldest first. If the log has a fault, the result has only what
    was read before the fault.

    The catalog covers the records that the snapshot covers, and the newest of the later records.
    """
    import asyncio

    from sidecar.home import Home
    from sidecar.private_files import HomeError
    from sidecar.read.catalog import Catalog
    from sidecar.read.kept_catalog import last_catalog
    from streams.errors import StreamError
    from streams.log.reader import LogReader
    from streams.query import Filter

    catalog, newest = Catalog(), []

    async def read(reader: LogReader) -> None:
        nonlocal catalog
        try:
            catalog = await last_catalog(reader)
            for record in await reader.newest(Filter(), NEWEST) or ():
                newest.append(record.event)
                catalog.apply(record)
        finally:
            await reader.close()

    with suppress(StreamError, HomeError, OSError):
        # Typer runs no callbacks during completion, so read --home from the parsed parameters.
        asyncio.run(read(LogReader(Home(ctx.find_root().params.get("home")).store_path)))
    return catalog, newest
