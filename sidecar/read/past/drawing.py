"""A timeline of spans as SVG, for the page and for exported files. Pure.

Every text is escaped. The drawing has no style of its own: ``STYLE`` is the style sheet that goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Final, NamedTuple

from sidecar.read.past.lanes import Lane, Lanes, Piece, Scale, chain_of, facts_of
from sidecar.read.past.spans import Span
from sidecar.read.wording import UNKNOWN, lasted, local_time, one_line, rough_span

STYLE: Final = """
.lanes { --model: #b9c7f7; --tool: #b4bac6; --turn: #f1f2f5; --edge: #d5d8df; --hatch: #d99a2b; --failed: #c2272d;
  --label: #5d636f; --ink: #1b1d22; --ring: #3b5bdb; --wait: #95600a; }
@media (prefers-color-scheme: dark) { .lanes { --model: #44549b; --tool: #525b6c; --turn: #1a1e25; --edge: #3a414d;
  --hatch: #c08f32; --failed: #d9484d; --label: #9aa1ae; --ink: #e6e9ee; --ring: #8ea4ff; --wait: #e2b153; } }
.lanes { display: block; max-width: none; user-select: none; }
.lanes text { font: 11px system-ui, sans-serif; fill: var(--label); pointer-events: none; }
.lanes .name { font-size: 12px; fill: var(--ink); } .lanes .kin { fill: var(--label); }
.lanes .in { fill: var(--ink); } .lanes .on { fill: #fff; } .lanes .bad { fill: var(--failed); font-weight: 600; }
.lanes .turn { fill: var(--turn); } .lanes .model { fill: var(--model); } .lanes .tool { fill: var(--tool); }
.lanes .ask { fill: url(#hatch); stroke: var(--hatch); } .lanes .error { fill: var(--failed); }
.lanes .pause { fill: none; stroke: var(--label); stroke-dasharray: 2 3; }
.lanes .hatch { fill: var(--hatch); } .lanes .aside { opacity: .45; }
.lanes .folded { fill: var(--turn); } .lanes .wait { fill: var(--wait); font-weight: 600; }
.lanes .rule, .lanes .tick { stroke: var(--edge); } .lanes .tick { opacity: .5; }
.lanes .fold { stroke: var(--edge); stroke-dasharray: 2 3; }
.lanes a { cursor: pointer; outline: none; } .lanes a:hover rect { stroke: var(--ring); }
.lanes a:focus-visible rect { stroke: var(--ring); stroke-width: 2; }
"""

ROW: Final = 18
HEAD: Final = 24
"""How high the scale above the lanes is."""
LABEL: Final = 20
"""How high the name of a lane is."""
FOLD: Final = 52
LETTER: Final = 6.3
"""How wide a letter is, about."""
LEAST: Final = 2.0
"""A shorter bar is drawn so wide; several of them side by side become one."""

APART: Final = 96
"""How far apart the round times of the scale are at least."""
TICKS: Final = tuple(
    1000 * each for each in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
)

LEGEND: Final = (
    ("turn", "turn"),
    ("model", "model call"),
    ("tool", "tool"),
    ("ask", "a person was asked"),
    ("error", "failed"),
    ("pause", "waited to try again"),
    ("tool aside", "pale: nothing waited for it"),
)

Link = Callable[[Span], str]


class Bar(NamedTuple):
    """One bar: ``merged`` spans of a kind, one after the other, that are too short to be seen alone."""

    span: Span
    x: float
    end: float
    merged: int = 1


def figure(lanes: Lanes, width: int, link: Link) -> str:
    """The drawing with its sums, for a page without scripts; empty if nothing ran."""
    if not any(lane.spans for lane in lanes.lanes):
        return ""
    sums = lanes.sums()
    facts = " · ".join(f"{label} {value}" for label, value in facts_of(sums))
    went = f"<br>Where the time went: {escape(chain)}" if (chain := chain_of(sums)) else ""
    drawn, _ = svg(lanes, width, link)
    return f'<figure><div class="wide">{drawn}</div><figcaption>{escape(facts)}{went}</figcaption></figure>'


def svg(lanes: Lanes, width: int, link: Link) -> tuple[str, list[Piece]]:
    """The drawing, ``width`` pixels wide, and the scale that it has.

    ``link`` returns where a bar leads; a bar for which it is empty leads nowhere.
    """
    scale = Scale(lanes, width - 2, FOLD)
    begin, end = lanes.begin, lanes.end
    critical = lanes.critical()
    parts: list[str] = []
    numbers = {turn.id: turn.facts["number"] for turn in lanes.turns()}
    y = HEAD
    for lane in lanes.lanes:
        if not lanes.is_in(lane.session, begin, end):
            continue
        if parts:
            parts.append(f'<line class="rule" x1="0" x2="{width}" y1="{y - 4.5}" y2="{y - 4.5}"/>')
        name = one_line(lane.session.name) or lane.session.session[-10:]
        indent = lane.depth * 14
        about = "" if lane.depth == 0 else " · background" if lane.session.facts.get("background") else " · child"
        parts.append(_words(name, indent, y + 15, width - indent - 90, "name", more=about))
        drawn, height = _lane(lane, lanes, scale, y + LABEL, critical, numbers, link)
        parts += drawn
        y += LABEL + height + 8
    top = _top(scale, begin, end, width, y)
    legend, y = _legend(width, y + 8)
    label = f"Timeline of {local_time(begin)} to {local_time(end)}"
    return (
        f'<svg class="lanes" xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
        f'role="group" aria-label="{escape(label)}"><defs><pattern id="hatch" width="6" height="6" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch" width="2.5" height="6"/>'
        f"</pattern></defs>{''.join(top)}{''.join(parts)}{legend}</svg>",
        scale.pieces,
    )


def _legend(width: int, y: float) -> tuple[str, int]:
    """What each kind of bar is, from ``y`` on, and where that ends."""
    parts, x = [], 0.0
    for kind, words in LEGEND:
        room = 34 + len(words) * LETTER
        if x and x + room > width:
            x, y = 0.0, y + ROW
        parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="12" height="10" rx="2"/>')
        parts.append(f'<text x="{x + 18:.1f}" y="{y + 9:.1f}">{words}</text>')
        x += room
    return f'<g class="legend">{"".join(parts)}</g>', int(y) + ROW


def _top(scale: Scale, begin: int, end: int, width: int, height: int) -> Iterator[str]:
    """The scale above the lanes: when it begins and ends, and how long each folded pause was."""
    for piece in scale.pieces:
        if piece.what == "work":
            continue
        took = lasted(piece.end - piece.start)
        text = took if took == UNKNOWN else rough_span(piece.end - piece.start)
        did = "nobody worked: a person was asked" if piece.what == "wait" else "nothing ran"
        yield f"<g><title>{escape(f'{lasted(piece.end - piece.start)}, in which {did}')}</title>"
        area = f'width="{piece.width:.1f}" height="{height - HEAD}"'
        yield f'<rect class="folded" x="{piece.x:.1f}" y="{HEAD - 4}" {area}/>'
        for x in (piece.x, piece.x + piece.width):
            yield f'<line class="fold" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 8}" y2="{height - 4}"/>'
        if piece.width > len(text) * LETTER:
            middle = piece.x + piece.width / 2
            yield f'<text class="{piece.what}" x="{middle:.1f}" y="12" text-anchor="middle">{text}</text>'
        yield "</g>"
    is_long = local_time(begin, "%Y%m%d") != local_time(end, "%Y%m%d")
    form = "%d %b %H:%M" if is_long else "%H:%M:%S"
    room = len(local_time(begin, form)) * LETTER + 8
    for piece in scale.pieces:
        if piece.what == "work" and piece.width >= room:
            yield f'<text x="{piece.x:.1f}" y="12">{escape(local_time(piece.start, form))}</text>'
    for piece in scale.pieces:
        is_last = piece is scale.pieces[-1]
        yield from _ticks(piece, piece.x + piece.width - is_last * room, height) if piece.what == "work" else ()
    if scale.pieces[-1].width >= 2 * room:
        yield f'<text x="{width - 1}" y="12" text-anchor="end">{escape(local_time(end, form))}</text>'


def _ticks(piece: Piece, until: float, height: int) -> Iterator[str]:
    """The round times in a stretch of work, left of ``until``, and not where its own time stands."""
    took = max(piece.end - piece.start, 1)
    each = next((each for each in TICKS if each * piece.width / took >= APART), 0)
    for moment in range(piece.start // each * each + each, piece.end, each) if each else ():
        x = piece.x + (moment - piece.start) * piece.width / took
        if piece.x + APART <= x <= until - APART:
            yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 8}" y2="{height - 4}"/>'
            form = "%H:%M:%S" if each < 60_000 else "%H:%M" if each < 86_400_000 else "%d %b"
            yield f'<text x="{x + 3:.1f}" y="12">{escape(local_time(moment, form))}</text>'


def _lane(
    lane: Lane, lanes: Lanes, scale: Scale, y: int, critical: set[str], numbers: dict[str, int],
    link: Link,
) -> tuple[list[str], int]:  # fmt: skip
    """The bars of a lane, and how high they are together."""
    turns, rows = [], list[float]()
    placed: list[tuple[Bar, int]] = []
    latest: dict[str, int] = {}
    for span in lane.spans:
        start, until = lanes.stretch(span)
        x, to = scale.at(start), scale.at(until)
        if span.kind == "turn":
            turns.append(Bar(span, x, max(to, x + LEAST)))
            continue
        bar = Bar(span, x, max(to, x + LEAST))
        kind = f"{span.kind} {span.state == 'error'}"
        before = latest.get(kind)
        if before is not None and bar.end - x <= LEAST and x - placed[before][0].end <= 1:
            known, row = placed[before]
            if known.merged > 1 or known.end - known.x <= LEAST:
                placed[before] = known._replace(end=max(bar.end, known.end), merged=known.merged + 1), row
                rows[row] = max(rows[row], bar.end)
                continue
        row = next((number for number, free in enumerate(rows) if free <= x + 0.5), len(rows))
        rows[row:] = [bar.end, *rows[row + 1 :]]
        latest[kind] = len(placed)
        placed.append((bar, row))
    above = 16 if any(bar.end - bar.x > 30 for bar in turns) else 3
    height = above + max(len(rows), 1) * ROW + 2
    parts: list[str] = []
    for bar in turns:
        words = f"turn {numbers[bar.span.id]}" if bar.span.id in numbers else ""
        took = lasted(lanes.stretch(bar.span)[1] - bar.span.start)
        text = " · ".join(filter(None, (words, took, "failed" if bar.span.state == "error" else "")))
        parts.append(_bar(bar, lanes, y, height, "turn", link, words))
        parts.append(_words(text, bar.x + 4, y + 11, bar.end - bar.x - 8, "bad" if bar.span.state == "error" else ""))
    for bar, row in placed:
        span = bar.span
        kind = "error" if span.state == "error" else "ask" if span.kind == "wait" else span.kind
        aside = " aside" * (span.id not in critical and kind in ("model", "tool") and bar.merged == 1)
        parts.append(_bar(bar, lanes, y + above + row * ROW, ROW - 3, kind + aside, link))
        if bar.merged == 1 and kind != "ask":
            on = "in on" if kind == "error" else "in"
            name = one_line(str(span.facts.get("title") or "")) if span.kind == "tool" else ""
            text = f"{one_line(span.name)} {name}".strip()
            parts.append(_words(text, bar.x + 4, y + above + row * ROW + 11.5, bar.end - bar.x - 8, on))
    return parts, height


def _bar(bar: Bar, lanes: Lanes, y: float, height: float, kind: str, link: Link, words: str = "") -> str:
    span = bar.span
    start, end = lanes.stretch(span)
    facts = [words, one_line(span.name), one_line(str(span.facts.get("title") or ""))[:120], lasted(end - start)]
    facts += [_failed(span), "running" if span.end is None else ""]
    facts += ["no end was recorded" if span.state == "over" else ""]
    facts += [one_line(str(span.facts.get("reply") or "")), local_time(start, "%H:%M:%S")]
    if span.kind == "wait":
        facts.insert(0, "waited for a person")
    if bar.merged > 1:
        facts = [f"{bar.merged} short {span.kind} steps from {local_time(start, '%H:%M:%S')} on: zoom in to see each"]
    label = " · ".join(filter(None, facts))
    rect = (
        f'<rect class="{kind}" x="{bar.x:.1f}" y="{y:.1f}" width="{bar.end - bar.x:.1f}" height="{height}" rx="2"/>'
        f"<title>{escape(label)}</title>"
    )
    to = link(span)
    times = f'data-from="{start}" data-to="{end}"'
    return f'<a href="{escape(to)}" {times}>{rect}</a>' if to else f"<g>{rect}</g>"


def _failed(span: Span) -> str:
    code = span.facts.get("exit")
    return "" if span.state != "error" else f"failed with exit code {code}" if code else "failed"


def _words(text: str, x: float, y: float, room: float, kind: str, *, more: str = "") -> str:
    """A text that is cut to the room there is; none if there is too little."""
    most = int(room / LETTER)
    if most < min(len(text), 3):
        return ""
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    tail = f'<tspan class="kin">{escape(more)}</tspan>' if more else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(shown)}{tail}</text>'
