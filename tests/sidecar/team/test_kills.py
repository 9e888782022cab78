"""The mover and Postgres are killed while they work. ``TORTURE_TEAM_KILLS`` sets how often."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sidecar.home import Home
from sidecar.team.errors import TeamRefused
from streams.event import StreamEvent
from tests.postgres import Postgres, Wire
from tests.sidecar.cli.helpers import run
from tests.sidecar.team.homes import EVENTS, CopiedHome, differences
from tests.streams.sizes import size
from tests.torture.figures import note, seeded

KILLS = size("TEAM_KILLS", 4)
HOMES = size("TEAM_HOMES", 2)
MANY = size("TEAM_EVENTS", 600)


@pytest.fixture
def durable() -> Iterator[Postgres]:
    """A Postgres that keeps what it acknowledged."""
    found = Postgres().start()
    yield found
    found.close()


def mover(home: CopiedHome, port: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.sidecar.team.mover", str(home.store), home.log_id, str(port)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


async def test_a_mover_that_is_killed(postgres: Postgres, home: CopiedHome) -> None:
    await home.append(EVENTS[:600])
    random = Random(KILLS)
    for _ in range(KILLS):
        with mover(home, postgres.port) as process:
            assert process.stdout is not None
            for _ in range(random.randrange(1, 12)):
                process.stdout.readline()
            process.kill()
    home.ship(postgres.config())
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_a_postgres_that_is_killed_under_many_homes(durable: Postgres, tmp_path: Path) -> None:
    """Their wires are cut, their clocks are hours apart, and one of them was copied before."""
    homes = [await CopiedHome(tmp_path / str(number), number).open() for number in range(HOMES)]
    twin = CopiedHome(tmp_path / "twin")
    for number, home in enumerate(homes):
        hours = 3_600_000 * (number + 1) * (-1) ** number
        some = [each.fields() for each in EVENTS[number * 50 : number * 50 + MANY]]
        await home.append([StreamEvent.parse({**each, "ts": each["ts"] + hours}) for each in some])
    await homes[0].log.close()
    shutil.copytree(homes[0].store, twin.store)
    await homes[0].open()
    await homes[0].append(EVENTS[-2:-1])
    wires = [Wire(durable.port) for _ in homes]
    movers = [mover(home, wire.port) for home, wire in zip(homes, wires, strict=True)]
    random, deaths = seeded("team-kills"), 0
    for number in range(KILLS * HOMES):
        stdout = movers[number % HOMES].stdout
        assert stdout is not None
        moved = [stdout.readline() for _ in range(random.randrange(1, 6))]
        wires[number % HOMES].left = random.randrange(30_000)
        if number % HOMES == 0 and moved[-1]:
            durable.kill()
            durable.start()
            deaths += 1
    for process, home in zip(movers, homes, strict=True):
        with process:
            assert process.stdout is not None
            process.stdout.read()
            assert process.wait() == 0
        assert list(differences(durable, home.store, home.log_id)) == []
    await twin.open()
    await twin.append(EVENTS[-1:])
    with pytest.raises(TeamRefused):
        twin.ship(durable.config())
    for home, wire in zip(homes, wires, strict=True):
        assert list(differences(durable, home.store, home.log_id)) == []
        await home.log.close()
        wire.close()
    await twin.log.close()
    reader = Home(tmp_path / "reader")
    reader.create()
    reader.config_path.write_text(f'[team]\ndatabase = "{durable.address()}"\n')
    assert run(reader.path, "verify", "--team").code == 0
    note("team-kills", kills=deaths, connections_closed=sum(wire.cuts for wire in wires))
    assert deaths > 0
