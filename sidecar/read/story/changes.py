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
from sidecar.read.rendering.describe import LONGEST
from sidecar.read.story import tables
from sidecar.read.story.moment import Moment
from sidecar.read.story.tables import ALIVE
from streams.query import EVERYTHING, Filter
from streams.store import NOTHING

_CHANGED: Final = """
    WITH these AS (SELECT key, value AS place FROM json_each(:places)), changed AS (
        SELECT session, turn, n, id, file, added, removed, how, NULL AS reply, NULL AS wait FROM edit
            WHERE session IN (SELECT key FROM these) AND n > :after AND n <= :n
        UNION ALL
        SELECT session, of, told, 0, NULL, NULL, NULL, '', reply, key FROM span
            WHERE session IN (SELECT key FROM these) AND kind = 'wait' AND reply <> '' AND told > :after AND told <= :n
            AND (shown IS NULL OR shown > :n)
    )"""
"""Each edit, and each answer to a permission, apart from those for a step that changed a file: they are shown there.
The span of an ask has one version only."""

_LAST: Final = f"""{_CHANGED}
    SELECT * FROM changed WHERE turn IN (SELECT DISTINCT turn FROM changed ORDER BY turn DESC LIMIT :most)
        ORDER BY n, id"""  # noqa: S608

_UNDONE: Final = "(SELECT value FROM json_each(:undone))"

_SUMS: Final = f"""{_CHANGED}
    SELECT count(DISTINCT file), total(added), total(removed), count(DISTINCT iif(added IS NULL, file, NULL)),
        total(reply NOT IN ('reject', 'withdrawn')), total(reply = 'reject'), count(DISTINCT turn),
        count(DISTINCT session)
    FROM changed JOIN these ON these.key = session WHERE turn NOT IN {_UNDONE} GROUP BY place"""  # noqa: S608
_NAMES: Final = ("files", "added", "removed", "rewritten", "approved", "rejected", "turns", "sessions")


class _Row(NamedTuple):
    """A row of ``_CHANGED``: an edit has a ``file``, an answer a ``reply`` and the key of the span of its ``wait``."""

    session: int
    turn: int
    n: int
    id: int
    file: str | None
    added: int | None
    removed: int | None
    how: str
    reply: str | None
    wait: int | None


class Changes:
    """What changed by the records of a moment above position ``after``, in the time that ``wanted`` names."""

    def __init__(self, moment: Moment, after: int = NOTHING, wanted: Filter = EVERYTHING) -> None:
        self._moment, self._after, self._wanted = moment, after, wanted

    def _sql(self, query: str, **given: Any) -> list[tuple[Any, ...]]:
        places = orjson.dumps({str(key): session.place for key, session in self._moment.all.items()}).decode()
        undone = orjson.dumps([*self._moment.undone]).decode()
        about = {"n": self._moment.n, "after": self._after, "places": places, "undone": undone}
        return self._moment.story.sql(query, **about, **given)

    def _by_turn(self, most: int) -> list[list[_Row]]:
        """What changed in each of the last turns, in the order of positions; ``most`` -1: in every turn."""
        found: dict[int, list[_Row]] = {}
        is_any_time = self._wanted.since_ms is None and self._wanted.until_ms is None
        for row in map(_Row._make, self._sql(_LAST, most=most if is_any_time else -1)):
            if is_any_time or self._wanted.in_time(self._moment.record(row.n).event):
                found.setdefault(row.turn, []).append(row)
        return [*found.values()][-most if most > 0 else 0 :]

    def files(self) -> list[dict[str, Any]]:
        """Each file that agents changed, without undone turns, in the order of the first edits: ``file, edits, added,
        removed``. Lines are ``None`` if they are not known."""
        found: dict[str, list[_Row]] = {}
        rows = [row for rows in self._by_turn(-1) for row in rows if row.turn not in self._moment.undone]
        for row in sorted(rows, key=attrgetter("n", "id")):
            if row.file is not None:
                found.setdefault(row.file, []).append(row)
        return [{"file": file, "edits": len(rows), **sums(rows)} for file, rows in found.items()]

    @cached_property
    def _sums(self) -> dict[str, int]:
        found = dict.fromkeys(_NAMES, 0)
        for row in self._sql(_SUMS):
            found = {name: found[name] + int(value) for name, value in zip(_NAMES, row, strict=True)}
        undone = f"{_CHANGED} SELECT count(DISTINCT turn) FROM changed WHERE turn IN {_UNDONE}"  # noqa: S608
        return found | {"undone": self._sql(undone)[0][0] if self._moment.undone else 0}

    def totals(self) -> dict[str, int]:
        """As ``changes.totals`` of all turns."""
        return self._sums

    def count(self) -> int:
        """How many turns there are."""
        return self._sums["turns"] + self._sums["undone"]

    def turns(self, most: int | None = None, *, with_diffs: bool = False) -> list[TurnChanges]:
        """The turns in which something changed, in the order of the times of the first changes; with ``most``, at most
        the last ones."""
        turns = [self._turn(rows, with_diffs=with_diffs) for rows in self._by_turn(most or -1)]
        return sorted(turns, key=lambda turn: turn.first_ts)

    def _turn(self, rows: list[_Row], *, with_diffs: bool) -> TurnChanges:
        first, moment = rows[0], self._moment
        stream = moment.record(first.n).event.stream_id
        turn = moment.one("turn", f"key = :key AND {ALIVE}", key=first.turn)
        undone = turn.key in moment.undone
        told = TurnChanges(stream, moment.all[first.session].name, turn.message, turn.asked[:LONGEST], undone)
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
