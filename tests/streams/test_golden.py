"""Replay gives the same state to the byte, from a snapshot and from the beginning, in every process.

The tests replay the recordings in ``tests/recordings``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from bridge.opencode.capture.state import CaptureState
from streams import hashing
from streams.log.log import Log
from tests.bridge.opencode.playing import RECORDINGS, dumped, names, play
from tests.bridge.opencode.rows import MemoryRows
from tests.streams.builders import IDENTITY, event
from tests.streams.opened import faults


async def test_a_log_of_a_library_that_wrote_exponents_otherwise_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = {"large": 1e20, "text": "1e+20"}
    log = await Log.open(tmp_path, IDENTITY)
    try:
        with monkeypatch.context() as patch:
            older = SimpleNamespace(**vars(orjson))
            older.dumps = lambda value, option: orjson.dumps(value, option=option).replace(b":1e+20,", b":1e20,")
            patch.setattr(hashing, "orjson", older)
            records = await log.append([event("a", payload=payload), event("b", payload=payload)])
        await log.append([event("c", payload=payload)])
        assert await faults(tmp_path) == []
        await log.forget([], positions=[records[1].position], at_ms=1)
        assert await faults(tmp_path) == []
    finally:
        await log.close()


async def _folded(log: Log) -> bytes:
    state = CaptureState()
    async for record in log.read_all():
        state.apply(record.event)
    return dumped(state)


@pytest.mark.parametrize("name", names())
def test_a_snapshot_anywhere_gives_the_state_of_a_whole_replay(name: str) -> None:
    events = list(play(name).log.events.values())
    whole = CaptureState()
    for each in events:
        whole.apply(each)
    for at in range(0, len(events) + 1, 1 + len(events) // 25):
        state = CaptureState()
        for each in events[:at]:
            state.apply(each)
        rest, changes = state.changes()
        rows = MemoryRows()
        rows.put(changes)
        resumed = CaptureState.load(rest, rows)
        assert dumped(resumed) == dumped(state)
        for each in events[at:]:
            resumed.apply(each)
        assert dumped(resumed) == dumped(whole), f"from a snapshot after {at} of {len(events)}"


HASHES = """
import sys
from hashlib import sha256
from bridge.opencode.capture.state import CaptureState
from streams.lineage import Lineage, Session
from streams.hashing import canonical
from streams.store import Record
from tests.bridge.opencode.playing import dumped, play

for name in sys.argv[1:]:
    state, lineage = CaptureState(), Lineage(Session)
    for position, event in enumerate(play(name).log.events.values()):
        state.apply(event)
        lineage.apply(Record(event, 0, position, ""))
    print(name, sha256(dumped(state)).hexdigest(), sha256(canonical(lineage.state())).hexdigest())
"""


def test_every_process_comes_to_the_same_bytes() -> None:
    """Whatever Python's hash seed: a set's order differs between processes."""
    played = [name for name in names() if (RECORDINGS / f"{name}.jsonl").stat().st_size < 200_000][::6]
    told = {
        subprocess.run(
            [sys.executable, "-c", HASHES, *played],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(RECORDINGS.parents[1]), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(told) == 1 and told.pop().count("\n") == len(played)
