"""Chains of agents end, keep one trace, and keep the identity of whoever began them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.agents.chains import inherited
from sidecar.agents.checks.replay import replay
from sidecar.agents.deciding import AgentFailed
from sidecar.agents.effects.outbound import outbound_headers
from sidecar.agents.inputs import MAX_DEPTH
from sidecar.agents.loading import UserEffect
from sidecar.agents.runtime import Runtime
from sidecar.background.intents.intents import IntentAgent
from sidecar.config import PhantomConfig
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.store import Record, StreamStore
from streams.trace import is_one_trace, parse_traceparent
from tests.memory import MemoryStore
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.kinds import Policy, Work
from tests.sidecar.agents.support import agents, command, running, settled
from tests.test_example import python_of_the_page

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
IDENTITY = {
    "project": "shop",
    "workspace": "main",
    "tracestate": "a=1",
    "CG-User-ID": "ada",
    "CG-Channel-ID": "u_ada",
    "CG-Context-ID": "box-7",
}

Output = dict[str, Any]


def scripted(name: str, script: Callable[[dict[str, Any]], list[Output]], *events: str) -> Callable[[], Any]:
    """An agent that answers each input as ``script`` says, and remembers nothing."""

    def receive(_: Any, event: dict[str, Any]) -> list[Output]:
        return script(event)

    return type(name, (), {"name": name, "events": events, "receive": receive})


async def everything(store: StreamStore) -> list[Record]:
    return [record async for record in store.read_all()]


def refusals(found: list[Record]) -> list[tuple[str, Any, int]]:
    """Code, what was refused, and depth of every refused chain."""
    events = [record.event for record in found if record.event.type == "agent.refused"]
    return [(e.payload["error_code"], e.payload.get("refused"), e.metadata["depth"]) for e in events]


class TestEnd:
    async def test_an_agent_that_asks_for_the_same_effect_again_ends_at_the_limit(self, store: StreamStore) -> None:
        again = scripted("looper", lambda event: [{"effect": "work", "payload": {"same": True}}])
        kind = Work()
        async with running(store, again, kinds={"work": kind}, policy=Policy(), max_depth=5) as runtime:
            await runtime.command("looper", command("a", "begin"))
            await settled(runtime, store)
        found = await everything(store)
        asked = [r.event.metadata["depth"] for r in found if r.event.type == "effect.requested"]
        told = [r.event.metadata["depth"] for r in found if r.event.type == "effect.completed"]
        assert asked == told == [1, 2, 3, 4] and len(kind.keys) == 4
        assert refusals(found) == [("recursion_depth_exceeded", "effect.requested", 5)]

    @pytest.mark.parametrize(("reaction", "limit"), [("event", 4), ("command", 2), ("effect", 2), ("failure", 4)])
    async def test_agents_that_listen_to_all_that_agents_record_end_each_other(
        self, store: StreamStore, reaction: str, limit: int
    ) -> None:
        def react(event: dict[str, Any]) -> list[Output]:
            if reaction == "failure":
                raise RuntimeError("as asked")
            each = {"event": {"type": "seen.it"}, "command": {"to": "nobody", "type": "x"}, "effect": {"effect": "x"}}
            return [each[reaction]]

        begin = scripted("begin", lambda event: [{"type": "begun.it"}])
        both = [scripted(name, react, "agent.*", "begun.it", "seen.it") for name in ("one", "other")]
        async with running(store, begin, *both, max_depth=limit) as runtime:
            await runtime.command("begin", command("a", "begin"))
            await settled(runtime, store, seconds=10)
        found = await everything(store)
        assert {code for code, _, _ in refusals(found)} == {"recursion_depth_exceeded"}
        assert all(depth == limit for _, _, depth in refusals(found))

    async def test_a_replay_knows_an_effect_that_was_refused(self, store: StreamStore) -> None:
        again = scripted("looper", lambda event: [{"effect": "work"}])
        async with running(store, again, kinds={"work": Work()}, policy=Policy(), max_depth=2) as runtime:
            await runtime.command("looper", command("a", "begin"))
            await settled(runtime, store)
        result = await replay(store, *agents(again))
        assert (result.inputs, result.outputs, result.difference) == (2, 2, None)


async def test_a_low_limit_leaves_the_built_in_agents_their_steps(store: StreamStore) -> None:
    (own,) = agents(Counter)
    runtime = Runtime(store, seeded_identity(7), [IntentAgent(PhantomConfig()), own], max_depth=2)
    limits = {name: engine.max_depth for name, engine in runtime.engines.items()}
    assert limits == {"intents": 2 + MAX_DEPTH, "counter": 2}


async def test_a_dead_letter_that_is_redriven_stays_in_its_chain(store: StreamStore) -> None:
    async with running(store, Counter) as runtime:
        failing = Command(
            "a", "tell", {"to": 5}, depth=3, correlation_id="chain", traceparent=PARENT, metadata=IDENTITY
        )
        letter = await runtime.bury("counter", failing, "as asked", {}, key="k")
        await settled(runtime, store)
        with pytest.raises(AgentFailed):
            await runtime.redrive(letter.event.id)
        good = await runtime.bury("counter", replace(failing, payload={"to": "far"}), "as asked", {}, key="m")
        await settled(runtime, store)
        twice = await asyncio.gather(*(runtime.redrive(good.event.id) for _ in range(2)))
        assert sorted(twice) == ["done", "duplicate"]
    sent = [r.event for r in await everything(store) if r.event.type in ("tell", "add")]
    assert [event.metadata["depth"] for event in sent] == [3, 4]
    assert sent[0].correlation_id == "chain"
    for event in sent:
        assert inherited(event.metadata) == IDENTITY and is_one_trace(event.traceparent, PARENT)


async def test_the_effect_of_the_page_continues_its_trace_in_another_service(store: StreamStore) -> None:
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        status = "200 OK" if len(heads) == 2 else "500 Broken"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    names: dict[str, Any] = {"httpx": httpx}
    exec(python_of_the_page("order"), names)

    async def until_accepted(args: dict[str, Any], key: str, headers: dict[str, str]) -> Any:
        done = await names["order"](args, key, headers)
        if done["status"] != 200:
            raise OSError
        return done

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    asks = scripted("buyer", lambda event: [{"effect": "order", "payload": {"url": url}}] * (event["type"] == "buy"))
    async with (
        server,
        running(store, asks, kinds={"order": UserEffect("order", until_accepted)}, policy=Policy()) as runtime,
    ):
        await runtime.command("buyer", Command("a", "buy", {}, traceparent=PARENT, metadata=IDENTITY))
        await settled(runtime, store)
    started = [r.event for r in await everything(store) if r.event.type == "effect.started"]
    sent = [re.findall(r"(?m)^(traceparent|tracestate|Idempotency-Key): (\S+)", head) for head in heads]
    assert [dict(each)["traceparent"] for each in sent] == [event.traceparent for event in started]
    assert all(is_one_trace(event.traceparent, PARENT) for event in started) and len(heads) == 2
    assert all(dict(each)["tracestate"] == "a=1" and dict(each)["Idempotency-Key"] for each in sent)
    assert outbound_headers() == {}


CHOICES = st.lists(st.sampled_from(["event", "command", "effect", "fail"]), max_size=2)
SCRIPTS = st.lists(st.lists(CHOICES, min_size=1, max_size=3), min_size=2, max_size=3)
"""For each agent: what it returns for its first input, its second, and so on from the beginning again."""


def agent_of(number: int, count: int, script: list[list[str]]) -> Callable[[], Any]:
    inputs = 0

    def receive(event: dict[str, Any]) -> list[Output]:
        nonlocal inputs
        chosen = script[inputs % len(script)]
        inputs += 1
        if "fail" in chosen:
            raise RuntimeError("as asked")
        each = {
            "event": {"type": "chain.event"},
            "command": {"to": f"a{(number + 1) % count}", "type": "go"},
            "effect": {"effect": "work"},
        }
        return [each[one] for one in chosen]

    return scripted(f"a{number}", receive, "chain.*", "agent.refused", "agent.dead_letter", "effect.*")


@given(SCRIPTS, st.sampled_from([PARENT, None]))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_every_chain_ends_and_keeps_its_trace_and_identity(scripts: list[list[list[str]]], trace: str | None) -> None:
    asyncio.run(check_chains(scripts, trace))


async def check_chains(scripts: list[list[list[str]]], trace: str | None) -> None:
    limit, store = 4, MemoryStore()
    makes = [agent_of(number, len(scripts), script) for number, script in enumerate(scripts)]
    async with running(store, *makes, kinds={"work": Work()}, policy=Policy(attempts=1), max_depth=limit) as runtime:
        begin = Command("a", "go", {}, traceparent=trace, metadata=IDENTITY)
        try:
            await runtime.command("a0", begin)
        except AgentFailed:
            return
        await settled(runtime, store)
    found = {record.event.id: record.event for record in await everything(store)}
    chain = [event for event in found.values() if event.type != "agent.installed"]
    assert len({parse_traceparent(event.traceparent or "").trace_id for event in chain}) == 1  # type: ignore[union-attr]
    for event in chain:
        assert inherited(event.metadata) == IDENTITY, event.type
        cause = found.get(event.causation_id or "")
        if cause is None:
            continue
        is_step = event.metadata.get("role") in ("output", "command", "effect", "dead")
        assert event.metadata["depth"] >= cause.metadata["depth"] + is_step, event.type
        assert event.metadata["depth"] <= limit
