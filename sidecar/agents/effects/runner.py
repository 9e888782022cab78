"""Executes requested effects, under a policy and with a ledger.

========== ==================================== =====================================================
last step  meaning                              then
========== ==================================== =====================================================
none       never tried                          attempt 1
completed  it was done                          reuse the result
failed     attempt n failed; ``retry_at``       wait until then, attempt n + 1
started    a process died during attempt n      in doubt: ask the kind; else by class (below)
in_doubt   nobody knows                         ask the kind again; else wait for a person
========== ==================================== =====================================================

Without an answer from the kind's ``reconcile``, a *safe* or *idempotent* effect is tried again, which counts as an
attempt. An *unsafe* effect stays in doubt until a person resolves it. Each request gets one final ``effect.completed``
or ``effect.failed``, whatever happens.

A runner that carries out an effect has claimed its run and key (``claims.py``), and so knows that an attempt without an
end has died. If another home takes the effect over, because this one slept for too long, what this one still records is
refused, and it waits for the claim again.

So state and messages are exactly-once. An outside effect is at-least-once, and exactly-once if the receiver honours the
key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, NamedTuple

from sidecar.agents.chains import trace_headers
from sidecar.agents.effects.claims import ClaimLost, Claims, OwnClaims
from sidecar.agents.effects.ledger import Ledger, Request, Sleep, StepRecord, request_of
from sidecar.agents.effects.outbound import outbound
from sidecar.agents.effects.policy import DEFAULT_POLICY, Effect, EffectClass, EffectPolicy
from sidecar.agents.metrics import Count, uncounted
from sidecar.agents.owner import ALONE, Owner
from sidecar.agents.stops import Stop, never
from streams.errors import InvalidEvent, StreamError
from streams.identity import Identity
from streams.store import NOTHING, Record, StreamStore

log = logging.getLogger("sidecar.agents")

MAX_RUNNING: Final = 64
"""Maximum number of effects that run at the same time; the others wait."""

MOST_ATTEMPTS: Final = 20
"""How often a repeatable effect is tried at most, whatever the policy says, if the process ends again and again."""

LONGEST_SLEEP: Final = 30.0
"""Maximum length of one sleep during a back-off, so that the back-off ends soon if the clock is set forward."""

GAVE_UP: Final = "a person gave it up"

Resolution = Literal["done", "retry", "fail"]
"""What a person may decide about an effect in doubt."""


class Reconciled(NamedTuple):
    """Whether an effect took place, and its result or why that is not known."""

    took_place: bool | None
    result: Any = None
    reason: str = "it is unknown whether the effect took place"


class EndsTurn(NamedTuple):
    """What ``run`` returns in the place of a result that ends the agent's turn."""

    result: Any


class EffectKind:
    """Executes effects of one kind."""

    effect_class: EffectClass = "unsafe"
    longest_seconds: float = 0.0
    """How long an attempt may take, if the policy allows less."""
    is_repeatable = False
    """Whether the kind finds out by itself what was done before, so that its effects get a record of their first
    attempt only when it ends."""

    async def run(self, effect: Effect, key: str) -> Any:
        """Execute the effect once; return a JSON value. ``key`` lets the receiver recognise a repetition.
        ``outbound.outbound_headers`` returns the headers for requests to other services.

        A cancellation leaves the effect in doubt. Any exception counts as a failed attempt, so ``run`` may raise an
        exception only if the effect did not take place. If an *unsafe* kind cannot know that, it raises
        ``TimeoutError``, which leaves the effect in doubt. An effect whose exception has a true attribute
        ``permanent`` is not tried again.
        """
        raise NotImplementedError

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        """Find out whether an attempt that was cut off took effect."""
        return Reconciled(None)

    async def cancel(self, agent: str, turn: str) -> None:
        """End the effects of a turn early, if that is possible. May be called again."""


