"""Write ``docs/performance.md`` and its plot from the figures of a run in ``docs/performance.json``.

python -m benchmarks --json docs/performance.json
python tools/generate_performance.py          write the page and the plot
python tools/generate_performance.py --check  exit with 1 if they do not match the figures

The plot contains the digest of its figures, so ``--check`` does not need matplotlib.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.report import ratio

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, FIGURES, PLOT = DOCS / "performance.md", DOCS / "performance.json", DOCS / "performance.svg"

OURS = {
    "append, 64 in flight, without end": "Durable Stream",
    "append, 64 in flight, a burst of 10,000": "Durable Stream, a burst",
}
LIMITS = {"raw file, 64 lines a sync": "raw file, 64 lines a sync"}

HEAD = """# Performance

`make bench` measures each operation and its *reference* alternately, under the same load, and compares the medians. A
*floor* is what we promise, an *aim* what we would like. Figures below their floor are **bold**. **R** is the disk
alone: single writes of 1 KiB, each with a sync. *64 in flight* means that 64 events wait to be stored at any time.

Measured on: {machine}.

![Durable appends per second with 64 in flight, compared with peers and limits](performance.svg)
"""

TABLES = {
    "In OpenCode": r"time that a hook|starts of|spawn until|end of the work|private copy",
    "Commands": r"start of a command|(streams|log|status|doctor), an|newest 5|log --last",
    "The inspector": r"first paint|all of a session|jump to|step of|(search|list|costs|comparison) of the page|"
    r"the page itself|memory of `inspect`",
    "A million events": r".*1 M events|memory gained|the same query",
    "Hooks, NATS": r"hook to|last ack|mirror|team|command to|commands: ",
    "The log": r"",
}
"""The tables of the page, and the beginnings of the rows in them: a row is in the first table that it fits."""

PROMPTS = re.compile(r"prompts in (OpenCode \d), (.+)")
"""A row of the table of prompts: the version and the state of sidecar, spool or disk."""

SAID = re.compile(r",? 1 M events|(?<=blocks) OpenCode")
"""What the heading of a row's table says already."""


def page(figures: dict[str, Any], notes: str) -> str:
    """Return the page. ``notes`` is the hand-written part below the tables, kept unchanged."""
    tables: dict[str, list[str]] = {name: [] for name in TABLES}
    peers: dict[str, list[dict[str, Any]]] = {}
    prompts: dict[str, list[dict[str, Any]]] = {}
    for row in figures["rows"]:
        if row["verdict"] in ("ahead", "behind"):
            peers.setdefault(row["unit"], []).append(row)
        elif match := PROMPTS.fullmatch(row["path"]):
            prompts.setdefault(match[2], []).append(row)
        else:
            tables[next(name for name, begin in TABLES.items() if re.match(begin, row["path"]))].append(_row(row))
    shown = [
        f"### {name}\n\n| | measured | reference | floor–aim |\n|---|---:|---:|---:|\n" + "\n".join(rows) + "\n"
        for name, rows in tables.items()
    ]
    if prompts:
        head = "| state | OpenCode 1 | OpenCode 2 |\n|---|---:|---:|\n"
        rows = "".join(f"| {state} | {' | '.join(map(_prompt, cells))} |\n" for state, cells in prompts.items())
        shown.append(f"### Prompts, compared with OpenCode without the plugin\n\n{head}{rows}")
    if peers:
        shown.append(
            "### Peers, 64 in flight or 64 a call\n\n| peer | its speed | the log |\n|---|---:|---:|\n"
            + "".join(_peer(name, rows) for name, rows in peers.items())
        )
    return HEAD.format(machine=figures["machine"]) + "\n" + "\n".join(shown) + notes


def _prompt(row: dict[str, Any]) -> str:
    """The ratio, and the interval that holds it with 95% confidence."""
    mark = "**" if row["verdict"] == "BELOW FLOOR" else ""
    return f"{mark}{row['figure']:.2f}{mark} ({row['interval'][0]:.2f}–{row['interval'][1]:.2f})"


