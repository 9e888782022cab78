"""What a timeline of spans says: when somebody worked, waited or was idle, and what the end of a turn waited for. Pure.

Times are ms since 1970. A stretch is a pair of its start and its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Final, NamedTuple, get_args

from bridge.opencode.capture.tokens import add_tokens, total_of
from sidecar.read.past.spans import Span, SpanKind
from sidecar.read.wording import amount, lasted, money, one_line

Stretch = tuple[int, int]

SHORT: Final = 0.02
"""A pause is folded if it is longer than this share of the work that is shown, and than ``SHORTEST_MS``."""

SHORTEST_MS: Final = 1000

STEPS: Final = 6
"""How many parts to name, the longest first. The time that a person took is always named."""

PERSON: Final = "a person"


def with_background(
    root: str, spans: Iterable[Span], background: Iterable[tuple[str, Iterable[Span]]], now: int
) -> list[Span]:
    """The spans of the session ``root``, then those of its background work as they were at ``now``, each session once.

    ``background`` has each session of such work with its spans. A session that is
    among the first spans keeps its place; any other goes below ``root``.
    """
    found = list(spans)
    for session, work in background:
        known = {span.session for span in found if span.kind == "session"}
        new = (span for span in work if span.start <= now and span.session not in known)
        found += [span if (span.end or now) <= now else replace(span, end=None, state="running") for span in new]
        for number, span in enumerate(found):
            if span.kind == "session" and span.session == session:
                parent = span.parent if session in known else f"session:{root}"
                found[number] = replace(span, parent=parent, facts={"background": True})
    return found


def joined(stretches: Iterable[Stretch], near: float = 0) -> list[Stretch]:
    """The stretches in order, those that overlap or are at most ``near`` apart as one."""
    found: list[Stretch] = []
    for start, end in sorted(stretches):
        if found and start - found[-1][1] <= near:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, max(start, end)))
    return found


def without(stretches: Iterable[Stretch], away: Iterable[Stretch]) -> list[Stretch]:
    """What is left of the stretches outside of those of ``away``."""
    left, gone = [], joined(away)
    number = 0
    for start, end in joined(stretches):
        while number < len(gone) and gone[number][1] <= start:
            number += 1
        for begin, until_ in gone[number:]:
            if begin >= end:
                break
            if begin > start:
                left.append((start, begin))
            start = max(start, until_)
        if start < end:
            left.append((start, end))
    return left


def shares(named: list[tuple[Stretch, str]], begin: int, end: int, rest: str) -> dict[str, int]:
    """How much of the time between two moments each name has, without those that have none. At each moment, the first
    stretch in the list that covers it counts; ``rest`` is the name of the time that none covers."""
    inside = [(max(start, begin), min(stop, end), rank) for rank, ((start, stop), _) in enumerate(named)]
    inside = sorted(each for each in inside if each[0] < each[1])
    found: dict[str, int] = {}
    open_: list[tuple[int, int]] = []
    moments = sorted({begin, end, *(start for start, _, _ in inside), *(stop for _, stop, _ in inside)})
    number = 0
    for moment, until_ in pairwise(moments):
        while number < len(inside) and inside[number][0] <= moment:
            heappush(open_, (inside[number][2], inside[number][1]))
            number += 1
        while open_ and open_[0][1] <= moment:
            heappop(open_)
        name = named[open_[0][0]][1] if open_ else rest
        found[name] = found.get(name, 0) + until_ - moment
    return found


def length(stretches: Iterable[Stretch]) -> int:
    return sum(end - start for start, end in stretches)


class Lane(NamedTuple):
    """One session of a timeline: its own span, how deep it is below the first, and the spans in it by their start."""

    session: Span
    depth: int
    spans: list[Span]


class Lanes:
    """The lanes of a timeline, each below the one that started it, with what happened between ``begin`` and ``end``.

    ``now`` ends what has not ended.
    """

    def __init__(self, spans: Iterable[Span], now: int, begin: int = 0, end: int | None = None) -> None:
        self.now, self.begin, self.end = now, begin, now if end is None else end
        self._sessions: dict[str, Span] = {}
        self._turns: dict[str, list[Span]] = {}
        self._inside: dict[str, list[Span]] = {}
        """The steps of a turn, by its id."""
        self._below: dict[str, list[Span]] = {}
        """The sessions that a session started."""
        self._calls: dict[str, Span] = {}
        """The call that started a session, by the session."""
        spans = list(spans)
        own = self._sort(spans)
        self._join(spans)
        self.lanes = [Lane(session, depth, own.get(session.session, [])) for session, depth in self._nested()]
        self.working = joined(stretch for lane in self.lanes for stretch in self._working(lane))
        waits = (self.stretch(each) for lane in self.lanes for each in lane.spans if each.kind == "wait")
        self.waiting = without(waits, self.working)

    def _sort(self, spans: list[Span]) -> dict[str, list[Span]]:
        """The spans of each session between the two moments, by their start."""
        own: dict[str, list[Span]] = {}
        for span in spans:
            if span.kind == "session":
                self._sessions[span.session] = span
            elif self.is_in(span, self.begin, self.end):
                own.setdefault(span.session, []).append(span)
                about, key = (self._turns, span.session) if span.kind == "turn" else (self._inside, span.parent)
                about.setdefault(key, []).append(span)
        return {session: sorted(some, key=lambda each: each.start) for session, some in own.items()}

    def _join(self, spans: list[Span]) -> None:
        """Find what started each session; a call may lie before the first moment."""
        starting = {session.parent for session in self._sessions.values()}
        above_of = {span.id: span for span in spans if span.id in starting}
        for session in self._sessions.values():
            above = above_of.get(session.parent) or self._sessions.get(session.parent)
            if above is not None and above.session != session.session:
                self._below.setdefault(above.session, []).append(session)
                if above.kind == "tool":
                    self._calls[session.session] = above

    def _nested(self) -> Iterator[tuple[Span, int]]:
        """Every session with its depth, each below the one that started it."""
        below = {each.session for some in self._below.values() for each in some}
        # Sessions that wrongly descend from each other have no root, so all of them follow the roots.
        order = sorted(self._sessions.values(), key=lambda each: each.session in below)
        waiting, placed = [(session, 0) for session in reversed(order)], set[str]()
        while waiting:
            session, depth = waiting.pop()
            if session.session not in placed:
                placed.add(session.session)
                yield session, depth
                waiting += [(each, depth + 1) for each in reversed(self._below.get(session.session, []))]

    def stretch(self, span: Span) -> Stretch:
        return span.start, max(span.end if span.end is not None else self.now, span.start)

    def is_in(self, span: Span, begin: int, end: int) -> bool:
        """Whether a span takes some of the time between two moments, or takes none and lies there."""
        start, until_ = self.stretch(span)
        return (start < end and until_ > begin) or begin <= start == until_ <= end

    def _working(self, lane: Lane) -> list[Stretch]:
        """When a session did something itself: it waited neither for a person, nor for a child session, nor to try
        again."""
        calls = {call.id for call in self._calls.values()}
        waits: dict[str, list[Stretch]] = {}
        for each in lane.spans:
            if each.kind == "wait":
                waits.setdefault(str(each.facts.get("call", "")), []).append(self.stretch(each))
        found: list[Stretch] = []
        for each in lane.spans:
            if each.kind in ("model", "tool") and each.id not in calls:
                # A call goes on while another one waits for a person.
                own = [*waits.get(str(each.facts.get("call", "")), ()), *waits.get("", ())] if waits else ()
                found += without([self.stretch(each)], own) if own else [self.stretch(each)]
        turns = (self.stretch(each) for each in lane.spans if each.kind == "turn")
        below = (self.stretch(each) for each in lane.spans if each.id in calls or each.kind == "pause")
        return found + without(turns, [*below, *(each for some in waits.values() for each in some)])

    def turns(self) -> Iterator[Span]:
        """The turns of the first session, oldest first."""
        return iter(self._turns.get(self.lanes[0].session.session, ()) if self.lanes else ())

    def critical(self) -> set[str]:
        """The ids of the spans without which a turn would have ended earlier."""
        found, seen = set[str](), set[str]()
        turns = [turn for name, some in self._turns.items() if name not in self._calls for turn in some]
        while turns:
            turn = turns.pop()
            if turn.id not in seen:
                seen.add(turn.id)
                chain = self.chain(turn)
                found.update(each.id for each in chain)
                turns += [each for step in chain for each in self._started(step)]
        return found

    def _started(self, call: Span) -> list[Span]:
        """The turns of the child session that a call waited for."""
        start, end = self.stretch(call)
        children = (each.session for each in self._below.get(call.session, ()) if self._calls.get(each.session) is call)
        return [turn for child in children for turn in self._turns.get(child, ()) if start <= turn.start <= end]

    def chain(self, turn: Span) -> list[Span]:
        """The turn and the steps in it that its end waited for, one before the other, the last first."""
        found = [turn]
        steps = sorted(self._inside.get(turn.id, ()), key=lambda each: (self.stretch(each)[1], each.kind != "wait"))
        cursor = self.stretch(turn)[1]
        for step in reversed(steps):
            start, end = self.stretch(step)
            # A call that asked a person is on the way, so its ask is, too.
            is_inside = step.kind == "wait" and any(each.facts.get("call") == step.facts.get("call") for each in found)
            # Tools begin, and asks are put, while the model still speaks.
            is_before = end <= cursor or (step.kind == "model" and start < cursor)
            if is_before or is_inside:
                found.append(step)
                cursor = min(cursor, start)
        return found

    def sums(self) -> dict[str, Any]:
        """What happened: ``working_ms, waiting_ms, idle_ms``, which add up to ``ms``, then
        ``turns`` in ``sessions``, ``models, tools, errors, tokens, cost``. ``chain`` says what the first session spent
        the time on, the longest first; it adds up to ``ms``, too."""
        begin, end = self.begin, self.end
        working, waiting = (
            sum(max(min(until_, end) - max(start, begin), 0) for start, until_ in stretches)
            for stretches in (self.working, self.waiting)
        )
        counts = dict.fromkeys(get_args(SpanKind), 0)
        errors, cost, tokens = 0, 0.0, dict[str, int | float]()
        for lane in self.lanes:
            for span in lane.spans:
                counts[span.kind] += 1
                # A turn that failed because a call of the model did says nothing new.
                errors += span.state == "error" and not (span.kind == "turn" and span.facts.get("reported"))
                if span.kind == "model" and self.stretch(span)[1] <= end:
                    cost += span.facts["cost"]
                    add_tokens(tokens, span.facts["tokens"])
        chain = shares(self._spent(), begin, max(end, begin), "between turns")
        return {
            "from": begin,
            "to": end,
            "ms": max(end - begin, 0),
            "working_ms": working,
            "waiting_ms": waiting,
            "idle_ms": max(end - begin - working - waiting, 0),
            "turns": counts["turn"],
            "sessions": sum(any(span.kind == "turn" for span in lane.spans) for lane in self.lanes),
            "models": counts["model"],
            "tools": counts["tool"],
            "errors": errors,
            "tokens": total_of(tokens),
            "cost": round(cost, 9),
            "chain": sorted(([name, ms] for name, ms in chain.items()), key=lambda each: (-int(each[1]), str(each[0]))),
        }

    def _spent(self) -> list[tuple[Stretch, str]]:
        """What the first session spent its time on; of several at once, the first in the list says it best."""
        waits: list[tuple[Stretch, str]] = []
        steps: list[tuple[int, Stretch, str]] = []
        turns = list(self.turns())
        todo, seen = [(turn, 0) for turn in turns], set[str]()
        while todo:
            turn, depth = todo.pop()
            seen.add(turn.id)
            for step in self.chain(turn)[1:]:
                if step.kind == "wait":
                    waits.append((self.stretch(step), PERSON))
                else:
                    steps.append((depth, self.stretch(step), one_line(step.name)[:40] or step.kind))
                    todo += [(each, depth + 1) for each in self._started(step) if each.id not in seen]
        steps.sort(key=lambda each: -each[0])
        waits += [(each, PERSON) for each in self.waiting]
        own = [(self.stretch(turn), "between steps") for turn in turns]
        beside = ((each, "beside its turns") for each in self.working)
        return [*waits, *((stretch, name) for _, stretch, name in steps), *own, *beside]


def facts_of(sums: dict[str, Any]) -> list[tuple[str, str]]:
    """The sums in words: a label and a value each."""
    found = [("took", lasted(sums["ms"])), ("somebody worked", lasted(sums["working_ms"]))]
    found += [("only waiting for a person", lasted(sums["waiting_ms"]))] if sums["waiting_ms"] else []
    found += [("idle", lasted(sums["idle_ms"]))] if sums["idle_ms"] else []
    places = f" in {sums['sessions']} sessions" if sums["sessions"] > 1 else ""
    found += [("turns", f"{amount(sums['turns'])}{places}")]
    found += [(label, amount(sums[name])) for label, name in _COUNTS]
    found += [
        ("tokens", amount(sums["tokens"]) if sums["tokens"] else "–"),
        ("cost", money(sums["cost"]).replace("-", "–")),
    ]
    return found + ([("failed", str(sums["errors"]))] if sums["errors"] else [])


def chain_of(sums: dict[str, Any]) -> str:
    """What the time was spent on, in words; empty if nothing is known."""
    parts = [*sums["chain"][:STEPS], *(each for each in sums["chain"][STEPS:] if each[0] == PERSON)]
    more = sums["ms"] - sum(ms for _, ms in parts)
    return ", ".join(f"{name} {lasted(ms)}" for name, ms in [*parts, ("the rest", more)] if ms > 0)


_COUNTS: Final = (("model calls", "models"), ("tools", "tools"))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a scale: from ``start`` to ``end``, drawn from ``x`` on, ``width`` wide. ``what`` is ``work``, or for
    a folded pause ``wait`` or ``idle``."""

    start: int
    end: int
    x: float
    width: float
    what: str


