"""Spools of dead processes are taken in once, those of living ones are left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.opencode.translate import Origin, Translator
from sidecar.ingest import Ingest
from sidecar.spools import backlog, take_left
from streams.identity import seeded_identity, system_identity
from streams.store import NOTHING
from streams.stores.memory import MemoryStore
from tests.bridge.playing import recording
from tests.sidecar.support import FakeLink

BOOT, INSTANCE = "a" * 32, "1" * 16


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def ingest(store: MemoryStore) -> AsyncIterator[Ingest]:
    ingest = Ingest(store, Translator(seeded_identity(1), hold_s=0.2))
    yield ingest
    await ingest.close()


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def spool(directory: Path, pid: int, *, name: str = f"{BOOT}-{INSTANCE}.jsonl", tail: str = "") -> Path:
    """A spool as the shim writes it, of a whole recorded chat."""
    header = {"spool": 1, "pid": pid, "started_ms": system_identity().now_ms(), "directory": "/home/ada"}
    lines = [json.dumps(header)]
    for seq, (_, item) in enumerate(recording("chat"), 1):
        fields = {"hook": item.hook, "t": item.t, "input": item.input, "output": item.output}
        lines.append(json.dumps({"seq": seq, "item": fields}))
    path = directory / name
    path.write_text("\n".join(lines) + "\n" + tail)
    path.chmod(0o600)
    return path


async def types(store: MemoryStore) -> list[str]:
    return [record.event.type async for record in store.read_all()]


async def test_a_dead_process_spool_is_taken_in_and_deleted(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    path = spool(tmp_path, dead_pid())
    assert backlog(tmp_path).files == 1 and backlog(tmp_path).bytes > 1000
    assert await take_left(tmp_path, ingest) == len(recording("chat"))
    assert not path.exists()
    assert (await types(store))[0] == "lifecycle.session.created" and len(await types(store)) == 6


async def test_what_was_sent_before_is_not_doubled(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    link = FakeLink(BOOT, INSTANCE)
    ingest.take(Origin(BOOT, INSTANCE), 1, [item for _, item in recording("chat")], link)
    await link.until(range(1, len(recording("chat")) + 1))
    spool(tmp_path, dead_pid())
    await take_left(tmp_path, ingest)
    assert len(await types(store)) == 6


async def test_a_living_process_keeps_its_spool(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    path = spool(tmp_path, os.getpid())
    assert await take_left(tmp_path, ingest) == 0
    assert path.exists() and await types(store) == []


async def test_a_linked_instance_empties_its_own_spool(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    ingest.opened(FakeLink(BOOT, INSTANCE))
    path = spool(tmp_path, dead_pid())
    assert await take_left(tmp_path, ingest) == 0
    assert path.exists()


async def test_a_pid_that_another_program_has_now_is_a_dead_process(
    tmp_path: Path, store: MemoryStore, ingest: Ingest
) -> None:
    path = spool(tmp_path, os.getpid())
    lines = path.read_text().split("\n")
    header = json.loads(lines[0]) | {"started_ms": 1}
    path.write_text("\n".join([json.dumps(header), *lines[1:]]))
    await take_left(tmp_path, ingest)
    assert not path.exists() and len(await types(store)) == 6


async def test_a_torn_last_line_is_told_as_a_gap(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    spool(tmp_path, dead_pid(), tail='{"seq": 99, "item": {"hook": "ev')
    await take_left(tmp_path, ingest)
    gaps = [r.event async for r in store.read_all() if r.event.type == "capture.gap"]
    assert len(gaps) == 1 and gaps[0].payload["lost"] == 1 and gaps[0].payload["reason"] == "spool_damaged"


async def test_foreign_files_are_left_alone(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_text("precious\n")
    directory = tmp_path / "spool"
    directory.mkdir()
    (directory / f"{BOOT}-{INSTANCE}.jsonl").symlink_to(outside)
    (directory / "notes.jsonl").write_text("not ours\n")
    assert await take_left(directory, ingest) == 0
    assert outside.read_text() == "precious\n" and (directory / "notes.jsonl").exists()


async def test_no_directory_is_no_backlog(tmp_path: Path, ingest: Ingest) -> None:
    assert backlog(tmp_path / "none").files == 0
    assert await take_left(tmp_path / "none", ingest) == 0


async def test_a_spool_of_an_excluded_project_is_deleted_unread(tmp_path: Path, store: MemoryStore) -> None:
    ingest = Ingest(store, Translator(seeded_identity(1), hold_s=0.2), exclude=[Path("/home/ada")])
    path = spool(tmp_path, dead_pid())
    assert await take_left(tmp_path, ingest) == 0
    assert not path.exists() and store.head == NOTHING and ingest.excluded > 0
    await ingest.close()


async def test_one_that_its_shim_left_is_taken_while_its_process_lives(
    tmp_path: Path, store: MemoryStore, ingest: Ingest
) -> None:
    left = spool(tmp_path, os.getpid(), name=f"{BOOT}-{INSTANCE}.left0.jsonl")
    held = spool(tmp_path, os.getpid())
    assert await take_left(tmp_path, ingest) > 0
    assert held.exists() and not left.exists() and len(await types(store)) == 6


async def test_one_that_cannot_be_removed_is_told_and_stops_nobody(
    tmp_path: Path, ingest: Ingest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool(tmp_path, dead_pid())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert await take_left(tmp_path, ingest) == 0
    assert "cannot be removed: Permission denied" in caplog.text
