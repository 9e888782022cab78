"""Keeps the team's copy of a home level with its log: a reader of the log whose place is in the team's database.

Recording never waits for it. The log is the queue, so a Postgres that is away costs no memory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any, Final

from sidecar.components import in_background
from sidecar.home import Home
from sidecar.notify_config import TeamConfig
from sidecar.read.story.writing import StoryTables
from sidecar.team.address import place_of
from sidecar.team.shipping import Shipping
from streams.errors import StreamError
from streams.identity import Identity
from streams.log.reader import LogReader
from streams.store import NOTHING, StreamStore
from streams.system.retry import Retry

log = logging.getLogger("sidecar.team")

LOOK_SECONDS: Final = 1.0
"""How often new rows are looked for."""

REST_SECONDS: Final = 60.0
"""Without new rows for so long, the connection is closed. An idle one costs the server some 6 MiB."""

CLOSE_SECONDS: Final = 5.0
"""How long a step may take to end when the sidecar stops. It is then cut off, and done again."""

RETRY: Final = Retry(1.0, 60.0, jitter=0.2)


class Team:
    """A component: the copy of ``[team]``, which has a database. Import this file only then."""

    def __init__(
        self, home: Home, config: TeamConfig, store: StreamStore, log_id: str, story: StoryTables, identity: Identity
    ) -> None:
        self._store, self._identity, self._address = store, identity, place_of(config.database)
        self._reader = LogReader(home.store_path)
        self._machine = config.machine_name

        def copied(making: str, change: int) -> None:
            story.copied = making, change

        self._shipping = Shipping(config, self._reader, log_id, self._machine, copied)
        self._position: int | None = None
        self._failures, self._problem = 0, ""
        self._next_ms: int | None = None

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``."""
        stack.push_async_callback(self._close)
        in_background(stack, self._run())

    async def _close(self) -> None:
        await asyncio.to_thread(self._shipping.close)
        await self._reader.close()

    def owes(self) -> bool:
        """Always false, because the next sidecar goes on where the team's copy ends."""
        return False

    def status(self) -> dict[str, Any]:
        """``machine``, ``address`` (host and database), ``position`` (null until it is known), ``lag`` (records),
        ``failures`` (in a row), ``problem`` (the last one, empty if there is none) and ``next_ms`` (when it is tried
        again, null if there is none)."""
        position = self._position
        lag = self._store.head - (NOTHING if position is None else position)
        return {
            "machine": self._machine,
            "address": self._address,
            "position": position,
            "lag": lag,
            "failures": self._failures,
            "problem": self._problem,
            "next_ms": self._next_ms,
        }

    async def _run(self) -> None:
        idle = 0.0
        while True:
            pause = LOOK_SECONDS
            try:
                while await self._step():
                    idle = 0.0
                if (idle := idle + pause) > REST_SECONDS:
                    self._shipping.rest()
                self._failures, self._problem, self._next_ms = 0, "", None
            except Exception as error:  # noqa: BLE001 - say it instead of ending silently; recording goes on
                # An unexpected error may quote data, so the log gets only its type.
                known = isinstance(error, StreamError | OSError)
                self._failures += 1
                pause = RETRY.pause(self._failures, self._machine)
                self._failed(str(error) if known else f"{type(error).__name__} in the copy", pause)
            await asyncio.sleep(pause)

    async def _step(self) -> bool:
        # A thread cannot be cancelled, and the connection must not be closed under it.
        step = asyncio.create_task(asyncio.to_thread(self._shipping.step))
        try:
            went_on = await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait((step,), timeout=CLOSE_SECONDS)
            self._shipping.cut()
            await asyncio.wait((step,))
            raise
        place = self._shipping.place
        self._position = None if place is None else place.head
        self._failures, self._problem, self._next_ms = 0, "", None
        return went_on

    def _failed(self, problem: str, pause: float) -> None:
        if problem != self._problem:
            log.warning("the team's copy waits: %s", problem)
        self._problem, self._next_ms = problem, self._identity.now_ms() + round(pause * 1000)
