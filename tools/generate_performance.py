"""Write ``docs/performance.md`` from the figures of a run: ``docs/performance.json``, as ``make bench`` gave them.

python -m benchmarks --json docs/performance.json
python tools/generate_performance.py          write the page
python tools/generate_performance.py --check  exit 1 when the page is not what the figures say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, FIGURES = DOCS / "performance.md", DOCS / "performance.json"

HEAD = """# Performance

`make bench` measures every row in one run beside its limit, in turns and in short slices, so that both meet the same
machine, and compares the medians. **R** is what the disk alone gives: writes of 1 KiB, each followed by its own sync,
one by one. Events have about 1 KiB. A figure is a ratio to the limit, or a time; *floor* is what we promise, *aim*
where we want to be. A time is never asserted in a test.

The run below was made on: {machine}.

| path | measured | limit | figure | floor | aim | |
|---|---:|---:|---:|---:|---:|---|
"""


def page(figures: dict[str, Any], notes: str) -> str:
    """The page's text. ``notes`` is what people wrote below the table; it is kept."""
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


def main(arguments: list[str]) -> int:
    """Write or check the page."""
    old = PAGE.read_text() if PAGE.exists() else ""
    # The notes begin with the first heading below the table.
    begin = old.find("\n## ")
    wanted = page(json.loads(FIGURES.read_text()), old[begin:] if begin >= 0 else "")
    if "--check" in arguments:
        if old != wanted:
            print("docs/performance.md is not what its figures say: run `make docs`", file=sys.stderr)
        return int(old != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
