"""What a mirror remembers about its progress: a hint that is not needed for correctness. Pure.

The log stores this state as the snapshot ``MIRROR`` and, more often, stores only the position as the cursor of that
name. If the state is lost or old, the stream shows how far the mirror has come (``bridge/nats/mirror/resuming.py``),
and the rest is computed from the log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter

from bridge.nats.l0.context import CONTEXT_VERSION, ContextProjection
from streams.store import NOTHING, Record, Snapshot

MIRROR: Final = "mirror"

MIRROR_VERSION: Final = 1000 * CONTEXT_VERSION + 1
"""Version of the snapshot; increasing it invalidates older snapshots."""


@dataclass(slots=True)
class MirrorState:
    """The progress of a mirror.

    ``position``: the position of the last record whose messages are all acknowledged; ``NOTHING`` before the first.
    ``rebuild``: the number in message ids; grows each time records are published again.
    ``sequence``: the sequence of that record's message in ``MESHFORGE_EVENTS``; 0 while unknown.
    ``created``: the server's creation time of that stream; a different time means a different stream.
    ``forgotten``: by stream, the offset below which the server's copies of forgotten payloads are erased.
    ``contexts``: the context projection over the records up to ``position``.
    ``notes``: counts of adjustments to messages (``pointer``, ``trace_made``, …).
    """

    position: int = NOTHING
    rebuild: int = 0
    sequence: int = 0
    created: str = ""
    forgotten: dict[str, int] = field(default_factory=dict)
    contexts: ContextProjection = field(default_factory=ContextProjection)
    notes: Counter[str] = field(default_factory=Counter)

    def pass_over(self, record: Record) -> None:
        """Skip the next record of the log, which is already mirrored."""
        self.contexts.apply(record)
        self.position = record.position

    def restarted(self) -> MirrorState:
        """The state before the first record, with the next rebuild number, for publishing everything again."""
        return MirrorState(rebuild=self.rebuild + 1, created=self.created, forgotten=self.forgotten, notes=self.notes)

    def snapshot(self, contexts: bytes | None = None) -> Snapshot:
        """The state as a snapshot. ``contexts``: the projection as dumped at ``position``."""
        text = (self.contexts.dump() if contexts is None else contexts).decode()
        dumped = _Dump(self.rebuild, self.sequence, self.created, self.forgotten, dict(self.notes), text)
        return Snapshot(MIRROR_VERSION, self.position, _ADAPTER.dump_json(dumped))

    @classmethod
    def of(cls, snapshot: Snapshot) -> MirrorState:
        """Restore the state from ``snapshot``. Raises ``ValueError`` if ``snapshot`` holds no such state."""
        found = _ADAPTER.validate_json(snapshot.state)
        return cls(
            snapshot.position,
            found.rebuild,
            found.sequence,
            found.created,
            found.forgotten,
            ContextProjection.load(found.places.encode()),
            Counter(found.notes),
        )


@dataclass(slots=True)
class _Dump:
    rebuild: int
    sequence: int
    created: str
    forgotten: dict[str, int]
    notes: dict[str, int]
    places: str


_ADAPTER = TypeAdapter(_Dump)
