"""Effects that another process carries out: tools behind a subject of the L0 protocol.

An effect of such a kind sends a command that points at the mirrored record of its request, and ends when a report has
arrived in the agent's inbox, or when its time is over. The report and its result are recorded before the report's
message is acknowledged, so a restart goes on with what came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import orjson

from bridge.nats import headers as h
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.nats.jetstream.stream_plan import EVENTS
from bridge.nats.jetstream.streams import last_message, read_back
from bridge.nats.l0.calls import Call, Worth, card_id, judge_report, result_of, tool_subject
from bridge.nats.l0.payloads import ToolCommand, ToolResult, effective_after_execution
from bridge.nats.subjects import NO_PROJECT, escape
from sidecar.agents.chains import depth_of, hop, trace_headers
from sidecar.agents.effects.ledger import Ledger, bounded
from sidecar.agents.effects.policy import Effect
from sidecar.agents.effects.runner import EffectKind, EndsTurn, Reconciled
from sidecar.agents.inputs import ADAPTER, digest, effects_stream, request_key
from sidecar.agents.runtime import Runtime
from sidecar.config import RemoteTool
from sidecar.mirror.remote_tools import card_content
from streams.bus.command import Command
from streams.event import StreamEvent
from streams.identity import Identity
from streams.store import Record, StreamStore
from streams.trace import made_trace, parse_traceparent

log = logging.getLogger("sidecar.mirror")

REPORTED: Final = "tool.reported"
REFUSED: Final = "tool.refused"

LOOK_SECONDS: Final = 0.05
"""How often a call looks whether its request is mirrored yet."""

PAUSE_SECONDS: Final = 0.2
"""How long a call waits before it is sent again, when the server did not answer."""


class ToolFailed(Exception):
    """The tool reported that it failed, was cancelled, or had no more time."""

    permanent = True

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(status, reason)
        self.status, self.reason = status, reason

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else self.status


class RemoteCalls:
    """The calls of a home's agents. Bound to one event loop."""

    def __init__(
        self,
        bus: Callable[[], JetStreamEventBus | None],
        store: StreamStore,
        identity: Identity,
        log_id: str,
        clean: Callable[[Any], Any],
        runtime: Callable[[], Runtime],
    ) -> None:
        self._bus, self._store, self._identity = bus, store, identity
        self._log_id, self._clean, self._runtime = log_id, clean, runtime
        self._ledger = Ledger(store, identity)
        self._waiting: dict[str, asyncio.Future[Record]] = {}
        self._sent: dict[str, tuple[Effect, str]] = {}
        self._trusted: frozenset[str] = frozenset()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def kinds(self, tools: dict[str, RemoteTool]) -> dict[str, RemoteKind]:
        """An effect kind for each tool of ``[worker.tools]``."""
        self._trusted = frozenset(name for name, tool in tools.items() if tool.may_end_turn)
        return {name: RemoteKind(self, name, tool) for name, tool in tools.items()}

    # --- a call ---

    async def call(self, name: str, tool: RemoteTool, effect: Effect, key: str) -> Any:
        """Send a call, and return its result.

        Raises:
            ToolFailed: the report says so, or none came in time.
            NatsError: the server refused the call.
        """
        place = _report_key(effect.agent, effect.run, key)
        waiting = self._waiting[place] = asyncio.get_running_loop().create_future()
        self._sent[place] = effect, key
        try:
            report = await self._store.find(place)
            if report is None:
                request = await self._store.find(request_key(effect))
                if request is None:
                    raise ToolFailed("failed", "the record of its request was removed")
                try:
                    async with asyncio.timeout(tool.timeout_seconds):
                        await self._surely(partial(self._send, name, tool, effect, key, request))
                        report = await waiting
                except TimeoutError:
                    error = f"no result within {tool.timeout_seconds:g} s"
                    report = await self._end(effect, key, request.event, "timeout", error)
        finally:
            self._waiting.pop(place, None)
            self._sent.pop(place, None)
        return _outcome(report)

    async def _surely(self, send: Callable[[], Awaitable[None]]) -> None:
        """Send a call, over outages of the server too. The call has a message id, so the server keeps it once."""
        while True:
            try:
                return await send()
            except NatsUnavailable:
                await asyncio.sleep(PAUSE_SECONDS)

    async def cancel(self, agent: str, turn: str) -> None:
        """End the calls of a turn that was stopped. Raises ``StreamError`` if the log cannot be written."""
        for place, (effect, key) in list(self._sent.items()):
            if (effect.agent, effect.run) == (agent, turn):
                request = await self._store.find(request_key(effect))
                waiting = self._waiting[place]
                if request is not None and not waiting.done():
                    waiting.set_result(await self._end(effect, key, request.event, "canceled", "the turn was stopped"))

    async def _end(self, effect: Effect, key: str, request: StreamEvent, status: str, error: str) -> Record:
        """Report a call's end in the place of its tool, unless the tool was faster."""
        fields = {
            "tool_call_id": key,
            "agent_turn_id": effect.run,
            "turn_epoch": self._runtime().epoch(effect.agent),
            "agent_id": effect.agent,
            "status": status,
            "error": error,
        }
        cause = _Cause(request.traceparent, request.id, hop(request, depth_of(request))["metadata"])
        place = _report_key(effect.agent, effect.run, key)
        async with self._lock(place):
            return await self._record(cause, place, fields, effect.agent)

    def _lock(self, place: str) -> asyncio.Lock:
        """What decides about a call holds this, in the order of arrival, so the first of its reports wins."""
        return self._locks.setdefault(place, asyncio.Lock())

    async def reported(self, effect: Effect, key: str) -> Record | None:
        """The report that ended a call, if one did."""
        return await self._store.find(_report_key(effect.agent, effect.run, key))

    async def _send(self, name: str, tool: RemoteTool, effect: Effect, key: str, request: Record) -> None:
        bus = self._bus()
        if bus is None:
            raise ToolFailed("failed", "NATS is off; set `mode` in [nats]")
        session = await bus.sessions.wait()
        event = request.event
        project = event.metadata.get("project")
        subject = tool_subject(tool.target_subject, project if isinstance(project, str) else NO_PROJECT)
        fields = {
            "tool_call_id": key,
            "agent_turn_id": effect.run,
            "turn_epoch": self._runtime().epoch(effect.agent),
            "agent_id": effect.agent,
            "tool_name": name,
            "after_execution": "suspend",
            "tool_call_card_id": card_id(await self._mirrored(session, event)),
            "dispatch_requested_at": self._identity.now_ms(),
        }
        given = {h.LOG: h.header_text(self._log_id), **trace_headers(event), **h.forwarded(event.metadata)}
        headers = h.fill_headers(
            given | h.depth_header(depth_of(event)),
            origin=event.stream_id,
            timestamp_ms=self._identity.now_ms(),
            message_type="tool_command",
            sender=effect.agent,
            message_id=h.message_id(event.id, part="call"),
        ).headers
        await bus.publish(subject, headers, ToolCommand.parse(fields).encode())

    async def _mirrored(self, session: JetStream, event: StreamEvent) -> int:
        """The sequence of an event's message in the mirror, once it is there."""
        subject = f"evt.*.{escape(self._log_id)}.{escape(event.stream_id)}.{event.type}"
        while True:
            last = await last_message(session, EVENTS, subject)
            if last is not None:
                if last.headers.get(h.MESSAGE_ID, "").partition(":")[0] == event.id:
                    return last.sequence
                async for found in read_back(session, EVENTS, subject=subject):
                    if found.headers.get(h.MESSAGE_ID, "").partition(":")[0] == event.id:
                        return found.sequence
            await asyncio.sleep(LOOK_SECONDS)

    # --- a report ---

    async def take(self, agent: str, arrived: Command, headers: Mapping[str, str]) -> Worth:
        """Record a report from the agent's inbox, and end the call that it is about.

        Raises:
            PayloadError: the message is no report.
            NatsError: the server did not answer.
            StreamError: the log cannot be written.
        """
        report = ToolResult.parse(arrived.payload)
        place = _report_key(agent, report.agent_turn_id, report.tool_call_id)
        async with self._lock(place):
            step = await self._ledger.get_last_by_key(report.agent_turn_id, report.tool_call_id)
            ended = await self._store.find(place)
            if ended is not None:
                self._wake(place, ended)  # whoever recorded it may have been cut off before this
            request = await self._request(step.request) if step is not None else None
            known = None
            if step is not None and report.agent_id == agent:
                depth = depth_of(request.event) if request is not None else 0
                known = Call(self._runtime().epoch(agent), depth, request is None or ended is not None)
            worth = judge_report(report, headers, known)
            fields = report.fields()
            if worth == "late" and ended is not None and _is_same(ended.event.payload, fields):
                return "accepted"  # delivered again
            given = arrived.depth if arrived.refusal is None else arrived.refusal.depth
            cause = _Cause(arrived.traceparent, arrived.causation_id, {**arrived.metadata, "depth": given})
            content = None
            if worth == "accepted":
                try:
                    bus = self._bus()
                    if bus is None:
                        raise LookupError("NATS is off")
                    content = await card_content(await bus.sessions.get(), report.tool_result_card_id)
                except LookupError:
                    worth = "no-card"
            if worth != "accepted":
                await self._record(cause, f"{REFUSED}:{agent}:{digest(arrived.key.encode())}", fields, agent, worth)
                return worth
            name = str(request.event.payload["kind"]) if request is not None else None
            after = effective_after_execution(report, content, name, self._trusted)
            fields |= {"after_execution": after, "result": bounded(self._clean(result_of(content)))}
            if not report.closes_slot:
                place = f"{place}:{digest(report.tool_result_card_id.encode())}"
            self._wake(place, await self._record(cause, place, fields, agent))
            return worth

    def _wake(self, place: str, report: Record) -> None:
        waiting = self._waiting.get(place)
        if waiting is not None and not waiting.done():
            waiting.set_result(report)

    async def _request(self, identity: str) -> Record | None:
        """The record of a request that has no final result yet."""
        place = self._runtime().view.effects.get(identity)
        if place is not None:
            async for record in self._store.read(place.stream, from_offset=place.offset):
                return record
        return None

    async def _record(
        self, cause: _Cause, key: str, fields: dict[str, Any], agent: str, refused: Worth | None = None
    ) -> Record:
        trace = parse_traceparent(cause.traceparent or "") or made_trace(key)
        event = self._identity.stamp(
            {
                "type": REFUSED if refused else REPORTED,
                "stream_id": effects_stream(agent),
                "idempotency_key": key,
                "causation_id": cause.causation_id,
                "correlation_id": fields["agent_turn_id"],
                "actor": str(fields.get("tool_name") or "tool"),
                "source": {"agent": agent, "adapter": ADAPTER},
                "traceparent": str(trace.child(key)),
                "payload": fields | ({"error_code": refused} if refused else {}),
                "metadata": cause.metadata,
            }
        )
        return (await self._store.append([event], on_known="keep_first"))[0]


