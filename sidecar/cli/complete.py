"""What a shell completes: streams, sessions, events, types and actors, out of the newest part of the log.

It runs at every press of the Tab key, so it reads files itself instead of
importing what checks them, and looks at a bounded part. Whatever it cannot
read it does not offer: the command that follows tells what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

LOOKED_AT_BYTES = 16 * 1024 * 1024
"""The newest so many bytes of the log are looked at: a tenth of a second."""

MOST_EVENTS = 30
"""Events that are offered before anything is typed; later, everything that fits is."""

_SHORT_ID = 6

Offer = tuple[str, str]
"""A value, and what shells that can do so show beside it."""


def streams(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Stream ids, the newest first."""
    return _fitting(_titles(_events(ctx), lambda event: event["stream_id"]), incomplete)


def sessions(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Stream ids, and ids of child sessions once something is typed."""
    found = list(_events(ctx))
    offers = dict(_fitting(_titles(found, lambda event: event["stream_id"]), incomplete))
    if incomplete:
        offers |= dict(_fitting(_titles(found, lambda event: event["payload"].get("session")), incomplete))
    return list(offers.items())


def events(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Event ids: their last characters, as a terminal shows them, or whole ones if such a one was begun."""
    short: dict[str, str] = {}
    whole: dict[str, str] = {}
    for event in _events(ctx):
        told = f"{event['actor']} {event['type']}"
        if incomplete and event["id"].startswith(incomplete):
            whole[event["id"]] = told
        elif event["id"][-_SHORT_ID:].startswith(incomplete):
            short.setdefault(event["id"][-_SHORT_ID:], told)
            if not incomplete and len(short) >= MOST_EVENTS:
                break
    return list((short or whole).items())


def types(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Event types that were recorded, and their groups: ``agent.*``."""
    found = {event["type"] for event in _events(ctx)}
    groups = {f"{name.rpartition('.')[0]}.*" for name in found if "." in name}
    return _fitting(dict.fromkeys(sorted(found | groups), ""), incomplete)


def actors(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Who did something."""
    return _fitting(dict.fromkeys(sorted({event["actor"] for event in _events(ctx)}), ""), incomplete)


def _fitting(found: dict[str, str], incomplete: str) -> list[Offer]:
    return [(name, told) for name, told in found.items() if name.startswith(incomplete)]


def _title(event: dict[str, Any]) -> str:
    title = event["payload"].get("title") if event["type"].startswith(("lifecycle.", "turn.")) else None
    return " ".join(title.split()) if isinstance(title, str) and title.isprintable() else ""


def _titles(events: Iterable[dict[str, Any]], name: Callable[[dict[str, Any]], Any]) -> dict[str, str]:
    """The newest title, if any, of each name that events bear; the name of the newest event first."""
    found: dict[str, str] = {}
    for event in events:
        named = name(event)
        if isinstance(named, str):
            found[named] = found.get(named) or _title(event)
    return found


def _events(ctx: typer.Context) -> Iterator[dict[str, Any]]:
    """The events in the newest part of the log, the newest first."""
    import orjson

    for line in _lines(_store(ctx)):
        try:
            event = orjson.loads(line)["event"]
            event = {name: event[name] for name in ("id", "stream_id", "actor", "type", "payload")}
        except (ValueError, KeyError, TypeError):
            continue  # a damaged or half-written line names nothing
        if isinstance(event["payload"], dict) and all(isinstance(event[name], str) for name in _TEXTS):
            yield event


_TEXTS = ("id", "stream_id", "actor", "type")


def _lines(store: Path) -> Iterator[bytes]:
    left = LOOKED_AT_BYTES
    for segment in sorted((store / "log").glob("[0-9]*.jsonl*"), reverse=True):
        try:
            size, content = _end(segment, left)
        except OSError:
            return
        lines = content.split(b"\n")
        yield from reversed(lines if size <= left else lines[1:])
        left -= len(content)
        if left <= 0:
            return


def _end(segment: Path, most: int) -> tuple[int, bytes]:
    """How long a segment is, and its last bytes, ``most`` at most. Raises ``OSError``."""
    if segment.suffix == ".zst":
        from streams.errors import StreamError
        from streams.stores.segment_files import Segment, open_segment

        try:
            with open_segment(Segment(int(segment.name.partition(".")[0]), segment)) as compressed:
                return compressed.size, compressed.read(max(compressed.size - most, 0), most)
        except (StreamError, ValueError) as error:
            raise OSError(str(error)) from None
    with segment.open("rb") as file:
        size = segment.stat().st_size
        file.seek(max(size - most, 0))
        return size, file.read(most)


def _store(ctx: typer.Context) -> Path:
    from sidecar.home import Home

    # While a shell completes, no callback runs: the option --home is only to be found as it was parsed.
    return Home(ctx.find_root().params.get("home")).store_path
