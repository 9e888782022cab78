"""Actions of user interfaces and internal tools: allowed ones are done once, all are answered. No server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from bridge.opencode.link.protocol import RequestError
from sidecar.mirror.actions import InternalTool, UiActions
from streams.errors import StoreUnavailable
from streams.identity import seeded_identity
from tests.memory import MemoryStore
from tests.memory_bus import MemoryEventBus
from tests.sidecar.agents.kinds import Effect
from tools.l0_messages import decode

SUBJECT = "cg.v1.shop.public.cmd.sys.ui.action"
UUID7 = "01890a5d-ac96-774b-bcce-b302099a8057"


class Requests:
    """The sidecar's requests, as far as these tests look at them."""

    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, Any]]] = []

    async def answer(self, name: str, args: dict[str, Any]) -> Any:
        if args.get("intent") == "int_none":
            raise RequestError("no-intent", "there is no intent int_none")
        self.done.append((name, args))
        return {"id": "int_1"}


@asynccontextmanager
async def taking(bus: MemoryEventBus, store: MemoryStore, requests: Requests, *allowed: str) -> AsyncIterator[None]:
    actions = UiActions(bus, store, seeded_identity(3), requests.answer, allowed)
    task = asyncio.create_task(actions.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def act(bus: MemoryEventBus, identity: str, tool: str = "cancel", **more: Any) -> None:
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
    async with taking(bus, store, requests, "cancel"):
        for _ in range(3):
            await act(bus, "a-1")
        await act(bus, "a-2", message_id=UUID7)
        found = await acks(bus, 4)
    assert requests.done == [("intent_cancel", {"intent": "int_1"})] * 2
    assert [each["status"] for each in found] == ["accepted"] * 4
    assert {each["action_id"]: each.get("message_id") for each in found} == {"a-1": None, "a-2": UUID7}
    assert [one.event.type async for one in store.read("system/ui")] == ["ui.acted"] * 2
    async with taking(bus, store, requests, "cancel"):  # after a restart
        await act(bus, "a-1")
        await acks(bus, 5)
    assert len(requests.done) == 2


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


async def test_an_internal_tool_is_the_request_of_its_name() -> None:
    requests = Requests()
    tool = InternalTool(requests.answer, "cancel")
    assert await tool.run(Effect("cancel", {"intent": "int_1"}, "run"), "key") == {"id": "int_1"}
    assert requests.done == [("intent_cancel", {"intent": "int_1"})]