def _row(row: dict[str, Any]) -> str:
    if row["limit"]:
        value = f"{row['value']:,.{0 if row['limit'] >= 100 else 2}f}/s"
        figure = ratio(row, "**" if row["verdict"] == "BELOW FLOOR" else "")
    else:
        value, figure = f"{row['value']:.3g} {row['unit']}", ""
        value = f"**{value}**" if row["verdict"] == "BELOW FLOOR" else value
    range_ = "" if row["floor"] is None else f"{row['floor']:g}–{row['aim']:g}"
    cells = [SAID.sub("", row["path"]), value, figure, range_]
    return "|" + "|".join(f" {cell} " if cell else "" for cell in cells) + "|"


def _peer(name: str, rows: list[dict[str, Any]]) -> str:
    ours = " | ".join(f"{row['figure']:.2f} ×" for row in sorted(rows, key=lambda row: str(row["path"])))
    return f"| {name} | {rows[0]['limit']:,.0f}/s | {ours} |\n"


def bars(figures: dict[str, Any]) -> list[tuple[str, float, str]]:
    """(label, events a second, "ours", "peer" or "limit") of every way to store events with 64 in flight."""
    found: list[tuple[str, float, str]] = []
    peers: dict[str, list[float]] = {}
    for row in figures["rows"]:
        if row["verdict"] in ("ahead", "behind"):
            peers.setdefault(row["unit"], []).append(row["limit"])
            continue
        if row["path"] in OURS:
            found.append((OURS[row["path"]], row["value"], "ours"))
        if row["path"] in LIMITS:
            found.append((LIMITS[row["path"]], row["value"], "limit"))
    found += [(name, statistics.median(rates), "peer") for name, rates in peers.items()]
    return sorted(found, key=lambda bar: bar[1])


def digest(figures: dict[str, Any]) -> str:
    """The digest of the bars and the machine that the plot shows."""
    return sha256(json.dumps([figures["machine"], bars(figures)]).encode()).hexdigest()


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw the bars; needs the extra ``bench``."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.hashsalt": "performance", "svg.fonttype": "none", "font.size": 10}
    colours = {"ours": "#0b7285", "peer": "#868e96", "limit": "#dee2e6"}
    shown = bars(figures)
    picture, axes = pyplot.subplots(figsize=(8.5, 0.42 * len(shown) + 1.3), layout="constrained")
    drawn = axes.barh([bar[0] for bar in shown], [bar[1] for bar in shown], color=[colours[bar[2]] for bar in shown])
    axes.bar_label(drawn, labels=[f"{bar[1]:,.0f}" for bar in shown], padding=4)
    axes.set_xscale("log")
    axes.set_xlim(left=min(bar[1] for bar in shown) / 4, right=max(bar[1] for bar in shown) * 4)
    axes.set_xlabel("durable events of 1 KiB a second, 64 in flight (logarithmic)")
    axes.set_title(figures["machine"], fontsize=9, color="#495057", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, metadata={"Date": None, "Description": f"figures {digest(figures)}"})


def main(arguments: list[str]) -> int:
    """Write or check the page and the plot."""
    figures = json.loads(FIGURES.read_text())
    is_drawn = PLOT.exists() and digest(figures) in PLOT.read_text()
    old = PAGE.read_text() if PAGE.exists() else ""
    # Keep the notes, which begin with the first heading of the second level.
    begin = old.find("\n## ")
    wanted = page(figures, old[begin:] if begin >= 0 else "")
    if "--check" in arguments:
        for name, is_right in (("md", old == wanted), ("svg", is_drawn)):
            if not is_right:
                print(f"docs/performance.{name} does not match its figures: run `make docs`", file=sys.stderr)
        return int(old != wanted or not is_drawn)
    PAGE.write_text(wanted)
    if not is_drawn:
        draw(figures, PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
