"""``python -m benchmarks [--seconds S] [--only GROUP] [--json FILE]``: measure, print, exit 1 when a floor is missed.

``BENCH_DIR`` is where files are written, ``BENCH_EVENTS`` the length of the long log.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from pathlib import Path

import orjson

from benchmarks import (
    background,
    commands,
    copies,
    inspector,
    link,
    million,
    mirror,
    newest,
    opencode,
    peers,
    runtime,
    shim,
    store,
    team,
    team_reading,
)
from benchmarks.report import Row, table

GROUPS = {
    "store": store.measure,
    "peers": peers.measure,
    "million": million.measure,
    "link": link.measure,
    "mirror": mirror.measure,
    "team": team.measure,
    "team-reading": team_reading.measure,
    "runtime": runtime.measure,
    "shim": shim.measure,
    "commands": commands.measure,
    "newest": newest.measure,
    "inspector": inspector.measure,
    "opencode": opencode.measure,
    "background": background.measure,
    "copies": copies.measure,
}


def machine() -> str:
    """Describe the machine in one line, to interpret the figures."""
    cores = os.cpu_count()
    return f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}"


def main() -> int:
    """Run everything, which takes some twenty minutes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each row (default 4)")
    parser.add_argument("--only", choices=GROUPS, action="append", help="this group of rows; repeatable")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    given = parser.parse_args()
    print(f"{machine()}; {given.seconds:g} s a row; R = raw write and sync of 1 KiB, one by one")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR")) as name:
        for group, measure in GROUPS.items():
            if given.only and group not in given.only:
                continue
            found = asyncio.run(measure(Path(name), given.seconds))
            print(table(found), flush=True)
            rows += found
            # Write the figures after each group, so that an interrupted run does not lose them.
            if given.json is not None:
                figures = {"machine": machine(), "rows": [row.as_json() for row in rows]}
                given.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    return 1 if any(row.verdict == "BELOW FLOOR" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
