"""A sidecar, its shim and commands under a wall clock that jumps a year to and fro, or stands still.

Timeouts measured by the wall clock would end links, wait for ever or become negative.
"""

from __future__ import annotations

import re
import sys

import pytest

from sidecar.home import Home
from streams.log.verify import Verification
from tests.sidecar.cli.helpers import run
from tests.sidecar.life import logged, recorded, run_as, shims
from tests.sidecar.support import running

_CLOCKS = {"jumping": "next(jumps) * 31_536_000_000_000_000", "frozen": "1_795_000_000_000_000_000 - real()"}


def under(clock: str) -> tuple[str, ...]:
    """The command of a sidecar whose wall clock is wrong; the monotonic clock, which cannot jump, is right."""
    lines = [
        "import itertools, sys, time",
        "jumps, real = itertools.cycle([0, 1, -1, 0, -1, 1]), time.time_ns",
        f"time.time_ns = lambda: real() + {_CLOCKS[clock]}",
        "time.time = lambda: time.time_ns() / 1e9",
        "from sidecar.cli import main",
        "main()",
    ]
    return (sys.executable, "-c", "; ".join(lines))


@pytest.mark.parametrize("clock", _CLOCKS)
async def test_a_wrong_clock_loses_nothing_and_ends_no_link(home: Home, clock: str) -> None:
    command = under(clock)
    home.config_path.write_text("[link]\nidle_exit_seconds = 600\n")
    with shims(1, home.path, command=list(command)) as (shim,):
        shim.ask("events", **{"from": 1}, count=200)
        counters = shim.until("acked", 200)
        pid = running(home).pid
        for words in (["status"], ["query", "--type", "opencode.*", "--since", "2h"]):
            done = run_as(command, home, *words)
            assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
            assert not re.search(r"-\d+(\.\d+)?(ms|s|m|h)\b", done.stdout), done.stdout
        shim.ask("events", **{"from": 201}, count=50)
        counters = shim.until("acked", 250)
        assert counters["welcomes"] == 1 and running(home).pid == pid, "the one link, the one sidecar"
    assert await recorded(home) == dict.fromkeys(range(1, 251), 1)
    order = [each["position"] for each in run(home.path, "query", "--json").objects()]
    assert order == sorted(order)
    assert "Traceback" not in logged(home)
    assert run_as(command, home, "stop").returncode == 0
    assert [str(finding) async for finding in Verification(home.store_path).run()] == []
