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

LEAST_WIDTH: Final = 280
MOST_WIDTH: Final = 4000


def drawn(
    spans: Sequence[Span], now: int, width: int, begin: int | None, end: int | None, before: int = 0
) -> dict[str, Any]:
    """The timeline of the first session of ``spans`` and of those beside it, between two moments; without them, its
    newest steps. ``before`` earlier spans are left out of ``spans``.

    ``svg`` is empty if nothing ran. ``pieces`` say which time each place has, ``facts`` and ``chain`` are the ``sums``
    in words, ``turns`` are those that can be chosen, ``earlier`` is how many steps are left out before the newest.
    """
    steps = [span for span in spans if span.kind != "session"]
    if not steps:
        return {"svg": "", "pieces": [], "facts": [], "chain": "", "turns": [], "sums": None, "earlier": 0}
    newest = min(span.start for span in steps[-MOST_SPANS:])
    last = max(now if span.end is None else span.end for span in steps)
    lanes = Lanes(spans, now, newest if begin is None else begin, last if end is None else end)
    picture, pieces = svg(lanes, max(min(width, MOST_WIDTH), LEAST_WIDTH), _to_event)
    sums, own = lanes.sums(), next(span.session for span in spans if span.kind == "session")
    return {
        "svg": picture,
        "pieces": [asdict(each) for each in pieces],
        "facts": facts_of(sums),
        "chain": chain_of(sums),
        "turns": [[*lanes.stretch(each), each.state] for each in steps if each.kind == "turn" and each.session == own],
        "sums": sums,
        "earlier": before + sum(span.start < newest for span in steps),
    }


def _to_event(span: Span) -> str:
    return f"#{span.event}" if span.event else ""
