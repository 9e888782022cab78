"""A session whose row is damaged ends recording, instead of going on with another state."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from bridge.opencode.capture.translate import Origin, Translator
from sidecar.record.ingest import Ingest
from streams.errors import ForeignStore
from streams.identity import seeded_identity
from streams.stores.sqlite.kept import KeptRows
from tests.bridge.opencode.playing import recording
from tests.memory import MemoryStore


async def test_a_damaged_row_of_a_session_at_rest_ends_recording(tmp_path: Path) -> None:
    """The next sidecar makes the rows anew, and gets the hooks again."""
    origin, hooks = Origin("b" * 32, "1" * 16), [item for _, item in recording("chat")]
    identity = seeded_identity(1)
    ingest = Ingest(MemoryStore(), Translator(identity), identity.now_ms)
    ingest.take(origin, 1, hooks[:-1], None)
    assert await ingest.at_most(0, origin)
    sessions, rows = ingest._translator.state.sessions, KeptRows(tmp_path, "capture", 1, 10)
    rows.put(0, b"", sessions.changes())
    sessions.saved(rows, 0)
    with closing(sqlite3.connect(tmp_path / "hints" / "capture.db")) as connection, connection:
        connection.execute("UPDATE rows SET body = x'00'")
    ingest.take(origin, len(hooks), hooks[-1:], None)
    assert isinstance(ingest.failed.result(), ForeignStore)
    assert KeptRows(tmp_path, "capture", 1, 10).snapshot is None
    rows.close()
    await ingest.close()
