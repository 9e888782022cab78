"""The files that agents changed up to a moment, and what a person allowed or refused, by session and turn.

Reads the tables, so it blocks.
"""

from __future__ import annotations

from collections import Counter
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

_SESSIONS: Final = "session IN (SELECT value FROM json_each(:sessions))"
_EDITS: Final = f"FROM edit WHERE {_SESSIONS} AND n > :after AND n <= :n"
_ANSWERS: Final = f"""FROM span WHERE {_SESSIONS} AND kind = 'wait' AND reply <> '' AND result > :after AND result <= :n
    AND (shown IS NULL OR shown > :n)"""
"""The answers to permissions, apart from those for a step that changed a file: they are shown there. The span of an ask
has one version only."""

_TURNS: Final = f"SELECT turn {_EDITS} UNION SELECT of {_ANSWERS}"
_LAST: Final = f"""WITH last AS ({_TURNS} ORDER BY 1 DESC LIMIT :most)
    SELECT session, turn, n, id, file, added, removed, how, NULL, NULL {_EDITS} AND turn IN (SELECT turn FROM last)
    UNION ALL
    SELECT session, of, result, 0, NULL, NULL, NULL, '', reply, key {_ANSWERS}
        AND of IN (SELECT turn FROM last) ORDER BY 3, 4"""  # noqa: S608

_UNDONE: Final = "(SELECT value FROM json_each(:undone))"
_BY_FILE: Final = f"""SELECT session, file, coalesce(sum(added), 0), coalesce(sum(removed), 0),
        max(CASE WHEN added IS NULL THEN 1 ELSE 0 END) {_EDITS}
    AND turn NOT IN {_UNDONE} GROUP BY session, file"""
_BY_ANSWER: Final = f"""SELECT session, count(CASE WHEN reply NOT IN ('reject', 'withdrawn') THEN 1 END),
        count(CASE WHEN reply = 'reject' THEN 1 END) {_ANSWERS}
    AND of NOT IN {_UNDONE} GROUP BY session"""
_NAMES: Final = ("files", "added", "removed", "rewritten", "approved", "rejected", "turns", "sessions", "undone")
_COUNT: Final = f"SELECT count(*), count(CASE WHEN turn IN {_UNDONE} THEN 1 END) FROM ({_TURNS}) AS turns"  # noqa: S608


class _Row(NamedTuple):
    """A row of ``_LAST``: an edit has a ``file``, an answer a ``reply`` and the key of the span of its ``wait``."""

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
        sessions, undone = (orjson.dumps([*each]).decode() for each in (self._moment.all, self._moment.undone))
        about = {"n": self._moment.n, "after": self._after, "sessions": sessions, "undone": undone}
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
        found, sessions, files = Counter[str](), set[int](), dict[tuple[int, str], bool]()
        for session, file, added, removed, is_rewritten in self._sql(_BY_FILE):
            sessions.add(session)
            found.update(added=int(added), removed=int(removed))
            of = self._moment.all[session].place, file
            files[of] = files.get(of, False) or bool(is_rewritten)
        for session, approved, rejected in self._sql(_BY_ANSWER):
            sessions.add(session)
            found.update(approved=int(approved), rejected=int(rejected))
        turns, undone = map(int, self._sql(_COUNT)[0])
        found.update(files=len(files), rewritten=sum(files.values()), sessions=len(sessions))
        found.update(turns=turns - undone, undone=undone)
        return {name: found[name] for name in _NAMES}

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
        changes = TurnChanges(stream, moment.all[first.session].name, turn.message, turn.asked[:LONGEST], undone)
        for _, of_step in groupby(rows, key=attrgetter("n")):
            row, *more = of_step
            if row.wait is None:
                changes.edits += self._edits([row, *more], with_diffs=with_diffs)
            else:
                found = approval(moment, moment.one("span", f"key = :key AND {ALIVE}", key=row.wait))
                event = moment.record(row.n).event
                changes.decisions.append(Decision(event.id, event.ts, found.asked.event.actor, found))
        return changes

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
    found = approval_of(moment.record(wait.at), moment.record(wait.result) if moment.has(wait.result) else None)
    if found.answer is None and moment.has(wait.till):
        found.ask.state = "over"
    return found
