"""The mirror's task: reads the log, publishes what is new, and knows how far it is.

The log is the outbox: nothing is queued, so a server that is away costs no
memory, and recording never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from bridge.nats.sessions import Sessions
from streams.store import StreamStore


class MirrorTask:
    """The mirror of one log; belongs to its event loop. ``log_id`` names the log on the server."""

    def __init__(self, store: StreamStore, log_id: str, sessions: Sessions, now_ms: Callable[[], int]) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Begin, in the background."""

    async def close(self) -> None:
        """Stop, and keep how far it is. Idempotent. What is under way is published again by the next one, once."""

    async def pause(self) -> None:
        """Publish nothing from the return of this call until ``resume``; what is under way is finished or given up."""

    def resume(self) -> None:
        """Go on. How far the mirror is, is found out anew: from the snapshot ``MIRROR`` and from the stream."""

    def rebuild(self) -> None:
        """Purge this log's part of the stream and publish everything again, in the background; ``status`` tells."""

    def forgotten(self, streams: Collection[str]) -> None:
        """Payloads of these streams were forgotten: their messages are erased and published again without them."""

    def status(self) -> dict[str, Any]:
        """For ``status``.

        ``position`` (last mirrored), ``head`` (of the log), ``lag`` (records in between), ``published`` and
        ``duplicates`` (messages, in the life of this object), ``rebuild`` (its number), ``state`` (``waiting``,
        ``resuming``, ``publishing``, ``rebuilding``, ``paused`` or ``idle``), ``problem`` (one line; empty while all
        is well) and ``notes`` (counts).
        """
        raise NotImplementedError
