"""Decides where a mirror resumes, from the stream and the log, even if its own state is lost. Pure.

A mirror resumes after the log's last record in the stream only if that record is the same in the log, no earlier record
is missing from the stream, and no record occurs twice. Otherwise the mirror purges the log's part of the stream and
publishes it again under new message ids, so that the mirror equals the log again without human intervention.

Records that the stream's limits (age, size, count) removed at its beginning are not missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bridge.nats.mirror.state import MirrorState
from streams.store import NOTHING, Record

FULL_FROM: Final = 0.5
"""If a stream has reached this share of its size or count limit, the limit may have removed messages."""


@dataclass(frozen=True, slots=True)
class MirroredRecord:
    position: int
    """``NOTHING`` if the message has no position, so no mirror published it."""

    event_id: str
    hash: str
    rebuild: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StreamSurvey:
    """Which messages of one log the stream holds. ``first`` and ``last`` are ``None`` if the stream holds no message of
    the log."""

    created: str
    first: MirroredRecord | None
    last: MirroredRecord | None
    count: int
    may_have_removed: bool
    """Whether the stream's own limits can explain a missing beginning."""


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """The log's first position, its head, its record at the position of the stream's last message (``None`` if pruned),
    and the number of pruned records.
    """

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


def resume_plan(known: MirrorState, stream: StreamSurvey, log: LogSurvey) -> Resume:
    """Where to resume. ``known`` is what remains of the mirror's own state; its contexts are ignored."""
    last = stream.last
    rebuild = max(known.rebuild, last.rebuild if last is not None else 0)
    if last is None or stream.first is None:
        if known.position == NOTHING:
            return Resume(NOTHING, rebuild)
        if stream.may_have_removed and stream.created == known.created and known.position <= log.head:
            return Resume(known.position, rebuild)
        return _restart(rebuild, "the mirror's stream was emptied", "wiped")
    wrong = _wrong(last, stream, log)
    if wrong is not None:
        return _restart(rebuild, *wrong)
    if last.position < known.position:
        why = f"the end of the stream is lost: records after position {last.position} are missing"
        return Resume(last.position, rebuild + 1, why=why, note="end_lost")
    return Resume(last.position, rebuild)


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
