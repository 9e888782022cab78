"""Two runs beside each other, turn by turn: what was asked, what came of it, and which files changed how."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any, Final

from sidecar.read.changes.changes import files_of, sums
from sidecar.read.past.compare import compared
from sidecar.read.story.changes import Changes
from sidecar.read.story.moment import Moment
from sidecar.read.story.past import Past
from sidecar.read.story.tables import ALIVE
from sidecar.read.transcript.items import said

MOST_TURNS: Final = 1000
"""How many turns of each side are aligned."""

SHOWN: Final = 40
"""How many rows of turns are shown, from some before the first difference on."""

BEFORE: Final = 2
LONGEST: Final = 600
"""How many characters of an answer are compared and shown."""

MOST_CHANGED: Final = 40
"""How many turns with changed files count on each side."""

LONGEST_DIFF: Final = 20_000
"""How many characters the diffs of a file have together."""

_TURNS: Final = f"""SELECT key, first, asked, started_ms, ended_ms, outcome FROM turn
    WHERE session = :s AND {ALIVE} AND started_ms IS NOT NULL ORDER BY key LIMIT :most"""  # noqa: S608
_LAST: Final = f"SELECT at FROM item WHERE turn = :turn AND kind = 'said' AND {ALIVE} ORDER BY key DESC LIMIT 1"  # noqa: S608
_CALLS: Final = f"SELECT count(*) FROM item WHERE turn = :turn AND kind IN ('call', 'adopted') AND {ALIVE}"  # noqa: S608

Pair = tuple[int | None, int | None]


def beside(left: Past, right: Past, one: int | None, other: int | None) -> dict[str, Any]:
    """As ``compared``, with rows of ``turns``, from the turn ``first`` on, the changed ``files`` of both, and when each
    ``began``, in ms UTC.

    A row has the left and the right turn, or ``None``, and whether they are the ``same``; a file has its ``left`` and
    its ``right`` changes, or ``None``.
    """
    found = compared(left, right, one, other)
    moments = left.at(one), right.at(other)
    turns = [_turns(moment, past.session) for moment, past in zip(moments, (left, right), strict=True)]
    pairs = aligned(*([turn[2] for turn in side] for side in turns))
    begin = max(next((n for n, pair in enumerate(pairs) if None in pair), len(pairs)) - BEFORE, 0)
    if begin > len(pairs) - SHOWN:
        begin = max(len(pairs) - SHOWN, 0)
    rows = []
    for pair in pairs[begin : begin + SHOWN]:
        sides = [
            None if number is None else _shown(moment, number, side[number])
            for moment, side, number in zip(moments, turns, pair, strict=True)
        ]
        rows.append({"left": sides[0], "right": sides[1], "same": _essence(sides[0]) == _essence(sides[1])})
    about: dict[str, Any] = {"turns": rows, "earlier": begin, "later": max(len(pairs) - begin - SHOWN, 0)}
    firsts = (next(past.records(0, 1), None) for past in (left, right))
    about["began"] = [first.event.ts if first is not None else 0 for first in firsts]  # 0: it is damaged, or was pruned
    return found | about | {"files": _files(*moments), "ats": [left.upto(one) - 1, right.upto(other) - 1]}


def aligned(left: list[str], right: list[str]) -> list[Pair]:
    """The numbers of the prompts that match, as pairs in order; those between them stand alone. Pure."""
    found: list[Pair] = []
    one = other = 0
    for block in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
        found += [(number, None) for number in range(one, block.a)]
        found += [(None, number) for number in range(other, block.b)]
        found += [(block.a + n, block.b + n) for n in range(block.size)]
        one, other = block.a + block.size, block.b + block.size
    return found


def _turns(moment: Moment, session: str) -> list[tuple[Any, ...]]:
    key = next((key for key, row in moment.sessions.items() if row.name == session), None)
    return moment.story.sql(_TURNS, n=moment.n, s=key, most=MOST_TURNS)


def _shown(moment: Moment, number: int, turn: tuple[Any, ...]) -> dict[str, Any]:
    """One turn, its number counted from 1."""
    key, first, asked, started, ended, outcome = turn
    [(calls,)], last = (moment.story.sql(query, n=moment.n, turn=key) for query in (_CALLS, _LAST))
    used = moment.used("turn", key)
    answer = said(moment.record(last[0][0])).text if last else ""
    return {
        "number": number + 1,
        "event": moment.record(first).event.id,
        "asked": asked[:LONGEST],
        "answer": answer[:LONGEST],
        "outcome": outcome,
        "ms": None if ended is None else max(ended - started, 0),
        "calls": calls,
        "cost": used.t_cost if used is not None else 0.0,
    }


def _essence(turn: dict[str, Any] | None) -> Any:
    return turn and [turn[name] for name in ("asked", "answer", "outcome", "calls")]


def _files(*moments: Moment) -> list[dict[str, Any]]:
    sides = [_changed(moment) for moment in moments]
    return [
        {"file": file, "left": one, "right": other, "same": one == other}
        for file, one, other in ((file, *(side.get(file) for side in sides)) for file in {**sides[0], **sides[1]})
    ]


def _changed(moment: Moment) -> dict[str, dict[str, Any]]:
    """What each file's changes are together, and the diff of each."""
    found = {}
    for file, edits in files_of(Changes(moment).turns(MOST_CHANGED, with_diffs=True)).items():
        left, diffs = LONGEST_DIFF, []
        for edit in edits:
            diffs.append(edit.change.patch[: max(left, 0)])
            left -= len(edit.change.patch)
        found[file] = {**sums(edits), "diffs": [diff for diff in diffs if diff]}
    return found
