"""The process that ``test_removal_cut_off.py`` kills: it appends, prunes and forgets, and journals each step."""

from __future__ import annotations

import asyncio
import json
from multiprocessing.connection import Connection
from pathlib import Path

from streams.identity import system_identity
from streams.log.log import Log
from streams.stores.directory import Backend
from tests.streams.builders import event

MOST_BETWEEN = 60


def run(store: Path, backend: Backend, number: int, journal: Connection) -> None:
    """Run until killed."""
    asyncio.run(_run(store, backend, number, journal))


async def _run(store: Path, backend: Backend, number: int, journal: Connection) -> None:
    log = await Log.open(store, system_identity(), backend=backend, segment_bytes=1500)

    def tell(*what: object) -> None:
        # One message is one write of less than PIPE_BUF: whole or not there, also when we are killed.
        journal.send_bytes(json.dumps(what).encode())

    since = 0
    """Appends since the last removal: bounded, or a fast machine makes a log whose removals take long."""

    async def append() -> None:
        nonlocal since
        count = 0
        while True:
            if since >= MOST_BETWEEN:
                await asyncio.sleep(0.001)
                continue
            since += 1
            stream, key, text = f"ses_{count % 3}", f"{number}-{count}", "x" * (count % 50)
            (record,) = await log.append([event(key, stream=stream, payload={"text": text})])
            tell("append", stream, key, text, record.position, record.offset, record.hash)
            count += 1
            await asyncio.sleep(0)

    async def remove() -> None:
        nonlocal since
        while True:
            for size in await log.sizes():
                since = 0
                if size.stream_id == "ses_0":
                    cut = (size.first_offset + size.next_offset + 1) // 2
                    await log.prune({"ses_0": cut}, at_ms=1)
                    tell("prune", "ses_0", cut)
                if size.stream_id == "ses_1":
                    await log.forget(["ses_1"], at_ms=1)
                    tell("forget", "ses_1", size.next_offset)
            await asyncio.sleep(0)

    await asyncio.gather(append(), remove())
