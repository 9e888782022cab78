"""What a mirror knows of its own progress: a hint beside the log, never needed for being right. Pure.

It is kept as the snapshot ``MIRROR`` and, more often, the position alone as the
cursor of that name. Where it is lost or old, the stream itself says how far the
mirror is (``bridge/nats/mirror/resuming.py``) and the rest is folded from the log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter

from bridge.nats.l0.places import PLACES_VERSION, Places
from streams.store import NOTHING, Record, Snapshot

MIRROR: Final = "mirror"
"""The name of the cursor and of the snapshot."""

MIRROR_VERSION: Final = 1000 * PLACES_VERSION + 1
"""Form of the snapshot; another one makes older snapshots worthless."""


@dataclass(slots=True)
class MirrorState:
    """Where a mirror is.

    ``position``: of the last record whose messages were all acknowledged; ``NOTHING`` before the first.
    ``rebuild``: the number that goes into message ids; it grows each time that records are published again.
    ``sequence``: of that record's message in ``MESHFORGE_EVENTS``; 0 while unknown.
    ``created``: when that stream was made, in the server's words: where it is another time, it is another stream.
    ``forgotten``: of streams whose payloads were forgotten, up to which offset the server's copies were erased.
    ``places``: the fold over the records up to ``position``.
    ``notes``: how often something had to be done to a record's messages (``pointer``, ``trace_made``, …).
    """

    position: int = NOTHING
    rebuild: int = 0
    sequence: int = 0
    created: str = ""
    forgotten: dict[str, int] = field(default_factory=dict)
    places: Places = field(default_factory=Places)
    notes: Counter[str] = field(default_factory=Counter)

    def pass_over(self, record: Record) -> None:
        """Take a record that is mirrored already, the next one in the log."""
        self.places.apply(record)
        self.position = record.position

    def anew(self) -> MirrorState:
        """Before the first record, with the next rebuild number: for everything to be published again."""
        return MirrorState(rebuild=self.rebuild + 1, created=self.created, forgotten=self.forgotten, notes=self.notes)

    def snapshot(self, places: bytes | None = None) -> Snapshot:
        """As the log keeps it. ``places``: the fold as dumped at ``position``, where ``self.places`` is ahead."""
        text = (self.places.dump() if places is None else places).decode()
        dumped = _Dump(self.rebuild, self.sequence, self.created, self.forgotten, dict(self.notes), text)
        return Snapshot(MIRROR_VERSION, self.position, _ADAPTER.dump_json(dumped))

    @classmethod
    def of(cls, snapshot: Snapshot) -> MirrorState:
        """The state that ``snapshot`` gave. Raises ``ValueError`` when it is something else."""
        found = _ADAPTER.validate_json(snapshot.state)
        return cls(
            snapshot.position,
            found.rebuild,
            found.sequence,
            found.created,
            found.forgotten,
            Places.load(found.places.encode()),
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
