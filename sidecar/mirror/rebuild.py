"""``mirror rebuild``: this log's messages are removed from the server and published again, in order.

The messages of records are removed with a filter for this log's subjects. L0 messages are removed one by one, if their
header names this log. Other homes' messages stay. A rebuild may stop at any step. The next start or rebuild finishes
it, because the mirror's task reads its progress from the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Final

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NotFound
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import L0_EVENTS
from bridge.nats.jetstream.streams import delete_messages, read_back
from bridge.nats.subjects import agent_events_pattern
from sidecar.mirror.task import MirrorTask
from streams.store import NOTHING, StreamReader, StreamStore

LOOK_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 30.0
"""The rebuild gives up if a problem lasts this long and nothing is published."""

SILENT_SECONDS: Final = 300.0
"""The rebuild gives up after this long without progress, even without a problem."""


class RebuildStopped(Exception):
    """The rebuild did not finish; the text says why. A running sidecar's mirror continues automatically."""

    code: ClassVar[str] = "mirror-rebuild-stopped"


async def erase_meanings(session: JetStream, log_id: str) -> int:
    """Remove a log's L0 messages; return how many were removed. Messages of other logs stay.

    Raises:
        NatsError: some L0 messages may still be there; it is safe to call this again.
    """
    mine, pattern = h.header_text(log_id), agent_events_pattern()
    try:
        sequences = [
            found.sequence
            async for found in read_back(session, L0_EVENTS, subject=pattern)
            if found.headers.get(h.LOG) == mine
        ]
    except NotFound:
        return 0
    return await delete_messages(session, L0_EVENTS, sequences, erase=False)


class Rebuild:
    """One rebuild. ``run`` returns when the mirror has caught up with the log; ``progress`` returns the progress so
    far."""

    def __init__(self, task: MirrorTask, sessions: Sessions, store: StreamStore, log_id: str) -> None:
        self._task, self._sessions, self._store, self._log_id = task, sessions, store, log_id
        self._phase = "erasing"
        self.erased = 0

    def progress(self) -> dict[str, Any]:
        """``phase`` (``erasing``, ``publishing``, ``done``), ``position`` and ``head``, ``rebuild``, ``problem``."""
        status = self._task.status()
        position = -1 if self._phase == "erasing" else status["position"]
        return {
            "phase": self._phase,
            "position": position,
            "head": status["head"],
            "rebuild": status["rebuild"],
            "problem": status["problem"],
        }

    async def run(self, report: Callable[[dict[str, Any]], None] = lambda progress: None) -> dict[str, Any]:
        """Rebuild; return the last progress. If cancelled, the mirror continues the rebuild, if there is a mirror.

        Raises:
            RebuildStopped: the server was unreachable for too long, or the mirror cannot continue.
            NatsError: the L0 messages could not be removed; the records' messages are unchanged.
        """
        before = self._task.counts["republished"]
        await self._task.pause()
        try:
            report(self.progress())
            session = await self._sessions.get()
            self.erased = await erase_meanings(session, self._log_id)
            self._task.rebuild()
            self._phase = "publishing"
        finally:
            self._task.resume()
        await self._until_done(before, report)
        self._phase = "done"
        return self.progress()

    async def _until_done(self, before: int, report: Callable[[dict[str, Any]], None]) -> None:
        loop = asyncio.get_running_loop()
        end = await last_kept(self._store)
        last, moved = None, loop.time()
        while True:
            status = self._task.status()
            begun = self._task.counts["republished"] > before
            if begun and status["position"] >= end:
                return
            place = (begun, status["position"])
            if place != last:
                last, moved = place, loop.time()
            patience = PATIENCE_SECONDS if status["problem"] else SILENT_SECONDS
            if loop.time() - moved > patience:
                why = status["problem"] or "publishing stopped"
                raise RebuildStopped(f"{why}, at record {status['position']} of {end}")
            report(self.progress())
            await asyncio.sleep(LOOK_SECONDS)


async def last_kept(store: StreamReader) -> int:
    """The position of the last record that a log holds; after a prune, this position may be before the head."""
    back = 1
    while True:
        after = max(store.head - back, NOTHING)
        last = NOTHING
        async for record in store.read_all(after=after):
            last = record.position
        if last != NOTHING or after == NOTHING:
            return last
        back *= 4
