"""Where a mirror goes on: decided from what the stream and the log say, whatever became of our own notes. Pure.

The stream is asked, not believed blindly: a mirror goes on after the stream's
last record of the log only where that record is the log's own, nothing is
missing before it, and nothing is there twice. Everything else ends in
publishing the log's part anew, under new message ids, so that the mirror equals
the log again without a person.

What the stream's limits (age, size, number) removed at its beginning is no loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bridge.nats.mirror.state import MirrorState
from streams.store import NOTHING, Record

FULL_FROM: Final = 0.5
"""The part of a limit of size or number from which it may have removed something."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A record's message in the stream."""

    position: int
    """``NOTHING`` when the message does not say it: then it is no mirror's."""

    event_id: str
    hash: str
    rebuild: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StreamSurvey:
    """What the stream holds of one log. ``first`` and ``last`` are ``None`` when it holds nothing."""

    created: str
    first: Mirrored | None
    last: Mirrored | None
    count: int
    may_have_removed: bool
    """Whether the stream's own limits explain that its beginning is missing."""


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """What the log says: its first kept position, its head, the record at the stream's last position, if it is kept,
    and how many records were pruned."""

    first: int
    head: int
    at_last: Record | None
    pruned: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on after the record at ``after``. ``anew``: purge this log's part first. ``rebuild``: number for ids.

    ``why`` says what was found wrong, for people; ``note`` the same, for counting. Both are empty when all is well.
    """

    after: int
    rebuild: int
    anew: bool = False
    why: str = ""
    note: str = ""


def resume_plan(known: MirrorState, stream: StreamSurvey, log: LogSurvey) -> Resume:
    """Where to go on. ``known`` is what is left of our own notes; its places are not looked at."""
    last = stream.last
    rebuild = max(known.rebuild, last.rebuild if last is not None else 0)
    if last is None or stream.first is None:
        if known.position == NOTHING:
            return Resume(NOTHING, rebuild)
        if stream.may_have_removed and stream.created == known.created and known.position <= log.head:
            return Resume(known.position, rebuild)
        return _anew(rebuild, "the mirror's stream was emptied", "wiped")
    wrong = _wrong(last, stream, log)
    if wrong is not None:
        return _anew(rebuild, *wrong)
    if last.position < known.position:
        why = f"the stream lost its end, records after position {last.position}"
        return Resume(last.position, rebuild + 1, why=why, note="end_lost")
    return Resume(last.position, rebuild)


def _anew(rebuild: int, why: str, note: str) -> Resume:
    return Resume(NOTHING, rebuild + 1, anew=True, why=why, note=note)


def _wrong(last: Mirrored, stream: StreamSurvey, log: LogSurvey) -> tuple[str, str] | None:
    """What speaks against going on after ``last``."""
    first = stream.first
    assert first is not None
    if NOTHING in (first.position, last.position):
        return "the stream has messages under this log's name that are not of a mirror", "foreign"
    record = log.at_last
    if last.position > log.head or (
        record is not None and (record.event.id, record.hash) != (last.event_id, last.hash)
    ):
        return f"the stream has another record at position {last.position} than the log", "diverged"
    if first.position > log.first and not stream.may_have_removed:
        return f"the stream begins at position {first.position}, the log at {log.first}", "beginning_lost"
    most = last.position - first.position + 1
    if stream.count > most:
        return f"the stream has {stream.count} messages for {most} records", "doubled"
    # Positions are dense; only what was pruned may be missing, where a mirror began after that.
    if stream.count < most - log.pruned:
        return f"the stream lacks {most - stream.count} records in its middle", "missing"
    return None


def may_have_removed(config: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether a stream's own limits may have removed messages from its beginning; both in the server's JSON."""
    if (config.get("max_age") or 0) > 0:
        return True
    pairs = (("max_bytes", "bytes"), ("max_msgs", "messages"))
    return any(
        (config.get(limit) or 0) > 0 and state.get(value, 0) >= FULL_FROM * config[limit] for limit, value in pairs
    )
