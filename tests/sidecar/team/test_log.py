"""The team's log keeps the contract of every store, and several processes' appends are one history."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.home import Home
from sidecar.team import line
from sidecar.team.errors import TeamUnavailable
from sidecar.team.log import TeamLog, open_log
from sidecar.team.reading import Reading
from streams.errors import OffsetConflict, StoreUnavailable
from streams.store import StreamStore
from tests.postgres import Postgres, Wire
from tests.sidecar.cli.helpers import run
from tests.streams.builders import event, events
from tests.streams.store_contract import StoreContract


class TestTeamLog(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: Postgres) -> None:
        self.config = postgres.config()

    async def open_store(self) -> StreamStore:
        return await open_log(self.config, 0.02)


@pytest.fixture
async def log(postgres: Postgres) -> AsyncIterator[TeamLog]:
    found = await open_log(postgres.config(), 0.02)
    yield found
    await found.close()


async def findings(postgres: Postgres) -> list[str]:
    """What is wrong with the log, read as a home of the team."""
    with closing(Reading(postgres.config())) as reading:
        (home,) = reading.homes("team")
        assert (home.home, home.behind) == (0, 0)
        reading.turn_to(home)
        return [str(each) async for each in reading.reader(home).verification().run()]


async def test_several_writers_make_one_history_and_a_follower_misses_nothing(postgres: Postgres, log: TeamLog) -> None:
    others = [await open_log(postgres.config(), 0.02) for _ in range(4)]
    live = log.subscribe()

    async def write(number: int, store: TeamLog) -> int:
        lost = 0
        for n in range(40):
            batch = [event(f"{number}:{n}:{each}", stream=f"agent/{each % 2}") for each in range(1 + n % 3)]
            while True:
                at = sum([1 async for _ in store.read("agent/0")])
                try:
                    await store.append(batch, expected={"agent/0": at} if number % 2 else None)
                    break
                except OffsetConflict:
                    lost += 1
        return lost

    async with asyncio.timeout(60):
        writing = asyncio.gather(*(write(number, store) for number, store in enumerate(others)))
        total = 4 * sum(1 + n % 3 for n in range(40))
        seen = [await anext(live) for _ in range(total)]
        await writing
    assert [record.position for record in seen] == list(range(total))
    assert len({record.event.idempotency_key for record in seen}) == total
    assert await findings(postgres) == []
    for store in others:
        await store.close()


async def test_it_lives_through_a_postgres_that_is_away(postgres: Postgres) -> None:
    wire = Wire(postgres.port)
    log = await open_log(postgres.config(port=wire.port), 0.02)
    live = log.subscribe()
    await log.append([event("a")])
    assert (await anext(live)).position == 0
    wire.cut()
    # The connection was lost, and is made again: nobody need know.
    (record,) = await log.append([event("b")])
    assert not record.duplicate and await log.find("test:a") is not None
    wire.close()
    for refused in (log.append([event("c")]), log.find("test:a"), log.cursor("x"), log.advance("x", 1)):
        with pytest.raises(TeamUnavailable):
            await refused
    again = Wire(postgres.port, wire.port)
    await log.append([event("d")])
    async with asyncio.timeout(30):
        assert [(await anext(live)).position for _ in range(2)] == [1, 2]
    await log.close()
    again.close()


@pytest.mark.parametrize("left", [100, 1500, 2600])
async def test_an_append_whose_answer_was_lost_is_done_once(postgres: Postgres, left: int) -> None:
    """The wire is cut after some bytes: in the middle of what is sent, or of the answer."""
    wire = Wire(postgres.port)
    log = await open_log(postgres.config(port=wire.port), 60.0)
    for n in range(3):
        await log.append([event(f"{n}")])
    wire.left = left
    while not wire.cuts:
        n += 1
        (record,) = await log.append([event(f"{n}")], expected={"ses_a": n})
        assert (record.offset, record.duplicate) == (n, False)
    assert await findings(postgres) == []
    await log.close()
    wire.close()


async def test_a_postgres_that_says_nothing_is_not_waited_for(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "PATIENCE_SECONDS", 0.2)
    log = await open_log(postgres.config(), 60.0)
    await log.append([event("a")])
    postgres.signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(30):
            for refused in (log.append([event("b")]), log.find("test:a")):
                with pytest.raises(TeamUnavailable):
                    await refused
            await log.close()
    finally:
        postgres.signal(signal.SIGCONT)


async def test_a_log_that_lost_records_is_not_gone_on_with(postgres: Postgres, log: TeamLog) -> None:
    live = log.subscribe(after=3)
    await log.append(events(5))
    assert (await anext(live)).position == 4
    other = await open_log(postgres.config(), 60.0)
    # As after a restore from a backup, and another home has appended since.
    postgres.ask("DELETE FROM records WHERE position > 1 RETURNING 1")
    postgres.ask("UPDATE streams SET next_offset = 2, hash = (SELECT hash FROM records WHERE place = 1) RETURNING 1")
    postgres.ask("UPDATE homes SET head = 1, head_hash = (SELECT hash FROM records WHERE place = 1) RETURNING 1")
    await other.append(events(9, prefix="later"))
    await other.close()
    async with asyncio.timeout(30):
        with pytest.raises(StoreUnavailable):
            await anext(live)
        with pytest.raises(StoreUnavailable):
            await log.append([event("x")])
    assert await findings(postgres) == []


async def test_a_key_is_found_without_reading_the_index_from_end_to_end(postgres: Postgres, log: TeamLog) -> None:
    for number in range(8):
        await log.append(events(500, prefix=f"{number}:"))
    plan = postgres.ask(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT position FROM records WHERE home = 0 AND key = ANY"
        " (ARRAY[decode('00112233445566778899aabbccddeeff', 'hex'), decode('ffeeddccbbaa99887766554433221100', 'hex')])"
    )
    found = plan[0][0][0]["Plan"]
    assert found["Shared Hit Blocks"] + found["Shared Read Blocks"] <= 8


def test_it_is_read_as_a_home_of_the_team(postgres: Postgres, tmp_path: Path) -> None:
    sold = event("a", stream="agent/x", type_="shop.sold", payload={"what": "a lamp"})

    async def fill() -> None:
        log = await open_log(postgres.config())
        await log.append([sold, *events(3)])
        await log.close()

    asyncio.run(fill())
    home = Home(tmp_path)
    home.config_path.write_text(f'[team]\ndatabase = "{postgres.address()}"\n')
    for words, found in (
        (["verify"], None),
        (["log", "agent/x"], "shop.sold"),
        (["query", "LAMP", "--internal"], "shop.sold"),
        (["query", "--type", "shop.*", "--internal"], "shop.sold"),
        (["state", "agent/x"], None),
        (["streams"], None),
        (["tree"], None),
        (["changes"], None),
        (["costs"], None),
        (["show", sold.id], "a lamp"),
    ):
        ran = run(home.path, *words, "--machine", "team")
        assert ran.code == 0, (words, ran)
        assert found is None or found in ran.out, (words, ran)
