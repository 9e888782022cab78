"""Reads ahead: builds the mirror's next run while the previous one is in flight."""

from __future__ import annotations

import asyncio
from typing import Final

from bridge.nats.mirror.messages import Mirror
from bridge.nats.mirror.publish import COMMAND_DAYS, DAY_MS, L0_DAYS, Run
from bridge.nats.mirror.state import MirrorState
from streams.store import NOTHING, StreamStore

LINGER_SECONDS: Final = 0.05
"""How long a run waits for more records, because a server stores a thousand messages almost as fast as ten."""

YIELD_RECORDS: Final = 16
"""How many records to process before yielding to other tasks: about a millisecond of work."""


class Ahead:
    """Reads the log and builds the next run while the previous one is in flight."""

    def __init__(
        self, store: StreamStore, state: MirrorState, mirror: Mirror, now_ms: int, commands_after: int = NOTHING
    ) -> None:
        self._store, self._state, self._mirror = store, state, mirror
        self._l0_after_ms, self._commands_after_ms = now_ms - L0_DAYS * DAY_MS, now_ms - COMMAND_DAYS * DAY_MS
        self._commands_after = commands_after
        self.run = Run(state.position)
        self.ready, self._room = asyncio.Event(), asyncio.Event()
        """``ready`` is set when the run is due: the run is full, the log has no more records, or the run began
        ``LINGER_SECONDS`` ago."""
        self._began = 0.0

    @property
    def is_ready(self) -> bool:
        return self.ready.is_set()

    async def read(self) -> None:
        """Build runs until the log is closed."""
        made, loop = 0, asyncio.get_running_loop()
        async for record in self._store.subscribe(after=self._state.position):
            while self.run.is_full:
                self._room.clear()
                await self._room.wait()
            if not self.run.own:
                self._began = loop.time()
                # Set a timer, because no record marks the end of the log if the record at the head was pruned.
                loop.call_later(LINGER_SECONDS, self._lingered, self.run)
            self.run.add(
                record,
                self._state,
                self._mirror,
                l0_after_ms=self._l0_after_ms,
                commands_after=self._commands_after,
                commands_after_ms=self._commands_after_ms,
            )
            at_head = record.position >= self._store.head
            if at_head or self.run.is_full or loop.time() - self._began > LINGER_SECONDS:
                self.ready.set()
            made += 1
            if made % YIELD_RECORDS == 0:
                await asyncio.sleep(0)

    def _lingered(self, run: Run) -> None:
        if self.run is run and run.own:
            self.ready.set()

    def take(self) -> Run:
        """Return the current run; the next record begins a new run."""
        run, self.run = self.run, Run(self.run.position)
        self.ready.clear()
        self._room.set()
        return run
