"""How each kind of subject is kept, and what is sent with it: the same on every bus.

Subclass ``BusModesContract`` and supply ``open_bus``; never copy a test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bridge.nats.headers import ProtocolViolation
from bridge.nats.l0.sending import Sender
from streams.bus.contract import EventBus
from streams.bus.subjects import SubjectError
from streams.trace import parse_traceparent
from tests.streams.bus_handlers import Inbox

COMMAND = "cmd.p.w.a.run"
STR = "cg.v1.p.public.str.agent.ses_1.chunk"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class BusModesContract:
    takes_str = True
    """Whether messages under ``str`` can be published at all."""

    async def open_bus(self) -> EventBus:
        raise NotImplementedError("an implementation's suite says how to open it")

    @pytest.fixture
    async def bus(self) -> AsyncIterator[EventBus]:
        bus = await self.open_bus()
        async with asyncio.timeout(60):
            yield bus
            await bus.close()

    @pytest.fixture
    def sender(self, bus: EventBus) -> Sender:
        return Sender(bus, lambda: 1_700_000_000_000, sender="ci bot", recorded={"chain": 3}.get)

    # Modes

    # Sending

    async def test_what_is_sent_has_every_header(self, bus: EventBus, sender: Sender) -> None:
        inbox = Inbox()
        await bus.subscribe("cmd.>", inbox, durable="a_consumer")
        await sender.publish(COMMAND, {"n": 1}, type_="run", depth=2, message_id="m1")
        await sender.publish(
            COMMAND,
            {"n": 2},
            type_="run",
            depth=3,
            message_id="m2",
            headers={"traceparent": PARENT, "tracestate": "a=1"},
        )
        first, second = await inbox.wait(2)
        assert first.body == b'{"n":1}'
        told = {name: first.headers[name] for name in first.headers if name.startswith("CG-")}
        assert told == {
            "CG-Recursion-Depth": "2",
            "CG-Timestamp": "1700000000000",
            "CG-Version": "v1",
            "CG-Msg-Type": "run",
            "CG-Sender": "ci bot",
            "CG-Trace-Generated": "true",
        }
        assert parse_traceparent(first.headers["traceparent"])
        assert (second.headers["traceparent"], second.headers["tracestate"]) == (PARENT, "a=1")
        await sender.publish(COMMAND, {"n": 1}, type_="run", depth=2, message_id="m1")
        assert sender.counts["sent"] == 2 and sender.counts["duplicates"] == 1, "it is one, with the same trace"

    @pytest.mark.parametrize(
        ("depth", "chain", "headers", "code"),
        [
            (20, None, {}, "recursion_depth_exceeded"),
            (-1, None, {}, "protocol_violation"),
            (4, "chain", {}, "protocol_violation"),
            (3, "chain", {"CG-Recursion-Depth": "2"}, "protocol_violation"),
        ],
    )
    async def test_what_breaks_the_depth_rules_is_not_sent(
        self, bus: EventBus, sender: Sender, depth: int, chain: str | None, headers: dict[str, str], code: str
    ) -> None:
        inbox = Inbox()
        await bus.subscribe("cmd.>", inbox, durable="a_consumer")
        with pytest.raises(ProtocolViolation) as refused:
            await sender.publish(
                COMMAND, {}, type_="run", depth=depth, message_id="m1", headers=headers, correlation_id=chain
            )
        assert refused.value.code == code and sender.counts["refused"] == 1
        await sender.publish(COMMAND, {}, type_="run", depth=3, message_id="m2", correlation_id="chain")
        await inbox.wait(1)
        assert [delivery.headers["CG-Recursion-Depth"] for delivery in inbox.got] == ["3"]

    @pytest.mark.parametrize("subject", ["str.a.chunk", STR, "dlq.a.b", "other"])
    async def test_only_commands_and_events_are_sent_so(self, sender: Sender, subject: str) -> None:
        with pytest.raises(SubjectError):
            await sender.publish(subject, {}, type_="run", depth=0, message_id="m1")
