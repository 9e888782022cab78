"""Kinds of effects, a clock and a policy for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.effects.runner import EffectKind, Reconciled
from sidecar.agents.inputs import agent_stream
from streams.identity import Identity
from streams.store import Record, StreamStore
from tests.streams.builders import event

AGENT = "counter"


class Crash(BaseException):
    """Ends a runner as a kill would: nothing after it runs."""


class Work(EffectKind):
    """A kind that does what its script says: a value to return, an error to raise, or a function to call."""

    def __init__(self, *script: Any, effect_class: EffectClass = "idempotent", found: Any = None) -> None:
        self.script, self.found = list(script), found
        self.effect_class = effect_class
        self.keys: list[str] = []
        self.asked = 0

    async def run(self, effect: Effect, key: str) -> Any:
        self.keys.append(key)
        next_ = self.script.pop(0) if self.script else {"n": len(self.keys)}
        if callable(next_) and not isinstance(next_, type):
            return await next_()
        if isinstance(next_, BaseException) or (isinstance(next_, type) and issubclass(next_, BaseException)):
            raise next_
        return next_

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        self.asked += 1
        if isinstance(self.found, BaseException):
            raise self.found
        return Reconciled(None) if self.found is None else self.found


async def never_ends() -> Any:
    await asyncio.Event().wait()


class Clock:
    """Wall clock and sleep that a test moves; sleeping takes no time."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self.slept: list[float] = []
        self.before_sleep: Callable[[], Awaitable[None]] | None = None

    def identity(self, seed: int = 3) -> Identity:
        return Identity(lambda: self.now_ms, Random(seed).randbytes)

    async def sleep(self, seconds: float) -> None:
        if self.before_sleep is not None:
            await self.before_sleep()
        self.slept.append(seconds)
        self.now_ms += round(seconds * 1000)
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Policy:
    """A host's own policy."""

    attempts: int = 3
    pause: float = 0.0
    key: str | None = None
    deadline: float = 30.0

    def max_attempts(self, effect: Effect) -> int:
        return self.attempts

    def backoff_seconds(self, *, effect: Effect, attempt: int) -> float:
        return self.pause * attempt

    def idempotency_key(self, *, run: str, node: str, effect: Effect) -> str:
        return self.key or f"{effect.base}:{effect.visit}"

    def deadline_seconds(self, effect: Effect) -> float:
        return self.deadline


async def request(
    store: StreamStore, identity: Identity, *, n: int = 1, kind: str = "work", key: str | None = None, run: str = "run"
) -> Record:
    """An ``effect.requested`` as an agent's outbox writes it."""
    payload = {"kind": kind, "args": {"n": n}, "run": run, "node": "", "visit": 1, "key": key or f"key-{n}"}
    about: dict[str, Any] = {"identity": identity, "actor": AGENT, "metadata": {"role": "effect", "depth": 1}}
    asked = event(f"{n}", type_="effect.requested", stream=agent_stream(AGENT), payload=payload, **about)
    return (await store.append([asked]))[0]
