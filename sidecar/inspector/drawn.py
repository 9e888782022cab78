"""A timeline as the page gets it: the drawing, what it amounts to, and the turns that can be chosen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from sidecar.read.past.drawing import svg
from sidecar.read.past.lanes import Lanes, chain_of, facts_of
from sidecar.read.past.spans import Span

MOST_SPANS: Final = 200
"""How many steps a timeline has before anybody chose a stretch of it."""

MOST_CHOSEN: Final = 2000
"""How many steps a stretch has."""

LEAST_WIDTH: Final = 280
MOST_WIDTH: Final = 4000


def drawn(spans: Sequence[Span], now: int, width: int, begin: int | None, end: int | None) -> dict[str, Any]:
    """The timeline of the first session of ``spans`` and of those beside it, between two moments; without them, and of
    a long stretch, its newest steps.

    ``svg`` is empty if nothing ran. ``pieces`` say which time each place has, ``facts`` and ``chain`` are the ``sums``
    in words.
    """
    steps = [span for span in spans if span.kind != "session"]
    if not steps:
        return {"svg": "", "pieces": [], "facts": [], "chain": "", "sums": None}
    most = MOST_SPANS if begin is None and end is None else MOST_CHOSEN
    newest = min(span.start for span in steps[-most:])
    last = max(now if span.end is None else span.end for span in steps)
    lanes = Lanes(spans, now, newest if begin is None or len(steps) > most else begin, last if end is None else end)
    picture, pieces = svg(lanes, max(min(width, MOST_WIDTH), LEAST_WIDTH), _to_event)
    sums = lanes.sums()
    return {
        "svg": picture,
        "pieces": [asdict(each) for each in pieces],
        "facts": facts_of(sums),
        "chain": chain_of(sums),
        "sums": sums,
    }


def _to_event(span: Span) -> str:
    return f"#{span.event}" if span.event else ""
