"""What other programs on the NATS server may do in this home: actions of user interfaces, and internal tools.

Both are requests of the sidecar, the same that the command line sends, and only those that ``config.toml`` allows:
``[worker] ui_allowed`` for ``cmd.sys.ui.action``, ``[worker] internal_allowed`` for ``cmd.sys.pmo.internal.*``.

An action is answered with ``evt.sys.ui.action_ack``. The answer is recorded first, under the action's id, so an action
that arrives again gets the same answer and is not done again.

======== ===================================================================
status   meaning
======== ===================================================================
accepted it was done
rejected it is not allowed, or the request failed; ``error_code`` says why
busy     the log cannot be written now; send the action again
======== ===================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from bridge.nats import headers as h
from bridge.nats.l0.arriving import known_headers
from bridge.nats.l0.payloads import PayloadError, UiAction, UiActionAck
from bridge.nats.l0.recursion import Decision, judge
from bridge.nats.subjects import L0Subject, consumer_name
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.effects.policy import Effect
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.inputs import ADAPTER, digest
from streams.bus.contract import Delivery, Done, EventBus, Outcome, Poison
from streams.errors import StreamError
from streams.identity import Identity
from streams.store import StreamStore
from streams.trace import made_trace, parse_traceparent

log = logging.getLogger("sidecar.mirror")

Answer = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Answers a request of the sidecar: its name, and its arguments. Raises ``RequestError``."""

ACTIONS: Final = {
    "answer": "checkpoint_answer",
    "cancel": "intent_cancel",
    "retry": "dlq_redrive",
    "signal": "signal",
    "spawn": "spawn",
    "stop": "turn_stop",
}
"""The actions that can be allowed, and the requests that do them."""

WORKER: Final = "ui_worker"
"""The agent that actions of user interfaces are for."""

PMO: Final = "pmo"
"""The agent that carries out internal tools."""

INTERNAL: Final = "cmd.sys.pmo.internal."
ACTED: Final = "ui.acted"
STREAM: Final = "system/ui"
_PATTERN: Final = "cg.v1.*.*.cmd.sys.ui.action"


class UiActions:
    """Takes the actions of user interfaces. Bound to one event loop."""

    def __init__(
        self,
        bus: EventBus,
        store: StreamStore,
        identity: Identity,
        answer: Answer,
        allowed: Collection[str],
    ) -> None:
        self._bus, self._store, self._identity = bus, store, identity
        self._answer, self._allowed = answer, frozenset(allowed)

    async def run(self) -> None:
        """Take actions until cancelled. An action in progress is then cut off, and delivered again."""
        await self._bus.subscribe(consumer_name(WORKER), [_PATTERN], self._handle).run()

    async def _handle(self, delivery: Delivery) -> Outcome:
        try:
            action = UiAction.decode(delivery.body)
        except PayloadError as error:
            return Poison(str(error))
        came, subject = known_headers(delivery.headers), L0Subject.parse(delivery.subject)
        try:
            entry = judge("entry", came, recorded=None)
            told = await self._told(action, came) if entry.accepted else _violation(entry)
        except StreamError as error:
            told = {"status": "busy", "error_code": error.code}
        about = {"action_id": action.action_id, "agent_id": action.agent_id}
        named = about | ({"message_id": action.message_id} if action.message_id is not None else {})
        ack = UiActionAck.parse({**named, **told})
        to = L0Subject(subject.project, "evt", "sys", "ui", "action_ack", subject.channel, subject.ver)
        headers = h.fill_headers(
            {name: came[name] for name in _PASSED_ON if name in came} | h.depth_header(0),
            origin=action.action_id,
            timestamp_ms=self._identity.now_ms(),
            message_type="ui.action_ack",
            sender=WORKER,
            message_id=f"{digest(action.action_id.encode())}:ack:{delivery.sequence}:{delivery.attempt}",
        ).headers
        await self._bus.publish(str(to), headers, ack.encode())
        return Done()

    async def _told(self, action: UiAction, came: dict[str, str]) -> dict[str, Any]:
        """The answer to an action, which is done now unless it was before.

        Raises:
            StreamError: the log cannot be read or written.
        """
        key = f"{ACTED}:{digest(action.key.encode('utf-8', 'surrogatepass'))}"
        known = await self._store.find(key)
        if known is not None:
            return {name: known.event.payload[name] for name in _TOLD if name in known.event.payload}
        told = await self._do(action)
        trace = parse_traceparent(came.get(h.TRACEPARENT, "")) or made_trace(key)
        event = self._identity.stamp(
            {
                "type": ACTED,
                "stream_id": STREAM,
                "idempotency_key": key,
                "actor": "user",
                "source": {"agent": WORKER, "adapter": ADAPTER},
                "traceparent": str(trace.child(key)),
                "payload": {"action_id": action.action_id, "tool_name": action.tool_name, **told},
            }
        )
        record = (await self._store.append([event], on_known="keep_first"))[0]
        return {name: record.event.payload[name] for name in _TOLD if name in record.event.payload}

    async def _do(self, action: UiAction) -> dict[str, Any]:
        if action.agent_id != WORKER:
            return {"status": "rejected", "error_code": "not-a-ui-worker"}
        if action.tool_name not in self._allowed or action.tool_name not in ACTIONS:
            return {"status": "rejected", "error_code": "not-allowed"}
        if action.message_id is not None and not action.message_is_uuid7:
            return {"status": "rejected", "error_code": "message-id"}
        try:
            await self._answer(ACTIONS[action.tool_name], action.args)
        except RequestError as error:
            return {"status": "rejected", "error_code": error.code, "error": str(error)[:500]}
        return {"status": "accepted"}


class InternalTool(EffectKind):
    """A request of the sidecar as a tool that agents call."""

    effect_class = "idempotent"

    def __init__(self, answer: Answer, name: str) -> None:
        self._answer, self._request = answer, ACTIONS[name]

    async def run(self, effect: Effect, key: str) -> Any:
        return await self._answer(self._request, effect.args)


def _violation(entry: Decision) -> dict[str, Any]:
    return {"status": "rejected", "error_code": entry.verdict, "error": entry.reason}


def internal_tools(answer: Answer, allowed: Collection[str]) -> dict[str, InternalTool]:
    """The allowed internal tools, by their short subject."""
    return {f"{INTERNAL}{name}": InternalTool(answer, name) for name in allowed if name in ACTIONS}


_TOLD: Final = ("status", "error_code", "error")
_PASSED_ON: Final = (h.TRACEPARENT, h.TRACESTATE, *h.FORWARDED)
