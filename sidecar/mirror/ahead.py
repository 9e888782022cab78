"""Reads ahead: builds the mirror's next run while the previous one is in flight."""

from __future__ import annotations

import asyncio
from typing import Final

from bridge.nats.mirror.messages import UNSENT, Mirror, mirrored
from bridge.nats.mirror.publish import Run
from bridge.nats.mirror.resuming import MirrorState
from streams.store import Record, StreamStore

DAY_MS: Final = 24 * 3600 * 1000
COMMAND_DAYS: Final = 1
"""After this time a command that could not be sent is dropped, because nobody expects it to be carried out."""

L0_DAYS: Final = 7
"""How long the server keeps L0 events; older ones are no longer published."""

LINGER_SECONDS: Final = 0.05
"""How long a run waits for more records, because a server stores a thousand messages almost as fast as ten."""

YIELD_RECORDS: Final = 32
"""How many records to process before yielding to other tasks: about a millisecond of work."""


class Ahead:
    """Reads the log and builds the next run while the previous one is in flight.

    Applies each record to ``state.contexts``. Commands up to position ``commands_after`` have already been sent.
    """

    def __init__(
        self, store: StreamStore, state: MirrorState, mirror: Mirror, now_ms: int, commands_after: int
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
            self._add(record)
            at_head = record.position >= self._store.head
            if at_head or self.run.is_full or loop.time() - self._began > LINGER_SECONDS:
                self.ready.set()
            made += 1
            if made % YIELD_RECORDS == 0:
                await asyncio.sleep(0)

    def _add(self, record: Record) -> None:
        run, ts = self.run, record.event.ts
        self._state.contexts.apply(record)
        made = mirrored(record, self._state.contexts.of(record.event), self._mirror)
        *l0, own = made.messages
        if ts >= self._l0_after_ms:
            run.l0 += l0
        elif l0:
            run.notes.append("l0_old")
        if made.commands and record.position > self._commands_after:
            if ts >= self._commands_after_ms:
                run.commands += made.commands
            else:
                run.notes.append(f"{UNSENT}:old")
        run.own.append(own)
        run.notes += made.notes
        run.size += sum([len(message.body) for message in made.messages])
        run.position = record.position

    def _lingered(self, run: Run) -> None:
        if self.run is run and run.own:
            self.ready.set()

    def take(self) -> Run:
        """Return the current run; the next record begins a new run."""
        run, self.run = self.run, Run(self.run.position)
        self.ready.clear()
        self._room.set()
        return run
