"""Carries out tools for agents of other homes: takes a call, runs the function, publishes its result, and reports.

Any number of homes and programs may serve a tool: they share one durable consumer, so each call reaches one of them. A
call is acknowledged after its report was published. If the process is killed before, the call is delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from bridge.nats import headers as h
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError
from bridge.nats.jetstream.stream_plan import EVENTS
from bridge.nats.jetstream.streams import next_message
from bridge.nats.l0.arriving import known_headers
from bridge.nats.l0.calls import REPORT, card_id, card_sequence, tool_pattern
from bridge.nats.l0.payloads import PayloadError, ToolCommand, ToolResult
from bridge.nats.subjects import CommandSubject, L0Subject, RecordSubject, consumer_name
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.effects.ledger import bounded
from sidecar.agents.effects.outbound import outbound
from sidecar.agents.effects.policy import Effect
from sidecar.agents.effects.runner import EffectKind
from streams.bus.contract import Delivery, Done, Handler, Outcome, Poison
from streams.errors import StreamError

log = logging.getLogger("sidecar.mirror")

SERVED: Final = "tool.result"
"""The type of a result's card."""

WORKSPACE: Final = "_"


class ServedTools:
    """The tools that this home carries out for others, by their short subject, or a pattern that ends in ``.>``. Bound
    to one event loop. ``exclusive``: no other home may carry them out.
    """

    def __init__(
        self,
        bus: JetStreamEventBus,
        tools: Mapping[str, EffectKind],
        now_ms: Callable[[], int],
        clean: Callable[[Any], Any],
        *,
        exclusive: bool = False,
    ) -> None:
        self._bus, self._now_ms, self._clean = bus, now_ms, clean
        self._taking = {
            subject: bus.subscribe(
                tool_consumer(subject), [tool_pattern(subject)], self._handler(tool), exclusive=exclusive
            )
            for subject, tool in tools.items()
        }

    async def run(self) -> None:
        """Take calls until cancelled. A call in progress is then cut off, and delivered again to another worker."""
        await asyncio.gather(*(subscription.run() for subscription in self._taking.values()))

    def status(self) -> list[dict[str, Any]]:
        """For each tool: ``tool``, ``ready``, ``in_flight``, ``counts`` and ``problem``."""
        return [
            {
                "tool": subject,
                "ready": each.is_ready,
                "in_flight": each.working,
                "counts": dict(sorted(each.counts.items())),
                "problem": each.problem,
            }
            for subject, each in self._taking.items()
        ]

    def _handler(self, tool: EffectKind) -> Handler:
        async def handle(delivery: Delivery) -> Outcome:
            try:
                h.read_depth(known_headers(delivery.headers))
                call = ToolCommand.decode(delivery.body)
            except (PayloadError, h.ProtocolViolation) as error:
                return Poison(str(error))
            about: dict[str, Any] = {}
            try:
                args = await self._args(call)
                kind = L0Subject.parse(delivery.subject).suffix
                effect = Effect(kind, args, call.agent_turn_id, agent=call.agent_id)
                came = known_headers(delivery.headers)
                with outbound({name: came[name] for name in _TRACE if name in came}):
                    result = await tool.run(effect, call.tool_call_id)
                status = "success"
            except (NatsError, StreamError):
                raise
            except Exception as error:  # noqa: BLE001 - a tool is foreign code, and its caller hears of it
                log.warning("the tool %s failed: %s", call.tool_name, type(error).__name__)
                result, status = None, "failed"
                about["error"] = self._clean(f"{type(error).__name__}: {error}")[:500]
                about |= {"error_code": error.code} if isinstance(error, RequestError) else {}
            await self._report(delivery, call, status, result, about)
            return Done()

        return handle

    async def _args(self, call: ToolCommand) -> dict[str, Any]:
        """The arguments, from the card that the call points at.

        Raises:
            LookupError: the card is missing, or has no arguments.
        """
        card = await card_content(await self._bus.sessions.get(), call.tool_call_card_id or "")
        payload = card.get("payload") if isinstance(card, dict) else None
        args = payload.get("args") if isinstance(payload, dict) else None
        if not isinstance(args, dict):
            raise LookupError("the card of the call holds no arguments")
        return args

    async def _report(
        self, delivery: Delivery, call: ToolCommand, status: str, result: Any, about: dict[str, Any]
    ) -> None:
        came = known_headers(delivery.headers)
        subject = L0Subject.parse(delivery.subject)
        names: tuple[str, ...] = (*_TRACE, *h.FORWARDED, h.RECURSION_DEPTH)
        passed = {name: came[name] for name in names if name in came}
        # The provider stands in the place of a log, so that nobody takes the card for a record of a home's log.
        card = RecordSubject(subject.project, subject.target, call.agent_id, SERVED)
        identity = f"{call.agent_turn_id}:{call.tool_call_id}:{delivery.sequence}"
        body = orjson.dumps({"result": bounded(self._clean(result)), "tool_call_id": call.tool_call_id})
        headers = self._headers(passed, SERVED, subject.target, f"card:{identity}")
        stored = await self._bus.publish(str(card), headers, body)
        fields = {
            "tool_call_id": call.tool_call_id,
            "agent_turn_id": call.agent_turn_id,
            "turn_epoch": call.turn_epoch,
            "agent_id": call.agent_id,
            "after_execution": call.after_execution or "suspend",
            "status": status,
            "tool_result_card_id": card_id(stored),
            **about,
        }
        inbox = CommandSubject(subject.project, WORKSPACE, call.agent_id, REPORT)
        headers = self._headers(passed, REPORT, subject.target, f"report:{identity}")
        await self._bus.publish(str(inbox), headers, ToolResult.parse(fields).encode())

    def _headers(self, passed: Mapping[str, str], type_: str, sender: str, identity: str) -> dict[str, str]:
        return h.fill_headers(
            passed,
            origin=identity,
            timestamp_ms=self._now_ms(),
            message_type=type_,
            sender=sender,
            message_id=identity,
        ).headers


_TRACE: Final = (h.TRACEPARENT, h.TRACESTATE)


async def card_content(session: JetStream, card: str) -> Any:
    """The content of a card. Raises ``LookupError`` if the card does not exist or is not JSON."""
    sequence = card_sequence(card)
    found = await next_message(session, EVENTS, since=sequence) if sequence is not None else None
    if found is None or found.sequence != sequence:
        raise LookupError("the card does not exist")
    try:
        return orjson.loads(found.body)
    except orjson.JSONDecodeError:
        raise LookupError("the card is not JSON") from None


def tool_consumer(subject: str) -> str:
    """The name of the durable consumer that all workers of a tool share."""
    return consumer_name(subject.removesuffix(".>"))
