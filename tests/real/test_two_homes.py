"""A real OpenCode linked to one of two homes on a real server, with three workers; its home dies in a tool's call."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from streams.store import Record
from tests.real.durable import PLUGIN, DurableStream
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.recorded import Json
from tests.streams.opened import faults
from tests.torture.many_homes import Member, World, handled, undisturbed, until, world

pytestmark = pytest.mark.real_opencode


async def test_a_home_killed_in_a_call_of_the_model_costs_no_prompt_and_its_agent_goes_on_at_its_start(
    opencode_binary: Path, model: ModelServer, tmp_path: Path
) -> None:
    starter = tmp_path / "starter"
    starter.write_text("#!/bin/sh\nexit 1\n")  # the plugin cannot bring the killed home back; the test does
    starter.chmod(0o755)
    async with world(tmp_path / "world") as made:
        first, _ = made.homes
        # A tool's call waits long for the next sidecar, and none comes.
        plugins = {PLUGIN: DurableStream(first.one.home.path).plugin(command=starter, restartMs=0)}
        with RealOpenCode(opencode_binary, model.port, plugins=plugins) as client:
            session = await asyncio.to_thread(client.create_session)
            await until(lambda: counted(first, made.sent))  # no earlier call is under way
            made.held.touch()
            script = 'CALL:count {"text": "one two three"} THEN: SAY:after the call'
            prompting = asyncio.create_task(asyncio.to_thread(client.prompt, session, script))
            await until(lambda: both_called(made))
            first.one.kill()
            # The answers do not wait for the tool, which still holds both calls, nor for a sidecar.
            assert text_of(await prompting) == "after the call"
            (call,) = await asyncio.to_thread(client.parts, session, "tool")
            assert call["state"]["status"] == "error", "the model is told"
            assert (
                text_of(await asyncio.to_thread(client.prompt, session, "SAY:without a sidecar")) == "without a sidecar"
            )
            await made.send(5)
            await first.start()
            made.held.unlink()
            await until(lambda: counted(first, made.sent + 2))
            await until(lambda: is_whole(first))
        await judge(made, script)


async def judge(made: World, script: str) -> None:
    """All was recorded and done once, and the agent's state is that of one home that nothing happened to."""
    first, second = made.homes
    log, after = await first.log(), await first.records()
    assert not handled(await second.records())
    prompts = [record.event for record in log if record.event.type == "human.input"]
    assert [event.payload["parts"][0]["text"] for event in prompts] == [script, "SAY:without a sidecar"]
    states = [record.event.metadata["state"] for record in after if "state" in record.event.metadata]
    assert states[-1] == await undisturbed(made.sent, prompts)
    inputs = handled(after)
    assert len(inputs) == inputs.total() == made.sent
    # One key for each command, for each prompt, and for the call of the model; one result for each key.
    begun = {line.rpartition(" ")[2] for line in made.journal.read_text().splitlines() if line.startswith("begin")}
    assert len(begun) == len(list(made.done.iterdir())) == made.sent + 3
    (done,) = [record.event for record in log if is_end_of_call(record)]
    assert done.payload["result"] == {"words": 3}
    # What follows from the session belongs to the session's project.
    (project,) = {record.event.payload["project"] for record in log if "project" in record.event.payload}
    chains = [record.event for record in after if record.event.correlation_id == prompts[0].correlation_id]
    assert {event.metadata["project"] for event in (*prompts, *chains, done)} == {project}
    ended = Counter(record.event.payload["request"] for record in after if record.event.type == "effect.completed")
    assert len(ended) == ended.total() == made.sent + 2
    for home in made.homes:
        assert await faults(home.one.home.store_path) == []


async def both_called(made: World) -> bool:
    """Whether workers hold the model's call and the one that the agent makes because of the prompt."""
    return len(made.open_calls()) == 2


async def counted(home: Member, count: int) -> bool:
    return sum(record.event.type == "tally.counted" for record in await home.records()) == count


async def is_whole(home: Member) -> bool:
    """Whether the home has both turns, and the result of the model's call."""
    log = await home.log()
    return sum(record.event.type == "turn.ended" for record in log) == 2 and any(map(is_end_of_call, log))


def is_end_of_call(record: Record) -> bool:
    return record.event.type == "effect.completed" and record.event.stream_id.startswith("agent/tools-")


def text_of(message: Json) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
