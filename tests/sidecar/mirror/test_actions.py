"""Actions of user interfaces and internal tools: allowed ones are done once, all are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.sessions import Sessions
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.effects.policy import Effect
from sidecar.agents.runtime import Runtime
from sidecar.background.messages.agent import MessageAgent
from sidecar.mirror.actions import Deeds, InternalTools, UiActions
from streams.bus.command import Command
from streams.bus.contract import Delivery, Done, EventBus
from streams.errors import StoreUnavailable
from streams.identity import seeded_identity
from tests.memory import MemoryStore
from tests.memory_bus import MemoryEventBus
from tests.sidecar.mirror.test_commands import QUICK
from tools.l0_messages import decode

SUBJECT = "cg.v1.shop.public.cmd.sys.ui.action"
UUID7 = "01890a5d-ac96-774b-bcce-b302099a8057"


class Requests:
    """The sidecar's requests, as far as these tests look at them. ``gate`` is closed until somebody opens it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.came, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def answer(self, name: str, args: dict[str, Any]) -> Any:
        self.came.set()
        await self.gate.wait()
        if args.get("intent") == "int_none":
            raise RequestError("no-intent", "there is no intent int_none")
        if name == "intent_cancel" and (name, args) in self.done:
            raise RequestError("has-ended", "int_1 has already ended: cancelled")
        self.done.append((name, args))
        return {"id": "int_1"}


def deeds_of(store: MemoryStore, requests: Any) -> Deeds:
    return Deeds(store, seeded_identity(3), requests.answer, lambda value: value)


