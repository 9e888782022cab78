"""The catalog of a log at a record is the catalog of a log that ends with it, however it is asked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from sidecar.background.board import open_board
from sidecar.inspector.data import Data
from sidecar.read.projects import Project, newest_of
from sidecar.read.select import Families, ask_catalog, catalog_of, family_of
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.writing import StoryTables
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from tests.sidecar.read.story.playing import everything, records_of, snapshot
from tests.streams.builders import event
from tests.streams.derivers import caught_up


def eventful() -> list[StreamEvent]:
    """Sessions of both OpenCodes, and between their events: losses, marks, moves, background work and late parents."""
    events = [record.event for record in everything()]
    streams = list(dict.fromkeys(each.stream_id for each in events))
    found: list[StreamEvent] = []

    def add(type_: str, stream: str, n: int, **payload: Any) -> None:
        about = {"boot": events[n].metadata.get("boot", "b")}
        found.append(event(f"{type_}{n}", type_=type_, stream=stream, payload=payload, metadata=about))

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
                found.append(event(f"forgotten{n}", stream=stream, payload={"$sha256": "0" * 64, "bytes": 1}))
    return found


def answers(catalog: Catalog) -> dict[str, Any]:
    """Everything that a catalog is asked."""
    newest = [*catalog.newest_first()]
    projects = {each: sorted(Project(each).streams(catalog)) for each in catalog.directories()}
    return {
        "newest": newest,
        "streams": {name: catalog.stream_json(name) for name in newest},
        "views": {name: msgspec.structs.asdict(view) for name, view in catalog.sessions.items()},
        "numbers": {name: msgspec.structs.asdict(view) for name, view in catalog.streams.items()},
        "places": {place: catalog.streams_at(place) for place in sorted(catalog.places())},
        "projects": projects,
        "newest of": [newest_of(catalog), *(newest_of(catalog, set(each)) for each in projects.values())],
        "where": {name: [catalog.ran_in(name), catalog.directory(name, 9), catalog.moves(name)] for name in newest},
        "tree": {name: [catalog.place(name), [x.id for x in catalog.children(name)]] for name in catalog.sessions},
        "families": {name: catalog.streams_of(name) for name in catalog.sessions},
        "forks": {name: [each.id for each in catalog.forks(name)] for name in catalog.sessions},
        "roots": [each.id for each in catalog.roots()],
        "background": [each.id for each in catalog.background()],
        "open": sorted(catalog.open_turns()),
        "asks": catalog.asks(),
        "losses": [catalog.loss_texts(), *(catalog.loss_texts({name}) for name in newest)],
        "agents": catalog.agents,
        "sums": catalog.sums,
        "outside": [each.id for each in catalog.with_times_outside(1_800_000_000_000, 1_900_000_000_000)],
    }


def test_at_any_record_it_is_that_of_a_log_that_ends_there() -> None:
    records = records_of(eventful())
    whole = snapshot(records)
    seen = set[str]()
    for n in [*range(0, len(records), 61), len(records) - 1]:
        ended = answers(Catalog(snapshot(records[: n + 1])))
        assert answers(Catalog(whole, n)) == ended, n
        at_once = Catalog(whole, n)
        at_once.streams.values(), at_once.sessions.values()
        assert answers(at_once) == ended, n
        some = Catalog(whole, n)
        some.read(ended["newest"][:3])
        assert answers(some) == ended, n
        seen |= {name for name, answer in ended.items() if answer}
    assert seen == ended.keys()


async def test_nothing_that_waits_holds_the_log(tmp_path: Path) -> None:
    """Only a command holds a snapshot; what asks again when something was recorded leaves the log alone meanwhile."""
    log = await Log.open(tmp_path / "store", seeded_identity(1), derived=StoryTables())
    records = everything()[:60]
    await log.append([record.event for record in records])
    await caught_up(log)
    reader = LogReader(log.store)

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    def is_held() -> bool:
        """Whether somebody still reads an older state of the database, so that its WAL cannot begin anew."""
        with closing(sqlite3.connect(log.store / "log.db", isolation_level=None, timeout=0)) as db:
            db.execute("UPDATE live SET state = state || ' '")  # a change that a reader of before does not see
            return bool(db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0])

    stream = records[0].event.stream_id
    data, families = Data(tmp_path, reader, seeded_identity(1).now_ms, nothing, nothing), Families(reader)
    kept = [
        await data.sessions(),
        await data.session(stream, None),
        await data.search("a"),
        await data.work(),
        await open_board(reader),
        await family_of(reader, stream),
        await families.of(records[0]),
        await ask_catalog(reader, lambda catalog: catalog.asks()),
    ]
    assert all(each is not None for each in kept) and not is_held()
    catalog, _ = await catalog_of(reader)
    assert is_held() and catalog.position == log.head
    await reader.close()
    await log.close()
