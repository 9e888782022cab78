"""Write ``docs/performance.md`` and its plot from the figures of a run in ``docs/performance.json``.

python -m benchmarks --json docs/performance.json
python tools/generate_performance.py          write the page and the plot
python tools/generate_performance.py --check  exit with 1 if they do not match the figures

The plot contains the digest of its figures, so ``--check`` does not need matplotlib.
"""

from __future__ import annotations

import json
import statistics
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, FIGURES, PLOT = DOCS / "performance.md", DOCS / "performance.json", DOCS / "performance.svg"

OURS = {"jsonl append, 64 in flight": "Durable Stream, jsonl", "sqlite append, 64 in flight": "Durable Stream, sqlite"}
LIMITS = {"raw file, 64 lines a sync": "raw file, 64 lines a sync"}

HEAD = """# Performance

Each row of the table compares the speed of an operation with its *limit*: the speed of the reference that the column
`figure` names. `make bench` runs the operation and its reference alternately in short slices, so that both run under
the same load, and compares their medians. **R** is the speed of the disk alone: single writes of 1 KiB, each followed
by a sync. An event takes about 1 KiB. The column `figure` shows the measured speed as a multiple of the limit. Rows
that measure a time or an amount of memory have no limit; their floor and aim apply to the column `measured`. The
*floor* of a figure is what we promise, and the *aim* is what we would like to reach. No test asserts a time. The times
of `durable-stream` commands are the best of several alternating runs, with compiled bytecode, as in an installed
package. *64 in flight* means that 64 events are waiting to be stored at any time. *1 M* means a million events, and
*p50* and *p99* are percentiles. *Serve ready* means that a sidecar that was just started is ready to record. In the
rows *prompts in OpenCode*, the words after the comma say in which state the sidecar, the spool or the disk is.

Unless a note below names another machine, the figures were measured on: {machine}.

![Durable appends per second with 64 in flight, compared with peers and limits](performance.svg)

| path | measured | limit | figure | floor | aim | |
|---|---:|---:|---:|---:|---:|---|
"""


def page(figures: dict[str, Any], notes: str) -> str:
    """Return the page. ``notes`` is the hand-written part below the table, kept unchanged."""
    rows = [_row(row) for row in figures["rows"]]
    return HEAD.format(machine=figures["machine"]) + "\n".join(rows) + "\n" + notes


def _row(row: dict[str, Any]) -> str:
    if row["limit"]:
        digits = 0 if row["limit"] >= 100 else 2
        value, limit = f"{row['value']:,.{digits}f}/s", f"{row['limit']:,.{digits}f}/s"
        figure = f"{row['figure']:.2f} × {row['unit']}"
    else:
        value, limit, figure = f"{row['value']:.3g} {row['unit']}", "", ""
    floor, aim = ("" if row[name] is None else f"{row[name]:g}" for name in ("floor", "aim"))
    return f"| {row['path']} | {value} | {limit} | {figure} | {floor} | {aim} | {row['verdict']} |"


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
        if row["path"] == "sqlite append, 64 in flight":
            found.append((row["unit"], row["limit"], "limit"))
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
    # Keep the notes, which begin with the first heading below the table.
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
