"""The mover and Postgres are killed while they work. ``TORTURE_TEAM_KILLS`` sets how often."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.postgres import Postgres
from tests.sidecar.team.homes import EVENTS, CopiedHome, differences
from tests.streams.sizes import size

KILLS = size("TEAM_KILLS", 4)
HOMES = size("TEAM_HOMES", 2)


@pytest.fixture
def durable() -> Iterator[Postgres]:
    """A Postgres that keeps what it acknowledged."""
    found = Postgres().start()
    yield found
    found.close()


def mover(home: CopiedHome, postgres: Postgres) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.sidecar.team.mover", str(home.store), home.log_id, str(postgres.port)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


async def test_a_mover_that_is_killed(postgres: Postgres, home: CopiedHome) -> None:
    await home.append(EVENTS[:600])
    random = Random(KILLS)
    for _ in range(KILLS):
        with mover(home, postgres) as process:
            assert process.stdout is not None
            for _ in range(random.randrange(1, 12)):
                process.stdout.readline()
            process.kill()
    home.ship(postgres.config())
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_a_postgres_that_is_killed_under_many_homes(durable: Postgres, tmp_path: Path) -> None:
    homes = [await CopiedHome(tmp_path / str(number), number).open() for number in range(HOMES)]
    for number, home in enumerate(homes):
        await home.append(EVENTS[number * 50 : number * 50 + 600])
    random = Random(KILLS)
    movers = [mover(home, durable) for home in homes]
    for number in range(KILLS):
        stdout = movers[number % HOMES].stdout
        assert stdout is not None
        for _ in range(random.randrange(1, 6)):
            stdout.readline()
        durable.kill()
        durable.start()
    for process, home in zip(movers, homes, strict=True):
        with process:
            assert process.stdout is not None
            process.stdout.read()
            assert process.wait() == 0
        assert list(differences(durable, home.store, home.log_id)) == []
        await home.log.close()