class EffectRunner:
    """Runs the effects of all agents. Bound to one event loop."""

    def __init__(
        self,
        store: StreamStore,
        identity: Identity,
        kinds: Mapping[str, EffectKind],
        *,
        clean: Callable[[Any], Any] = lambda value: value,
        policy: EffectPolicy = DEFAULT_POLICY,
        count: Count = uncounted,
        owner: Owner = ALONE,
        stop: Stop = never,
        sleep: Sleep = asyncio.sleep,
        claims: Claims | None = None,
    ) -> None:
        self.kinds = dict(kinds)
        self.ledger = Ledger(store, identity, sleep, self._until_owned)
        self._identity, self._clean, self._policy = identity, clean, policy
        self._count, self._stop, self._sleep = count, stop, sleep
        self._owner, self._paused = owner, 0
        self.began = NOTHING
        """The last position of the log when this process began. Requests up to there may have been begun before."""
        self.is_cut: Callable[[str, str], bool] = lambda agent, request: False
        """Whether the turn of an agent that made a request has ended. No attempt of its effect begins any more."""
        self._doubtful: dict[tuple[str, str], dict[str, Record]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._claims = claims or OwnClaims(store)
        self._waiting: set[str] = set()
        """The requests that wait for their claim."""
        self._room = asyncio.Semaphore(MAX_RUNNING)

    @property
    def is_busy(self) -> bool:
        """Whether an effect runs, or waits for anything but the ownership of its agent."""
        return len(self._tasks) > self._paused

    def offer(self, record: Record) -> None:
        """Execute a requested effect in the background. Does nothing if the effect is already in progress, or if only
        other homes have its kind."""
        request = request_of(record)
        if self._claims.is_shared and request.effect.kind not in self.kinds:
            return
        last = self._tasks.get(request.id)
        if last is None or last.done():
            task = asyncio.create_task(self._execute(request))
            self._tasks[request.id] = task
            task.add_done_callback(lambda ended: self._tasks.get(request.id) is ended and self._tasks.pop(request.id))

    async def close(self) -> None:
        """Cancel running effects. The next process finds these effects in doubt, and effects that are waiting continue
        to wait in that process.
        """
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ended(self, request: str) -> None:
        """Wait no more for the claim of a request that has its final record."""
        if request in self._waiting and (task := self._tasks.get(request)) is not None:
            task.cancel()

    async def end_turn(self, agent: str, turn: str) -> None:
        """End what a turn that was stopped or cut still does, if that is possible. Raises ``StreamError``."""
        for kind in self.kinds.values():
            await kind.cancel(agent, turn)

    async def resolve(
        self, record: Record, how: Resolution, *, attempt: int = 1, by: str = "user", mark: str = ""
    ) -> bool:
        """Settle an effect in doubt, and all requests that share its key, as a person has decided.

        ``attempt`` is the attempt that the person was asked about. ``mark`` names the decision: one that was made
        before is made again without effect. Returns false if the effect is not in doubt, and another decision, or none,
        ended that.
        """
        async with self._claimed(request_of(record)) as request:
            step = await self.ledger.get_last_by_key(request.effect.run, request.key)
            if step is None or step.status != "in_doubt" or attempt != step.attempt:
                run, key = request.effect.run, request.key
                return bool(mark) and await self.ledger.is_resolved(run, key, attempt, mark)
            others = self._doubtful.pop((request.effect.run, request.key), {})
            others.pop(request.id, None)
            about = {"resolved_by": by, "resolution": mark}
            if how == "done":
                await self.ledger.completed(request, step.attempt, None, **about)
            elif how == "retry":
                now = self._identity.now_ms()
                await self.ledger.failed(request, step.attempt, "it did not happen", retry_at=now, **about)
            else:
                # The effect stays in doubt until the last of these records, so a crash between them loses nothing.
                for each in others.values():
                    await self.ledger.refused(
                        request_of(each)._replace(claim=request.claim), GAVE_UP, "given-up", step.attempt
                    )
                await self.ledger.failed(request, step.attempt, GAVE_UP, retry_at=None, error_code="given-up", **about)
                return True
        for each in (record, *others.values()):
            self.offer(each)
        return True

    @asynccontextmanager
    async def _claimed(self, request: Request) -> AsyncIterator[Request]:
        """The request with its claim, which a person's decision holds, too: another request with the same key waits for
        its result. While another home has the effect, this one need not stay for it."""
        self._waiting.add(request.id)
        self._paused += self._claims.is_shared
        try:
            claim = await self._claims.take(request.effect.run, request.key)
        finally:
            self._waiting.discard(request.id)
            self._paused -= self._claims.is_shared
        try:
            yield request._replace(claim=claim)
        finally:
            await claim.release()

    async def _execute(self, request: Request) -> None:
        try:
            await self._until_owned(request.agent)
            while True:
                try:
                    async with self._claimed(request) as claimed:
                        await self._to_its_end(claimed)
                    return
                except ClaimLost:
                    log.warning("effect %s was taken over by another home", request.id)
        except StreamError as error:
            log.error("the ledger cannot be written, so effect %s is waiting: %s", request.id, error)
        except Exception as error:
            # The policy or the runner itself failed. Record that, because the agent would otherwise wait forever.
            log.exception("effect %s of agent %s failed", request.id, request.agent)
            said = f"{type(error).__name__} while it was being prepared; see sidecar.log"
            await self.ledger.refused(request, said, "internal")

    async def _to_its_end(self, request: Request) -> None:
        effect, kind = request.effect, self.kinds.get(request.effect.kind)
        step = await self.ledger.get_last_by_key(effect.run, request.key)
        attempt = step.attempt if step is not None else 0
        if step is not None:
            if step.status == "completed":
                if step.request != request.id:
                    await self.ledger.reused(request, step)
                return
            if step.final and step.request == request.id:
                return
        if kind is None:
            await self._without_kind(request, step)
            return
        attempts, is_silent = max(self._policy.max_attempts(effect), 1), self._is_silent(kind)
        if step is None and is_silent and request.record.position <= self.began:
            # Perhaps it never began, so a policy with one attempt allows another one.
            attempt, attempts = 1, max(attempts, 2)
            step = StepRecord(effect.run, request.key, attempt, "started", request.id)
        if step is not None and not step.final and is_silent and request.record.position <= self.began:
            # The end of this process is no fault of the effect, unless it happens again and again.
            attempts = max(attempts, min(attempt + attempts, MOST_ATTEMPTS))
        if step is not None and step.resolved:
            attempts = max(attempts, attempt + 1)  # a person wants another attempt, whatever the policy says
        if step is not None and step.status in ("started", "in_doubt"):
            step = await self._reconcile(request, kind, step, attempts)
            if step is None:
                return
        if step is not None:
            await self._until(step.retry_at, step.ts)
        while attempt < attempts:
            if self.is_cut(request.agent, request.id):
                await self.ledger.refused(request, "the turn was stopped", "stopped", attempt)
                return
            attempt += 1
            if attempt > 1:
                self._count("retried", effect.kind, 1)
            retry_at = await self._attempt(request, kind, attempt, attempts)
            if retry_at is None:
                return
            await self._until(retry_at, self._identity.now_ms())
        # No attempt is left: the policy now allows fewer than were already made, or other requests with the same key
        # used them up.
        await self.ledger.refused(request, f"gave up after {attempt} attempts", "attempts-exhausted", attempt)

    def _is_silent(self, kind: EffectKind) -> bool:
        """Whether the first attempt gets no record when it begins. Another home could not know that it did."""
        return kind.is_repeatable and not self._claims.is_shared

    async def _without_kind(self, request: Request, step: StepRecord | None) -> None:
        error = f"no effect of kind {request.effect.kind} is configured"
        if step is not None and step.status in ("started", "in_doubt"):
            await self._doubt(request, step.attempt, error)
        else:
            await self.ledger.refused(request, error, "unknown-kind", step.attempt if step is not None else 0)

    async def _doubt(self, request: Request, attempt: int, reason: str) -> None:
        self._doubtful.setdefault((request.effect.run, request.key), {})[request.id] = request.record
        await self.ledger.in_doubt(request, attempt, reason)

    async def _attempt(self, request: Request, kind: EffectKind, attempt: int, attempts: int) -> int | None:
        """Make one attempt. Return when to try again, in ms UTC, or ``None`` if nothing is left to do."""
        effect = request.effect
        async with self._turn(request.agent):
            begun = request.record.event
            if attempt > 1 or not self._is_silent(kind):
                begun = await self.ledger.started(request, attempt, kind.effect_class, attempts)
            self._stop("effect-started")
            if self.is_cut(request.agent, request.id):  # since the last look, so nobody has ended this attempt
                said = "the turn was stopped"
                await self.ledger.failed(request, attempt, said, retry_at=None, error_code="stopped")
                return None
            result: Any = None
            failure: Exception | None = None
            try:
                with outbound(trace_headers(begun)):
                    async with asyncio.timeout(max(self._policy.deadline_seconds(effect), kind.longest_seconds)):
                        result = await kind.run(effect, request.key)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                failure = TimeoutError("the attempt was cancelled")
            except Exception as error:  # noqa: BLE001 - every error of a kind is a failed attempt
                failure = error
        # The end may have to wait until this home owns the agent again, so it takes no room.
        if failure is not None:
            return await self._failed(request, kind, attempt, attempts, failure)
        self._stop("effect-done")
        try:
            about = {"ends_turn": True} if isinstance(result, EndsTurn) else {}
            given = result.result if isinstance(result, EndsTurn) else result
            await self.ledger.completed(request, attempt, self._clean(given), **about)
        except (InvalidEvent, TypeError, ValueError) as error:
            # Another attempt would repeat the effect, so this failure is final.
            said = f"the effect took place, but its result cannot be recorded ({type(error).__name__})"
            await self.ledger.failed(request, attempt, said, retry_at=None, error_code="bad-result")
        self._stop("effect-recorded")
        return None

    async def _failed(
        self, request: Request, kind: EffectKind, attempt: int, attempts: int, error: Exception
    ) -> int | None:
        # The product's own errors tell a person what happened. Others may say no more than a key, so they are named.
        text, kind_of = self._clean(str(error)), type(error)
        is_named = not text or kind_of.__module__.partition(".")[0] != "sidecar"
        said = ": ".join(filter(None, (kind_of.__name__ if is_named else "", text)))
        if isinstance(error, TimeoutError) and kind.effect_class == "unsafe":
            await self._doubt(request, attempt, "the attempt did not end within its deadline")
            return None
        is_last = attempt >= attempts or bool(getattr(error, "permanent", False))
        retry_at = None
        if not is_last:
            pause = max(self._policy.backoff_seconds(effect=request.effect, attempt=attempt), 0.0)
            retry_at = self._identity.now_ms() + round(pause * 1000)
        await self.ledger.failed(request, attempt, said, retry_at=retry_at)
        return retry_at

    async def _reconcile(
        self, request: Request, kind: EffectKind, step: StepRecord, attempts: int
    ) -> StepRecord | None:
        try:
            with outbound(trace_headers(request.record.event)):
                async with asyncio.timeout(self._policy.deadline_seconds(request.effect)):
                    found = await kind.reconcile(request.effect, request.key)
        except Exception as error:  # noqa: BLE001 - foreign code
            found = Reconciled(None, reason=f"reconcile raised {type(error).__name__}")
        if found.took_place:
            await self.ledger.completed(request, step.attempt, self._clean(found.result), reconciled=True)
            return None
        if found.took_place is None and kind.effect_class == "unsafe":
            await self._doubt(request, step.attempt, found.reason)
            return None
        said = "the process ended during this attempt"
        about: dict[str, Any] = {"reconciled": found.took_place is False}
        if step.attempt >= attempts:
            about["error_code"] = "attempts-exhausted"
            await self.ledger.failed(request, step.attempt, said, retry_at=None, **about)
            return None
        now = self._identity.now_ms()
        await self.ledger.failed(request, step.attempt, said, retry_at=now, **about)
        return step._replace(status="failed", retry_at=now, ts=now)

    @asynccontextmanager
    async def _turn(self, agent: str) -> AsyncIterator[None]:
        """Room for an attempt, at a moment at which this home owns the agent."""
        while True:
            await self._until_owned(agent)
            async with self._room:
                if self._owner.holds(agent):
                    yield
                    return

    async def _until_owned(self, agent: str) -> None:
        if self._owner.holds(agent):
            return
        self._paused += 1
        try:
            await self._owner.until_owned(agent)
        finally:
            self._paused -= 1

    async def _until(self, moment_ms: int | None, since_ms: int) -> None:
        """Wait until a clock time, but at most as long as the recorded wait.

        Because of this limit, neither a restart nor setting the clock back lengthens a back-off.
        """
        if moment_ms is None:
            return
        budget = (moment_ms - since_ms) / 1000
        while (left := min((moment_ms - self._identity.now_ms()) / 1000, budget)) > 0:
            piece = min(left, LONGEST_SLEEP)
            await self._sleep(piece)
            budget -= piece
