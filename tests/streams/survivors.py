"""What must be left of the script's log, wherever it was cut off."""

from __future__ import annotations

import asyncio
import tempfile
from functools import cache
from itertools import accumulate
from pathlib import Path

from streams.log import LogReader
from streams.store import NOTHING, Record
from streams.stores.directory import Backend
from streams.verify import Verification
from tests.streams.opened import collect
from tests.streams.script import CURSOR, SNAPSHOT, VERSION, batches, open_log, play, state_at


@cache
def whole(start: Backend, length: int) -> tuple[list[Record], frozenset[int]]:
    """What an undisturbed run leaves, and how many records each whole number of batches has."""
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory) / "store", start, records.extend, length))
    return records, frozenset(accumulate(map(len, batches(start, length)), initial=0))


async def check(
    store: Path, start: Backend, length: int, acked: int, *, power_lost: bool, again: bool
) -> tuple[int, bool]:
    """Open what is left and compare it; how many records survived, and whether a tail was torn.

    ``acked`` records were acknowledged. After a power loss the head file may be an older one, so that a reader sees
    less than that until the log was opened for writing. ``again``: the script is played to its end then.
    """
    records, ends = await asyncio.to_thread(whole, start, length)
    reader = LogReader(store)
    seen = await collect(reader.read_all())
    await reader.close()
    assert seen == records[: len(seen)], "a reader sees what was written"
    assert power_lost or len(seen) >= acked, "a reader sees what was acknowledged"
    found = [finding async for finding in Verification(store).run()] if (store / "store.json").exists() else []
    # A store that is cut off while it is made may have a name and no file yet; the next opening makes it.
    wrong = [str(finding) for finding in found if finding.kind != "torn"] if acked or seen else []
    assert wrong == [], wrong
    log = await open_log(store, start)
    try:
        left = await collect(log.read_all())
        assert len(left) >= acked, f"{acked} were acknowledged, {len(left)} are there"
        assert left == records[: len(left)] and len(left) in ends, "nothing invented, batches whole"
        assert len(left) >= len(seen), "what a reader saw stays"
        for position in {NOTHING, await log.cursor(CURSOR)} - {NOTHING}:
            assert position < len(left) and position + 1 in ends
        snapshot = await log.snapshot(SNAPSHOT, VERSION)
        assert snapshot is None or snapshot.state == state_at(snapshot.position)
        was_torn = log.torn is not None
    finally:
        await log.close()
    assert [str(finding) async for finding in Verification(store).run()] == []
    if again:
        told: list[Record] = []
        await play(store, start, told.extend, length)
        assert [record.hash for record in told] == [record.hash for record in records]
        reader = LogReader(store)
        assert await collect(reader.read_all()) == records, "played to its end, nothing is missing and nothing twice"
        await reader.close()
    return len(left), was_torn
