"""Plan a prune: compare a request (age, size, streams) with what a log holds and what is still needed. Pure.

A stream is pruned as a whole, because it is a session, and half a session is of no use. A stream that is still needed
stays, even if its removal was requested, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from streams.retention import StreamSize

HOUR_MS: Final = 3_600_000
RECENT_MS: Final = 24 * HOUR_MS
"""A size cap spares streams whose last record is newer than this, because they may still be in use."""

CAP_SHARE: Final = 0.9
"""A log over its cap is pruned to this share of the cap. Otherwise, every check might prune a little."""

Why = Literal["age", "size", "asked for"]


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """What to remove; by default nothing. A stream is removed if any criterion selects it.

    ``older_than_ms``: streams whose last record is older than this many milliseconds. ``max_bytes``: the oldest
    streams, until the log holds at most this many bytes. ``streams``: the streams with these ids.
    """

    older_than_ms: int | None = None
    max_bytes: int | None = None
    streams: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.older_than_ms is not None or self.max_bytes is not None or bool(self.streams)


@dataclass(frozen=True, slots=True)
class Item:
    """One stream of a plan; ``why`` says why it is removed, or (in ``kept``) why it stays."""

    stream_id: str
    records: int
    bytes: int
    last_ts: int
    why: str


@dataclass(slots=True)
class PrunePlan:
    """``cuts`` are removed, oldest first; ``kept`` were requested but stay; ``unknown`` are not in the log."""

    cuts: list[Item] = field(default_factory=list)
    kept: list[Item] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    """The argument for ``RetentionStore.prune``: maps a stream id to the first offset that stays."""

    @property
    def records(self) -> int:
        return sum(item.records for item in self.cuts)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.cuts)

    def as_json(self) -> dict[str, Any]:
        """``{records, bytes, cuts, kept, unknown}``."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "cuts": [asdict(item) for item in self.cuts],
            "kept": [asdict(item) for item in self.kept],
            "unknown": self.unknown,
        }


def make_plan(
    sizes: Sequence[StreamSize],
    needed: Mapping[str, str],
    request: PruneRequest,
    *,
    now_ms: int,
    disk_bytes: int = 0,
    uncapped: Collection[str] = (),
) -> PrunePlan:
    """Decide which streams are removed.

    Args:
        needed: streams that must stay, with the reason in words.
        disk_bytes: the log's size on disk, if known, because a cap limits the space on the disk, where indexes count
            too.
        uncapped: streams that a size cap spares.
    """
    plan = PrunePlan()
    by_id = {size.stream_id: size for size in sizes if size.records}
    oldest_first = sorted(by_id.values(), key=lambda size: (size.last_ts, size.stream_id))
    wanted: dict[str, Why] = {}
    for stream_id in dict.fromkeys(request.streams):
        if stream_id in by_id:
            wanted[stream_id] = "asked for"
        else:
            plan.unknown.append(stream_id)
    for size in oldest_first:
        if request.older_than_ms is not None and now_ms - size.last_ts > request.older_than_ms:
            wanted.setdefault(size.stream_id, "age")
    for stream_id, why in wanted.items():
        _decide(plan, by_id[stream_id], why, needed)
    if request.max_bytes is not None:
        _cap(plan, oldest_first, request.max_bytes, needed, now_ms, disk_bytes, uncapped)
    plan.cuts.sort(key=lambda item: (item.last_ts, item.stream_id))
    plan.offsets = {item.stream_id: by_id[item.stream_id].next_offset for item in plan.cuts}
    return plan


def _decide(plan: PrunePlan, size: StreamSize, why: str, needed: Mapping[str, str]) -> bool:
    reason = needed.get(size.stream_id)
    target = plan.cuts if reason is None else plan.kept
    target.append(Item(size.stream_id, size.records, size.bytes, size.last_ts, reason or why))
    return reason is None


def _cap(
    plan: PrunePlan,
    oldest_first: Sequence[StreamSize],
    max_bytes: int,
    needed: Mapping[str, str],
    now_ms: int,
    disk_bytes: int,
    uncapped: Collection[str],
) -> None:
    stored_bytes = sum(size.bytes for size in oldest_first)
    room = (disk_bytes or stored_bytes) / stored_bytes if stored_bytes else 1.0
    left = (stored_bytes - plan.bytes) * room
    if left <= max_bytes:
        return
    decided = {item.stream_id for item in (*plan.cuts, *plan.kept)}
    for size in oldest_first:
        if left <= max_bytes * CAP_SHARE:
            return
        if size.stream_id in decided or size.stream_id in uncapped:
            continue
        if size.stream_id not in needed and now_ms - size.last_ts < RECENT_MS:
            plan.kept.append(
                Item(size.stream_id, size.records, size.bytes, size.last_ts, "its last record is less than a day old")
            )
        elif _decide(plan, size, "size", needed):
            left -= size.bytes * room
