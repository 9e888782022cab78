"""What runs in the background, what waits for a person, and the messages about it, with the lines around each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.rows import as_row, spent_by
from sidecar.background.intents.state import State
from sidecar.background.messages.answers import as_row as checkpoint_row
from sidecar.background.messages.message import Message
from sidecar.background.people import sentences
from sidecar.background.reading import read_notices, waiting
from sidecar.read.find_by_id import ask_catalog, newest
from sidecar.read.host_agents import host_agents
from sidecar.read.kinds import repeats
from sidecar.read.rendering.describe import row_of
from sidecar.read.rendering.markup import unwrapped
from sidecar.read.story.catalog import Catalog
from sidecar.read.views import SessionView
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record

MOST_NOTICES: Final = 500
LINES: Final = 4
"""How many of its last events running work shows, and an ask of those before it."""

_SHOWN: Final = ("human.input", "agent.input", "execution.output", "execution.step")


async def working(reader: LogReader, state: State) -> dict[str, Any]:
    """Background work, what waits for a person, and the messages."""
    asks, listed = await waiting(reader), [as_row(each) for each in state.intents.values()]

    def known(catalog: Catalog) -> tuple[list[dict[str, Any]], dict[str, SessionView]]:
        hosts = host_agents(catalog)
        running = [row["session"] for row in [*listed, *hosts] if row["session"] and row["state"] not in ENDED]
        names = {*running, *(each.session or "" for each in asks)}
        return hosts, {name: catalog.sessions[name] for name in names if name in catalog.sessions}

    hosts, sessions = await ask_catalog(reader, known)
    for row in [*listed, *hosts]:
        if row["session"] and row["state"] not in ENDED:
            row["running"] = running_in([sessions[row["session"]]] if row["session"] in sessions else ())
    for row in listed:
        row["spent"] = spent_by(state, row["root"])
        if row["session"] and row["state"] not in ENDED:
            last, _ = await newest(
                reader, Filter(streams=(row["session"],)), LINES, lambda each: not repeats(each.event)
            )
            row["lines"] = [row_of(each) for each in last]
    notices = [row | {"text": unwrapped(row["text"])} for row in (await read_notices(reader))[-MOST_NOTICES:]]
    asked = {"checkpoints": [await _ask(reader, each, sessions.get(each.session or "")) for each in asks]}
    return {**asked, "intents": listed[::-1], "hosts": hosts[::-1], "notices": notices[::-1]}


def running_in(sessions: Iterable[SessionView]) -> list[dict[str, Any]]:
    """The calls that run in some sessions: ``session, title, text, since_ms``."""
    return [
        {"session": each.id, "title": each.title, "text": call.text, "since_ms": call.since_ms}
        for each in sessions
        for call in each.running
    ]


async def _ask(reader: LogReader, ask: Message, session: SessionView | None) -> dict[str, Any]:
    """What waits for a person, with the ``title`` of its session and the ``lines`` before it."""
    row = checkpoint_row(ask) | {
        "heading": sentences.heading(ask),
        "title": session.title if session is not None else "",
    }
    if session is None:
        return row | {"lines": []}

    def is_own(record: Record) -> bool:
        return record.event.payload.get("session") == session.id

    before = Filter(streams=(session.stream,), types=_SHOWN, until_ms=ask.queued + 1)
    return row | {"lines": [row_of(each) for each in (await newest(reader, before, LINES, is_own))[0]]}
