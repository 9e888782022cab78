"""The sidecar's copy to the team: it never holds up recording, and says how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.care.checks.check import scene_of
from sidecar.care.checks.table import BEFORE_THE_LOG
from sidecar.care.checks.team import check_team
from sidecar.config import load_config
from sidecar.home import Home
from sidecar.notify_config import TeamConfig
from sidecar.team import task as module
from sidecar.team.task import Team
from streams.identity import seeded_identity
from streams.system.retry import Retry
from tests.postgres import Postgres, Wire
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import RECORDINGS, serving, wait_for
from tests.sidecar.team.homes import EVENTS, CopiedHome, differences


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "RETRY", Retry(0.02, 0.1))


@asynccontextmanager
async def copying(home: CopiedHome, config: TeamConfig) -> AsyncIterator[Team]:
    made = Team(Home(home.store.parent), config, home.log, home.log_id, home.story, seeded_identity(7))
    async with AsyncExitStack() as stack:
        await made.start(stack)
        yield made


async def until(made: Team, **wanted: Any) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while not wanted.items() <= (found := made.status()).items():
            await asyncio.sleep(0.01)
    return found


async def test_a_postgres_that_is_away_holds_nothing_up(postgres: Postgres, home: CopiedHome) -> None:
    wire = Wire(postgres.port)
    config = postgres.config("laptop", port=wire.port)
    wire.close()
    async with copying(home, config) as made:
        async with asyncio.timeout(60):
            while not (away := made.status())["problem"]:
                await asyncio.sleep(0.01)
        await home.append(EVENTS[:200])
        assert (away["position"], made.status()["lag"]) == (None, 200)
        assert away["next_ms"] is not None
    async with copying(home, postgres.config("laptop")) as made:
        level = await until(made, lag=0, problem="")
        assert level["machine"] == "laptop"
        assert level["next_ms"] is None
        await home.append(EVENTS[200:300])
        await until(made, position=299)
    home.ship(postgres.config("laptop"))  # the story may be a second behind
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_a_home_at_rest_holds_no_connection(
    postgres: Postgres, home: CopiedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REST_SECONDS", 0.1)
    open_now = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'durable-stream'"
    async with copying(home, postgres.config()) as made, asyncio.timeout(60):
        for begin in (0, 100, 200):
            await home.append(EVENTS[begin : begin + 100])
            await until(made, position=begin + 99)
            while postgres.ask(open_now) != [(0,)]:
                await asyncio.sleep(0.01)
            assert made.status().items() >= {"position": begin + 99, "lag": 0, "problem": ""}.items()
        postgres.ask("UPDATE homes SET head_hash = 'other' RETURNING 1")  # it looks again where the copy ends
        await home.append(EVENTS[300:400])
        while "not in its log" not in made.status()["problem"]:
            await asyncio.sleep(0.01)


async def test_a_refusal_is_said(postgres: Postgres, home: CopiedHome) -> None:
    await home.append(EVENTS[:50])
    home.ship(postgres.config())
    postgres.ask("UPDATE homes SET head_hash = 'other' RETURNING 1")
    async with copying(home, postgres.config()) as made, asyncio.timeout(60):
        while not made.status()["problem"]:
            await asyncio.sleep(0.01)
    assert "not in its log" in made.status()["problem"]


def test_the_check_tells_how_far_it_is(tmp_path: Path) -> None:
    assert check_team in BEFORE_THE_LOG
    scene = scene_of(Home(tmp_path), quick=True)
    assert check_team(scene) == []
    scene = scene._replace(config=load_config(None, team={"database": "postgresql://u@db.example.org/team"}))
    now = {"machine": "m", "address": "db/team", "position": 5, "lag": 0, "failures": 0, "problem": "", "next_ms": None}
    more: tuple[dict[str, Any], ...] = ({}, {"lag": 3}, {"problem": "it is away", "next_ms": 1}, {"position": None})
    told = [check_team(scene._replace(answer={"team": {**now, **each}}))[0] for each in more]
    assert [each.level for each in (*check_team(scene), *told)] == ["ok", "ok", "ok", "note", "ok"]
    assert "3 records" in told[1].text
    assert "it is away" in told[2].text


def test_a_sidecar_copies_what_it_records(postgres: Postgres, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.config_path.write_text(f'[team]\ndatabase = "{postgres.address()}"\nmachine = "desk"\n')
    with serving(home):
        assert run(home.path, "play", str(RECORDINGS / "chat.jsonl")).code == 0
        (status,) = run(home.path, "status", "--json").objects()
        head = status["log"]["head"]
        wait_for(
            lambda: postgres.ask("SELECT 1 FROM homes WHERE story_head >= %s", head), "the copy is level", every_s=0.1
        )
        (status,) = run(home.path, "status", "--json").objects()
        assert status["team"].items() >= {"machine": "desk", "lag": 0, "problem": ""}.items()
        assert any(words[0].startswith("team") for words in run(home.path, "status").rows())
    (log_id,) = postgres.ask("SELECT log_id FROM homes")[0]
    assert list(differences(postgres, home.store_path, log_id)) == []
