"""Publishes token deltas as joined ``str`` chunks on core NATS: chunks are never stored, and are lost if there is no
subscriber or no connection.

A shim sends deltas without acknowledgement, in addition to its hooks. A delta that arrives before its turn is known is
dropped and counted. Nothing in this module waits for the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from bridge.nats.jetstream.errors import NatsError
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.mirror.chunks import HOLD_S, WAIT_S, Chunks, Delta
from bridge.nats.mirror.messages import Mirror, chunk_message
from bridge.opencode.link.frames import HookItem

_TYPE: Final = "message.part.delta"


class DeltaStream:
    """Joins and publishes token deltas. Bound to its event loop.

    ``turn_of`` returns the user message that a session is currently answering, ``project_of`` returns a session's
    project, and ``clean`` redacts a text. ``counts``: ``deltas``, ``no_delta`` (malformed items), ``sent`` (chunks),
    ``dropped`` (chunks, because there was no connection or no room), and the other counts of ``Chunks``.
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
        self._turn_of, self._project_of = turn_of, project_of
        self._chunks, self._own = Chunks(clean, hold_s), Counter[str]()
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Task[None] | None = None

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._own + self._chunks.counts)

    def take(self, items: Iterable[HookItem]) -> None:
        """Accept items from a shim. Returns at once, and never raises for malformed items."""
        for item in items:
            delta = self._delta(item)
            self._own["no_delta" if delta is None else "deltas"] += 1
            if delta is not None:
                self._chunks.add(delta, self._loop.time())
        if self._chunks.is_waiting and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send())

    async def close(self) -> None:
        """Stop sending. Idempotent."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    def _delta(self, item: HookItem) -> Delta | None:
        try:
            event = item.input["event"]
            found = event["properties"]
            session, part, field, text = (found["sessionID"], found["partID"], found["field"], found["delta"])
        except (LookupError, TypeError):
            return None
        if event.get("type") != _TYPE or not all(isinstance(each, str) for each in (session, part, field, text)):
            return None
        return Delta(session, self._turn_of(session), part, field, text)

    async def _send(self) -> None:
        while self._chunks.is_waiting:
            await asyncio.sleep(WAIT_S)
            for session, chunk in self._chunks.due(self._loop.time()):
                connection = self._sessions.current
                message = chunk_message(session, chunk, self._project_of(session), self._mirror)
                try:
                    if connection is not None:
                        await connection.send(message.subject, message.body)
                    self._own["sent" if connection is not None else "dropped"] += 1
                except NatsError:
                    self._own["dropped"] += 1
