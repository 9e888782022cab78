"""Older events are read as the newest version; what finds and identifies a record never changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streams.event import SCHEMA_VERSION, StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.migrate import Migration
from streams.upcast import UPCASTERS
from tests.streams.builders import event
from tests.streams.opened import collect, faults


def fields(version: int, **more: Any) -> dict[str, Any]:
    return {**event("a").fields(), "schema_version": version, **more}


def test_every_version_before_todays_leads_to_todays() -> None:
    assert set(UPCASTERS) == set(range(1, SCHEMA_VERSION))


def test_an_event_with_a_forgotten_payload_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = fields(0, payload={"$sha256": "0" * 64})
    monkeypatch.setitem(UPCASTERS, 0, lambda found: {**found, "payload": {"name": found["payload"]["tool"]}})
    assert StreamEvent.trusted(dict(forgotten)).fields() == {**forgotten, "schema_version": 1}


@pytest.mark.parametrize("to", ["sqlite", "jsonl"])
async def test_a_move_and_verify_work_on_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Any
) -> None:
    log = await Log.open(tmp_path, seeded_identity(1), backend="jsonl" if to == "sqlite" else "sqlite")
    old = [StreamEvent.trusted({**event(f"k{n}").fields(), "schema_version": 0}) for n in range(5)]
    written = await log.append(old)
    monkeypatch.setitem(UPCASTERS, 0, lambda found: {**found, "payload": {"new": True}})
    await Migration(log, to).run()
    records = await collect(log.read_all())
    assert [record.hash for record in records] == [record.hash for record in written]
    assert all(record.event.payload == {"new": True} for record in records)
    await log.close()
    assert await faults(tmp_path) == []
