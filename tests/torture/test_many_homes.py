"""Two homes with one agent and three workers on one server, all of them tormented while commands flow.

Owners are killed and suspended, workers killed in a call, the server restarted, connections cut;
``TORTURE_HOME_FAULTS`` sets how often. Each command comes twice; it must be handled once, its effect must have one key,
and the state must be that of a home that nothing happened to.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from bridge.opencode.link.protocol import RequestError
from tests.streams.opened import faults
from tests.streams.sizes import size
from tests.torture.figures import note
from tests.torture.many_homes import World, handled, undisturbed, until, world
from tests.torture.sidecars import ask

FAULTS = size("HOME_FAULTS", 4)
COMMANDS = 6
"""Commands around one fault."""

STEPS = 30
"""Records that an owner writes for them, at least; the fault comes after any one of these."""


async def test_many_homes_and_workers_handle_each_command_once_whatever_happens(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        epoch = (await made.homes[0].owned())["epoch"]
        await torment(made)
        await judge(made, epoch)
        await claim(made)


async def torment(made: World) -> None:
    """One fault after the other, each at some step of what its commands lead to, until all of them are done."""
    first = made.homes[0]
    kinds = (
        made.owner_killed,
        made.owner_suspended,
        made.worker_killed,
        made.server_restarted,
        made.owner_cut,
        made.workers_cut,
    )
    for number in range(FAULTS):
        wanted = len(await first.records()) + made.random.randrange(STEPS)
        sending = asyncio.create_task(made.send(COMMANDS))

        async def is_there(wanted: int = wanted) -> bool:
            return len(await first.records()) >= wanted

        await until(is_there)
        await kinds[number % len(kinds)]()
        made.spawn_plain()
        await sending

    async def is_done() -> bool:
        made.spawn_plain()
        return sum(record.event.type == "tally.counted" for record in await first.records()) >= made.sent

    await until(is_done)


async def judge(made: World, epoch: int) -> None:
    """Each command handled once, by the owner; one key and one result for each effect; the state of a quiet home."""
    first, second = made.homes
    records = await first.records()
    inputs = handled(records)
    lost, doubled = made.sent - len(inputs), inputs.total() - len(inputs)
    begun = [line.rpartition(" ")[2] for line in made.journal.read_text().splitlines() if line.startswith("begin")]
    note("many-homes", kills=FAULTS, inputs=made.sent, lost=lost, doubled=doubled, effects=len(begun))
    assert (lost, doubled) == (0, 0) and not handled(await second.records())
    assert len(set(begun)) == len(list(made.done.iterdir())) == made.sent
    ended = Counter(record.event.payload["request"] for record in records if record.event.type == "effect.completed")
    assert len(ended) == ended.total() == made.sent
    states = [record.event.metadata["state"] for record in records if "state" in record.event.metadata]
    assert states[-1] == await undisturbed(made.sent)
    owned = [record.event.payload for record in records if record.event.type == "agent.owned"]
    assert owned == [{"epoch": epoch}]
    for home in made.homes:
        assert await faults(home.one.home.store_path) == []


async def claim(made: World) -> None:
    """The owner is gone for good; a person gives the agent to the second home. Then the first one comes back."""
    first, second = made.homes
    held, before = await first.owned(), handled(await first.records())
    sending = asyncio.create_task(made.send(COMMANDS))

    async def has_begun() -> bool:
        return handled(await first.records()) != before

    await until(has_begun)
    first.one.kill()
    await sending

    async def says_how() -> bool:
        return "--claim" in (await second.owned())["problem"]

    await until(says_how)
    waits = await second.owned()
    assert (waits["owned"], waits["owner"], waits["epoch"]) == (False, held["owner"], None)
    with pytest.raises(RequestError) as refused:
        await ask(second.one, "send", {"agent": "tally", "type": "count", "payload": {"text": "no"}})
    assert refused.value.code == "not-owner"
    await ask(second.one, "agent_claim", {"agent": "tally"})
    taken = await second.owned()
    assert (
        taken["owned"] and taken["epoch"] > held["epoch"] and taken["owner"] != held["owner"] and not taken["problem"]
    )
    await made.send(COMMANDS)

    async def is_done() -> bool:
        records = await second.records()
        counted = sum(record.event.type == "tally.counted" for record in records)
        done = handled(await first.records()) + handled(records)
        return counted == handled(records).total() and len(done) == made.sent

    await until(is_done)
    records = await second.records()
    assert max(handled(records).values()) == 1
    (owned,) = [record.event.payload for record in records if record.event.type == "agent.owned"]
    assert owned == {"epoch": taken["epoch"]}
    await first.start()

    async def stands_still() -> bool:
        return (await first.owned())["owner"] == taken["owner"]

    await until(stands_still)
    back = await first.owned()
    assert not back["owned"] and taken["owner"] in back["problem"]
