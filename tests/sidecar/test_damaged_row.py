"""A session whose row is damaged ends recording, instead of going on with another state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.opencode.capture.state import CaptureState
from bridge.opencode.capture.translate import Origin, Translator
from sidecar.care import snapshots
from sidecar.care.snapshots import CaptureSnapshot, restore
from sidecar.record.ingest import Ingest
from streams.errors import ForeignStore
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.bridge.opencode.playing import dumped, recording
from tests.streams.databases import change, garble
from tests.streams.derivers import Texts, caught_up


@pytest.mark.parametrize("damage", ["row", "page"])
async def test_a_damaged_row_of_a_session_at_rest_ends_recording(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sidecar makes the rows anew, and gets the hooks again."""
    monkeypatch.setattr(snapshots, "IN_MEMORY", 0)
    origin, hooks = Origin("b" * 32, "1" * 16), [item for _, item in recording("chat")]
    identity = seeded_identity(1)
    log = await Log.open(tmp_path, identity, derived=Texts())
    await caught_up(log)
    capture = CaptureSnapshot(log, CaptureState())
    ingest = Ingest(log, Translator(identity, capture.state), identity.now_ms)
    ingest.take(origin, 1, hooks[:-1], None)
    assert await ingest.at_most(0, origin)
    capture.save()
    await log.write_hints()
    if damage == "row":
        change(tmp_path, "UPDATE saved_sessions SET body = x'00'")
    else:
        await asyncio.to_thread(log._stored._writing.execute, "PRAGMA wal_checkpoint(TRUNCATE)")
        garble(tmp_path, "saved_sessions")
    ingest.take(origin, len(hooks), hooks[-1:], None)
    assert isinstance(ingest.failed.result(), ForeignStore)
    await ingest.close()
    await log.close()
    log = await Log.open(tmp_path, identity, derived=Texts())
    await caught_up(log)
    again = await restore(log)
    whole = CaptureState()
    async for record in log.read_all():
        whole.apply(record.event)
    again.save()
    await log.write_hints()
    assert dumped(again.state) == dumped(whole) and again.saved == log.head
    await log.close()
