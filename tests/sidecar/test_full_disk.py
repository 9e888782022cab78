"""The log's disk fills while a real shim sends to a real sidecar.

The sidecar acknowledges nothing more, says why and exits; the shim's spool keeps new hooks; once there is space,
everything is recorded once. The disk is a small separate one if this user may mount it; otherwise a sidecar starts
with a limit on file sizes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from sidecar.home import Home
from streams.log.reader import LogReader
from streams.log.verify import Verification
from tests.mounts import can_mount, mounted
from tests.sidecar.cli.helpers import run
from tests.sidecar.life import COMMAND, end_sidecars, logged, shims, status
from tests.sidecar.support import wait_for

LIMITED = (
    sys.executable,
    "-c",
    "; ".join(
        [
            "import pathlib, resource, sys",
            "limit = pathlib.Path(sys.argv[2], 'limit')",
            "bytes_ = int(limit.read_text()) if limit.exists() else -1",
            "resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, -1))",
            "sys.dont_write_bytecode = True",
            "from sidecar.cli import main",
            "main()",
        ]
    ),
)
"""A sidecar whose files may not grow beyond what the file ``limit`` in its home says."""

TEXT = "x" * 4000
FIRST, MORE = 20, 400


async def recorded(home: Home) -> Counter[int]:
    found: Counter[int] = Counter()
    reader = LogReader(home.store_path)
    async for record in reader.read_all():
        if record.event.type == "opencode.life.tick":
            found[record.event.payload["properties"]["n"]] += 1
    await reader.close()
    return found


def small(home: Home, stack: ExitStack) -> tuple[tuple[str, ...], Callable[[], None]]:
    """Make the log's disk small; return a sidecar's command for it, and a function that gives it space again."""
    if can_mount():
        stack.enter_context(mounted(home.store_path, "16m"))
        ballast = home.store_path / "ballast"
        ballast.write_bytes(bytes(15 * 2**20))
        return COMMAND, ballast.unlink
    limit = home.path / "limit"
    limit.write_text("600000")
    return LIMITED, limit.unlink


async def test_the_spool_bridges_a_full_disk(home: Home) -> None:
    with ExitStack() as stack:
        command, give_space = small(home, stack)
        stack.callback(end_sidecars, home)
        with shims(1, home.path, command=list(command)) as (shim,):
            shim.ask("events", **{"from": 1}, count=FIRST, text=TEXT)
            shim.until("acked", FIRST)
            shim.ask("events", **{"from": FIRST + 1}, count=MORE, text=TEXT)
            wait_for(lambda: "stopped: the log could not be written" in logged(home), "the sidecar stops")
            full = shim.ask("counters")
            acked = full["acked"]
            seen = await recorded(home)
            assert FIRST <= acked < FIRST + MORE and all(seen[n] == 1 for n in range(1, acked + 1))
            told = logged(home)
            assert "free disk space" in told and "Traceback" not in told
            assert TEXT[:100] not in told
            problems = str(status(home))
            assert "space" in problems or "full" in problems or "log could not be written" in problems, problems
            give_space()
            shim.until("acked", FIRST + MORE)
        assert await recorded(home) == dict.fromkeys(range(1, FIRST + MORE + 1), 1)
        run(home.path, "stop")
        assert [str(finding) async for finding in Verification(home.store_path).run()] == []
