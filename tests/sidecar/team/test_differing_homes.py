"""A home that differs from its copy adds nothing, and a wire that is cut loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sidecar.team import shipping as module
from sidecar.team.errors import TeamRefused
from tests.postgres import Postgres, Wire
from tests.sidecar.team.homes import EVENTS, CopiedHome, differences, patiently


async def test_a_copy_of_a_home_is_refused(postgres: Postgres, home: CopiedHome, tmp_path: Path) -> None:
    config = postgres.config()
    await home.append(EVENTS[:300])
    home.ship(config)
    await home.log.close()
    shutil.copytree(home.store, tmp_path / "copy")
    await home.open()
    copy = await CopiedHome(tmp_path / "copy").open()
    await home.append(EVENTS[300:400])
    await copy.append(EVENTS[500:700])
    home.ship(config)
    before = postgres.ask("SELECT count(*) FROM records")
    with pytest.raises(TeamRefused):
        copy.ship(config)
    assert postgres.ask("SELECT count(*) FROM records") == before
    home.ship(config)
    assert list(differences(postgres, home.store, home.log_id)) == []
    await copy.log.close()


async def test_a_home_put_back_from_a_backup_is_refused(postgres: Postgres, home: CopiedHome, tmp_path: Path) -> None:
    await home.append(EVENTS[:300])
    await home.log.close()
    shutil.copytree(home.store, tmp_path / "backup")
    await home.open()
    await home.append(EVENTS[300:400])
    home.ship(postgres.config())
    old = await CopiedHome(tmp_path / "backup").open()
    with pytest.raises(TeamRefused):
        old.ship(postgres.config())
    await old.log.close()


async def test_of_two_movers_of_one_home_one_is_refused(postgres: Postgres, home: CopiedHome) -> None:
    config = postgres.config()
    await home.append(EVENTS[:100])
    one, two = home.shipping(config), home.shipping(config)
    for each in (one, two):
        while each.step():
            pass
    await home.append(EVENTS[100:200])
    assert one.step()
    with pytest.raises(TeamRefused):
        two.step()
    assert not two.step()  # it reads the place again
    one.close()
    two.close()
    assert list(differences(postgres, home.store, home.log_id)) == []


async def test_a_wire_that_is_cut_anywhere(
    postgres: Postgres, home: CopiedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 60)
    monkeypatch.setattr(module, "MOST_ROWS", 400)
    wire = Wire(postgres.port)
    shipping = home.shipping(postgres.config(port=wire.port))
    failed = 0
    for number, begin in enumerate(range(0, 600, 50)):
        await home.append(EVENTS[begin : begin + 50])
        if number in (5, 9):
            await home.log.forget([EVENTS[begin - 150].stream_id], at_ms=number)
            await home.level()
        wire.left = 500 + 9431 * number
        failed += patiently(shipping)
    wire.close()
    assert failed > 5
    assert list(differences(postgres, home.store, home.log_id)) == []