class RemoteKind(EffectKind):
    """An effect kind whose effects another process carries out."""

    def __init__(self, calls: RemoteCalls, name: str, tool: RemoteTool) -> None:
        self._calls, self._name, self._tool = calls, name, tool
        self.effect_class, self.longest_seconds = tool.effect_class, tool.timeout_seconds + 60.0

    async def run(self, effect: Effect, key: str) -> Any:
        return await self._calls.call(self._name, self._tool, effect, key)

    async def cancel(self, agent: str, turn: str) -> None:
        await self._calls.cancel(agent, turn)

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        report = await self._calls.reported(effect, key)
        if report is None:
            return Reconciled(None, reason="no report of the tool has arrived")
        return Reconciled(report.event.payload["status"] == "success", report.event.payload.get("result"))


class _Cause(NamedTuple):
    """What a record inherits."""

    traceparent: str | None
    causation_id: str | None
    metadata: dict[str, Any]


def _report_key(agent: str, turn: str, call: str) -> str:
    return f"{REPORTED}:{agent}:{digest(orjson.dumps([turn, call]))}"


def _is_same(recorded: dict[str, Any], given: dict[str, Any]) -> bool:
    return all(recorded.get(name) == given[name] for name in ("status", "tool_result_card_id") if name in given)


def _outcome(report: Record) -> Any:
    found = report.event.payload
    if found["status"] == "success":
        result = found.get("result")
        return EndsTurn(result) if found.get("after_execution") == "terminate" else result
    raise ToolFailed(found["status"], str(found.get("error") or ""))
