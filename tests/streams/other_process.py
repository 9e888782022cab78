"""A second process for the tests: ``python -m tests.streams.other_process read|hold STORE``.

``read`` answers each line on stdin with a ``JsonlReader``'s view, as JSON.
``hold`` opens the store for writing, prints ``ready`` and waits to be killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from streams.errors import StreamError
from streams.identity import system_identity
from streams.log.reader import LogReader
from streams.stores.jsonl.store import JsonlStore

ROOT = Path(__file__).parents[2]


async def start(*arguments: object) -> asyncio.subprocess.Process:
    """Start this program with ``arguments``, with stdin and stdout as pipes."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.streams.other_process",
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )


async def read(store: Path) -> None:
    reader = LogReader(store)
    while await asyncio.to_thread(sys.stdin.readline):
        seen: dict[str, Any] = {"head": reader.head, "records": [], "error": None}
        try:
            async for record in reader.read_all():
                seen["records"].append([record.position, record.hash])
        except StreamError as error:
            seen["error"] = str(error)
        print(json.dumps(seen), flush=True)


async def hold(store: Path) -> None:
    await JsonlStore.open(store, system_identity())
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    mode, directory = sys.argv[1:]
    asyncio.run({"read": read, "hold": hold}[mode](Path(directory)))
