"""Why an event happened, and what came of it: across sessions, asks, background work and messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sidecar.read.causes import causes, with_approvals
from sidecar.read.find_by_id import ask_catalog, newest
from sidecar.read.kinds import is_agents
from sidecar.read.rendering.describe import row_of
from sidecar.read.story.catalog import Catalog
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record

MOST_EFFECTS: Final = 500
LOOKS: Final = 40
"""How many events are followed to what came of them in turn."""

MOST_CALLS: Final = 12
"""How many later calls of a turn are named."""

_SHOWN: Final = (
    *("agent.spawned", "agent.input", "turn.started", "turn.ended", "workflow.checkpoint"),
    *("intent.created", "intent.completed", "intent.failed", "intent.cancelled", "intent.refused", "message.queued"),
)
"""What lies between an event and what came of it later. The steps of a turn are shown below this turn only."""

_FOLLOWED: Final = (*_SHOWN, "intent.register", "effect.requested", "effect.completed")


async def reasons(reader: LogReader, record: Record) -> dict[str, Any]:
    """The ``row`` of a record, its ``causes`` and its ``effects``, each with its ``session`` (empty: none) and the row
    ``above`` it, by the id of the event; and the titles of the ``sessions``. ``calls`` has the first tools that the
    record's turn called after it, and ``more`` how many others: a call names its turn as its cause, not what the model
    read before."""
    chain = await with_approvals(reader, await causes(reader, record))
    above = [None, *(each.event.id for each in chain)]
    led = [_row(each, before) for each, before in zip(chain, above, strict=False)]
    effects: list[dict[str, Any]] = []
    left = LOOKS

    async def follow(cause: Record, shown: str, types: tuple[str, ...]) -> None:
        nonlocal left
        left -= 1
        wanted = Filter(causation_id=cause.event.id, types=types)
        found, _ = await newest(reader, wanted, MOST_EFFECTS, after=cause.position)
        for each in found:
            is_shown = not types or each.event.type in _SHOWN
            if is_shown:
                effects.append(_row(each, shown))
            if left > 0 and each.event.type in _FOLLOWED:
                await follow(each, each.event.id if is_shown else shown, _FOLLOWED)

    await follow(record, record.event.id, ())
    names = {row["session"] for row in (*led, *effects)}

    def titles(catalog: Catalog) -> dict[str, str]:
        known = (catalog.sessions.get(name) for name in names)
        return {each.id: each.title or catalog.first_prompt(each.id) for each in known if each is not None}

    calls = await _calls_after(reader, record, chain)
    found: dict[str, Any] = {
        "row": led[-1],
        "causes": led[:-1],
        "effects": sorted(effects, key=lambda row: row["position"]),
    }
    found |= {"calls": [_row(each, None) for each in calls[:MOST_CALLS]], "more": max(len(calls) - MOST_CALLS, 0)}
    return found | {"sessions": await ask_catalog(reader, titles)}


async def _calls_after(reader: LogReader, record: Record, chain: Sequence[Record]) -> list[Record]:
    turns = [each.event.id for each in (*chain, record) if each.event.type == "turn.started"]
    if record.event.type in ("human.input", "agent.input"):
        begun = Filter(causation_id=record.event.id, types=("turn.started",))
        turns = [each.event.id for each in (await newest(reader, begun, 1, after=record.position))[0]]
    if not turns:
        return []
    wanted = Filter(causation_id=turns[-1], types=("execution.step",))
    found, _ = await newest(reader, wanted, MOST_EFFECTS, after=record.position)
    return [each for each in found if each.event.payload.get("kind") == "tool"]


def _row(record: Record, above: str | None) -> dict[str, Any]:
    stream, session = record.event.stream_id, record.event.payload.get("session")
    own = "" if is_agents(stream) else session if isinstance(session, str) else stream
    return row_of(record) | {"session": own, "above": above}
