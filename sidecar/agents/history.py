"""An agent's own history: restores the agent from its stream, and keeps snapshots of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sidecar.agents.agent import Agent
from sidecar.agents.inputs import agent_stream, begins_group, handled_position, is_applied
from sidecar.agents.turns import Turns
from streams.errors import StreamError
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.store import NOTHING, Record, Snapshot, StreamStore

log = logging.getLogger("sidecar.agents")

SNAPSHOT_VERSION: Final = 2


@contextmanager
def hinted(what: str) -> Iterator[None]:
    """Run a block that stores a hint: a snapshot, or a position in the log. The log can do without, so a disk error is
    only logged."""
    try:
        yield
    except (OSError, StreamError) as error:
        log.warning("%s was not saved: %s", what, error)


class HistoryBroken(Exception):
    """The agent cannot apply its own history; the text says at which offset."""


class History:
    """What one agent's stream holds, as far as it was read or written; and the agent's state at that place.

    ``others_write``: other processes append to the stream, too. The state of before a batch is then kept in memory, so
    that what others wrote meanwhile is read from there on, and not from the last snapshot.
    """

    def __init__(self, agent: Agent, store: StreamStore, others_write: bool = False) -> None:
        self._agent, self._store, self._others_write = agent, store, others_write
        self.cursor = f"agent-{agent.name}"
        """The name of the agent's cursor and of its snapshot."""
        self.next = 0
        """The offset at which the agent's stream goes on; -1 if it must be read again."""
        self.handled = 0
        self.is_whole = False
        """Whether the agent's state is that of some moment; false while it is read again, and if that failed."""
        self.has_begun = False
        """Whether a snapshot has the position that the agent has reached."""
        self.since_snapshot = 0
        self.turns = Turns(agent.has_turns)
        self._last_own = NOTHING
        self._seen = 0
        """The offset after the last record that the reader of the log saw in the agent's stream."""
        self._before: Snapshot | None = None
        self._before_at = NOTHING

    @property
    def is_behind(self) -> bool:
        """Whether the stream is known to have records that the state does not."""
        return 0 <= self.next < self._seen

    def saw(self, offset: int) -> None:
        self._seen = max(self._seen, offset + 1)

    def remember(self, reached: int) -> None:
        """Keep the state in memory before a batch is decided, if the batch may come to nothing because of others."""
        if self._others_write and self._before_at != self.next:
            self._before, self._before_at = self._snapshot(self._last_own, reached), self.next

    def forget_before(self) -> None:
        self._before, self._before_at = None, NOTHING

    def appended(self, records: Sequence[Record]) -> None:
        self.next, self._last_own = records[-1].offset + 1, records[-1].position
        self.since_snapshot += len(records)

    def apply(self, events: Sequence[StreamEvent]) -> None:
        """Apply events that are not written yet."""
        for event in events:
            self.turns.apply(event)
            if is_applied(event):
                self._agent.apply(event)

    async def restore(self) -> int:
        """Load the agent's state from its snapshot and its stream; return its position in the log, as far as known.

        Raises:
            HistoryBroken: the agent raised an error on an event of its own.
            StreamError: the log cannot be read.
        """
        self.is_whole = False
        self._forget()
        position = NOTHING
        snapshot = self._before or await self._store.snapshot(self.cursor, SNAPSHOT_VERSION)
        if snapshot is not None:
            try:
                kept = json.loads(snapshot.state)
                self._agent.load(kept["state"])
                self.next, position, self._last_own = kept["next"], kept["position"], snapshot.position
                self.has_begun, self.handled = True, kept.get("handled", 0)
                self.turns.load(kept.get("turns"))
            except Exception as error:  # noqa: BLE001 - a snapshot is a hint: without one, the whole stream is read
                log.warning("agent %s: its snapshot cannot be used (%s)", self._agent.name, type(error).__name__)
                self._forget()
                position = NOTHING
        return max(position, await self.catch_up())

    async def catch_up(self) -> int:
        """Apply the records of the agent's stream that the state does not have yet; as ``restore``."""
        position = NOTHING
        async for record in self._store.read(agent_stream(self._agent.name), from_offset=self.next):
            event = record.event
            self.next, self._last_own = record.offset + 1, record.position
            self.handled += begins_group(event)
            try:
                self.apply([event])
            except Exception as error:
                log.exception("agent %s cannot apply its own history", self._agent.name)
                said = f"apply raised {type(error).__name__} on its own event at offset {record.offset}"
                raise HistoryBroken(said) from None
            position = max(position, handled_position(event))
        self.is_whole = True
        return position

    async def keep_snapshot(self, reached: int) -> None:
        """Keep the agent's state, if it changed; ``reached`` is the agent's position in the log."""
        if self._last_own == NOTHING or self.next < 0 or not self.since_snapshot:
            return
        with hinted(f"the state of agent {self._agent.name}"):
            await self.put_snapshot(self._last_own, reached)
            self.since_snapshot = 0

    async def put_snapshot(self, position: int, reached: int) -> None:
        await self._store.put_snapshot(self.cursor, self._snapshot(position, reached))

    def _snapshot(self, position: int, reached: int) -> Snapshot:
        kept = {"state": self._agent.state(), "next": self.next, "position": reached, "handled": self.handled}
        kept["turns"] = self.turns.dump()
        return Snapshot(SNAPSHOT_VERSION, position, canonical(kept))

    def _forget(self) -> None:
        self._agent.load(None)
        self.turns.load(None)
        self.next, self.handled, self.has_begun = 0, 0, False
