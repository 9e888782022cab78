"""What follows from one input of an agent: ``receive``, ``apply``, and the events to record. Writes nothing."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from sidecar.agents.agent import Agent, BadOutput, Output, decisions
from sidecar.agents.effects.policy import Effect
from sidecar.agents.inputs import (
    EXCEEDED,
    REFUSED,
    Input,
    InputRefused,
    Outbox,
    is_applied,
    request_key,
    state_hash,
    with_metadata,
)
from sidecar.agents.stops import Stop
from sidecar.agents.turns import Turns
from streams.bus.command import Refusal
from streams.errors import CodedError, Conflict, IdempotencyConflict, InvalidEvent, StreamError
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.store import Record, StreamStore

log = logging.getLogger("sidecar.agents")

_RUNTIME = Path(__file__).parent

Outcome = Literal["done", "duplicate", "refused", "nothing", "dead"]
"""The outcome of an input.

``nothing``: an event of the log that the agent did not react to; nothing was recorded. ``dead``: an event of the log on
which the agent failed. The event becomes a dead letter, because a pure function would fail again.
"""


class Handled(NamedTuple):
    """An input whose results are durable. ``records``: the records that were written for this input; empty for a
    duplicate."""

    outcome: Outcome
    records: tuple[Record, ...] = ()


class AgentFailed(CodedError):
    code: ClassVar[str] = "agent-failed"

    def __init__(self, agent: str, reason: str) -> None:
        super().__init__(f"agent {agent}: {reason}")
        self.agent, self.reason = agent, reason


def raised(error: Exception, text: str = "") -> str:
    """An agent's error, its place in the agent's file, its ``text``, and the last places that led to it, such as
    ``KeyError at watch.py:31: 'id' (watch.py:31 in read < watch.py:12 in receive)``.
    """
    frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).parent != _RUNTIME]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    at = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    led = " < ".join(f"{Path(each.filename).name}:{each.lineno} in {each.name}" for each in reversed(frames[-8:]))
    return f"{type(error).__name__}{at}" + (f": {text[:500]}" if text else "") + (f" ({led})" if led else "")


class Decider:
    """Decides for one agent. ``restore`` resets the agent to its state after the events of the log and of a batch."""

    def __init__(
        self,
        agent: Agent,
        store: StreamStore,
        outbox: Outbox,
        restore: Callable[[list[StreamEvent]], Awaitable[None]],
        turns: Turns,
        *,
        max_depth: int,
        stop: Stop,
    ) -> None:
        self._agent, self._store, self._outbox, self._restore = agent, store, outbox, restore
        self._turns = turns
        self._max_depth, self._stop = max_depth, stop
        self._removed: set[str] = set()
        """Keys of pruned records that were sent again: known, but no longer found."""

    async def decide(
        self, given: Input, stored: Record | None, in_batch: dict[str, StreamEvent], batch: list[StreamEvent], at: int
    ) -> tuple[Outcome, list[StreamEvent]]:
        """Decide about one input: its outcome and the events to record.

        ``stored`` is what the store has under the input's key. ``batch`` holds the events that were already decided on
        in this batch, before this input; ``in_batch`` maps their idempotency keys to them. ``at`` is how far the agent
        has handled the log: an input up to there that has no record is known, too.

        Raises:
            InputRefused, AgentFailed: see these classes. The agent's state is unchanged.
        """
        known = stored.event if stored is not None else in_batch.get(given.key)
        if known is not None:
            if given.position is None and not _is_same(known, given.record):
                raise InputRefused("key-conflict", "this key was already used for another command; use a new key")
            return "duplicate", []
        if not given.has_record and given.position is not None and given.position <= at:
            return "duplicate", []
        refusal = given.refusal
        if refusal is None and given.depth >= self._max_depth:
            if given.event.type == REFUSED:
                return "nothing", []  # the end of this chain is recorded
            reason = f"depth {given.depth} is not below the limit of {self._max_depth}"
            refusal = Refusal(EXCEEDED, reason, given.depth)
        if refusal is None and self._turns.refuses(given.event):
            refusal = Refusal("stopped", "the turn has ended", given.depth)
        if refusal is not None:
            return "refused", self._turns.mark(given, given.group([self._outbox.refused(given, refusal)]))
        events: list[StreamEvent] = []
        what = "receive"
        try:
            for outputs in decisions(self._agent, given.event):
                if what == "receive":
                    self._stop("received")
                    if not outputs and given.position is not None and not self._turns.awaits(given.event):
                        return "nothing", []
                before = len(events)
                await self._record(given, outputs, events, in_batch)
                if not self._removed.isdisjoint((given.key, *(event.idempotency_key for event in events))):
                    await self._restore(batch)
                    return "duplicate", []
                what = "apply"
                for event in filter(is_applied, events[before:]):
                    self._agent.apply(event)
                what = "follow"
            hash_ = state_hash(self._agent.state())
        except Exception as error:
            if what != "receive":
                await self._restore(batch)
            if isinstance(error, BadOutput | InvalidEvent):
                raise AgentFailed(self._agent.name, str(error)) from None
            if isinstance(error, StreamError):
                raise
            # Without the error's text, which may quote the user's. Unlike ``str``, ``TracebackException`` cannot fail.
            log.warning("agent %s failed on %s in %s: %s", self._agent.name, given.event.type, what, raised(error))
            text = self._outbox.clean(str(traceback.TracebackException(type(error), error, None)))
            raise AgentFailed(self._agent.name, f"{what} raised {raised(error, text)}") from error
        events = self._turns.mark(given, given.group(events))
        events[-1] = with_metadata(events[-1], state=hash_)
        return "done", events

    async def _record(
        self, given: Input, outputs: list[Output], events: list[StreamEvent], in_batch: dict[str, StreamEvent]
    ) -> None:
        """Add the events that record outputs to those of the same input.

        Raises:
            InvalidEvent: an output does not match the envelope.
        """
        for number, output in enumerate(outputs, len(events)):
            if (refused := self._outbox.too_deep(given, number, output)) is not None:
                events.append(refused)
                continue
            if output.effect is None:
                events.append(self._outbox.event(given, number, output))
                continue
            effect = self._outbox.effect(given, number, output)
            taken = {*in_batch, *(event.idempotency_key for event in events)}
            effect = replace(effect, visit=await self._visit(effect, taken))
            events.append(self._outbox.requested(given, number, effect, output.cause))

    async def _visit(self, effect: Effect, taken: set[str]) -> int:
        """The number of the next visit (see ``Effect``). Looks up few of the earlier visits, even in a long loop."""

        async def is_known(visit: int) -> bool:
            key = request_key(effect, visit)
            return key in taken or await self.is_known(key)

        high = 1
        while await is_known(high):
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await is_known(middle) else (low, middle)
        return high

    async def is_known(self, key: str) -> bool:
        return key in self._removed or await self._store.find(key) is not None

    async def note_removed(self, error: Conflict) -> None:
        """Remember a key that the store knows but ``find`` does not, because its record was pruned.

        Raises:
            StreamError: the log cannot be read.
        """
        if isinstance(error, IdempotencyConflict) and await self._store.find(error.key) is None:
            self._removed.add(error.key)


def _is_same(known: StreamEvent, given: StreamEvent) -> bool:
    """Whether a command equals the recorded one. A forgotten payload can no longer be compared."""
    if known.type != given.type:
        return False
    return set(known.payload) == {"$sha256"} or canonical(known.payload) == canonical(given.payload)
