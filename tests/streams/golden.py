"""Small stores of every format ever written, kept unchanged: each later version must open them.

``python -m tests.streams.golden NAME`` adds a store. An existing store is never rewritten: that would break the
promise instead of keeping it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from bridge.opencode.capture.state import STATE_VERSION, CaptureState
from sidecar.care.snapshots import CaptureSnapshot
from streams.hashing import canonical
from streams.identity import seeded_identity
from streams.lineage import Lineage, Session
from streams.log.log import Log
from streams.log.migrate import Migration
from streams.log.reader import LogReader
from streams.store import Snapshot, StreamReader
from streams.stores.directory import Backend, read_manifest
from tests.bridge.opencode.playing import dumped, play
from tests.streams.opened import collect, faults

FOLDER: Final = Path(__file__).with_name("golden")
PLAYED: Final = ("task_child", "two_queued", "fork")


def state_hash(lineage: Lineage[Session]) -> str:
    return sha256(canonical(lineage.state())).hexdigest()


def names() -> list[str]:
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


async def described(reader: StreamReader, backend: Backend) -> dict[str, Any]:
    """Everything that a store must always give back unchanged."""
    records = await collect(reader.read_all())
    state, lineage = CaptureState(), Lineage(Session)
    for record in records:
        state.apply(record.event)
        lineage.apply(record)
    tails = {record.event.stream_id: record.hash for record in records}
    return {
        "backend": backend,
        "records": len(records),
        "tails": tails,
        "lineage": state_hash(lineage),
        "capture": {"version": STATE_VERSION, "sha256": sha256(dumped(state)).hexdigest()},
    }


async def write(name: str, backend: Backend, *, moved: bool) -> None:
    """Write a store that was moved to ``backend``, or that began there."""
    store = FOLDER / name
    other: Backend = "sqlite" if backend == "jsonl" else "jsonl"
    log = await Log.open(store, seeded_identity(1), backend=other if moved else backend, segment_bytes=30_000)
    state = CaptureState()
    for number, played in enumerate(PLAYED):
        for event in play(played).log.events.values():
            for record in await log.append([event], on_known="keep_first"):
                state.apply(record.event)
        if number == 1:
            await CaptureSnapshot(log, state).keep()
            await log.put_snapshot("older", Snapshot(1, log.head, b'{"sessions":{}}'))
            await log.advance("mirror", log.head)
    if moved:
        await Migration(log, backend).run()
    description = await described(log, backend)
    await log.close()
    for path in [store / "lock", *store.glob("log.db-*"), *store.glob("search.db*")]:
        path.unlink(missing_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(description, indent=1) + "\n")


async def opened(name: str, to: Path) -> tuple[Log, LogReader, Backend]:
    """A copy of a kept store, for writing and for reading."""
    shutil.copytree(FOLDER / name, to)
    manifest = read_manifest(to)
    assert manifest is not None
    assert await faults(to) == []
    return await Log.open(to, seeded_identity(2)), LogReader(to), manifest.backend


if __name__ == "__main__":
    backend_, how = sys.argv[2:]
    assert backend_ in ("jsonl", "sqlite") and not (FOLDER / sys.argv[1]).exists()
    asyncio.run(write(sys.argv[1], backend_, moved=how == "moved"))  # type: ignore[arg-type]
