"""The list of what was pruned and forgotten is gone, and what was removed shows it.

Without ``removed.json`` a pruned record looks as one that was lost, and a
forgotten payload as one that was taken away. The runs beside it (``removed-<number>.keys``)
still say which records were pruned, and no event is ever recorded with a digest for a
payload: so the cause can be named, and what follows from it is no fault of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from streams.errors import CorruptLog, MissingFile
from streams.retention import ENTRY_BYTES, Entry, Ranges
from streams.stores.disk import read_file
from streams.stores.removed_files import MANIFEST, is_run

_GONE: Final = "the list of what was pruned and forgotten is not there"
_MOST_NAMED: Final = 3


def pruned_by_runs(log: Path) -> Ranges:
    """The positions of pruned records, as the runs in this directory tell them, whether or not a list names those.

    A prune that was cut off before its list was written leaves a run, too: what it names may be there all the same.

    Raises:
        ForeignStore: a run is a symbolic link.
        OSError: one cannot be read.
    """
    positions: list[int] = []
    for path in sorted(log.iterdir()) if log.is_dir() else ():
        if is_run(path.name):
            data = read_file(path)
            whole = len(data) - len(data) % ENTRY_BYTES
            positions += (Entry.unpack(data[at : at + ENTRY_BYTES]).position for at in range(0, whole, ENTRY_BYTES))
    return Ranges().including(sorted(positions))


def explained(log: Path, fault: CorruptLog) -> CorruptLog:
    """The cause of ``fault``, which was met where a record was looked for: the lost list, if the record was pruned."""
    if fault.position is None or (log / MANIFEST).exists() or not pruned_by_runs(log).holds(fault.position):
        return fault
    return MissingFile(str(log / MANIFEST), f"{_GONE}, and record {fault.position} was pruned")


def lost_list_text(pruned: int, forgotten: Mapping[str, int]) -> str:
    """What to say of a list that is gone: how many records it would name, the forgotten ones by stream."""
    told = []
    if pruned:
        told.append(f"{pruned} record{' was' if pruned == 1 else 's were'} pruned, as the digests of them show")
    if forgotten:
        count = sum(forgotten.values())
        names = ", ".join(sorted(forgotten)) if len(forgotten) <= _MOST_NAMED else f"{len(forgotten)} streams"
        records = "1 record has" if count == 1 else f"{count} records have"
        told.append(f"{records} only a digest for a payload (in {names})")
    text = f"{_GONE}: {', and '.join(told)}"
    if pruned:
        return text
    # A list of forgotten records can be made again; what goes on after a pruned one only the list says.
    return f"{text}; if you forgot them, `durable-stream forget` of the same writes it anew, else they were taken away"
