"""The ledger of effects: the attempts and their results, as records of the log.

Each attempt is ``effect.started``, written before anything is done, and then ``effect.completed``, ``effect.failed``,
or, if nobody knows, ``effect.in_doubt``. The first attempt of a repeatable effect has no ``effect.started``: its
request says that it may have begun. The keys of these records are derived from run, idempotency key and attempt,
so the last step of an effect is found with a few lookups, however long the log is.

Several requests may share an idempotency key. The record that ends an attempt answers the request that made it. Each
other request gets a separate final record, under its own key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from sidecar.agents.chains import depth_of, hop
from sidecar.agents.effects.claims import Claim
from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.inputs import ADAPTER, digest, effects_stream
from sidecar.agents.owner import ALONE
from streams.errors import StoreClosed, StoreUnavailable
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.identity import Identity
from streams.store import Record, StreamStore

log = logging.getLogger("sidecar.agents")

STARTED: Final = "effect.started"
COMPLETED: Final = "effect.completed"
FAILED: Final = "effect.failed"
IN_DOUBT: Final = "effect.in_doubt"

_LAST_FIRST: Final = (COMPLETED, FAILED, IN_DOUBT, STARTED)

MAX_RESULT: Final = 256 * 1024
"""Maximum size of a result in the log, in bytes. Of a longer result, the log keeps only the digest, size and
beginning."""

_HEAD: Final = 16 * 1024

PAUSE_SECONDS: Final = 1.0
"""How long to wait before a failed write to the log is retried."""

Sleep = Callable[[float], Awaitable[None]]

StepStatus = Literal["started", "completed", "failed", "in_doubt"]


class StepRecord(NamedTuple):
    """The last known state of an effect. ``retry_at`` is in ms UTC; ``None`` if the effect will not be tried again.

    ``request`` is the id of the request that made the attempt; ``ts`` is the time of the record of
    this state.
    """

    run_id: str
    idempotency_key: str
    attempt: int
    status: StepStatus
    request: str
    result: Any = None
    error: str = ""
    retry_at: int | None = None
    final: bool = False
    event_id: str = ""
    ts: int = 0
    resolved: bool = False
    """Whether a person decided this."""


class Request(NamedTuple):
    """``claim`` is what the request holds while it is carried out; ``None`` before."""

    record: Record
    effect: Effect
    key: str
    claim: Claim | None = None

    @property
    def id(self) -> str:
        return self.record.event.id

    @property
    def agent(self) -> str:
        return self.record.event.actor


def request_of(record: Record) -> Request:
    payload = record.event.payload
    effect = Effect(
        payload["kind"], payload["args"], payload["run"], payload["node"], payload["visit"], record.event.actor
    )
    return Request(record, effect, payload["key"])


class Ledger:
    """Reads and writes the steps of effects. Writing a step waits while the log cannot be written, and until this home
    owns the agent (``until_owned``), because only the owner knows what else became of the effect. What is written under
    a claim that was lost is refused (``ClaimLost``)."""

    def __init__(
        self,
        store: StreamStore,
        identity: Identity,
        sleep: Sleep = asyncio.sleep,
        until_owned: Callable[[str], Awaitable[None]] = ALONE.until_owned,
    ) -> None:
        self._store, self._identity, self._sleep, self._until_owned = store, identity, sleep, until_owned

    async def get_last_by_key(self, run_id: str, idempotency_key: str) -> StepRecord | None:
        """The last step of an effect; ``None`` if no step is recorded."""
        last = await self._last(run_id, idempotency_key)
        return None if last is None else _step(last, run_id, idempotency_key)

    async def doubt(self, run_id: str, idempotency_key: str) -> StreamEvent | None:
        """The ``effect.in_doubt`` of an effect that is in doubt; ``None`` if it is not."""
        last = await self._last(run_id, idempotency_key)
        return None if last is None or last.event.type != IN_DOUBT else last.event

    async def _last(self, run_id: str, idempotency_key: str) -> Record | None:
        base, attempt, last = _base(run_id, idempotency_key), 1, None
        while found := list(filter(None, await self._store.find_each([_key(base, attempt, t) for t in _LAST_FIRST]))):
            attempt, last = attempt + 1, found[0]
        return last

    async def is_resolved(self, run_id: str, idempotency_key: str, attempt: int, mark: str) -> bool:
        """Whether the decision ``mark`` of a person ended the doubt about an attempt."""
        keys = [_key(_base(run_id, idempotency_key), attempt, type_) for type_ in (COMPLETED, FAILED)]
        return any(
            found is not None and found.event.payload.get("resolution") == mark
            for found in await self._store.find_each(keys)
        )

    async def started(self, request: Request, attempt: int, effect_class: EffectClass, of: int) -> StreamEvent:
        """Record the beginning of an attempt; returns its event."""
        about = {"kind": request.effect.kind, "class": effect_class, "of": of}
        stamped = self._stamp(request, attempt, STARTED, about, _key(_base_of(request), attempt, STARTED))
        return (await self._append(stamped, request.claim)).event

    async def completed(self, request: Request, attempt: int, result: Any, **about: Any) -> Record:
        """Record a result.

        Raises:
            InvalidEvent: the result cannot be recorded.
        """
        return await self._settle(request, attempt, COMPLETED, {"result": bounded(result), "final": True, **about})

    async def failed(self, request: Request, attempt: int, error: str, *, retry_at: int | None, **about: Any) -> Record:
        """Record a failure. ``retry_at`` is the time of the next attempt, in ms UTC; ``None`` makes the failure
        final."""
        about = {"error": error[:500], "retry_at": retry_at, "final": retry_at is None, **about}
        return await self._settle(request, attempt, FAILED, about)

    async def in_doubt(self, request: Request, attempt: int, reason: str) -> Record:
        """Record a doubt, with all that a person needs to know of the effect."""
        about = {"reason": reason[:500], "args": bounded(request.effect.args)}
        return await self._settle(request, attempt, IN_DOUBT, about)

    async def reused(self, request: Request, step: StepRecord) -> Record:
        about = {"result": step.result, "final": True, "reused": step.event_id}
        return await self._answer(request, step.attempt, COMPLETED, about)

    async def refused(self, request: Request, error: str, error_code: str, attempt: int = 0) -> Record:
        """Record that a request will never be executed: a failure without an attempt."""
        about = {"error": error[:500], "retry_at": None, "final": True, "error_code": error_code}
        return await self._answer(request, attempt, FAILED, about)

    async def _settle(self, request: Request, attempt: int, type_: str, about: dict[str, Any]) -> Record:
        stamped = self._stamp(request, attempt, type_, about, _key(_base_of(request), attempt, type_))
        record = await self._append(stamped, request.claim)
        kept = record.event.payload
        is_answer = kept.get("request") == request.id and kept.get("final") == about.get("final")
        if is_answer or not (about.get("final") or type_ == IN_DOUBT):
            return record
        return await self._answer(request, attempt, type_, about)

    async def _answer(self, request: Request, attempt: int, type_: str, about: dict[str, Any]) -> Record:
        key = f"{type_}:{request.id}" + (f":{attempt}" if type_ == IN_DOUBT else "")
        return await self._append(self._stamp(request, attempt, type_, about, key), request.claim)

    async def _append(self, event: StreamEvent, claim: Claim | None) -> Record:
        append = self._store.append if claim is None else claim.append
        while True:
            await self._until_owned(event.actor)
            try:
                return (await append([event], on_known="keep_first"))[0]
            except StoreClosed:
                raise
            except StoreUnavailable as error:
                log.warning("an effect is waiting until the log can be written: %s", error)
                await self._sleep(PAUSE_SECONDS)

    def _stamp(self, request: Request, attempt: int, type_: str, about: dict[str, Any], key: str) -> StreamEvent:
        event = request.record.event
        return self._identity.stamp(
            {
                "type": type_,
                "stream_id": effects_stream(request.agent),
                "idempotency_key": key,
                "causation_id": event.id,
                "correlation_id": event.correlation_id,
                "actor": request.agent,
                "source": {"agent": request.agent, "adapter": ADAPTER},
                **hop(event, depth_of(event), f"{type_}:{attempt}"),
                "payload": {
                    "request": event.id,
                    "kind": request.effect.kind,
                    "node": request.effect.node,
                    "run": request.effect.run,
                    "idempotency_key": request.key,
                    "attempt": attempt,
                    **about,
                },
            }
        )


def bounded(result: Any) -> Any:
    """A result in the form that the log keeps. A long result is replaced by its digest, size and beginning."""
    text = canonical(result)
    if len(text) <= MAX_RESULT:
        return result
    return {
        "$sha256": sha256(text).hexdigest(),
        "bytes": len(text),
        "beginning": text[:_HEAD].decode("utf-8", "replace"),
    }


def _base(run_id: str, key: str) -> str:
    return digest(canonical([run_id, key]))


def _base_of(request: Request) -> str:
    return _base(request.effect.run, request.key)


def _key(base: str, attempt: int, type_: str) -> str:
    return f"{type_}:{base}:{attempt}"


_STATUS: Final[dict[str, StepStatus]] = {
    STARTED: "started",
    COMPLETED: "completed",
    FAILED: "failed",
    IN_DOUBT: "in_doubt",
}


def _step(record: Record, run_id: str, key: str) -> StepRecord:
    event, payload = record.event, record.event.payload
    return StepRecord(
        run_id,
        key,
        payload.get("attempt", 1),
        _STATUS[event.type],
        str(payload.get("request")),
        payload.get("result"),
        payload.get("error", ""),
        payload.get("retry_at"),
        payload.get("final") is True,
        event.id,
        event.ts,
        "resolved_by" in payload,
    )
