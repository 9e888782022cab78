"""A real session with the embedded NATS server, read back from JetStream alone."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from tests.mirrors import Seen, chain_hashes
from tests.nats_servers import reached
from tests.real.durable import DurableStream, wait_until
from tests.real.opencode import RealOpenCode
from tests.real.recorded import Json

pytestmark = pytest.mark.real_opencode

EXAMPLE = Path(__file__).parents[2] / "examples" / "tool_worker.py"
SAID = "SAY:one and two and three and four"
PROMPTS, CHUNK_SECONDS = 5, 10
"""How many answers may be lost, and after which time one is taken for lost."""
CONFIG = """[nats]
mode = "embedded"

[worker.tools.count_words]
target_subject = "cmd.tool.words.count"
description = "Counts the words of a text."
args.text = {description = "the text"}
"""


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableStream]:
    home = tmp_path_factory.mktemp("durable") / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(CONFIG)
    with DurableStream(home) as stream:
        stream.start()  # OpenCode reads the list of tools when it starts
        yield stream


def status(durable: DurableStream) -> dict[str, Any]:
    found: dict[str, Any] = durable.lines("status")[0]["nats"] or {}
    return found


def mirrored(durable: DurableStream) -> dict[str, Any] | None:
    """Wait until all is mirrored, and return the mirror's status."""
    found = status(durable).get("mirror") or {}
    return found if found.get("state") == "idle" and found["lag"] == 0 and found["position"] >= 0 else None


def address(durable: DurableStream) -> tuple[str, str]:
    """The embedded server's address, and its token."""
    token = json.loads((durable.home / "nats" / "server.conf").read_text())["authorization"]["token"]
    return f"nats://127.0.0.1:{status(durable)['server']['port']}", token


async def connect(durable: DurableStream) -> nats.NATS:
    server, token = await asyncio.to_thread(address, durable)  # the command has a loop of its own
    return await nats.connect(server, token=token)


async def read_back(durable: DurableStream, stream: str, subject: str) -> list[Seen]:
    """All messages on a subject, read with the client library alone."""
    client = await connect(durable)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=60)
    pull = await client.jetstream().pull_subscribe(subject, stream=stream, config=config)
    count = (await pull.consumer_info()).num_pending or 0
    seen: list[Seen] = []
    while len(seen) < count:
        for message in await pull.fetch(count - len(seen), timeout=10):
            place = message.metadata.sequence.stream
            seen.append(Seen(message.subject, place, dict(message.headers or {}), message.data))
    await client.close()
    return seen


async def prompted_while_listening(
    durable: DurableStream, opencode: RealOpenCode, session: str
) -> tuple[list[Json], int]:
    """The chunks of the first answer of which any came, and how many prompts it took: deltas may be lost."""
    heard: list[Json] = []
    came = asyncio.Event()

    async def hear(message: Msg) -> None:
        heard.append({"subject": message.subject, **json.loads(message.data)})
        if heard[-1]["content"].strip() in SAID:  # else it is the last word of an earlier answer
            came.set()

    client = await connect(durable)
    await client.subscribe("cg.v1.*.public.str.agent.*.chunk", cb=hear)
    await reached(client)
    prompts = 0
    while not came.is_set() and prompts < PROMPTS:
        prompts += 1
        await asyncio.to_thread(opencode.prompt, session, SAID)
        with suppress(TimeoutError):
            await asyncio.wait_for(came.wait(), CHUNK_SECONDS)
    await client.close()
    return [chunk for chunk in heard if chunk["content"].strip() in SAID], prompts


def test_a_session_is_read_back_from_jetstream_alone(durable: DurableStream, opencode: RealOpenCode) -> None:
    session = opencode.create_session()
    opencode.prompt(session, 'CALL:bash {"command": "echo mirrored", "description": "d"}')
    wait_until(lambda: mirrored(durable), "the mirror has all")
    chunks, prompts = asyncio.run(prompted_while_listening(durable, opencode, session))

    def ended() -> int:
        return [record["event"]["type"] for record in durable.lines("log", session)].count("turn.ended")

    wait_until(lambda: ended() > prompts and mirrored(durable), "the mirror has all")
    records = durable.lines("log", session)
    seen = asyncio.run(read_back(durable, "MESHFORGE_EVENTS", f"evt.*.*.{session}.>"))
    assert [json.loads(message.body) for message in seen] == [record["event"] for record in records]
    assert chain_hashes(seen) == {session: records[-1]["hash"]}
    # The same session as the L0 protocol tells it.
    l0 = asyncio.run(read_back(durable, "cg_evt_v1", f"cg.v1.*.public.evt.agent.{session}.>"))
    told = [message.subject.rpartition(".")[2] for message in l0]
    types = [record["event"]["type"] for record in records]
    assert told.count("step") == types.count("execution.step") > 0
    assert told.count("task") == types.count("turn.ended") == 1 + prompts
    assert told.count("state") == 2 + 2 * prompts
    # Deltas may be lost. What came is in order, and part of what was said.
    chunks = [chunk for chunk in chunks if chunk["step_id"] == chunks[-1]["step_id"]]
    assert chunks, f"of {prompts} answers"
    assert all(chunk["subject"].split(".")[6] == session for chunk in chunks)
    assert [chunk["index"] for chunk in chunks] == sorted(chunk["index"] for chunk in chunks)
    said = ".*".join(re.escape(chunk["content"]) for chunk in chunks)
    assert re.search(said, SAID)
    found = status(durable)
    assert found["mirror"]["problem"] == "" and found["deltas"].get("sent", 0) >= len(chunks)


def test_the_model_calls_a_tool_that_a_program_carries_out(durable: DurableStream, opencode: RealOpenCode) -> None:
    worker = subprocess.Popen([sys.executable, EXAMPLE, *address(durable)])
    try:
        session = opencode.create_session()
        opencode.prompt(session, 'CALL:count_words {"text": "one two three"}')
        steps = wait_until(lambda: called(durable, session), "the tool's step")
    finally:
        worker.kill()
        worker.wait()
    (step,) = steps
    assert step["status"] == "completed" and json.loads(step["output"]) == {"words": 3}
    (agent,) = [row["stream_id"] for row in durable.lines("streams", "--all") if row["stream_id"].endswith("/effects")]
    types = [record["event"]["type"] for record in durable.lines("log", agent)]
    assert types == ["effect.started", "tool.reported", "effect.completed"]


def called(durable: DurableStream, session: str) -> list[Json]:
    payloads = [record["event"]["payload"] for record in durable.lines("log", session)]
    return [payload for payload in payloads if payload.get("tool") == "count_words" and "output" in payload]
