"""A reader opens the catalog of a log once, and asks again when the log has grown."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sidecar.background.board import open_board
from sidecar.inspector.data import Data
from sidecar.read.find_by_id import Families, ask_catalog, catalog_of, family_of
from sidecar.read.story.writing import StoryTables
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from tests.sidecar.read.story.playing import everything
from tests.streams.derivers import caught_up


async def test_nothing_that_waits_holds_the_log(tmp_path: Path) -> None:
    """Only a command holds a snapshot; what asks again when something was recorded leaves the log alone meanwhile."""
    log = await Log.open(tmp_path / "store", seeded_identity(1), derived=StoryTables())
    records = everything()[:60]
    await log.append([record.event for record in records])
    await caught_up(log)
    reader = LogReader(log.store)

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    def is_held() -> bool:
        """Whether somebody still reads an older state of the database, so that its WAL cannot begin anew."""
        with closing(sqlite3.connect(log.store / "log.db", isolation_level=None, timeout=0)) as db:
            db.execute("UPDATE live SET state = state || ' '")  # a change that a reader of before does not see
            return bool(db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0])

    stream = records[0].event.stream_id
    data, families = Data(tmp_path, reader, seeded_identity(1).now_ms, nothing, nothing), Families(reader)
    kept = [
        await data.sessions(),
        await data.session(stream, None),
        await data.search("a"),
        await data.work(),
        await open_board(reader),
        await family_of(reader, stream),
        await families.of(records[0]),
        await ask_catalog(reader, lambda catalog: catalog.asks()),
    ]
    assert all(each is not None for each in kept) and not is_held()
    catalog, _ = await catalog_of(reader)
    assert is_held() and catalog.position == log.head
    await reader.close()
    await log.close()
