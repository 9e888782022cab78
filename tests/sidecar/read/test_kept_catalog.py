"""The catalog in rows, of which commands read only what they show, answers like a catalog in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.read.catalog import CATALOG, CATALOG_VERSION, Catalog
from sidecar.read.kept_catalog import KeptCatalog
from sidecar.read.projects import Project, newest_of
from streams.event import StreamEvent
from streams.store import Record
from streams.stores.sqlite.kept import KeptRows, read_rows
from tests.bridge.opencode.playing import names, play
from tests.bridge.opencode.playing2 import names as names2
from tests.bridge.opencode.playing2 import play2
from tests.streams.builders import event


def content(catalog: Catalog) -> tuple[object, ...]:
    """Everything that a catalog knows, which is whole in memory."""
    return dict(catalog.streams), dict(catalog.sessions), catalog.rest()


def stories() -> list[StreamEvent]:
    """The recordings of both OpenCodes, a stream whose parent becomes known late, and a stream of an agent."""
    events = [each for name in names() for each in play(name).log.events.values()]
    events += [each for name in names2() for each in play2(name).log.events.values()]
    late = [
        event(
            "u1", type_="lifecycle.session.created", stream="late", payload={"session": "late", "lineage": "unknown"}
        ),
        event("u2", type_="turn.started", stream="late", payload={"session": "late", "message": "m"}),
        event("u3", type_="lineage.linked", stream="late", payload={"session": "late", "parent": events[0].stream_id}),
        event("u4", type_="agent.received", stream="agent/a", payload={}),
        event("u5", type_="lineage.linked", stream="late", payload={"session": events[0].stream_id, "parent": "late"}),
    ]
    asks = {"session": "late", "state": "asked", "request": "r", "kind": "permission"}
    end = [event("u6", type_="workflow.checkpoint", stream="late", payload=asks)]
    return events[:40] + late + events[40:] + end


def answers(catalog: Catalog) -> dict[str, Any]:
    """What commands ask of a catalog. Asked before anything has read all streams or sessions."""
    newest = [stream.id for stream in catalog.newest_first()]
    directories = sorted({place.directory for place in catalog.places()})
    projects = {each: sorted(Project(each).streams(catalog)) for each in directories if each}
    streams = [catalog.stream_json(name) for name in newest]
    told = {
        "newest": newest,
        "open": sorted(catalog.open_turns()),
        "asks": [ask.request for ask in catalog.asks()],
        "projects": projects,
        "newest of": [newest_of(catalog), *(newest_of(catalog, set(each)) for each in projects.values())],
        "streams": streams,
        "families": {name: catalog.streams_of(name) for name in newest},
        "parts": {name: content(catalog.part(set(catalog.streams_of(name)))) for name in newest},
        "rest": catalog.rest(),
    }
    places = {name: (catalog.place(name), [each.id for each in catalog.children(name)]) for name in catalog.sessions}
    return told | {"places": places, "roots": [each.id for each in catalog.roots()], "whole": content(catalog.whole())}


@pytest.mark.parametrize("every", [7, 50, 10_000])
def test_a_catalog_in_rows_answers_like_one_in_memory(tmp_path: Path, every: int) -> None:
    plain, rows = Catalog(), KeptRows(tmp_path, CATALOG, CATALOG_VERSION, 10**6)
    kept = KeptCatalog(rows)
    events = stories()
    for position, each in enumerate(events):
        record = Record(event=each, offset=position, position=position, hash="")
        plain.apply(record)
        kept.apply(record)
        if position % every == every - 1:
            rows.put(position, *kept.changes())
            kept.saved(rows, 1)
        if position in (60, len(events) // 2, len(events) - 1):
            found = read_rows(tmp_path, CATALOG, CATALOG_VERSION)
            reading = KeptCatalog() if found is None else KeptCatalog.resumed(found.snapshot.state, found)
            for late, other in enumerate(events[reading.position + 1 : position + 1], reading.position + 1):
                reading.apply(Record(event=other, offset=late, position=late, hash=""))
            assert found is None or found.settle()
            assert answers(reading) == answers(plain)
    rows.close()