class Scale:
    """From time to places between 0 and ``width``. Pauses in which nobody works are folded to at most ``fold``."""

    def __init__(self, lanes: Lanes, width: float, fold: float) -> None:
        begin, end = lanes.begin, max(lanes.end, lanes.begin + 1)
        inside = [(max(a, begin), min(b, end)) for a, b in lanes.working if b > begin and a < end]
        inside = [*inside, (begin, begin), (end, end)]
        work = joined(inside, max(length(joined(inside)) * SHORT, SHORTEST_MS))
        worked = max(length(work), 1)
        gaps = len(work) - 1
        fold = min(fold, width / 2 / gaps) if gaps else 0.0
        room, x = width - fold * gaps, 0.0
        self.pieces: list[Piece] = []
        for number, (start, stop) in enumerate(work):
            if number:
                before = work[number - 1][1]
                waited = sum(max(min(b, start) - max(a, before), 0) for a, b in lanes.waiting)
                what = "wait" if waited * 2 > start - before else "idle"
                self.pieces.append(Piece(before, start, x, fold, what))
                x += fold
            self.pieces.append(Piece(start, stop, x, room * (stop - start) / worked, "work"))
            x += self.pieces[-1].width

    def at(self, time: int) -> float:
        """Where a moment is."""
        piece = self.pieces[max(bisect_right(self.pieces, time, key=lambda piece: piece.start) - 1, 0)]
        share = (time - piece.start) / (piece.end - piece.start) if piece.end > piece.start else 0.0
        return piece.x + piece.width * min(max(share, 0.0), 1.0)
