"""Publishes token deltas as joined ``str`` chunks on core NATS: chunks are never stored, and are lost if there is no
subscriber or no connection.

A shim sends deltas without acknowledgement, in addition to its hooks. A delta that arrives before its turn is known is
dropped and counted. Nothing in this module waits for the server. The queue is bounded, and drops its oldest chunk
first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from bridge.nats.jetstream.errors import NatsError
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.mirror.chunks import Coalescer, Delta, Ready
from bridge.nats.mirror.held import HeldText
from bridge.nats.mirror.messages import Mirror, chunk_message
from bridge.opencode.link.frames import HookItem

log = logging.getLogger("sidecar.mirror")

MAX_WAITING: Final = 256
"""Maximum number of chunks in the queue: what several agents produce in a few seconds."""

HOLD_S: Final = 3.0
"""How long the last word of a text waits for more text, because no event marks the end of a text."""

MAX_HELD: Final = 1024
"""Maximum number of sessions whose last text is held; beyond that, the text of the session that was quiet longest is
sent."""

_TYPE: Final = "message.part.delta"


@dataclass(slots=True)
class _Held:
    """The text that a session is producing; ``last`` is its newest delta."""

    text: HeldText
    last: Delta


class DeltaStream:
    """Joins and publishes token deltas. Bound to its event loop.

    ``turn_of`` returns the user message that a session is currently answering, ``project_of`` returns a session's
    project, and ``clean`` redacts a text. A word is sent only when it is complete, so that no secret slips through in
    two halves. If no delta arrives for ``hold_s`` seconds, the last, perhaps incomplete word is sent, too. ``counts``:
    ``deltas``, ``sent`` (chunks), ``dropped`` (chunks, because there was no connection or no room), and the coalescer's
    counts.
    """

    def __init__(
        self,
        sessions: Sessions,
        log_id: str,
        turn_of: Callable[[str], str | None],
        project_of: Callable[[str], str],
        clean: Callable[[Any], Any],
        hold_s: float = HOLD_S,
    ) -> None:
        self._sessions, self._mirror = sessions, Mirror(log_id)
        self._turn_of, self._project_of, self._clean = turn_of, project_of, clean
        self._coalescer = Coalescer()
        self._hold_s = hold_s
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._quiet_at: OrderedDict[str, float] = OrderedDict()
        self._own: Counter[str] = Counter()
        self._waiting: deque[Ready] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._own + self._coalescer.counts)

    def take(self, items: Iterable[HookItem]) -> None:
        """Accept items from a shim. Returns at once, and never raises for malformed items."""
        now = self._loop.time()
        for item in items:
            delta = self._delta(item)
            if delta is not None:
                self._own["deltas"] += 1
                self._hold(delta, now)
        self._wake_when_due()

    async def close(self) -> None:
        """Stop sending. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    def _delta(self, item: HookItem) -> Delta | None:
        try:
            event = item.input["event"]
            found = event["properties"]
            names = (found["sessionID"], found["partID"], found["field"], found["delta"])
        except (LookupError, TypeError):
            self._own["no_delta"] += 1
            return None
        if event.get("type") != _TYPE or not all(isinstance(name, str) for name in names):
            self._own["no_delta"] += 1
            return None
        session, part, field, text = names
        return Delta(session, self._turn_of(session), part, field, text)

    def _hold(self, delta: Delta, now: float) -> None:
        if delta.turn is None:
            self._coalescer.add(delta, now)  # the coalescer counts a delta that has no turn
            return
        held = self._held.pop(delta.session, None)
        if held is not None and (held.last.step, held.last.kind) != (delta.step, delta.kind):
            self._end(held, now)  # the session has begun another text, so the held text is complete
            held = None
        if held is None:
            if len(self._held) >= MAX_HELD:
                session, oldest = self._held.popitem(last=False)
                self._quiet_at.pop(session, None)
                self._end(oldest, now)
            held = _Held(HeldText(self._clean), delta)
        held.last = delta
        # Re-insert the session at the end of both dicts, so that the session that was idle longest comes first.
        self._held[delta.session] = held
        self._quiet_at.pop(delta.session, None)
        self._quiet_at[delta.session] = now + self._hold_s
        self._send(self._coalescer.add(delta._replace(text=held.text.add(delta.text)), now))

    def _end(self, held: _Held, now: float) -> None:
        self._send(self._coalescer.add(held.last._replace(text=held.text.end()), now))

    def _wake_when_due(self) -> None:
        waiting = [self._coalescer.deadline]
        waiting.append(next(iter(self._quiet_at.values()), None))
        deadline = min((each for each in waiting if each is not None), default=None)
        if self._timer is not None and deadline is not None and deadline < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if deadline is not None and self._timer is None:
            self._timer = self._loop.call_at(deadline, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._quiet_at and next(iter(self._quiet_at.values())) <= now:
            # Publish the last word, which was held back. Keep the text, because later text is redacted in its context.
            self._end(self._held[self._quiet_at.popitem(last=False)[0]], now)
        self._send(self._coalescer.due(now))
        self._wake_when_due()

    def _send(self, ready: list[Ready]) -> None:
        if not ready:
            return
        self._waiting.extend(ready)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._own["dropped"] += 1
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        while self._waiting:
            session, chunk = self._waiting.popleft()
            connection = self._sessions.current
            if connection is None:
                self._own["dropped"] += 1
                continue
            message = chunk_message(session, chunk, self._project_of(session), self._mirror)
            try:
                await connection.send(message.subject, message.body)
            except NatsError:
                self._own["dropped"] += 1
                continue
            self._own["sent"] += 1
