"""The turns of an agent: each goes from a command to the last result of what the command led to. Pure.

A turn has the correlation id of its command. It ends when none of its effects is open, or when it is stopped. An event
of the log that an agent lists begins no turn. The records say in ``metadata.turn`` what they mean for their turn:
``started``, ``step`` (the result of an effect), ``completed``, ``failed``, or ``ended`` (another record says that it
failed); so a turn costs no records of its own.

======================= ============= ===========================
a record                of a turn     then the turn
======================= ============= ===========================
a command               not open      starts
a request of an effect  open          waits for one more result
a result                open          waits for one less
any                     waits for 0   ends
``agent.turn_stopped``  open          ends, and takes nothing more
======================= ============= ===========================
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, Literal

from sidecar.agents.inputs import DEAD_LETTER, OWNED, RECEIVED, STOPPED, Input, with_metadata
from sidecar.agents.view import MAX_STOPPED
from streams.event import StreamEvent

Edge = Literal["started", "step", "completed", "failed", "ended"]

_ENDS: Final = frozenset({"completed", "failed", "ended"})
_RESULTS: Final = ("effect.completed", "effect.failed")


class Turns:
    """One agent's turns; none if ``is_told`` is false.

    ``epoch`` is the one in which this home last took the agent, 0 if no other home can own it. It never falls, not
    even while the records are read again.
    """

    def __init__(self, is_told: bool = True) -> None:
        self._is_told = is_told
        self.epoch = 0
        self._open: dict[str, int] = {}
        self._stopped: OrderedDict[str, None] = OrderedDict()

    def is_open(self, turn: str | None) -> bool:
        return turn in self._open

    def is_stopped(self, turn: str | None) -> bool:
        return turn in self._stopped

    def awaits(self, event: StreamEvent) -> bool:
        """Whether an event of the log is a result that an open turn waits for."""
        return event.type in _RESULTS and event.correlation_id in self._open

    def mark(self, given: Input, events: list[StreamEvent]) -> list[StreamEvent]:
        """The events of one input, with what they mean for its turn; the turn goes on accordingly."""
        turn, type_ = given.record.correlation_id, given.event.type
        is_command = given.event.metadata.get("role") in ("input", "command")
        if not self._is_told or turn is None or not events or not (is_command or turn in self._open):
            return events
        first: list[Edge] = ["started"] if turn not in self._open else ["step"] if type_ in _RESULTS else []
        left = self._open.get(turn, 0) + sum(_change(event) for event in events)
        last: list[Edge] = []
        if left <= 0 or given.event.payload.get("ends_turn") is True:
            roles = [event.metadata.get("role") for event in events]
            if "refused" in roles[:-1]:
                last = ["ended"]
            else:
                has_failed = type_ == "effect.failed" or roles[-1] in ("refused", "dead")
                last = ["failed" if has_failed else "completed"]
        edges = {0: first, len(events) - 1: last} if len(events) > 1 else {0: [*first, *last]}
        marked = [_with(event, edges.get(place, []), self.epoch) for place, event in enumerate(events)]
        for event in marked:
            self.apply(event)
        return marked

    def apply(self, event: StreamEvent) -> None:
        turn, edges = event.correlation_id, event.metadata.get("turn") or ()
        if event.type == OWNED and event.metadata.get("role") == "owned":
            self.epoch = max(self.epoch, int(event.payload.get("epoch") or 0))
        elif event.type == STOPPED and event.metadata.get("role") == "stopped" and turn is not None:
            self._open.pop(turn, None)
            self._stopped[turn] = None
            if len(self._stopped) > MAX_STOPPED:
                self._stopped.popitem(last=False)
        if turn is None:
            return
        if "started" in edges:
            self._open.setdefault(turn, 0)
        if turn in self._open:
            self._open[turn] += _change(event)
            if _ENDS & set(edges):
                del self._open[turn]

    def dump(self) -> dict[str, Any]:
        return {"open": self._open, "stopped": list(self._stopped), "epoch": self.epoch}

    def load(self, dumped: dict[str, Any] | None) -> None:
        """Restore what ``dump`` returned; ``None`` means an agent without turns."""
        found = dumped or {"open": {}, "stopped": [], "epoch": 0}
        self._open, self._stopped = dict(found["open"]), OrderedDict.fromkeys(found["stopped"])
        self.epoch = max(self.epoch, found["epoch"])


def _change(event: StreamEvent) -> int:
    """By how many a record changes the number of results that its turn waits for."""
    if event.metadata.get("role") == "effect":
        return 1
    is_result = event.type in (RECEIVED, DEAD_LETTER) and event.payload.get("type") in _RESULTS
    return -1 if is_result and "redriven" not in event.metadata else 0


def _with(event: StreamEvent, edges: list[Edge], epoch: int) -> StreamEvent:
    return with_metadata(event, turn=edges, epoch=epoch) if edges else event
