"""Sessions of two homes reserve paths of one project over the team's log: at any time one has a path, whatever comes
together, and whatever goes away."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sidecar.background.reservations.agent import NAME
from sidecar.home import Home
from sidecar.link.client import ControlClient
from streams.identity import system_identity
from tests.postgres import Postgres, Wire
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import serving, wait_for

CONFIG = """
worker.log = "team"
[team]
database = "postgresql://boss@127.0.0.1:{port}/postgres"
machine = "{name}"
"""


def a_home(path: Path, port: int) -> Home:
    home = Home(path)
    home.create()
    home.config_path.write_text(CONFIG.format(port=port, name=path.name))
    return home


def command(home: Home, session: str, type_: str = "reserve", **more: Any) -> dict[str, Any]:
    payload = {"project": "git.example.org/shop", "machine": home.path.name, "session": session, **more}
    return {"agent": NAME, "type": type_, "payload": payload}


def held(home: Home) -> list[tuple[str, str, str]]:
    done = run(home.path, "reservations", "--json")
    assert done.code == 0, done
    return [(each["machine"], each["session"], each["path"]) for each in done.objects()]


async def raced(homes: list[Home], paths: list[str]) -> Counter[tuple[str, str]]:
    """Each home reserves each path, all at once; how often each path was granted or refused."""

    async def each(home: Home) -> list[tuple[str, str]]:
        async with await ControlClient.connect(home, version="x", nonce=system_identity().nonce) as client:
            sent = [
                client.request("send", command(home, f"ses_{path[:-3]}", paths=[path], minutes=5)) for path in paths
            ]
            found = await asyncio.gather(*sent)
        return [(path, one["records"][1]["event"]["type"]) for path, one in zip(paths, found, strict=True)]

    return Counter(row for rows in await asyncio.gather(*map(each, homes)) for row in rows)


def test_two_homes_that_race_for_a_path(postgres: Postgres, tmp_path: Path) -> None:
    wire = Wire(postgres.port)
    one, two = a_home(tmp_path / "one", wire.port), a_home(tmp_path / "two", postgres.port)
    with ExitStack() as stack:
        for home in (one, two):
            stack.enter_context(serving(home))
        paths = [f"src/{n}/**" for n in range(20)]
        found = asyncio.run(raced([one, two], paths))
        wanted = {(path, f"reservation.{how}"): 1 for path in paths for how in ("granted", "refused")}
        assert found == wanted, "one has it, the other hears that"
        wait_for(lambda: len(held(one)) == len(held(two)) == 20, "both know all", every_s=0.1)
        assert held(one) == held(two)

        # Without Postgres, this home says so at once, and keeps what it knows.
        wire.close()
        assert run(
            one.path, "send", NAME, "reserve", json.dumps(command(one, "s", paths=["a"], minutes=1)["payload"])
        ).err.endswith("[team-unavailable]\n")
        assert len(held(one)) == 20
        run(two.path, "send", NAME, "reserve", json.dumps(command(two, "ses_new", paths=["b"], minutes=5)["payload"]))
        again = Wire(postgres.port, wire.port)
        wait_for(lambda: ("two", "ses_new", "b") in held(one), "it goes on", every_s=0.1)
        # Nothing of it is in a home's own log.
        assert run(one.path, "query", "--type", "reservation.*", "--internal").out == ""
    again.close()
