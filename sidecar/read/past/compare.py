"""Two runs beside each other: how long they are the same, and what differs from there on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, Final

from bridge.opencode.capture.tokens import total_of
from sidecar.read.changes.edits import file_changes
from sidecar.read.fields import as_text, has_failed
from sidecar.read.find_by_id import SelectError
from sidecar.read.rendering.describe import row_of
from sidecar.read.story.past import Past
from streams.store import Record

_OWN: Final = frozenset(
    (
        *("session", "turn", "message", "assistant_message", "part", "call", "request", "parent", "child", "root"),
        *("id", "messageID", "sessionID", "project", "directory", "snapshot", "title", "version"),
        *("started_ms", "ended_ms", "duration_ms", "time", "created"),
    )
)
"""Fields that differ between any two runs: ids, times and places."""

SHOWN: Final = 40
"""How many records after the first difference are shown."""


def same_until(left: Iterable[Record], right: Iterable[Record]) -> int | None:
    """How many records at the beginning have the same type and content; ``None`` if both runs are the same.

    Ids, times and directories do not count.
    """
    for number, (one, other) in enumerate(zip_longest(left, right)):
        if one is None or other is None or essence(one) != essence(other):
            return number
    return None


def essence(record: Record) -> tuple[str, Any]:
    """What a record says, without what differs in each run."""
    return record.event.type, _without(record.event.payload)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in _OWN}
    if isinstance(value, list):
        return [_without(each) for each in value]
    return value


def compared(left: Past, right: Past, one: int | None = None, other: int | None = None) -> dict[str, Any]:
    """Two runs, the left one after its first ``one`` records and the right one after its first ``other`` ones, in the
    form that ``diff --json`` prints: the ``sides`` in figures, how many records are the ``same`` (``None``: all), and
    ``rows`` of both from the first difference on.

    Raises:
        SelectError: both are the same session at the same moment.
    """
    ends = left.upto(one), right.upto(other)
    if left.session == right.session and ends[0] == ends[1]:
        raise SelectError(
            "same-session", f"both name the session {left.session}; name another one, or compare two of its moments"
        )
    if left.session == right.session:
        same: int | None = min(ends)
    else:
        same = same_until(left.records(0, ends[0]), right.records(0, ends[1]))
    begin, sides = same or 0, [*zip((left, right), ends, strict=True)]
    shown = ([row_of(each) for each in past.records(begin, min(begin + SHOWN, end))] for past, end in sides)
    return {
        "sides": [figures(past, 0, end) for past, end in sides],
        "same": same,
        "rows": [] if same is None else list(zip_longest(*shown)),
        "fault": str(left.fault or right.fault or ""),
    }


def figures(past: Past, since: int = 0, upto: int | None = None) -> dict[str, Any]:
    """What the records of a session after the first ``since`` ones amount to, up to ``upto`` records: ``turns, tools,
    failed, files, tokens, cost, working_ms, records``; ``failed`` is how many tool calls did."""
    tools: dict[str, int] = {}
    files: dict[str, None] = {}
    failed = 0
    for record in past.records(since, upto, calls=True):
        payload = record.event.payload
        tool = as_text(payload.get("tool")) or "tool"
        tools[tool] = tools.get(tool, 0) + 1
        failed += has_failed(payload)
        files |= dict.fromkeys(change.file for change in file_changes(payload))
    before, after = _used(past, since), _used(past, upto)
    own = past.at(upto).catalog.sessions.get(past.session)
    return {
        "stream_id": past.session,
        "title": own.title if own is not None else "",
        "records": max(past.upto(upto) - since, 0),
        "tools": tools,
        "failed": failed,
        "files": list(files),
        **{name: round(after[name] - before[name], 9) for name in after},
    }


def _used(past: Past, at: int | None) -> dict[str, Any]:
    """What the first records of a session used together."""
    sessions, now = past.at(at).catalog.sessions, past.last_ts(at)
    used = past.at(at).catalog.figures(sessions)
    tokens = total_of(used["tokens"])
    worked = sum(each.worked_ms(now) for each in sessions.values())
    return {"turns": used["turns"], "tokens": tokens, "cost": used["cost"], "working_ms": worked}
