"""The records of recordings of both OpenCodes, and the story's tables of some records."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import orjson
import pytest

from sidecar.read.find_by_id import Family
from sidecar.read.past.spans import Span
from sidecar.read.story import session_fold, tables
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.moment import Moment
from sidecar.read.story.past import Past
from sidecar.read.story.reading import Snapshot
from sidecar.read.story.rules import Rules
from sidecar.read.story.timeline import Timeline
from streams.event import StreamEvent
from streams.store import Record
from tests.bridge.opencode import playing, playing2
from tests.streams import builders

RECORDINGS = [*playing.names(), *(f"2/{name}" for name in playing2.names())]
"""All recordings; the names of those of OpenCode 2 begin with ``2/``."""


def records_of(events: Iterable[StreamEvent]) -> list[Record]:
    """Events as the records of a new log, which keeps the fields of a payload in the order of their names."""
    offsets, found = Counter[str](), []
    for position, event in enumerate(events):
        stored = StreamEvent.trusted(orjson.loads(orjson.dumps(event.fields(), option=orjson.OPT_SORT_KEYS)))
        found.append(Record(stored, offsets[event.stream_id], position, f"{position:064x}"))
        offsets[event.stream_id] += 1
    return found


@lru_cache(maxsize=16)
def recorded(name: str) -> list[Record]:
    """The records of a recording; empty if nothing of it is recorded."""
    player = playing2.play2(name[2:]) if name.startswith("2/") else playing.play(name)
    return records_of(player.log.events.values())


def tables_of(records: list[Record], most_live: int | None = None) -> sqlite3.Connection:
    """The tables of a log, in memory. With ``most_live``, they are written after each record, and no more sessions and
    places than that are remembered then."""
    db = sqlite3.connect(":memory:", check_same_thread=False)
    tables.create(db)
    rules = Rules(db, {record.position: record for record in records}.__getitem__)
    for record in records:
        rules.apply(record)
        if most_live is not None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session_fold, "MOST_LIVE", most_live)
                rules.write()
                rules.rest()
    rules.write()
    return db


def snapshot(records: list[Record]) -> Snapshot:
    """The tables of a log, as a reader sees them."""
    return Snapshot(tables_of(records), records_at(records), max((each.position for each in records), default=-1))


def records_at(records: list[Record]) -> Callable[[Iterable[int]], dict[int, Record]]:
    """What returns those of the records that are at some positions."""
    kept = {record.position: record for record in records}
    return lambda positions: {position: kept[position] for position in positions}


def catalog_of(events: Iterable[StreamEvent]) -> Catalog:
    """The catalog of a log with these events."""
    return Catalog(snapshot(records_of(events)))


def past_of(records: list[Record]) -> Past:
    """The past of the first session of a log, with all of the log's records."""
    story = snapshot(records)
    family = Family(records[0].event.stream_id, Catalog(story))
    family.streams = {record.event.stream_id for record in records}
    return Past(story, records[0].event.payload["session"], family)


def spans_of(events: Iterable[StreamEvent]) -> list[Span]:
    """The timeline of a log with these events."""
    records = records_of(events)
    streams = {record.event.stream_id for record in records}
    return Timeline(Moment(snapshot(records), streams, len(records) - 1)).spans()


def content(db: sqlite3.Connection) -> dict[str, list[Any]]:
    """Every row of every table."""
    return {name: db.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in tables.ROWS}


EVERYTHING = ["task_resumed_child", "permission_once", "revert", "command", "deletion", "fork", "permission_child"]
"""Recordings in which much happens."""


def everything() -> list[Record]:
    """Many sessions of both OpenCodes, their records in turns."""
    logs = [recorded(name) for name in (*EVERYTHING, "2/subagents", "2/shell", "2/switch", "2/background")]
    turns = [record.event for records in zip_longest(*logs) for record in records if record is not None]
    return records_of(turns)


def eventful() -> list[StreamEvent]:
    """Sessions of both OpenCodes, and between their events: losses, marks, moves, background work and late parents."""
    events = [record.event for record in everything()]
    streams = list(dict.fromkeys(each.stream_id for each in events))
    found: list[StreamEvent] = []

    def add(type_: str, stream: str, n: int, **payload: Any) -> None:
        about = {"boot": events[n].metadata.get("boot", "b")}
        found.append(builders.event(f"{type_}{n}", type_=type_, stream=stream, payload=payload, metadata=about))

    for n, each in enumerate(events):
        found.append(each)
        stream = streams[n % len(streams)]
        match n % 24:
            case 1:
                add("capture.gap", "system", n, reason="feed_broken", lost=1)
            case 5:
                add("capture.gap", stream, n, session=stream, reason="not_kept", lost=2)
            case 9:
                add(("stream.pinned", "stream.named", "stream.unpinned")[n % 3], stream, n, name=f"name {n}")
            case 13:
                add("intent.started", "agent/intents", n, session=streams[n * 7 % len(streams)], directory=f"/w{n}")
            case 17:
                add("opencode.session.moved", stream, n, session=stream, directory=f"/m{n % 3}", project="p")
            case 19:
                add("opencode.session.retry.scheduled", stream, n, session=stream, at_ms=5, name="Boom")
            case 21:
                add("lineage.linked", stream, n, session=stream, parent=streams[n * 5 % len(streams)])
            case 23:
                found.append(builders.event(f"forgotten{n}", stream=stream, payload={"$sha256": "0" * 64, "bytes": 1}))
    return found
