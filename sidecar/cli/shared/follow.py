"""Follow new records by reading the log's files, without a link to the sidecar.

Following continues while the sidecar is being killed and restarted, and may begin before the log exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from streams.log.reader import LogReader
from streams.store import NOTHING, Record

LOOK_SECONDS = 0.1
"""How often to look for new records. A look takes a quarter of a millisecond. The system's own reports of changes would
be no cheaper, are missing on network disks, and fail when all of the system's watchers are in use."""


async def follow(store: Path, *, after: int = NOTHING) -> AsyncIterator[Record]:
    """Yield every record after position ``after``, then each new record, without end. Cancelling is safe.

    Raises:
        CorruptLog: a record is damaged; all records before it have been yielded.
    """
    reader = LogReader(store)
    while True:
        if reader.head > after:
            async for record in reader.read_all(after=after):
                yield record
                after = record.position
        await asyncio.sleep(LOOK_SECONDS)
