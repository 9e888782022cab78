"""Everything that is shown of a moment, from the tables of a whole log and from those of a log that ends there.

``python -m tests.sidecar.read.story.moments HOME…`` compares every moment of some homes, or of all below a directory.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from sidecar.read.find_by_id import Family
from sidecar.read.host_agents import host_agents
from sidecar.read.past.moment import state
from sidecar.read.projects import Project, newest_of
from sidecar.read.story import tables
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.changes import Changes, approvals
from sidecar.read.story.conversation import Telling
from sidecar.read.story.costs import WAYS, When, cells, costs
from sidecar.read.story.ended_spans import ended
from sidecar.read.story.moment import Moment
from sidecar.read.story.past import Past
from sidecar.read.story.reading import Snapshot, ask
from sidecar.read.story.rules import Rules
from sidecar.read.story.timeline import Timeline
from sidecar.read.tree import Tree
from streams.errors import StreamError
from streams.log.reader import LogReader
from streams.store import Record
from tests.sidecar.read.story.playing import content, tables_of

Answers = dict[str, Any]


def of_list(catalog: Catalog) -> Answers:
    """What is asked of all sessions."""
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


def of_work(story: Snapshot, n: int) -> Answers:
    """What is asked of work in the background, of all asks, and of spans for a receiver of traces."""
    catalog = Catalog(story, n)
    asks = approvals(Moment(story, [*catalog.streams], n))
    return {
        "work": host_agents(catalog),
        "approvals": [
            (each.asked.event.id, each.ask, each.reply, each.answer and each.answer.event.id) for each in asks
        ],
        "ended": ended(story, n - 5, n, 100),
    }


def of_session(past: Past, at: int) -> Answers:
    """What is shown of a session after ``at`` records, apart from what is said of the log as it is now."""
    moment, changes = past.at(at), Changes(past.at(at), past.position(at // 2))
    timeline, catalog, now = Timeline(moment), moment.catalog, past.last_ts(at)
    spans = timeline.spans()
    starts = sorted({span.start for span in spans})
    tree = Tree(catalog, {row.name: moment.turns(key) for key, row in moment.sessions.items()})
    return {
        "state": {name: value for name, value in state(past, at).items() if name != "records"},
        "conversation": Telling(moment).whole(),
        "timeline": [spans, timeline.spans(3), timeline.is_longer(5), timeline.turns(past.session, now, 3)],
        "map": timeline.columns(past.session, now, 3),
        "stretch": [timeline.between(begin, end, 9) for begin, end in pairwise(starts[:: len(starts) // 3 or 1])],
        "marks": [mark for mark in past.marks() if mark[0] < at],
        "tree": [tree.as_json(root) for root in catalog.roots()],
        "files": [Changes(moment).files(), changes.files(), changes.totals(), changes.count()],
        "changes": [changes.turns(), changes.turns(2, with_diffs=True)],
    }


def of_costs(story: Snapshot, catalog: Catalog) -> list[Any]:
    """What all steps up to now used, in each way."""

    def moves(names: set[str]) -> set[int]:
        return {n for name in names for n, _ in catalog.moves(catalog.root(name))}

    some = cells(story, When(None, None), moves)
    found = [costs(some, way, catalog.root, catalog.directory) for way in WAYS]
    return [each.total().cost for each in found]


def compared(records: list[Record], most: int = 0) -> int:
    """Compare ``most`` moments of a log, or every one, with the end of a log that ends there; return how many."""
    wanted = {record.position for record in records}
    if most:
        wanted = {*Random(len(records)).sample(sorted(wanted), min(most, len(wanted)))}
    known = {record.position: record for record in records}

    def kept(positions: Any) -> dict[int, Record]:
        return {position: known[position] for position in positions}

    whole_db, cut_db = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    for db in (whole_db, cut_db):
        tables.create(db)
    rules = Rules(whole_db, known.__getitem__)
    for record in records:
        rules.apply(record)
    rules.write()
    whole = Snapshot(whole_db, kept, records[-1].position)
    families = [(row.id, Family(row.stream, Catalog(whole))) for row in Catalog(whole).roots()]
    cut = Rules(cut_db, known.__getitem__)
    for record in records:
        cut.apply(record)
        if (n := record.position) not in wanted:
            continue
        cut.write()
        ends = Snapshot(cut_db, kept, n)
        for what, one, other in _pairs(whole, ends, n, _some(families, record)):
            assert one == other, (n, record.event.type, what)
    return len(wanted)


def _some(families: list[tuple[str, Family]], record: Record) -> list[tuple[str, Family]]:
    """The session that a record is about, and one of the others."""
    own = [each for each in families if record.event.stream_id in each[1].streams]
    return own + families[record.position % len(families) :][:1] if families else []


def _pairs(
    whole: Snapshot, ends: Snapshot, n: int, families: list[tuple[str, Family]]
) -> Iterator[tuple[str, Any, Any]]:
    now, then = Catalog(ends), Catalog(whole, n)
    found = [("list", of_list(then), of_list(now)), ("work", of_work(whole, n), of_work(ends, n))]
    at_once, some = Catalog(whole, n), Catalog(whole, n)
    at_once.streams.values(), at_once.sessions.values(), some.read([*now.newest_first()][:3])
    found += [("list", of_list(each), found[0][2]) for each in (at_once, some)]
    for session, family in families:
        past, end = Past(whole, session, family), Past(ends, session, family)
        assert past.number(past.position(end.count)) == end.count - 1 if end.count else True
        found.append((session, of_session(past, end.count), of_session(end, end.count)))
    for what, one, other in found:
        yield from ((f"{what}: {name}", one[name], other[name]) for name in other)
    for cost in of_costs(ends, now):
        yield "costs", then.figures(then.sessions)["cost"], cost


async def compared_home(home: Path, most: int = 0) -> int:
    """As ``compared``, of the log of a home. Its own tables must be those of its records, too."""
    reader = LogReader(home / "store")
    records = [record async for record in reader.read_all()]
    rows = await ask(reader, lambda story: {name: sorted(story.sql(f"SELECT * FROM {name}")) for name in tables.ROWS})
    await reader.close()
    assert rows == {name: sorted(each) for name, each in content(tables_of(records)).items()}
    return await asyncio.to_thread(compared, records, most) if records else 0


def main(places: list[str]) -> None:
    homes = sorted({file.parent.parent for place in places for file in Path(place).rglob("store/head")})
    total = 0
    for home in homes:
        try:
            total += (count := asyncio.run(compared_home(home)))
            print(f"{home}: {count} moments, {total} so far", flush=True)
        except (AssertionError, StreamError) as error:
            print(f"{home}: {error!r}"[:3000], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
