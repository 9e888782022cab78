"""``python -m benchmarks [seconds]``: measure, print, exit 1 when a floor is missed."""

from __future__ import annotations

import asyncio
import platform
import sys

from benchmarks.capture import measure
from benchmarks.report import table


def main() -> int:
    """Run everything; about a minute."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    print(f"{platform.platform()}, Python {platform.python_version()}, {seconds:g} s a row")
    rows = asyncio.run(measure(seconds))
    print(table(rows))
    return 1 if any(row.verdict == "BELOW FLOOR" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
