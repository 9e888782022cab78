"""How long opening takes after a crash: a figure for ``make torture``, not asserted.

The log has a torn tail and a head no newer than its middle, or a WAL without any checkpoint.
``TORTURE_RECOVERED`` sets its number of events.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from streams.identity import seeded_identity
from streams.log.log import Log
from streams.stores.directory import Backend
from streams.stores.jsonl.segments import list_segments
from tests.streams.builders import event
from tests.streams.opened import collect
from tests.streams.sizes import size
from tests.torture.figures import note, rss_mib

EVENTS = size("RECOVERED", 1500)
TEXT = "x" * 600


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_a_crashed_log_opens_whole(tmp_path: Path, backend: Backend) -> None:
    identity = seeded_identity(1)
    log = await Log.open(tmp_path / "store", identity, backend=backend)
    for begin in range(0, EVENTS, 500):
        await log.append(
            [
                event(f"{n}", stream=f"ses_{n % 40}", identity=identity, payload={"text": TEXT})
                for n in range(begin, begin + 500)
            ]
        )
    # As it is on the disk now, without the closing that would tidy it.
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "store", crashed)
    await log.close()
    if backend == "jsonl":
        with list_segments(crashed / "log")[-1].path.open("ab") as segment:
            segment.write(b'{"crc":"a torn tail')
    else:
        assert (crashed / "log.db-wal").stat().st_size > 0
    before, began = rss_mib(), time.perf_counter()
    log = await Log.open(crashed, identity)
    took = time.perf_counter() - began
    grown = rss_mib() - before
    assert log.head == EVENTS - 1 and (log.torn is not None) == (backend == "jsonl")
    tail = await collect(log.read_all(after=EVENTS - 10))
    assert [record.position for record in tail] == list(range(EVENTS - 9, EVENTS))
    await log.close()
    note(
        f"recovery {backend}",
        events=EVENTS,
        open_s=took,
        open_s_per_100k=took * 100_000 / EVENTS,
        grown_mib=grown,
    )
