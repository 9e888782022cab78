"""Where a mirror is, and where it resumes. Pure.

Three things say where a mirror is. What it remembers (``MirrorState``) is only a hint, which the log stores as the
snapshot ``MIRROR`` and, more often, as the cursor of that name. The stream (``StreamSurvey``) shows how far the mirror
has come. The log (``LogSurvey``) shows whether that is right. ``resume_plan`` decides from the three.

A mirror resumes after the log's last record in the stream only if that record is the same in the log, no earlier record
is missing from the stream, and no record occurs twice. Otherwise the mirror purges the log's part of the stream and
publishes it again under new message ids, so that the mirror equals the log again without human intervention.

Records that the stream's limits (age, size, count) removed at its beginning are not missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
    ``created``: the server's creation time of that stream; a different time means a different stream.
    ``forgotten``: by stream, the offset below which the server's copies of forgotten payloads are erased.
    ``contexts``: the context projection over the records up to ``position``.
    ``notes``: counts of adjustments to messages (``pointer``, ``trace_made``, …).
    """

    position: int = NOTHING
    rebuild: int = 0
    created: str = ""
    forgotten: dict[str, int] = field(default_factory=dict)
    contexts: ContextProjection = field(default_factory=ContextProjection)
    notes: Counter[str] = field(default_factory=Counter)

    def pass_over(self, record: Record) -> None:
        """Skip the next record of the log, which is already mirrored."""
        self.contexts.apply(record)
        self.position = record.position

    def snapshot(self, contexts: bytes | None = None) -> Snapshot:
        """The state as a snapshot. ``contexts``: the projection as dumped at ``position``."""
        text = (self.contexts.dump() if contexts is None else contexts).decode()
        dumped = _Dump(self.rebuild, self.created, self.forgotten, dict(self.notes), text)
        return Snapshot(MIRROR_VERSION, self.position, _ADAPTER.dump_json(dumped))

    @classmethod
    def of(cls, snapshot: Snapshot) -> MirrorState:
        """Restore the state from ``snapshot``. Raises ``ValueError`` if ``snapshot`` holds no such state."""
        found = _ADAPTER.validate_json(snapshot.state)
        return cls(
            snapshot.position,
            found.rebuild,
            found.created,
            found.forgotten,
            ContextProjection.load(found.places.encode()),
            Counter(found.notes),
        )


@dataclass(slots=True)
class _Dump:
    rebuild: int
    created: str
    forgotten: dict[str, int]
    notes: dict[str, int]
    places: str


_ADAPTER = TypeAdapter(_Dump)


FULL_FROM: Final = 0.5
"""If a stream has reached this share of its size or count limit, the limit may have removed messages."""


@dataclass(frozen=True, slots=True)
class MirroredRecord:
    position: int
    """``NOTHING`` if the message has no position, so no mirror published it."""

    event_id: str
    hash: str
    rebuild: int


@dataclass(frozen=True, slots=True)
class StreamSurvey:
    """Which messages of one log the stream holds; ``first`` and ``last`` are ``None`` without any."""

    created: str
    first: MirroredRecord | None
    last: MirroredRecord | None
    count: int
    may_have_removed: bool
    """Whether the stream's own limits can explain a missing beginning."""


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """``at_last`` is the record at the position of the stream's last message; ``None`` if it was pruned."""

    first: int
    head: int
    at_last: Record | None
    pruned: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume after the record at ``after``. ``purge``: first purge this log's part of the stream. ``rebuild``: the
    rebuild number for message ids.

    ``why`` describes a fault to the user, and ``note`` names it for the counters. Without a fault, both are empty.
    """

    after: int
    rebuild: int
    purge: bool = False
    why: str = ""
    note: str = ""


def resume_plan(
    known: MirrorState, stream: StreamSurvey, log: LogSurvey, *, is_asked: bool = False, is_erased: bool = False
) -> Resume:
    """Where to resume. ``known`` is what remains of the mirror's own state; its contexts are ignored.

    ``is_asked``: a rebuild was requested. ``is_erased``: messages with forgotten payloads were just erased.
    """
    last = stream.last
    rebuild = max(known.rebuild, last.rebuild if last is not None else 0)
    if is_asked:
        return _restart(rebuild, "a rebuild was requested", "asked")
    if last is None or stream.first is None:
        is_kept = stream.may_have_removed and stream.created == known.created and known.position <= log.head
        if is_kept or known.position == NOTHING:
            return _continue(known.position, rebuild, is_erased)
        return _restart(rebuild, "the mirror's stream was emptied", "wiped")
    wrong = _wrong(last, stream, log)
    if wrong is not None:
        return _restart(rebuild, *wrong)
    if last.position < known.position:
        why = f"the end of the stream is lost: records after position {last.position} are missing"
        return Resume(last.position, rebuild + 1, why=why, note="end_lost")
    return _continue(last.position, rebuild, is_erased)


def _continue(after: int, rebuild: int, is_erased: bool) -> Resume:
    if not is_erased:
        return Resume(after, rebuild)
    why = "forgotten payloads and all records after them were erased"
    return Resume(after, rebuild + 1, why=why, note="forgotten")


def _restart(rebuild: int, why: str, note: str) -> Resume:
    return Resume(NOTHING, rebuild + 1, purge=True, why=why, note=note)


def _wrong(last: MirroredRecord, stream: StreamSurvey, log: LogSurvey) -> tuple[str, str] | None:
    first = stream.first
    assert first is not None
    if NOTHING in (first.position, last.position):
        return "the stream has messages with this log's name that no mirror published", "foreign"
    record = log.at_last
    if last.position > log.head or (
        record is not None and (record.event.id, record.hash) != (last.event_id, last.hash)
    ):
        return f"the stream and the log have different records at position {last.position}", "diverged"
    if first.position > log.first and not stream.may_have_removed:
        return f"the stream begins at position {first.position}, but the log begins at {log.first}", "beginning_lost"
    most = last.position - first.position + 1
    if stream.count > most:
        return f"the stream has {stream.count} messages for only {most} records", "doubled"
    # Every position has a record, so the stream can lack only records that were pruned before the mirror reached them.
    if stream.count < most - log.pruned:
        return f"{most - stream.count} records are missing from the middle of the stream", "missing"
    return None


def may_have_removed(config: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether a stream's limits may have removed its oldest messages. Both arguments are the server's JSON."""
    if (config.get("max_age") or 0) > 0:
        return True
    pairs = (("max_bytes", "bytes"), ("max_msgs", "messages"))
    return any(
        (config.get(limit) or 0) > 0 and state.get(value, 0) >= FULL_FROM * config[limit] for limit, value in pairs
    )
