"""Tools behind a subject: the owner's calls, workers that share them, and reports of any worth. Real server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import L0_COMMANDS
from bridge.nats.jetstream.wire import Message
from bridge.nats.l0.calls import card_id
from sidecar.agents.chains import inherited
from sidecar.agents.effects.outbound import outbound_headers
from sidecar.agents.effects.policy import Effect
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.runtime import Runtime
from sidecar.config import RemoteTool
from sidecar.mirror import calling, commands
from sidecar.mirror.calling import RemoteCalls
from sidecar.mirror.commands import CommandConsumers
from sidecar.mirror.follower import MirrorTask
from sidecar.mirror.remote_tools import ServedTools, card_content
from streams.bus.command import Command
from streams.errors import StoreUnavailable
from streams.identity import seeded_identity
from streams.store import Record
from streams.trace import is_one_trace
from tests.memory import MemoryStore
from tests.nats_servers import TOKEN, RealServer
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.kinds import Policy
from tests.sidecar.agents.support import agents, command, records, state
from tests.sidecar.agents.test_chains import IDENTITY, PARENT
from tests.sidecar.mirror.test_commands import QUICK, letters
from tools.l0_messages import decode

SUBJECT = "cmd.tool.words.count"
LOG = "log-a"
EXAMPLE = Path(__file__).parents[3] / "examples" / "tool_worker.py"


class Leases:
    """In place of the entries on the server: held, but for a moment that no other task could notice yet."""

    is_owned = True

    def holds(self, agent: str) -> bool:
        return self.is_owned

    async def while_owned(self, agent: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await run()

    def refusal(self, agent: str) -> str:
        return ""


class Owner:
    """A home with the agent ``counter``, its mirror, and the tool ``count``, which others carry out."""

    def __init__(self, sessions: Sessions, store: MemoryStore, **tool: Any) -> None:
        self.store, self.sessions = store, sessions
        identity = seeded_identity(5)
        self.bus = JetStreamEventBus(sessions, QUICK)
        self.calls = RemoteCalls(lambda: self.bus, store, identity, LOG, lambda value: value, lambda: self.runtime)
        self.leases = Leases()
        tools = {"count": RemoteTool(target_subject=SUBJECT, **tool)}
        self.runtime = Runtime(store, identity, agents(Counter), kinds=self.calls.kinds(tools))
        self.mirror = MirrorTask(store, LOG, sessions, lambda: 1)
        self.consumers = CommandConsumers(
            self.runtime,
            self.bus,
            calls=self.calls,
            owning=self.leases,  # type: ignore[arg-type]
        )

    async def call(self, n: int = 7) -> None:
        await self.runtime.command("counter", command(f"call-{n}", "call", kind="count", n=n))

    async def results(self, count: int = 1) -> list[dict[str, Any]]:
        async with asyncio.timeout(20):
            while len(found := state(self.runtime)["results"]) < count:
                await asyncio.sleep(0.01)
        return list(found)

    async def of(self, type_: str) -> list[Record]:
        return [one for one in await records(self.store, "agent/counter/effects") if one.event.type == type_]


@asynccontextmanager
async def owner(
    sessions: Sessions, store: MemoryStore | None = None, epoch: int = 3, **tool: Any
) -> AsyncIterator[Owner]:
    home = Owner(sessions, store or MemoryStore(), **tool)
    home.mirror.start()
    await home.runtime.start()
    await home.runtime.own("counter", epoch)
    home.consumers.start()
    try:
        yield home
    finally:
        await home.consumers.close()
        await home.runtime.close()
        await home.mirror.close()


class Plain(EffectKind):
    """A tool that counts its calls."""

    effect_class = "idempotent"

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], str]] = []

    async def run(self, effect: Effect, key: str) -> Any:
        self.seen.append((effect.args, key))
        if effect.args["n"] < 0:
            raise ValueError("a negative number")
        return {"double": 2 * effect.args["n"]}

    async def reconcile(self, effect: Effect, key: str) -> Any:
        raise AssertionError


@asynccontextmanager
async def worker(server: RealServer, tool: Plain) -> AsyncIterator[ServedTools]:
    sessions = Sessions(server.ask_options)
    bus = JetStreamEventBus(sessions, QUICK)
    served = ServedTools(bus, {SUBJECT: tool}, lambda: 1, lambda value: value)  # type: ignore[dict-item]
    task = asyncio.create_task(served.run())
    try:
        yield served
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await sessions.close()


async def sent(sessions: Sessions) -> tuple[dict[str, Any], dict[str, str]]:
    """The call that waits in the work queue: its payload, and its headers."""
    session = await sessions.get()
    async with asyncio.timeout(20):
        while (found := await keeping.last_message(session, L0_COMMANDS, f"cg.v1.*.*.{SUBJECT}")) is None:
            await asyncio.sleep(0.01)
    subject, payload = decode(found.subject, found.body)
    assert subject.short == SUBJECT
    return payload.fields(), dict(found.headers)


async def report(sessions: Sessions, call: dict[str, Any], headers: dict[str, str], **fields: Any) -> None:
    """A report as any program may send it, with a card for its result."""
    session = await sessions.get()
    passed = {name: value for name, value in headers.items() if name in ("traceparent", "CG-Recursion-Depth")}
    card = Message("evt._.words.counter.tool.result", {}, orjson.dumps({"result": fields.pop("result", None)}))
    kept = await publish(session, card)
    named = {name: call[name] for name in ("tool_call_id", "agent_turn_id", "turn_epoch", "agent_id")}
    body = {
        **named,
        "status": "success",
        "after_execution": "suspend",
        "tool_result_card_id": card_id(kept.sequence),
        **fields,
    }
    wanted = {name: value for name, value in body.items() if value is not ...}
    await publish(session, Message("cmd._._.counter.inbox.tool_result", passed, orjson.dumps(wanted)))


async def test_workers_share_the_calls_and_the_agent_gets_each_result_once(
    server: RealServer, sessions: Sessions
) -> None:
    one, other = Plain(), Plain()
    async with worker(server, one), worker(server, other), owner(sessions) as home:
        for n in range(20):
            await home.call(n)
        await home.call(-1)
        results = await home.results(21)
        assert len(one.seen) + len(other.seen) == 21 and len({key for _, key in one.seen + other.seen}) == 21
        done = [each["result"]["double"] for each in results if each["type"] == "effect.completed"]
        assert sorted(done) == [2 * n for n in range(20)]
        (failed,) = await home.of("effect.failed")
        assert failed.event.payload["final"] and "ValueError" in failed.event.payload["error"]
        assert len(await home.of("tool.reported")) == 21


async def test_a_call_and_its_report_keep_the_identity_of_their_chain(server: RealServer, sessions: Sessions) -> None:
    class Asking(Plain):
        async def run(self, effect: Effect, key: str) -> Any:
            self.headers = outbound_headers()
            return await super().run(effect, key)

    tool = Asking()
    async with worker(server, tool), owner(sessions) as home:
        call = Command("k", "call", {"kind": "count", "n": 1}, traceparent=PARENT, metadata=IDENTITY)
        await home.runtime.command("counter", call)
        await home.results()
        found = [*await home.of("tool.reported"), *await home.of("effect.completed")]
    assert len(found) == 2 and tool.headers["tracestate"] == "a=1" and is_one_trace(tool.headers["traceparent"], PARENT)
    for record in found:
        event = record.event
        assert {**inherited(event.metadata), "workspace": "main"} == IDENTITY and is_one_trace(
            event.traceparent, PARENT
        )


async def test_a_worker_refuses_a_call_without_a_depth(server: RealServer, sessions: Sessions) -> None:
    tool = Plain()
    async with worker(server, tool) as served, owner(sessions) as home:
        call = {"tool_call_id": "c", "agent_turn_id": "t", "turn_epoch": 3, "agent_id": "counter"}
        for headers in ({}, {"CG-Recursion-Depth": "one"}):
            await publish(await sessions.get(), Message(f"cg.v1._.public.{SUBJECT}", headers, orjson.dumps(call)))
        await home.call()
        await home.results()
        assert len(tool.seen) == 1 and served.status()[0]["counts"]["poison"] == 2
        assert not await home.of("tool.refused")


async def test_a_call_points_at_the_record_of_its_request_and_carries_its_trace(sessions: Sessions) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        (request,) = [r for r in await records(home.store, "agent/counter") if r.event.type == "effect.requested"]
        card = await card_content(await sessions.get(), payload["tool_call_card_id"])
        assert card["id"] == request.event.id
        assert (payload["agent_id"], payload["turn_epoch"], payload["tool_name"]) == ("counter", 3, "count")
        assert "args" not in payload and payload["agent_turn_id"] == request.event.correlation_id
        assert headers["traceparent"] == request.event.traceparent
        await report(sessions, payload, headers, result=14)
        assert (await home.results())[0]["result"] == 14
        (kept,) = await home.of("tool.reported")
        assert kept.event.traceparent is not None and request.event.traceparent is not None
        assert kept.event.traceparent[3:35] == request.event.traceparent[3:35]
        assert kept.event.traceparent != request.event.traceparent


async def test_partial_reports_keep_the_call_open_and_repeated_ones_count_once(sessions: Sessions) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        await report(sessions, payload, headers, status="partial", result="half")
        async with asyncio.timeout(20):
            while not await home.of("tool.reported"):
                await asyncio.sleep(0.01)
        assert not state(home.runtime)["results"]
        for _ in range(3):
            await report(sessions, payload, headers, result="whole")
        assert (await home.results())[0]["result"] == "whole"
        await settled(home, 4)
        assert [one.event.payload["result"] for one in await home.of("tool.reported")] == ["half", "whole"]
        assert len(state(home.runtime)["results"]) == 1 and len(await home.of("effect.completed")) == 1


async def test_what_comes_while_another_home_owns_the_agent_is_judged_when_it_does_not(sessions: Sessions) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        home.leases.is_owned = False
        await report(sessions, payload, headers, result="in the gap")
        async with asyncio.timeout(20):
            while not home.consumers.status()[0]["counts"].get("again"):
                await asyncio.sleep(0.01)
        assert not await home.of("tool.refused") and not await home.of("tool.reported")
        home.leases.is_owned = True
        assert (await home.results())[0]["result"] == "in the gap"


async def settled(home: Owner, count: int) -> None:
    async with asyncio.timeout(20):
        while home.consumers.status()[0]["counts"].get("delivered", 0) < count or home.consumers.is_busy:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("status", ["failed", "canceled", "timeout"])
async def test_every_other_status_ends_the_call_as_failed(sessions: Sessions, status: str) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        await report(sessions, payload, headers, status=status, error="the reason")
        assert (await home.results())[0]["type"] == "effect.failed"
        (failed,) = await home.of("effect.failed")
        assert failed.event.payload["final"] and status in failed.event.payload["error"]


@pytest.mark.parametrize(
    ("changed", "depth", "code"),
    [
        ({"turn_epoch": 2}, None, "old-epoch"),
        ({"tool_call_id": "another"}, None, "unknown-call"),
        ({"agent_turn_id": "another"}, None, "unknown-call"),
        ({}, "9", "protocol_violation"),
        ({}, "", "protocol_violation"),
    ],
)
async def test_reports_that_do_not_fit_are_refused_and_recorded(
    sessions: Sessions, changed: dict[str, Any], depth: str | None, code: str
) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        wrong = headers if depth is None else {**headers, "CG-Recursion-Depth": depth}
        await report(sessions, payload, {k: v for k, v in wrong.items() if v}, result="forged", **changed)
        await settled(home, 1)
        (refused,) = await home.of("tool.refused")
        assert refused.event.payload["error_code"] == code and not state(home.runtime)["results"]
        await report(sessions, payload, headers, result="real")
        assert (await home.results())[0]["result"] == "real"
        await report(sessions, payload, headers, status="failed", result="late")
        await settled(home, 3)
        assert (await home.of("tool.refused"))[-1].event.payload["error_code"] == "late"


@pytest.mark.parametrize("changed", [{"tool_result_card_id": ...}, {"status": "perhaps"}, {"result_": 1, "result": 1}])
async def test_reports_that_are_none_become_dead_letters(sessions: Sessions, changed: dict[str, Any]) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        if "result_" in changed:  # a result sent inline
            body = orjson.dumps({**{k: payload[k] for k in ("tool_call_id", "agent_id")}, "result": 1})
            await publish(await sessions.get(), Message("cmd._._.counter.inbox.tool_result", {}, body))
        else:
            await report(sessions, payload, headers, **changed)
        await settled(home, 1)
        (letter,) = await letters(home.store)
        assert letter.event.payload["code"] == "l0-invalid-payload" and not state(home.runtime)["results"]


async def test_a_call_without_a_report_ends_at_its_time(sessions: Sessions) -> None:
    async with owner(sessions, timeout_seconds=2) as home:  # time to publish the call, also on a busy machine
        await home.call()
        assert (await home.results())[0]["type"] == "effect.failed"
        (kept,) = await home.of("tool.reported")
        assert kept.event.payload["status"] == "timeout"
        payload, headers = await sent(sessions)
        await report(sessions, payload, headers, result="late")
        await settled(home, 1)
        assert (await home.of("tool.refused"))[0].event.payload["error_code"] == "late"


async def test_an_outage_of_the_server_is_no_attempt(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [NatsUnavailable("no answer")] * 6  # more than the attempts that the policy allows

    monkeypatch.setattr(calling, "PAUSE_SECONDS", 0.001, raising=False)
    async with owner(sessions) as home:
        published = home.bus.publish

        async def unsteady(*given: Any) -> Any:
            if left:
                raise left.pop()
            return await published(*given)

        monkeypatch.setattr(home.bus, "publish", unsteady)
        home.runtime.effects._policy = Policy()
        await home.call()
        payload, headers = await sent(sessions)
        await report(sessions, payload, headers, result=14)
        assert (await home.results())[0]["result"] == 14
        assert len(await home.of("effect.started")) == 1 and not left


async def test_a_report_whose_taking_was_cut_off_after_its_record_wakes_the_call_when_it_comes_again(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cut = MemoryStore(), [StoreUnavailable("cut off")]
    append = store.append

    async def unsteady(events: Any, **more: Any) -> Any:
        kept = await append(events, **more)
        if events[0].type == "tool.reported" and cut:
            raise cut.pop()
        return kept

    monkeypatch.setattr(store, "append", unsteady)
    async with owner(sessions, store) as home:
        await home.call()
        payload, headers = await sent(sessions)
        await report(sessions, payload, headers, result=14)
        assert (await home.results())[0]["result"] == 14 and not cut
        assert len(await home.of("tool.reported")) == 1


async def test_a_restarted_owner_waits_on_and_takes_what_came_meanwhile(sessions: Sessions) -> None:
    store = MemoryStore()
    async with owner(sessions, store) as home:
        await home.call()
        payload, headers = await sent(sessions)
    await report(sessions, payload, headers, result="meanwhile")
    async with owner(sessions, store) as home:
        assert (await home.results())[0]["result"] == "meanwhile"
        assert len(await home.of("effect.completed")) == 1
    session = await sessions.get()
    assert (await keeping.facts(session, L0_COMMANDS)).messages == 1  # sent once, although it was begun twice


async def test_others_see_the_turn_and_stop_it(sessions: Sessions) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        stop = {"agent_id": "counter", "agent_turn_id": payload["agent_turn_id"], "reason": "enough"}
        for epoch in (9, 3):
            body = orjson.dumps({**stop, "turn_epoch": epoch})
            await publish(await sessions.get(), Message("cmd._._.counter.inbox.stop", {}, body))
            await settled(home, 1 if epoch == 9 else 2)
        (kept,) = await home.of("tool.reported")
        assert kept.event.payload["status"] == "canceled"
        assert home.consumers.status()[0]["counts"]["unknown-turn"] == 1
        await report(sessions, payload, headers, result="late")
        await settled(home, 3)
        assert (await home.of("tool.refused"))[0].event.payload["error_code"] == "late"
        assert not state(home.runtime)["results"]
        session = await sessions.get()
        async with asyncio.timeout(20):
            while home.mirror.status()["lag"]:
                await asyncio.sleep(0.01)
        told = [decode(one.subject, one.body) async for one in keeping.read_back(session, "cg_evt_v1")]
    assert [(subject.short, getattr(payload, "status", "")) for subject, payload in told] == [
        ("evt.agent.counter.state", "running"),
        ("evt.agent.counter.task", "canceled"),
        ("evt.agent.counter.state", "idle"),
    ]


@pytest.mark.parametrize(
    ("cut", "is_written"),
    [
        ("agent.turn_stopped", False),
        ("agent.turn_stopped", True),
        ("tool.reported", False),
        ("tool.reported", True),
        ("", True),
    ],
)
async def test_a_stop_that_comes_again_does_what_the_first_left_undone(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, cut: str, is_written: bool
) -> None:
    store, left = MemoryStore(), [cut]
    append = store.append

    async def unsteady(events: Any, **more: Any) -> Any:
        is_cut = events[0].type in left
        kept = await append(events, **more) if is_written or not is_cut else None
        if is_cut:
            left.clear()
            raise StoreUnavailable("cut off")
        return kept

    monkeypatch.setattr(store, "append", unsteady)
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0.001)
    async with owner(sessions, store) as home:
        await home.call()
        payload, _ = await sent(sessions)
        turn = payload["agent_turn_id"]
        if cut:
            stop = {"agent_id": "counter", "agent_turn_id": turn, "turn_epoch": 3}
            await publish(await sessions.get(), Message("cmd._._.counter.inbox.stop", {}, orjson.dumps(stop)))
        else:  # a request of a person, not a message
            assert await home.runtime.stop("counter", turn, 3, command("stop", "inbox.stop"))
        async with asyncio.timeout(10):
            while not (ended := await home.of("effect.failed")) or home.runtime.owes():
                await asyncio.sleep(0.01)
        (kept,) = await home.of("tool.reported")
        assert kept.event.payload["status"] == "canceled" and "canceled" in ended[0].event.payload["error"]
        stops = [one for one in await records(store, "agent/counter") if one.event.type == "agent.turn_stopped"]
        assert len(stops) == 1 and "unknown-turn" not in home.consumers.status()[0]["counts"]


@pytest.mark.parametrize(("trusted", "said", "ends"), [(0, "suspend", 0), (1, "suspend", 1), (0, "terminate", 1)])
async def test_a_report_or_the_result_of_a_trusted_tool_ends_the_turn(
    sessions: Sessions, trusted: bool, said: str, ends: bool
) -> None:
    async with owner(sessions, may_end_turn=bool(trusted)) as home:
        await home.call()
        payload, headers = await sent(sessions)
        result = {"n": 1, "__cg_control": {"after_execution": "terminate"}}
        await report(sessions, payload, headers, result=result, after_execution=said)
        await home.results()
        (done,) = await home.of("effect.completed")
        assert done.event.payload.get("ends_turn", False) == bool(ends)


async def test_the_example_of_a_worker_is_enough(server: RealServer, sessions: Sessions) -> None:
    async with owner(sessions) as home:
        address = f"nats://127.0.0.1:{server.port}"
        example = await asyncio.create_subprocess_exec(sys.executable, EXAMPLE, address, TOKEN)
        try:
            await home.runtime.command("counter", command("call", "call", kind="count", args={"text": "one two three"}))
            assert (await home.results())[0]["result"] == {"words": 3}
        finally:
            example.kill()
            await example.wait()
