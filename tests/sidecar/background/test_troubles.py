"""What is wrong with an agent reaches a person, once, until it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.people.alerts import NAME, SEND, AlertAgent
from sidecar.background.people.people import People
from sidecar.home import Home
from sidecar.notify_config import NotifyConfig
from sidecar.read.telling.agents import agent_troubles
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.memory import MemoryStore
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.kinds import Clock
from tests.sidecar.agents.support import agents
from tests.sidecar.background.support import PLAIN, Bench, Only, Script, bench
from tests.sidecar.background.test_people import Host


class Moody(Counter):
    """Is as well as it was told."""

    name = "moody"

    def __init__(self) -> None:
        super().__init__()
        self.mood: Any = "READY"

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["type"] == "feel":
            return [{"type": "moody.felt", "payload": event["payload"]}]
        return super().receive(event)

    def apply(self, event: dict[str, Any]) -> None:
        super().apply(event)
        if event["type"] == "moody.felt":
            self.mood = event["payload"]["mood"]

    def health(self) -> Any:
        return self.mood if isinstance(self.mood, str) else tuple(self.mood)


def trouble(about: str) -> dict[str, Any]:
    return {"about": f"agents:{about}", "text": f"{about} is wrong", "hint": "look", "may_pass": False}


async def test_a_trouble_rings_once_until_it_is_over() -> None:
    send, agent = Script({}), AlertAgent([["json:1"]], NotifyConfig())
    async with bench(MemoryStore(), [agent], {SEND: send}) as run:

        async def are(*abouts: str) -> list[str]:
            """The messages that this makes."""
            send.runs.clear()
            await run.command(NAME, "alert.troubles", troubles=[trouble(each) for each in abouts])
            for _ in range(2):
                await run.tick(NAME, 31)
            return [args["text"] for args in send.runs]

        assert await are("one") == ["one is wrong. look"]
        assert await are("one") == []
        (both,) = await are("one", "two", "three")
        assert "two is wrong" in both and "three is wrong" in both
        assert await are("two") == []
        assert {a.about for a in agent.data.alerts.values() if a.state != "seen"} == {"agents:two"}
        assert await are("one", "two") == ["one is wrong. look"], "again, because it had ended"
        assert agent.deadline() is None


@asynccontextmanager
async def watched(path: Path, *, lasts: float = 0.0) -> AsyncIterator[tuple[People, Bench, list[dict[str, str]]]]:
    """A person with a channel, an agent, and what could not be loaded."""
    home, clock, problems = Home(path / "home"), Clock(), list[dict[str, str]]()
    home.create()
    store = await Log.open(home.store_path, seeded_identity(1))
    config = NotifyConfig(command=("true",), escalate_after_seconds=lasts)
    made = People(home, config, clock.identity(store.head + 9), Only(Host()), PLAIN)  # type: ignore[arg-type]
    async with bench(store, [*made.agents, *agents(Moody)], made.kinds, clock, seed=store.head + 3) as run:
        run._count = store.head + 100
        made.attach(run.runtime, lambda: {"agents": run.runtime.status(), "problems": problems})
        await run.settled()
        yield made, run, problems
    await store.close()


async def told(made: People, run: Bench) -> list[str]:
    """What is known to be wrong, after the sidecar has looked."""
    await made.keep_time()
    await run.settled()
    open_ = {a.about for a in made.alerts.data.alerts.values() if a.state != "seen"}
    assert open_ == made.alerts.data.troubles.keys()
    return sorted(about.removeprefix("agents:") for about in open_)


async def test_the_troubles_of_agents_are_told(tmp_path: Path) -> None:
    async with watched(tmp_path) as (made, run, problems):
        assert await told(made, run) == []
        problems.append({"spec": "a.py:A", "reason": "no such file"})
        await run.command("moody", "feel", mood=["DEGRADED", ["the shop is slow", "and closed"]])
        assert await told(made, run) == ["a.py:A not loaded", "moody degraded"]
        (text,) = [a.text for a in made.alerts.data.alerts.values() if "moody" in a.about]
        assert "the shop is slow; and closed" in text and "durable-stream agents" in text
        for n in range(2):  # the last delivery of a message, and another
            given = Command(f"k{n}", "fail", {})
            letter = await run.runtime.bury("moody", given, "as asked", {"attempts": 5}, key=f"m{n}")
            await run.settled()
            assert await told(made, run) == ["a.py:A not loaded", "moody dead", "moody degraded"]
        assert len(made.alerts.data.alerts) == 3
    async with watched(tmp_path) as (made, run, problems):
        problems.append({"spec": "a.py:A", "reason": "no such file"})
        assert await told(made, run) == ["a.py:A not loaded", "moody dead", "moody degraded"]
        assert len(made.alerts.data.alerts) == 3, "a restart is no new trouble"
        for letter_id in list(run.runtime.view.dead):
            await run.runtime.drop(letter_id)
        await run.command("moody", "feel", mood="READY")
        problems.clear()
        assert await told(made, run) == [] and letter.event.id not in run.runtime.view.dead
        await run.command("moody", "feel", mood=["FAILED", ["it burned down"]])
        assert await told(made, run) == ["moody failed"]


async def test_what_passes_is_not_told(tmp_path: Path) -> None:
    async with watched(tmp_path, lasts=3600.0) as (made, run, _):
        await run.command("moody", "feel", mood=["DEGRADED", ["slow"]])
        assert await told(made, run) == [] and made.alerts.data.alerts == {}
        await run.command("moody", "feel", mood=["FAILED", ["slow"]])
        assert await told(made, run) == ["moody failed"]


async def test_a_dropped_letter_is_no_trouble_any_more(tmp_path: Path) -> None:
    """The error of an event makes a dead letter and degrades the agent; both are one trouble, which a person ends."""
    async with watched(tmp_path) as (made, run, _):
        moody = run.runtime.engines["moody"].agent
        moody.events = ("shop.opened",)
        moody._agent.receive = _fail  # type: ignore[attr-defined]
        run.runtime._listing.cache_clear()
        await run.happened("shop.opened")
        (row,) = [row for row in run.runtime.status() if row["name"] == "moody"]
        assert (row["health"], row["dead"]) == ("DEGRADED", 1)
        assert await told(made, run) == ["moody dead"]
        (letter,) = run.runtime.view.dead
        await run.runtime.drop(letter)
        assert await told(made, run) == []


def _fail(event: dict[str, Any]) -> Any:
    raise RuntimeError("as asked")


@pytest.mark.parametrize("row", [{"health": "READY", "in_doubt": 2}, {"health": "FAILED", "in_doubt": 1}])
def test_a_doubt_is_told_by_its_checkpoint_alone(row: dict[str, Any]) -> None:
    plain = {"name": "moody", "reasons": ["why"], "dead": 0, "last_error": ""}
    found = agent_troubles({"agents": [plain | row]})
    assert [each.is_asked for each in found] == [False] * (row["health"] == "FAILED") + [True]
