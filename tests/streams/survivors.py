"""What must remain of the script's log, wherever it was cut off."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

from streams.hashing import is_digest
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.store import NOTHING, Record
from tests.streams.databases import ask
from tests.streams.derivers import are_right, caught_up
from tests.streams.opened import collect, faults
from tests.streams.script import CURSOR, SNAPSHOT, VERSION, batches, open_log, play, removals, state_at

HINTS_AHEAD: Final = "SELECT count(*) FROM hints WHERE position > (SELECT position FROM head)"


@cache
def whole(length: int) -> tuple[list[Record], frozenset[int]]:
    """The records of an undisturbed run, and the number of records after each batch."""
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory) / "store", records.extend, length))
    return records, frozenset(accumulate(map(len, batches(length)), initial=0))


@dataclass(frozen=True, slots=True)
class Lost:
    """The pruned positions, and those with forgotten payloads, after some of the script's removals."""

    appended: int
    pruned: frozenset[int] = frozenset()
    forgotten: frozenset[int] = frozenset()


@cache
def lost_after(length: int) -> list[Lost]:
    """What is lost on purpose after none of the script's removals, after the first, …"""
    records, _ = whole(length)
    found = [Lost(0)]
    for appended, step in removals(length):
        these = {
            record.position for record in records[:appended] if record.offset < step.upto.get(record.event.stream_id, 0)
        }
        pruned, forgotten = found[-1].pruned, found[-1].forgotten
        if step.how == "prune":
            found.append(Lost(appended, pruned | these, forgotten))
        else:
            found.append(Lost(appended, pruned, forgotten | these))
    return found


def is_of(found: Sequence[Record], records: Sequence[Record]) -> bool:
    """True if everything found was written, in that order; forgotten payloads may differ."""
    in_order = all(one.position < two.position for one, two in pairwise(found))
    return in_order and all(_is_same(record, records[record.position]) for record in found)


def _is_same(found: Record, written: Record) -> bool:
    """The hash represents the rest of the event, because ``verify`` recomputes it."""
    places = (found.position, found.offset, found.hash) == (written.position, written.offset, written.hash)
    return places and (found.event == written.event or is_digest(found.event.payload))


def fits(left: Sequence[Record], count: int, lost: Lost, *, again: bool = False) -> bool:
    """True if of the first ``count`` records exactly the lost ones are missing or forgotten.

    ``again``: the script was played to its end once more. Forgetting a stream takes all of it that is there, so it may
    have taken more than the first time.
    """
    positions = [position for position in range(count) if position not in lost.pruned]
    digests = {record.position for record in left if is_digest(record.event.payload)}
    forgotten = lost.forgotten - lost.pruned
    return (
        lost.appended <= count
        and [record.position for record in left] == positions
        and (digests >= forgotten if again else digests == forgotten)
    )


def holding(store: Path, records: Sequence[Record], positions: frozenset[int]) -> list[str]:
    """The files that hold a word of one of these records."""
    words = [str(records[position].event.payload["text"]).partition(".")[0] + "." for position in positions]
    files = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    return [f"{path.name}: {word}" for path, data in files.items() for word in words if word.encode() in data]


async def version_of(store: Path) -> int:
    """The version of the derived tables in an image, or a new one, in turn."""
    reader = LogReader(store)
    for version in range(1, 9):
        tables = await asyncio.to_thread(reader.derived, version)
        if tables is not None:
            tables.close()
            await reader.close()
            assert await are_right(store, version) <= tables.head
            return version + tables.head % 2
    await reader.close()
    return 1


async def check(
    store: Path, length: int, acked: int, removed: int, *, power_lost: bool, again: bool
) -> tuple[int, bool]:
    """Open what is left and compare it; how many records survived, and whether a tail was torn.

    ``acked`` records were acknowledged, and ``removed`` removals; the next one may have begun. After a power loss
    the head file may be an older one, so that a reader sees less than that until the log was opened for writing.
    ``again``: the script is played to its end then.
    """
    records, ends = await asyncio.to_thread(whole, length)
    possible = lost_after(length)[removed : removed + 2]
    reader = LogReader(store)
    seen = await collect(reader.read_all())
    await reader.close()
    assert is_of(seen, records), "a reader sees what was written"
    there = {record.position for record in seen}
    reached = max(there, default=NOTHING) + 1 if power_lost else acked
    assert there >= set(range(reached)) - possible[-1].pruned, "a reader sees what was acknowledged"
    assert not there & possible[0].pruned, "what was pruned does not come back"
    hidden = {record.position for record in seen if is_digest(record.event.payload)}
    assert possible[0].forgotten & there <= hidden <= possible[-1].forgotten, "nor what was forgotten"
    found = [finding async for finding in Verification(store).run()] if (store / "store.json").exists() else []
    # A store that is cut off while it is made may have a name and no file yet; the next opening makes it.
    wrong = [str(finding) for finding in found if finding.kind != "torn"] if acked or seen else []
    assert wrong == [], wrong
    if removed and not power_lost:
        assert holding(store, records, possible[0].forgotten) == [], "a kill brings no word back"
    version = await version_of(store)
    log = await open_log(store, version)
    try:
        assert await asyncio.to_thread(ask, store, HINTS_AHEAD) == 0, "no hint is ahead of the database"
        left = await collect(log.read_all())
        count = log.head + 1
        assert count >= acked, f"{acked} were acknowledged, {count} are there"
        assert is_of(left, records) and count in ends, "nothing invented, batches whole"
        assert any(fits(left, count, lost) for lost in possible), "a removal is wholly done or not begun"
        assert count > max(there, default=NOTHING), "what a reader saw stays"
        for position in {NOTHING, await log.cursor(CURSOR)} - {NOTHING}:
            assert position < count and position + 1 in ends
        snapshot = await log.snapshot(SNAPSHOT, VERSION)
        assert snapshot is None or snapshot.state == state_at(snapshot.position)
        was_torn = log.torn is not None
        await caught_up(log)
    finally:
        await log.close()
    assert await are_right(store, version) == count - 1
    assert holding(store, records, possible[0].forgotten) == []
    assert await faults(store) == []
    if again:
        told: list[Record] = []
        await play(store, told.extend, length)
        assert [record.hash for record in told] == [record.hash for record in records]
        reader = LogReader(store)
        left = await collect(reader.read_all())
        await reader.close()
        assert is_of(left, records), "played to its end, nothing is changed and nothing twice"
        assert fits(left, len(records), lost_after(length)[-1], again=True), "nor is anything missing"
    return count, was_torn
