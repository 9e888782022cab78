"""A process that appends ``everything`` to a log with the story's tables, and says so after each append.

``python -m tests.sidecar.read.story.writer STORE``. The mover never rests, and sessions rest at once.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from sidecar.read.story import session_fold
from sidecar.read.story.writing import StoryTables
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.stores.journal import mover
from tests.sidecar.read.story.playing import everything


async def main(store: Path) -> None:
    log = await Log.open(store, seeded_identity(1), derived=StoryTables())
    records = everything()
    for begin in range(log.head + 1, len(records), 2):
        await log.append([record.event for record in records[begin : begin + 2]])
        print(begin, flush=True)
    await log.close()


with pytest.MonkeyPatch.context() as patch:
    patch.setattr(mover, "PAUSE_SECONDS", 0.0)
    patch.setattr(session_fold, "MOST_LIVE", 2)
    asyncio.run(main(Path(sys.argv[1])))
