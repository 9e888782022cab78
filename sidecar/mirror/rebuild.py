"""``mirror rebuild``: this log's messages are removed from the server and published again, in order.

Other homes' messages stay. A rebuild may stop at any step: the mirror goes on with it, or the next rebuild does.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

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
    """One rebuild. ``run`` returns when the mirror has caught up with the log."""

    def __init__(self, task: MirrorTask) -> None:
        self._task, self._before = task, task.counts["rebuilt"]
        self._is_done = False

    def progress(self) -> dict[str, Any]:
        """``phase`` (``erasing``, ``publishing``, ``done``), ``position`` and ``head``, ``problem``."""
        status = self._task.status()
        is_erasing = self._task.counts["rebuilt"] == self._before
        phase = "erasing" if is_erasing else "done" if self._is_done else "publishing"
        position = -1 if is_erasing else status["position"]
        return {"phase": phase, "position": position, "head": status["head"], "problem": status["problem"]}

    async def run(self) -> dict[str, Any]:
        """Rebuild; return the last progress. If cancelled, the mirror continues the rebuild.

        Raises:
            RebuildStopped: the server was unreachable for too long, or the mirror cannot continue.
        """
        self._task.rebuild()
        loop = asyncio.get_running_loop()
        end, last, moved = self._task.status()["head"], self.progress(), loop.time()
        while True:
            now = self.progress()
            if now["phase"] == "publishing" and now["position"] >= end:
                self._is_done = True
                return self.progress()
            if now["position"] != last["position"]:
                last, moved = now, loop.time()
            if loop.time() - moved > (PATIENCE_SECONDS if now["problem"] else SILENT_SECONDS):
                why = now["problem"] or "publishing stopped"
                raise RebuildStopped(f"{why}, at record {now['position']} of {end}")
            await asyncio.sleep(LOOK_SECONDS)
