"""What other programs on the NATS server may do in this home: actions of user interfaces, and internal tools.

Both are requests of the sidecar, the same that the command line sends, and only those that ``config.toml`` allows:
``[worker] ui_allowed`` for ``cmd.sys.ui.action``, ``[worker] internal_allowed`` for ``cmd.sys.pmo.internal.*``.

Each is done once, under the id of the action or call: ``request.asked`` is recorded before, ``request.answered`` after
it, so what arrives again gets the same answer. A request without an answer was cut off, and is sent again. That has no
second effect: it has a key if it would begin something new, and else is refused if it was done before. Such a refusal
is ``in-doubt``, because nobody knows who did it.

An action is answered with ``evt.sys.ui.action_ack``:

======== ===================================================================
status   meaning
======== ===================================================================
accepted it was done
rejected it is not allowed, or the request failed; ``error_code`` says why
busy     the log cannot be written now; send the action again
======== ===================================================================
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from bridge.nats import headers as h
from bridge.nats.l0.arriving import known_headers
from bridge.nats.l0.payloads import PayloadError, UiAction, UiActionAck
from bridge.nats.l0.recursion import Decision, judge
from bridge.nats.subjects import L0Subject, consumer_name
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.effects.ledger import bounded
from sidecar.agents.effects.outbound import outbound_headers
from sidecar.agents.effects.policy import Effect
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.inputs import ADAPTER, digest
from sidecar.mirror.asking import STREAM
from streams.bus.contract import Delivery, Done, EventBus, Outcome, Poison
from streams.errors import StreamError
from streams.identity import Identity
from streams.store import Record, StreamStore
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
    "wake": "wake",
    "asks": "asks",
}
"""The actions, and the requests that do them. Those that only machines send (``asking.TOLD``) cannot be allowed."""

WORKER: Final = "ui_worker"
"""The agent that actions of user interfaces are for."""

PMO: Final = "pmo"
"""The agent that carries out internal tools."""

INTERNAL: Final = "cmd.sys.pmo.internal.>"
ASKED: Final = "request.asked"
ANSWERED: Final = "request.answered"
ACTIONS_PATTERN: Final = "cg.v1.*.*.cmd.sys.ui.action"
_KEYED: Final = frozenset({"signal", "spawn"})
"""The actions that would begin something new each time."""


class Deeds:
    """Does what other programs ask for, each once. Bound to one event loop.

    At most one process does so at a time: the home's own, or the owner's of ``ui_worker`` and ``pmo``.
    """

    def __init__(self, store: StreamStore, identity: Identity, answer: Answer, clean: Callable[[Any], Any]) -> None:
        self._store, self._identity, self._answer, self._clean = store, identity, answer, clean
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def done(self, who: str, id_: str, name: str, args: dict[str, Any], trace: str | None) -> dict[str, Any]:
        """What became of the request ``id_`` of ``who``: ``status``, and ``value``, or ``error_code`` and ``error``.

        Raises:
            StreamError: the log cannot be read or written.
        """
        key = f"{ASKED}:{who}:{digest(id_.encode('utf-8', 'surrogatepass'))}"
        async with self._locks.setdefault(key, asyncio.Lock()):
            asked = await self._record(ASKED, key, who, trace, {"id": id_, "name": name})
            known = await self._store.find(f"{key}:answered") if asked.duplicate else None
            if known is None:
                answer = await self._answered(name, args, key, was_asked=asked.duplicate)
                known = await self._record(ANSWERED, f"{key}:answered", who, trace, {"id": id_, "name": name, **answer})
        return known.event.payload

    async def _answered(self, name: str, args: dict[str, Any], key: str, *, was_asked: bool) -> dict[str, Any]:
        given = {"key": key, **args} if name in _KEYED else args
        try:
            value = await self._answer(ACTIONS[name], given)
        except RequestError as error:
            answer = {"status": "rejected", "error_code": error.code, "error": self._clean(str(error))[:500]}
            doubt = {"error_code": "in-doubt", "error": f"perhaps it was done before a restart: {answer['error']}"}
            return answer | doubt if was_asked else answer
        return {"status": "accepted", "value": bounded(self._clean(value))}

    async def _record(self, type_: str, key: str, who: str, trace: str | None, payload: dict[str, Any]) -> Record:
        event = self._identity.stamp(
            {
                "type": type_,
                "stream_id": STREAM,
                "idempotency_key": key,
                "actor": "user" if who == WORKER else who,
                "source": {"agent": who, "adapter": ADAPTER},
                "traceparent": str((parse_traceparent(trace or "") or made_trace(key)).child(key)),
                "payload": payload,
            }
        )
        return (await self._store.append([event], on_known="keep_first"))[0]


class UiActions:
    """Takes the actions of user interfaces. Bound to one event loop."""

    def __init__(self, bus: EventBus, deeds: Deeds, allowed: Collection[str], now_ms: Callable[[], int]) -> None:
        self._bus, self._deeds, self._allowed, self._now_ms = bus, deeds, frozenset(allowed), now_ms

    async def run(self) -> None:
        """Take actions until cancelled. An action in progress is then cut off, and delivered again."""
        await self._bus.subscribe(consumer_name(WORKER), [ACTIONS_PATTERN], self._handle, exclusive=True).run()

    async def _handle(self, delivery: Delivery) -> Outcome:
        try:
            action = UiAction.decode(delivery.body)
        except PayloadError as error:
            return Poison(str(error))
        came, subject = known_headers(delivery.headers), L0Subject.parse(delivery.subject)
        try:
            entry = judge("entry", came, recorded=None)
            answer = await self._answered(action, came) if entry.accepted else _violation(entry)
        except StreamError as error:
            answer = {"status": "busy", "error_code": error.code}
        about = {"action_id": action.action_id, "agent_id": action.agent_id}
        named = about | ({"message_id": action.message_id} if action.message_id is not None else {})
        ack = UiActionAck.parse({**named, **answer})
        to = L0Subject(subject.project, "evt", "sys", "ui", "action_ack", subject.channel, subject.ver)
        headers = h.fill_headers(
            {name: came[name] for name in _PASSED_ON if name in came} | h.depth_header(0),
            origin=action.action_id,
            timestamp_ms=self._now_ms(),
            message_type="ui.action_ack",
            sender=WORKER,
            message_id=f"{digest(action.action_id.encode())}:ack:{delivery.sequence}:{delivery.attempt}",
        ).headers
        await self._bus.publish(str(to), headers, ack.encode())
        return Done()

    async def _answered(self, action: UiAction, came: dict[str, str]) -> dict[str, Any]:
        """The answer to an action. Raises ``StreamError`` if the log cannot be read or written."""
        if action.agent_id != WORKER:
            return {"status": "rejected", "error_code": "not-a-ui-worker"}
        if action.tool_name not in self._allowed:
            return {"status": "rejected", "error_code": "not-allowed"}
        if action.message_id is not None and not action.message_is_uuid7:
            return {"status": "rejected", "error_code": "message-id"}
        done = await self._deeds.done(WORKER, action.key, action.tool_name, action.args, came.get(h.TRACEPARENT))
        return {name: done[name] for name in _OUTCOME if name in done}


class InternalTools(EffectKind):
    """The requests of the sidecar as tools that agents call; the kind of an effect is ``internal.`` and a name."""

    effect_class = "idempotent"

    def __init__(self, deeds: Deeds, allowed: Collection[str]) -> None:
        self._deeds, self._allowed = deeds, frozenset(allowed)

    async def run(self, effect: Effect, key: str) -> Any:
        name = effect.kind.removeprefix("internal.")
        if name not in self._allowed:
            raise RequestError("not-allowed", f"`[worker] internal_allowed` does not name {name[:60]!a}")
        id_, trace = orjson.dumps([effect.agent, effect.run, key]).decode(), outbound_headers().get(h.TRACEPARENT)
        done = await self._deeds.done(PMO, id_, name, effect.args, trace)
        if done["status"] != "accepted":
            raise RequestError(done["error_code"], done["error"])
        return done["value"]


def _violation(entry: Decision) -> dict[str, Any]:
    return {"status": "rejected", "error_code": entry.verdict, "error": entry.reason}


_OUTCOME: Final = ("status", "error_code", "error")
_PASSED_ON: Final = (h.TRACEPARENT, h.TRACESTATE, *h.FORWARDED)
