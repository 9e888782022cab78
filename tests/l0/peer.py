"""Any other program on the server: what the suite says, and what it hears. Uses the library ``nats-py`` alone."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from dataclasses import dataclass, field
from typing import Any, Protocol

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

HANG_S = 60.0
COMMANDS, EVENTS = "cg_cmd_v1", "cg_evt_v1"
SUBJECT = re.compile(r"cg\.v1(\.[^.\s*>]+){2}\.(cmd|evt|str)\.(agent|sys|user|tool)(\.[^.\s*>]+){2,}")
TRACE = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
HEADERS = ("CG-Timestamp", "CG-Version", "CG-Msg-Type", "CG-Sender")
REQUIRED = {
    "wakeup": {"agent_id"},
    "step": {"agent_turn_id", "step_id", "phase"},
    "task": {"agent_turn_id", "status"},
    "state": {"agent_id", "agent_turn_id", "status", "turn_epoch", "updated_at"},
    "chunk": {"agent_turn_id", "step_id", "chunk_type", "content"},
    "action_ack": {"action_id", "agent_id", "status"},
    "call": {"tool_call_id", "agent_turn_id", "turn_epoch", "agent_id"},
}
"""The fields that a payload must have, by the last part of the subject (5.1 to 5.11)."""


class Implementation(Protocol):
    """What the suite must know of an implementation that runs already, as a process of its own.

    Its agent does what an order says: ``rest`` (nothing more), ``call`` (calls the tool with the order's ``args``),
    ``internal`` (calls the internal tool with them), and ``tell`` (sends the agent ``far``, which is not of this
    implementation, an order). It has at least one of these calls open until the result has come.
    """

    server: str
    agent: str
    tool: str
    """The subject of its tool, such as ``cmd.tool.words.count``; the suite carries it out."""
    internal_tool: str
    """The subject of an internal tool, and its arguments."""
    internal_args: dict[str, Any]
    ui_tool: str
    """A tool that user interfaces may use, and its arguments."""
    ui_args: dict[str, Any]
    max_depth: int
    queues: tuple[tuple[str, str], ...]
    """The streams and subjects whose messages the implementation takes away when it has handled them."""
    dead: str
    """The stream of its dead letters."""

    def order(self, what: str, **fields: Any) -> tuple[str, bytes]:
        """Subject and body of an order. ``fields``: ``args``; ``key``, its idempotency key; ``correlation_id``,
        ``mode`` (of ``enqueue``), and any others, which go into the payload."""

    def orders_for(self, agent: str) -> tuple[str, str]:
        """The stream and the subject of the orders for an agent."""

    def inbox(self, kind: str) -> str:
        """The subject that writes ``tool_result`` or ``stop`` into the agent's inbox."""

    async def put(self, stream: JetStreamContext, result: Any) -> str:
        """Keep a result as a card; return its id."""

    async def get(self, stream: JetStreamContext, card: str) -> Any:
        """The arguments in the card of a call."""

    async def put_args(self, stream: JetStreamContext, args: dict[str, Any]) -> str:
        """Keep the arguments of a call as a card; return its id."""

    async def deeds(self, stream: JetStreamContext) -> int:
        """How often ``ui_tool`` was carried out so far, once all that was carried out is in the stream."""

    async def stream(self) -> None:
        """Let some agent produce an answer piece by piece."""


@dataclass
class Heard:
    """One message of the implementation."""

    subject: str
    headers: dict[str, str]
    body: dict[str, Any]
    message: Msg = field(repr=False)

    @property
    def kind(self) -> str:
        return self.subject.rpartition(".")[2]

    @property
    def trace(self) -> str:
        return self.headers["traceparent"].split("-")[1]

    @property
    def says(self) -> str:
        return f"{self.kind} {self.body.get('status', self.body.get('phase'))}"


def heard(message: Msg, kind: str = "") -> Heard:
    """A message of category ``cmd`` or ``evt``, which must keep the rules of sections 1, 3 and 5."""
    found = Heard(message.subject, dict(message.headers or {}), json.loads(message.data), message)
    assert SUBJECT.fullmatch(found.subject), found.subject
    assert TRACE.fullmatch(found.headers["traceparent"]), found
    assert all(found.headers.get(name) for name in HEADERS) and found.headers["CG-Version"] == "v1", found
    is_violation = found.body.get("error_code") == "protocol_violation"  # it may be that the depth is unknown
    assert found.headers.get("CG-Recursion-Depth", "0" if is_violation else "").isdecimal(), found
    assert REQUIRED[kind or found.kind] <= found.body.keys(), found
    return found


class Peer:
    """A connection that hears every event from its beginning on."""

    def __init__(self, client: Client, under: Implementation) -> None:
        self.client, self.js, self.under = client, client.jetstream(timeout=HANG_S), under
        self.events: list[Heard] = []
        self._calls: JetStreamContext.PullSubscription | None = None

    @classmethod
    async def connect(cls, under: Implementation) -> Peer:
        peer = cls(await nats.connect(under.server, connect_timeout=int(HANG_S)), under)

        async def hear(message: Msg) -> None:
            peer.events.append(heard(message))

        try:
            await peer.js.subscribe(
                "cg.v1.*.*.evt.>",
                stream=EVENTS,
                ordered_consumer=True,
                cb=hear,
                config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW),
            )
        except BaseException:
            await peer.client.close()
            raise
        return peer

    async def publish(self, subject: str, body: Any, headers: dict[str, str] | None = None) -> int:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return (await self.js.publish(subject, data, headers=headers)).seq

    async def order(self, what: str, *, headers: dict[str, str | None] | None = None, **fields: Any) -> str:
        """Give the agent an order in a new trace, which is returned. A header of ``None`` is left out."""
        trace = secrets.token_hex(16)
        subject, body = self.under.order(what, **fields)
        given = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01", **(headers or {})}
        await self.publish(subject, body, {name: value for name, value in given.items() if value is not None})
        return trace

    def of(self, trace: str) -> list[Heard]:
        return [event for event in self.events if event.trace == trace]

    async def until(self, trace: str, says: str) -> Heard:
        """The event of a trace that says this, such as ``task success``."""
        async with asyncio.timeout(HANG_S):
            while not (found := [event for event in self.of(trace) if event.says == says]):
                await asyncio.sleep(0.01)
        return found[0]

    async def ended(self, trace: str) -> list[str]:
        """What was said of a turn, in order, when it has ended."""
        await self.until(trace, "state idle")
        return [event.says for event in self.of(trace)]

    async def call(self, trace: str, *, ack: bool = True) -> Heard:
        """The tool's call in this trace; calls of other traces are taken away."""
        self._calls = self._calls or await self.worker()
        async with asyncio.timeout(HANG_S):
            while True:
                for message in await fetched(self._calls):
                    found = heard(message, "call")
                    if ack or found.trace != trace:
                        await message.ack()
                    if found.trace == trace:
                        return found

    async def worker(self) -> JetStreamContext.PullSubscription:
        """One of the workers that carry out the tool."""
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=1)
        return await self.js.pull_subscribe(f"cg.v1.*.*.{self.under.tool}", "suite", stream=COMMANDS, config=config)

    async def report(
        self, call: Heard, status: str = "success", *, headers: dict[str, str | None] | None = None, **changed: Any
    ) -> None:
        """Report about a call, with a card for ``result``. ``changed`` fields of ``...`` are left out."""
        passed = {name: call.headers.get(name) for name in ("traceparent", "tracestate", "CG-Recursion-Depth")}
        passed |= headers or {}
        body = {name: call.body[name] for name in ("tool_call_id", "agent_turn_id", "turn_epoch", "agent_id")}
        card = await self.under.put(self.js, changed.pop("result", {"words": 2}))
        body |= {"status": status, "after_execution": "suspend", "tool_result_card_id": card, **changed}
        wanted = {name: value for name, value in body.items() if value is not ...}
        given = {name: value for name, value in passed.items() if value is not None}
        await self.publish(self.under.inbox("tool_result"), wanted, given)

    async def stop(self, call: Heard, **changed: Any) -> None:
        body = {name: call.body[name] for name in ("agent_turn_id", "turn_epoch", "agent_id")}
        await self.publish(self.under.inbox("stop"), {**body, "reason": "enough", **changed}, {})

    async def settled(self) -> None:
        """Return when the implementation has handled everything that was sent to it."""
        async with asyncio.timeout(HANG_S):
            for stream, subject in self.under.queues:
                while await self.left(stream, subject):
                    await asyncio.sleep(0.01)

    async def left(self, stream: str, subject: str) -> int:
        found = await self.js.stream_info(stream, subjects_filter=subject)
        return sum((found.state.subjects or {}).values())

    async def dead_letters(self) -> int:
        try:
            return (await self.js.stream_info(self.under.dead)).state.messages
        except NotFoundError:
            return 0


async def fetched(pull: JetStreamContext.PullSubscription, count: int = 1) -> list[Msg]:
    try:
        return await pull.fetch(count, timeout=0.5)
    except TimeoutError:
        return []
