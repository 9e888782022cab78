"""The mover and Postgres are killed while they work. ``TORTURE_TEAM_KILLS`` sets how often."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from random import Random

import pytest

from tests.postgres import Postgres
from tests.sidecar.team.homes import EVENTS, CopiedHome, differences
from tests.streams.sizes import size

KILLS = size("TEAM_KILLS", 4)


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


async def test_a_postgres_that_is_killed(durable: Postgres, home: CopiedHome) -> None:
    await home.append(EVENTS[:600])
    random = Random(KILLS)
    with mover(home, durable) as process:
        assert process.stdout is not None
        for _ in range(KILLS):
            for _ in range(random.randrange(1, 6)):
                process.stdout.readline()
            durable.kill()
            durable.start()
        process.stdout.read()
        assert process.wait() == 0
    assert list(differences(durable, home.store, home.log_id)) == []
