"""The files that agents changed up to a moment, and what a person allowed or refused, by session and turn.

Reads the tables, so it blocks.
"""

from __future__ import annotations

from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

import orjson

from sidecar.read.changes.approvals import Approval, approval_of
from sidecar.read.changes.changes import Decision, Edit, TurnChanges, sums
from sidecar.read.changes.edits import Diff, file_changes
from sidecar.read.story import tables
from sidecar.read.story.moment import Moment
from sidecar.read.story.tables import ALIVE
from sidecar.read.telling.describe import LONGEST
from streams.query import EVERYTHING, Filter
from streams.store import NOTHING

_CHANGED: Final = f"""
    WITH these AS (SELECT value AS key FROM json_each(:sessions)), changed AS (
        SELECT session, turn, n, id, file, added, removed, how, NULL AS reply, NULL AS wait FROM edit
            WHERE session IN these AND n > :after AND n <= :n
        UNION ALL
        SELECT session, turn, told, 0, NULL, NULL, NULL, '', reply, key FROM span
            WHERE session IN these AND kind = 'wait' AND told > :after AND told <= :n AND reply <> '' AND {ALIVE}
            AND NOT EXISTS (
                SELECT 1 FROM allowed JOIN edit ON edit.n = allowed.n AND edit.session = span.session
                    AND edit.turn = span.turn WHERE allowed.ask = span.key AND allowed.n <= :n
            )
    )
    SELECT * FROM changed ORDER BY n, id"""  # noqa: S608
"""Each edit, and each answer to a permission, apart from those for a step that changed a file: they are shown there."""


class _Row(NamedTuple):
    """A row of ``_CHANGED``: an edit has a ``file``, an answer a ``reply`` and the key of the span of its ``wait``."""

    session: int
    turn: str
    n: int
    id: int
    file: str | None
    added: int | None
    removed: int | None
    how: str
    reply: str | None
    wait: int | None

    @property
    def of(self) -> tuple[int, str]:
        """Its session and turn."""
        return self.session, self.turn


class Changes:
    """What changed by the records of a moment above position ``after``, in the time that ``wanted`` names."""

    def __init__(self, moment: Moment, after: int = NOTHING, wanted: Filter = EVERYTHING) -> None:
        self._moment, self._after, self._wanted = moment, after, wanted

    @cached_property
    def _rows(self) -> list[_Row]:
        """In the order of positions."""
        sessions = orjson.dumps([*self._moment.all]).decode()
        rows = self._moment.story.sql(_CHANGED, n=self._moment.n, after=self._after, sessions=sessions)
        found = map(_Row._make, rows)
        if self._wanted.since_ms is None and self._wanted.until_ms is None:
            return [*found]
        return [row for row in found if self._wanted.in_time(self._moment.record(row.n).event)]

    def files(self) -> list[dict[str, Any]]:
        """Each file that agents changed, without undone turns, in the order of the first edits: ``file, edits, added,
        removed``. Lines are ``None`` if they are not known."""
        found: dict[str, list[_Row]] = {}
        for row in self._rows:
            if row.file is not None and row.of not in self._moment.undone:
                found.setdefault(row.file, []).append(row)
        return [{"file": file, "edits": len(rows), **sums(rows)} for file, rows in found.items()]

    def totals(self) -> dict[str, int]:
        """As ``changes.totals`` of all turns."""
        shown = [row for row in self._rows if row.of not in self._moment.undone]
        edits = [row for row in shown if row.file is not None]
        places = {key: session.place for key, session in self._moment.all.items()}
        replies = [row.reply for row in shown if row.reply is not None]
        return {
            "files": len({(places[row.session], row.file) for row in edits}),
            "added": sum(row.added or 0 for row in edits),
            "removed": sum(row.removed or 0 for row in edits),
            "rewritten": len({(places[row.session], row.file) for row in edits if row.added is None}),
            "approved": sum(reply not in ("reject", "withdrawn") for reply in replies),
            "rejected": sum(reply == "reject" for reply in replies),
            "turns": len({row.of for row in shown}),
            "undone": len({row.of for row in self._rows} & self._moment.undone),
            "sessions": len({row.session for row in shown}),
        }

    def count(self) -> int:
        """How many turns there are."""
        return len({row.of for row in self._rows})

    def turns(self, most: int | None = None, *, with_diffs: bool = False) -> list[TurnChanges]:
        """The turns in which something changed, in the order of the times of the first changes; with ``most``, at most
        those whose first changes were recorded last."""
        found: dict[tuple[int, str], list[_Row]] = {}
        for row in self._rows:
            found.setdefault(row.of, []).append(row)
        turns = [self._turn(rows, with_diffs=with_diffs) for rows in [*found.values()][-most if most else 0 :]]
        return sorted(turns, key=lambda turn: turn.first_ts)

    def _turn(self, rows: list[_Row], *, with_diffs: bool) -> TurnChanges:
        first, moment = rows[0], self._moment
        stream = moment.record(first.n).event.stream_id
        turn = moment.one("turn", f"session = :s AND message = :m AND +{ALIVE}", s=first.session, m=first.turn)
        prompt = turn.asked[:LONGEST] if turn is not None else ""
        told = TurnChanges(stream, moment.all[first.session].name, first.turn, prompt, first.of in moment.undone)
        for _, of_step in groupby(rows, key=attrgetter("n")):
            row, *more = of_step
            if row.wait is None:
                told.edits += self._edits([row, *more], with_diffs=with_diffs)
            else:
                found = approval(moment, moment.one("span", f"key = :key AND {ALIVE}", key=row.wait))
                event = moment.record(row.n).event
                told.decisions.append(Decision(event.id, event.ts, found.asked.event.actor, found))
        return told

    def _edits(self, rows: list[_Row], *, with_diffs: bool) -> list[Edit]:
        """The files that one step changed."""
        n = rows[0].n
        event, approvals, patches = self._moment.record(n).event, approvals_of(self._moment, n), [""] * len(rows)
        if with_diffs:
            asked_diff = next((each.diff for each in approvals if each.diff), "")
            patches = [each.patch for each in file_changes(event.payload, asked_diff) if each.file]
        return [
            Edit(
                *(event.id, event.ts, event.actor, str(event.payload.get("tool"))),
                Diff(row.file or "", patch * (row.how != "replace"), row.added or 0, row.removed or 0, row.how),  # type: ignore[arg-type]
                *(approvals, n),
            )
            for row, patch in zip(rows, patches, strict=True)
        ]


def approvals(moment: Moment) -> list[Approval]:
    """Every ask, oldest first."""
    waits = f"session = :s AND kind = 'wait' AND at <= :n AND {ALIVE}"
    found = [wait for key in moment.sessions for wait in moment.rows("span", waits, s=key)]
    return [approval(moment, wait) for wait in sorted(found, key=lambda wait: wait.at)]


def approvals_of(moment: Moment, step: int) -> list[Approval]:
    """What the call whose result is the record at ``step`` asked for, oldest first."""
    waits = f"key IN (SELECT ask FROM allowed WHERE n = :step) AND {ALIVE} ORDER BY key"  # noqa: S608
    return [approval(moment, wait) for wait in moment.rows("span", waits, step=step)]


def approval(moment: Moment, wait: tables.Span) -> Approval:
    """An ask and its answer, as they stood at the moment."""
    found = approval_of(moment.record(wait.at), moment.record(wait.told) if moment.has(wait.told) else None)
    if found.answer is None and moment.has(wait.till):
        found.ask.state = "over"
    return found
