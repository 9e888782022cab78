"""A home's copy in the team's Postgres has every byte and row of it, whatever fails on the way."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.read.find_by_id import catalog_of
from sidecar.read.story.writing import StoryTables
from sidecar.team import shipping as module
from sidecar.team.reading import Reading
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from tests.postgres import Postgres
from tests.sidecar.team.homes import EVENTS, CopiedHome, differences


async def test_every_byte_and_row_is_there_and_no_second_time(postgres: Postgres, home: CopiedHome) -> None:
    config = postgres.config("laptop")
    for begin in range(0, len(EVENTS), 300):
        await home.append(EVENTS[begin : begin + 300])
        assert home.ship(config) > 0
        assert list(differences(postgres, home.store, home.log_id)) == []
    assert home.ship(config) == 0
    assert postgres.ask("SELECT machine, head FROM homes") == [("laptop", len(EVENTS) - 1)]


async def test_small_steps_come_to_the_same(
    postgres: Postgres, home: CopiedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 37)
    monkeypatch.setattr(module, "MOST_ROWS", 101)
    shipping = home.shipping(postgres.config())
    told = [-1]
    with closing(Reading(postgres.config())) as reading:
        for begin in (0, 400):
            await home.append(EVENTS[begin : begin + 400])
            while shipping.step():
                ((now, head),) = postgres.ask("SELECT story_head, head FROM homes")
                told.append(now)
                assert postgres.ask("SELECT coalesce(max(n), -1) FROM moment")[0][0] <= head
                if len(told) % 5 == 0:  # whatever is there can be read
                    (copy,) = reading.homes()
                    reading.turn_to(copy)
                    catalog, fault = await catalog_of(reading.reader(copy))
                    assert fault is None
                    assert [catalog.stream_json(name)["stream_id"] for name in catalog.streams] == [*catalog.streams]
    shipping.close()
    # The story counts only once all of it is there.
    assert set(told) == {-1, 399, 799}
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_two_homes_side_by_side(postgres: Postgres, home: CopiedHome, tmp_path: Path) -> None:
    other = await CopiedHome(tmp_path / "other", 2).open()
    await home.append(EVENTS[:700])
    await other.append(EVENTS[400:1100])
    for each, name in ((home, "a"), (other, "b")):
        each.ship(postgres.config(name))
    await other.log.forget([EVENTS[400].stream_id], at_ms=1)
    await other.level()
    other.ship(postgres.config("b"))
    for each in (home, other):
        assert list(differences(postgres, each.store, each.log_id)) == []
    await other.log.close()


async def test_forgets_and_prunes_follow(postgres: Postgres, home: CopiedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STREAMS", 1)  # so each is followed in a step of its own
    config = postgres.config()
    await home.append(EVENTS[:1000])
    home.ship(config)
    sizes = sorted(await home.log.sizes(), key=lambda each: -each.records)
    longest, second, third = (each.stream_id for each in sizes[:3])
    single = [record.position async for record in home.log.read(third)][1]
    await home.log.forget([longest], at_ms=5, positions=[single])
    await home.log.prune({second: 7, EVENTS[999].stream_id: 10**6}, at_ms=6)
    await home.level()
    assert home.ship(config) > 0
    assert list(differences(postgres, home.store, home.log_id)) == []
    # What comes later, and is forgotten again.
    await home.append(EVENTS[1000:])
    await home.log.forget([longest, second], at_ms=7)
    await home.level()
    home.ship(config)
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_what_was_removed_before_the_first_copy(postgres: Postgres, home: CopiedHome) -> None:
    await home.append(EVENTS[:800])
    await home.log.prune({EVENTS[0].stream_id: 5, EVENTS[799].stream_id: 10**6}, at_ms=6)
    await home.log.forget([EVENTS[300].stream_id], at_ms=5)
    await home.level()
    home.ship(postgres.config())
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_tables_that_are_made_again_are_copied_again(postgres: Postgres, home: CopiedHome) -> None:
    config = postgres.config()
    await home.append(EVENTS[:600])
    home.ship(config)
    await home.log.close()
    # Without a team, changes are not noted, so nothing is known of them later.
    home.log = await Log.open(home.store, seeded_identity(1), derived=StoryTables())
    await home.append(EVENTS[600:900])
    await home.log.close()
    home.story = StoryTables(seeded_identity(900).nonce)
    await home.open()
    # Changes are noted from the start on, before anything is recorded.
    async with asyncio.timeout(60):
        while postgres.ask("SELECT story_head FROM homes") != [(899,)]:
            await asyncio.sleep(0.01)
            home.ship(config)
    assert list(differences(postgres, home.store, home.log_id)) == []
    await home.append(EVENTS[900:1000])
    home.ship(config)
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_noted_changes_do_not_grow_without_end(postgres: Postgres, home: CopiedHome) -> None:
    config = postgres.config()
    for begin in range(0, 600, 100):
        await home.append(EVENTS[begin : begin + 100])
        home.ship(config)
    ((changes,),) = postgres.ask("SELECT changes FROM homes")
    assert changes > 200
    copied = LogReader(home.store).copied()
    assert copied is not None
    with copied as log:
        (kept,) = log.db.execute("SELECT count(*) FROM changed").fetchone()
    assert kept < changes / 2


async def test_changes_of_new_tables_are_not_taken_for_those_of_old_ones(postgres: Postgres, home: CopiedHome) -> None:
    config = postgres.config()
    await home.append(EVENTS[:400])
    home.ship(config)
    late = home.story.copied
    await home.log.forget([EVENTS[0].stream_id], at_ms=1)
    await home.level()
    home.ship(config)
    for begin in range(400, 700, 100):
        home.story.copied = (late[0], 10**6)  # a step of the old tables that ended late
        await home.append(EVENTS[begin : begin + 100])
    home.ship(config)
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_a_postgres_that_was_put_back_gets_the_changes_that_it_lost(postgres: Postgres, home: CopiedHome) -> None:
    config = postgres.config()
    for begin in range(0, 400, 100):
        await home.append(EVENTS[begin : begin + 100])
        home.ship(config)
    postgres.ask("UPDATE homes SET changes = 2 RETURNING 1")
    postgres.ask("UPDATE turn SET agent = 'an older row' RETURNING 1")
    home.ship(config)
    assert list(differences(postgres, home.store, home.log_id)) == []
    assert home.ship(config) == 0
