"""The turns of an agent: each goes from a command to the last result of what the command led to. Pure.

A turn has the correlation id of its command. It ends when no result of an effect is awaited any more, or before that:
when it is stopped, when a result says so, or when a chain is too deep. It is then *cut*: the results that were awaited
are refused when they come. A later command with the same correlation id begins the turn anew. An event of the log that
an agent lists begins no turn.

The records say in ``metadata.turn`` what they mean for their turn: ``started``, ``step`` (the result of an effect),
``completed``, ``failed``, ``cut``; so a turn costs no records of its own. A command for another agent belongs to a turn
of that agent.

======================= ============= =================================
a record                of a turn     then the turn
======================= ============= =================================
a command               not open      starts
a request of an effect  open          awaits its result
a result                awaited       awaits it no more
any                     awaits none   ends
a refused output        open          ends as failed
``agent.turn_stopped``  open          ends
======================= ============= =================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from sidecar.agents.inputs import OWNED, RESULTS, Input, with_metadata
from streams.event import StreamEvent

Edge = Literal["started", "step", "completed", "failed", "cut"]

_ENDS: Final = frozenset({"completed", "failed"})

MAX_REMEMBERED: Final = 1000
"""Maximum number of stopped turns, and of requests whose results are refused, that are remembered."""


class Turns:
    """One agent's turns; none if ``is_told`` is false.

    ``epoch`` is the one in which this home last took the agent, 0 if no other home can own it. It never falls, not
    even while the records are read again.
    """

    def __init__(self, is_told: bool = True) -> None:
        self._is_told = is_told
        self.epoch = 0
        self._open: dict[str, set[str]] = {}
        """Maps an open turn to the requests whose results it awaits."""
        self._cut: dict[str, None] = {}
        """The requests whose results are refused, the oldest first."""
        self._stopped: dict[str, None] = {}

    def is_open(self, turn: str | None) -> bool:
        return turn in self._open

    def awaits(self, event: StreamEvent) -> bool:
        """Whether an event of the log is a result that an open turn waits for."""
        return event.type in RESULTS and event.payload.get("request") in self._open.get(event.correlation_id or "", ())

    def was_stopped(self, turn: str) -> bool:
        return turn in self._stopped

    def has_cut(self, request: str | None) -> bool:
        """Whether the turn that made a request ended before its result came."""
        return request in self._cut

    def refuses(self, event: StreamEvent) -> bool:
        """Whether an event of the log is such a result."""
        return bool(self._cut) and event.type in RESULTS and self.has_cut(event.payload.get("request"))

    def mark(self, given: Input, events: list[StreamEvent]) -> list[StreamEvent]:
        """The events of one input, with what they mean for its turn; the turn goes on accordingly."""
        turn, type_ = given.record.correlation_id, given.event.type
        is_command = given.event.metadata.get("role") in ("input", "command")
        is_its = is_command or (turn in self._open and not self.refuses(given.event))
        if not self._is_told or turn is None or not events or not is_its:
            return events
        own = [place for place, event in enumerate(events) if event.correlation_id == turn]
        refused = [place for place in own if events[place].metadata.get("role") == "refused"]
        marks: dict[int, list[Edge]] = {place: [] for place in (0, *refused)}
        if turn not in self._open:
            marks[0].append("started")
        elif self.awaits(given.event):
            marks[0].append("step")
        awaited = set(self._open.get(turn, ()))
        for event in events:
            _follow(awaited, event)
        ends_early = bool(refused) or (type_ in RESULTS and given.event.payload.get("ends_turn") is True)
        if ends_early or not awaited:
            last = refused[-1] if refused else own[-1]
            has_failed = bool(refused) or type_ == "effect.failed" or events[last].metadata.get("role") == "dead"
            marks.setdefault(last, []).append("failed" if has_failed else "completed")
            marks[last] += ["cut"] if awaited else []
        marked = [_with(event, marks.get(place), self.epoch) for place, event in enumerate(events)]
        for event in marked:
            self.apply(event)
        return marked

    def apply(self, event: StreamEvent) -> None:
        turn, edges = event.correlation_id, event.metadata.get("turn") or ()
        if event.type == OWNED and event.metadata.get("role") == "owned":
            self.epoch = max(self.epoch, int(event.payload.get("epoch") or 0))
        if turn is None:
            return
        if "started" in edges:
            self._open.setdefault(turn, set())
        if turn in self._open:
            _follow(self._open[turn], event)
        if event.metadata.get("role") == "stopped":
            _remember(self._stopped, [turn])
        if _ENDS & set(edges) or event.metadata.get("role") == "stopped":
            _remember(self._cut, self._open.pop(turn, ()))

    def dump(self) -> dict[str, Any]:
        waiting = {turn: sorted(requests) for turn, requests in self._open.items()}
        return {"open": waiting, "stopped": list(self._stopped), "cut": list(self._cut), "epoch": self.epoch}

    def load(self, dumped: dict[str, Any] | None) -> None:
        """Restore what ``dump`` returned; ``None`` means an agent without turns."""
        found = dumped or {"open": {}, "stopped": [], "cut": [], "epoch": 0}
        self._open = {turn: set(requests) for turn, requests in found["open"].items()}
        self._stopped = dict.fromkeys(found["stopped"])
        self._cut |= dict.fromkeys(found["cut"])  # not cleared: attempts ask for it while the records are read again
        self.epoch = max(self.epoch, found["epoch"])


def _follow(awaited: set[str], event: StreamEvent) -> None:
    """Add the request that a record makes to those whose results are awaited, or remove the one that it answers."""
    if event.metadata.get("role") == "effect":
        awaited.add(event.id)
    elif (request := event.metadata.get("request")) is not None:
        awaited.discard(request)


def _remember(some: dict[str, None], names: Iterable[str]) -> None:
    some |= dict.fromkeys(names)
    while len(some) > MAX_REMEMBERED:
        del some[next(iter(some))]


def _with(event: StreamEvent, edges: list[Edge] | None, epoch: int) -> StreamEvent:
    return with_metadata(event, turn=edges, epoch=epoch) if edges is not None else event
