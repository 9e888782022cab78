"""The files that agents changed up to a moment, and what a person allowed or refused, by session and turn.

Reads the tables, so it blocks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import orjson

from sidecar.read.changes.approvals import Approval, add_answer, ask_of
from sidecar.read.changes.changes import Decision, Edit, TurnChanges
from sidecar.read.changes.edits import Diff, file_changes
from sidecar.read.story import tables
from sidecar.read.story.moment import ALIVE, Moment
from sidecar.read.telling.describe import LONGEST
from streams.query import EVERYTHING, Filter
from streams.store import NOTHING

_THESE: Final = "session IN (SELECT value FROM json_each(:sessions))"

_CHANGED: Final = f"""
    WITH changed (session, turn, n, id, file, added, removed, reply, wait) AS (
        SELECT session, turn, n, id, file, added, removed, NULL, NULL FROM edit
            WHERE {_THESE} AND n > :after AND n <= :n
        UNION ALL
        SELECT session, turn, told, 0, NULL, NULL, NULL, reply, key FROM span
            WHERE {_THESE} AND kind = 'wait' AND told > :after AND told <= :n AND reply <> '' AND {ALIVE} AND NOT EXISTS
            (SELECT 1 FROM allowed JOIN edit ON (edit.session, edit.turn, edit.n) = (span.session, span.turn, allowed.n)
                WHERE allowed.ask = span.key AND allowed.n <= :n)
    ), told AS (
        SELECT changed.*, moment.place, moment.ts, EXISTS (
            SELECT 1 FROM undone WHERE undone.session = changed.session AND message = turn AND {ALIVE}
        ) AS is_undone FROM changed JOIN moment ON moment.n = changed.n
            WHERE :wanted IS NULL OR changed.n IN (SELECT value FROM json_each(:wanted))
    ) """
"""Each edit, and each answer to a permission, apart from those for a step that changed a file: they are shown there."""

_FILE: Final = "place || ' ' || file"
_TURN: Final = "session || ' ' || turn"

_TOTALS: Final = {
    "files": f"count(DISTINCT CASE WHEN NOT is_undone THEN {_FILE} END)",
    "added": "coalesce(sum(CASE WHEN NOT is_undone THEN added END), 0)",
    "removed": "coalesce(sum(CASE WHEN NOT is_undone THEN removed END), 0)",
    "rewritten": f"count(DISTINCT CASE WHEN NOT is_undone AND added IS NULL THEN {_FILE} END)",
    "approved": "count(CASE WHEN NOT is_undone AND reply NOT IN ('reject', 'withdrawn') THEN 1 END)",
    "rejected": "count(CASE WHEN NOT is_undone AND reply = 'reject' THEN 1 END)",
    "turns": f"count(DISTINCT CASE WHEN NOT is_undone THEN {_TURN} END)",
    "undone": f"count(DISTINCT CASE WHEN is_undone THEN {_TURN} END)",
    "sessions": "count(DISTINCT CASE WHEN NOT is_undone THEN session END)",
}


class Changes:
    """What changed by the records of a moment above position ``after``, in the time that ``wanted`` names."""

    def __init__(self, moment: Moment, after: int = NOTHING, wanted: Filter = EVERYTHING) -> None:
        self._moment, self._after, self._wanted = moment, after, wanted

    def files(self) -> list[dict[str, Any]]:
        """Each file that agents changed, without undone turns, in the order of the first edits: ``file, edits, added,
        removed``. Lines are ``None`` if they are not known."""
        lines = ", ".join(f"CASE WHEN count({each}) = count(*) THEN sum({each}) END" for each in ("added", "removed"))
        edits = "FROM told WHERE NOT is_undone AND file IS NOT NULL GROUP BY file ORDER BY min(n), min(id)"
        rows = self._sql(f"SELECT file, count(*), {lines} {edits}")
        return [dict(zip(("file", "edits", "added", "removed"), row, strict=True)) for row in rows]

    def totals(self) -> dict[str, int]:
        """As ``changes.totals`` of all turns."""
        [row] = self._sql(f"SELECT {', '.join(_TOTALS.values())} FROM told")
        return dict(zip(_TOTALS, row, strict=True))

    def count(self) -> int:
        """How many turns there are."""
        return int(self._sql(f"SELECT count(DISTINCT {_TURN}) FROM told")[0][0])

    def turns(self, most: int = -1, *, with_diffs: bool = False) -> list[TurnChanges]:
        """The turns in which something changed, ordered by the first change; at most the last ``most``, if given."""
        first = "FROM told GROUP BY session, turn ORDER BY min(ts) DESC, min(n) DESC LIMIT :most"
        found = {}
        for session, turn, is_undone, place in reversed(
            self._sql(f"SELECT session, turn, max(is_undone), place {first}", most=most)
        ):
            stream = next(name for name, key in self._moment.places.items() if key == place)
            asked = self._moment.one(
                "turn", f"session = :s AND message = :message AND {ALIVE}", s=session, message=turn
            )
            prompt = asked.asked[:LONGEST] if asked is not None else ""
            name = self._moment.all[session].name
            found[session, turn] = TurnChanges(stream, name, turn, prompt, bool(is_undone))
        for session, turn, n, wait in self._sql("SELECT session, turn, n, wait FROM told ORDER BY n, id"):
            told = found.get((session, turn))
            if told is not None and wait is not None:
                told.decisions.append(self._decision(wait))
            elif told is not None and (not told.edits or told.edits[-1].position != n):
                told.edits += self._edits(n, with_diffs=with_diffs)
        return list(found.values())

    def _sql(self, text: str, **given: Any) -> list[tuple[Any, ...]]:
        about = {"n": self._moment.n, "after": self._after, "wanted": self._times, "sessions": self._sessions}
        return [*self._moment.story.sql(_CHANGED + text, **about, **given)]

    @cached_property
    def _sessions(self) -> str:
        return orjson.dumps([*self._moment.all]).decode()

    @cached_property
    def _times(self) -> str | None:
        """The records in the time that is wanted; ``None`` if all are."""
        if self._wanted.since_ms is None and self._wanted.until_ms is None:
            return None
        about = {"n": self._moment.n, "after": self._after, "wanted": None, "sessions": self._sessions}
        rows = self._moment.story.sql(f"{_CHANGED} SELECT DISTINCT n FROM told", **about)
        wanted = [n for (n,) in rows if self._wanted.in_time(self._moment.record(n).event)]
        return orjson.dumps(wanted).decode()

    def _edits(self, n: int, *, with_diffs: bool) -> list[Edit]:
        """The files that a step changed."""
        event, approvals = self._moment.record(n).event, approvals_of(self._moment, n)
        rows = self._moment.rows("edit", "n = :at ORDER BY id", at=n)
        patches = [""] * len(rows)
        if with_diffs:
            asked_diff = next((each.diff for each in approvals if each.diff), "")
            patches = [each.patch for each in file_changes(event.payload, asked_diff) if each.file]
        return [
            Edit(
                *(event.id, event.ts, event.actor, row.tool),
                Diff(row.file, patch * (row.how != "replace"), row.added or 0, row.removed or 0, row.how),
                *(approvals, n),
            )
            for row, patch in zip(rows, patches, strict=True)
        ]

    def _decision(self, wait: int) -> Decision:
        approval = approval_of(self._moment, self._moment.one("span", f"key = :key AND {ALIVE}", key=wait))
        assert approval.answer is not None
        event = approval.answer.event
        return Decision(event.id, event.ts, approval.asked.event.actor, approval)


def approvals_of(moment: Moment, step: int) -> list[Approval]:
    """What the step of a record asked for, oldest first."""
    waits = f"key IN (SELECT ask FROM allowed WHERE n = :step) AND {ALIVE} ORDER BY key"
    return [approval_of(moment, wait) for wait in moment.rows("span", waits, step=step)]


def approval_of(moment: Moment, wait: tables.Span) -> Approval:
    """An ask and its answer, as they stood at the moment."""
    asked = moment.record(wait.at)
    approval = Approval(ask_of(asked), asked)
    if moment.has(wait.told):
        approval.answer = moment.record(wait.told)
        add_answer(approval.ask, approval.answer)
    elif moment.has(wait.till):
        approval.ask.state = "over"
    return approval
