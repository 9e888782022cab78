"""``mirror rebuild``: this log's messages are removed from the server and published again, in order.

The messages of records are removed with a filter for this log's subjects. L0 messages are removed one by one, if their
header names this log. Other homes' messages stay. A rebuild may stop at any step. The next start or rebuild finishes
it, because the mirror's task reads its progress from the stream.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.mirror.surveying import erase_l0
from sidecar.mirror.task import MirrorTask

LOOK_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 30.0
"""The rebuild gives up if a problem lasts this long and nothing is published."""

SILENT_SECONDS: Final = 300.0
"""The rebuild gives up after this long without progress, even without a problem."""


class RebuildStopped(Exception):
    """The rebuild did not finish; the text says why. A running sidecar's mirror continues automatically."""

    code: ClassVar[str] = "mirror-rebuild-stopped"


class Rebuild:
    """One rebuild. ``run`` returns when the mirror has caught up with the log; ``progress`` returns the progress so
    far."""

    def __init__(self, task: MirrorTask, sessions: Sessions, log_id: str) -> None:
        self._task, self._sessions, self._log_id = task, sessions, log_id
        self._phase = "erasing"

    def progress(self) -> dict[str, Any]:
        """``phase`` (``erasing``, ``publishing``, ``done``), ``position`` and ``head``, ``rebuild``, ``problem``."""
        status = self._task.status()
        if self._phase == "erasing":
            status["position"] = -1
        return {"phase": self._phase, **{name: status[name] for name in ("position", "head", "rebuild", "problem")}}

    async def run(self) -> dict[str, Any]:
        """Rebuild; return the last progress. If cancelled, the mirror continues the rebuild, if there is a mirror.

        Raises:
            RebuildStopped: the server was unreachable for too long, or the mirror cannot continue.
            NatsError: the L0 messages could not be removed; the records' messages are unchanged.
        """
        before = self._task.counts["republished"]
        await self._task.pause()
        try:
            await erase_l0(await self._sessions.get(), self._log_id)
            self._task.rebuild()
            self._phase = "publishing"
        finally:
            self._task.resume()
        loop = asyncio.get_running_loop()
        end, last, moved = self._task.status()["head"], None, loop.time()
        while True:
            status = self._task.status()
            place = (self._task.counts["republished"] > before, status["position"])
            if place >= (True, end):
                self._phase = "done"
                return self.progress()
            if place != last:
                last, moved = place, loop.time()
            if loop.time() - moved > (PATIENCE_SECONDS if status["problem"] else SILENT_SECONDS):
                why = status["problem"] or "publishing stopped"
                raise RebuildStopped(f"{why}, at record {status['position']} of {end}")
            await asyncio.sleep(LOOK_SECONDS)