@asynccontextmanager
async def taking(bus: EventBus, store: MemoryStore, requests: Any, *allowed: str) -> AsyncIterator[None]:
    actions = UiActions(bus, deeds_of(store, requests), allowed, lambda: 1)
    task = asyncio.create_task(actions.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def act(bus: EventBus, identity: str, tool: str = "cancel", **more: Any) -> None:
    body = {"action_id": identity, "agent_id": "ui_worker", "tool_name": tool, "args": {"intent": "int_1"}, **more}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await bus.publish(SUBJECT, {"traceparent": trace}, orjson.dumps(body))


async def acks(bus: MemoryEventBus, count: int) -> list[dict[str, Any]]:
    await bus.until_stored(SUBJECT, 0)
    found = []
    for one in await bus.until_stored("cg.*.*.*.evt.>", count):
        subject, payload = decode(one.subject, one.body)
        assert (subject.short, subject.project) == ("evt.sys.ui.action_ack", "shop")
        assert one.headers["traceparent"][3:35] == "0af7651916cd43dd8448eb211c80319c"
        found.append(payload.fields())
    return found


async def test_an_allowed_action_is_done_once_and_each_message_is_answered() -> None:
    bus, store, requests = MemoryEventBus(), MemoryStore(), Requests()
    requests.gate.clear()
    async with taking(bus, store, requests, "cancel"):
        for _ in range(6):
            await act(bus, "a-1")
        await act(bus, "a-2", message_id=UUID7, args={"intent": "int_2"})
        await asyncio.wait_for(requests.came.wait(), 20)
        assert {one.event.type async for one in store.read("system/requests")} == {"request.asked"}
        requests.gate.set()
        found = await acks(bus, 7)
    assert sorted(given["intent"] for _, given in requests.done) == ["int_1", "int_2"]
    assert [each["status"] for each in found] == ["accepted"] * 7
    assert {each["action_id"]: each.get("message_id") for each in found} == {"a-1": None, "a-2": UUID7}
    types = [one.event.type async for one in store.read("system/requests")]
    assert sorted(types) == ["request.answered"] * 2 + ["request.asked"] * 2
    async with taking(bus, store, requests, "cancel"):  # after a restart
        await act(bus, "a-1")
        await acks(bus, 8)
    assert len(requests.done) == 2


@pytest.mark.parametrize("done_before", [False, True])
async def test_an_action_that_a_restart_cut_off_is_done_once_or_said_in_doubt(done_before: bool) -> None:
    bus, store, requests = MemoryEventBus(), MemoryStore(), Requests()
    requests.gate.clear()
    async with taking(bus, store, requests, "cancel"):
        await act(bus, "a-1")
        await asyncio.wait_for(requests.came.wait(), 20)
    assert not requests.done and bus.stored(SUBJECT)
    requests.done += [("intent_cancel", {"intent": "int_1"})] * done_before
    requests.gate.set()
    async with taking(bus, store, requests, "cancel"):
        (ack,) = await acks(bus, 1)
    assert len(requests.done) == 1
    assert ack["status"] == ("rejected" if done_before else "accepted")
    assert ack.get("error_code") == ("in-doubt" if done_before else None)


class Signals:
    """The request ``signal`` of a real runtime. The first answer is lost with its process, after the deed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.cut_off = runtime, asyncio.Event()

    async def answer(self, name: str, args: dict[str, Any]) -> Any:
        assert name == "signal"
        payload = {"name": args["name"], "payload": args["payload"]}
        await self._runtime.command("messages", Command(f"signal:{args['key']}", "signal", payload))
        if not self.cut_off.is_set():
            self.cut_off.set()
            await asyncio.Event().wait()


async def test_six_at_once_on_a_real_server_raise_one_signal_also_over_a_restart(sessions: Sessions) -> None:
    store, bus = MemoryStore(), JetStreamEventBus(sessions, QUICK)
    runtime = Runtime(store, seeded_identity(7), [MessageAgent()])
    await runtime.start()
    signals, noon = Signals(runtime), {"name": "noon", "payload": 1}
    heard = bus.subscribe("ear", ["cg.v1.*.*.evt.sys.ui.action_ack"], (ear := Ear()).hear)
    listening = asyncio.create_task(heard.run())
    async with taking(bus, store, signals, "signal"):
        await asyncio.gather(*(act(bus, "a-1", "signal", args=noon) for _ in range(6)))
        await asyncio.wait_for(signals.cut_off.wait(), 20)
    async with taking(bus, store, signals, "signal"):
        await ear.until(6)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await runtime.close()
    assert [each["status"] for each in ear.heard] == ["accepted"] * 6
    assert [one.event.type async for one in store.read("agent/messages")].count("signal.raised") == 1


class Ear:
    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self._news = asyncio.Event()

    async def hear(self, delivery: Delivery) -> Done:
        self.heard.append(orjson.loads(delivery.body))
        self._news.set()
        return Done()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                self._news.clear()
                await self._news.wait()


@pytest.mark.parametrize(
    ("allowed", "changed", "code"),
    [
        ((), {}, "not-allowed"),
        (("answer",), {}, "not-allowed"),
        (("cancel",), {"tool_name": "prune"}, "not-allowed"),
        (("cancel",), {"agent_id": "counter"}, "not-a-ui-worker"),
        (("cancel",), {"message_id": "1234"}, "message-id"),
        (("cancel",), {"args": {"intent": "int_none"}}, "no-intent"),
    ],
)
async def test_other_actions_are_rejected(allowed: tuple[str, ...], changed: dict[str, Any], code: str) -> None:
    bus, requests = MemoryEventBus(), Requests()
    async with taking(bus, MemoryStore(), requests, *allowed):
        await act(bus, "a-1", **changed)
        (ack,) = await acks(bus, 1)
    assert (ack["status"], ack["error_code"]) == ("rejected", code) and not requests.done


async def test_while_the_log_cannot_be_written_the_worker_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, store, requests = MemoryEventBus(), MemoryStore(), Requests()

    async def full(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "append", full)
        async with taking(bus, store, requests, "cancel"):
            await act(bus, "a-1")
            (ack,) = await acks(bus, 1)
    assert ack["status"] == "busy"


async def test_an_internal_call_is_the_request_of_its_name_and_done_once() -> None:
    store, requests = MemoryStore(), Requests()
    tools = InternalTools(deeds_of(store, requests), ["spawn"])
    call = Effect("internal.spawn", {"prompt": "p"}, "run", agent="clerk")
    found = await asyncio.gather(*(tools.run(call, "key") for _ in range(3)))
    assert found == [{"id": "int_1"}] * 3
    ((name, args),) = requests.done
    assert name == "spawn" and args["prompt"] == "p" and args["key"]
    await tools.run(call, "another key")
    assert len({args["key"] for _, args in requests.done}) == len(requests.done) == 2
    for other in ("internal.cancel", "internal.prune"):
        with pytest.raises(RequestError) as refused:
            await tools.run(Effect(other, {}, "run", agent="clerk"), "key")
        assert refused.value.code == "not-allowed"
