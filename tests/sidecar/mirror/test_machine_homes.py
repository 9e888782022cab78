"""Real sidecars of several machines on one real server, asked with the real command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mirrors import unsynced
from tests.nats_servers import TOKEN, RealServer, real_server
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import wait_for
from tests.torture.sidecars import RunningSidecar

DEEDS = '["answer", "apply", "cancel", "spawn"]'


class Machine:
    """A home of a machine; ``allow`` is what others may do there."""

    def __init__(self, path: Path, name: str, server: RealServer, allow: str = "{}", scripts: str = DEEDS) -> None:
        self.one = RunningSidecar(path / f"{name}-{len(list(path.iterdir()))}")
        self.path = self.one.home.path
        self.one.home.config_path.write_text(
            f'link.scripts_may = {scripts}\nteam.machine = "{name}"\n'
            f'machines.allow = {allow}\n[nats]\nmode = "external"\nservers = ["nats://{TOKEN}@127.0.0.1:{server.port}"]\n'
        )

    def start(self) -> None:
        self.one.start()
        wait_for(
            lambda: self.others()["problem"] == "" or "another home" in self.others()["problem"], "its name is known"
        )

    def others(self) -> dict[str, Any]:
        found: dict[str, Any] = self.lines("status")[0]["nats"]["machines"]
        return found

    def lines(self, *words: str) -> list[dict[str, Any]]:
        done = run(self.path, *words, "--json")
        assert done.code == 0, done.err
        return done.objects()

    def code(self, *words: str) -> str:
        """The code with which a command ends."""
        done = run(self.path, *words)
        assert done.code == 1, done.out
        return done.err.strip().rpartition("[")[2].rstrip("]")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, RealServer]]:
    (tmp_path / "homes").mkdir()
    with real_server(tmp_path / "nats", jetstream=unsynced(tmp_path / "nats")) as server:
        yield tmp_path / "homes", server


def test_commands_reach_the_home_of_another_machine(places: tuple[Path, RealServer]) -> None:
    laptop = Machine(places[0], "laptop", places[1])
    desk = Machine(places[0], "desk", places[1], '{ laptop = ["signal"] }')
    twin = Machine(places[0], "desk", places[1])
    careful = Machine(places[0], "careful", places[1], scripts="[]")
    machines = [laptop, desk, twin, careful]
    try:
        for each in machines:
            each.start()
        assert not desk.others()["problem"]
        assert "has the name of this machine" in run(twin.path, "status").out
        assert laptop.lines("intents", "--on", "desk") == laptop.lines("checkpoints", "--on", "desk") == []
        (raised,) = laptop.lines("signal", "go", '{"n": 1}', "--on", "desk", "--key", "k")
        assert raised == {"name": "go", "count": 1}
        assert laptop.code("intents", "--on", "desk", "int_1", "--cancel") == "not-allowed"
        assert laptop.code("intents", "--on", "desk", "int_1", "--diff") == "no-intent"
        assert laptop.code("intents", "--on", "laptop") == "bad-arguments"
        assert laptop.code("signal", "go", "--on", "elsewhere") == "no-machine"
        assert laptop.code("intents", "--on", "elsewhere") == "machine-away"
        for words in (("spawn", "p", "--directory", "/"), ("checkpoints", "chk_1", "--answer", "once")):
            assert careful.code(*words, "--on", "desk") == "needs-person"
        for words in (("--cancel",), ("--apply",), ("--undo",)):
            assert careful.code("intents", "int_1", *words, "--on", "desk") == "needs-person"
        assert careful.lines("intents", "--on", "desk") == []
        desk.one.kill()
        (queued,) = laptop.lines("signal", "go", "--on", "desk")
        assert queued["queued"] and [each["id"] for each in laptop.others()["waiting"]] == [queued["request"]]
        (unwanted,) = laptop.lines("signal", "never", "--on", "desk")
        assert laptop.lines("intents", unwanted["request"][:8], "--cancel", "--on", "desk")[0]["state"] == "withdrawn"
        assert twin.code("signal", "go", "--on", "laptop") == "not-owner"
        assert "1 request waits for desk" in run(laptop.path, "status").out
        assert laptop.code("checkpoints", "--on", "desk") == "machine-away"
        desk.start()
        wait_for(lambda: not laptop.others()["waiting"], "the answer")
        again = laptop.lines("signal", "go", '{"n": 1}', "--on", "desk", "--key", "k")
        assert again == [raised], "it is not raised again"
        assert laptop.lines("signal", "go", "--on", "desk")[0]["count"] == 3
    finally:
        for each in machines:
            each.one.close()
