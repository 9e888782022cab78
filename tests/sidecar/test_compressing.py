"""Compressing in the sidecar: when it is done, when it is not, and that no command sees a difference."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.state import CaptureState
from bridge.opencode.translate import Translator
from sidecar.config import StoreConfig
from sidecar.upkeep import Upkeep
from streams.errors import StoreUnavailable
from streams.identity import seeded_identity
from streams.log import Log
from streams.migrate import Progress
from streams.stores.disk import Disk
from streams.stores.rewriting import Compressed
from tests.sidecar.cli.helpers import append, compress_closed, events_of, run
from tests.streams.builders import events
from tests.streams.disks import FaultyDisk

HANG_S = 30


async def filled(store: Path, disk: Disk | None = None) -> Log:
    log = await Log.open(store, seeded_identity(1), disk=disk, segment_bytes=1500)
    for number in range(8):
        await log.append(events(2, prefix=f"{number}-"))
    return log


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    log = await filled(tmp_path / "store")
    yield log
    await log.close()


def upkeep_of(log: Log, *, quiet: bool = True, migrate_at_bytes: int = 0, compress: bool = True) -> Upkeep:
    return Upkeep(
        log,
        CaptureState(),
        lambda: quiet,
        lambda: 0,
        config=StoreConfig(migrate_at_bytes=migrate_at_bytes, compress=compress),
    )


def compressed(log: Log) -> int:
    sizes = log.file_sizes()
    assert sizes is not None
    return sizes.compressed


async def test_each_look_compresses_one_segment(log: Log) -> None:
    upkeep = upkeep_of(log)
    before = upkeep.segments()
    assert before is not None and before["compressed"] == 0 and before["bytes"] == before["disk_bytes"]
    for number in range(1, before["files"]):
        await upkeep.look()
        assert upkeep.compressed == compressed(log) == number
    await upkeep.look()
    after = upkeep.segments()
    assert after is not None and after["compressed"] == after["files"] - 1 == upkeep.compressed > 2
    assert after["bytes"] == before["bytes"] > after["disk_bytes"]
    await upkeep.close()


@pytest.mark.parametrize(("quiet", "compress"), [(False, True), (True, False)])
async def test_it_waits_for_quiet_and_can_be_switched_off(log: Log, quiet: bool, compress: bool) -> None:
    upkeep = upkeep_of(log, quiet=quiet, compress=compress)
    await upkeep.look()
    assert upkeep.compressed == compressed(log) == 0
    await upkeep.close()


async def test_a_move_and_a_compression_wait_for_each_other(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, entered, order = asyncio.Event(), asyncio.Event(), []

    class Moving:
        def __init__(self, *_: object) -> None:
            pass

        async def run(self) -> Progress:
            order.append("move begins")
            entered.set()
            await gate.wait()
            order.append("move ends")
            return Progress("sqlite")

    real = Log.compress

    async def slow(self: Log) -> Compressed | None:
        order.append("compression begins")
        entered.set()
        await gate.wait()
        done = await real(self)
        order.append("compression ends")
        return done

    monkeypatch.setattr("sidecar.upkeep.Migration", Moving)
    monkeypatch.setattr(Log, "compress", slow)
    upkeep = upkeep_of(log)
    async with asyncio.timeout(HANG_S):
        upkeep.migrate("sqlite")
        await entered.wait()
        await upkeep.look()
        assert order == ["move begins"], "while it moves nothing is compressed"
        gate.set()
        while upkeep.migration()["running"]:
            await asyncio.sleep(0)
        gate.clear()
        entered.clear()
        looking = asyncio.ensure_future(upkeep.look())
        await entered.wait()
        upkeep.migrate("sqlite")
        await asyncio.sleep(0)
        gate.set()
        await looking
        while upkeep.migration()["running"]:
            await asyncio.sleep(0)
    assert order[2:] == ["compression begins", "compression ends", "move begins", "move ends"]
    await upkeep.close()


async def test_after_a_failure_it_leaves_the_segment_alone_for_a_while(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = await filled(tmp_path, disk)
    upkeep = upkeep_of(log)
    disk.faults["write", disk.calls["write"] + 1] = 28
    with pytest.raises(StoreUnavailable, match="could not be compressed"):
        await upkeep.look()
    calls = disk.calls.copy()
    await upkeep.look()
    assert disk.calls == calls and compressed(log) == 0
    await log.append(events(1, prefix="it goes on"))
    await upkeep.close()
    await log.close()


async def test_a_log_moves_by_its_size_before_compression(log: Log) -> None:
    """An opening reads every line, so the lines count, not the disk."""
    while await log.compress() is not None:
        pass
    sizes = log.file_sizes()
    assert sizes is not None and sizes.disk_bytes < sizes.bytes
    upkeep = upkeep_of(log, migrate_at_bytes=sizes.bytes + 1)
    await upkeep.look()
    assert upkeep.migration()["progress"] is None
    upkeep = upkeep_of(log, migrate_at_bytes=sizes.bytes)
    async with asyncio.timeout(HANG_S):
        await upkeep.look()
        while upkeep.migration()["running"]:
            await asyncio.sleep(0.01)
    assert log.backend == "sqlite" and upkeep.segments() is None
    await upkeep.close()


def test_no_command_sees_a_difference(tmp_path: Path) -> None:
    plain, small = tmp_path / "plain", tmp_path / "small"
    plain.mkdir(mode=0o700)
    translator = Translator(seeded_identity(2))
    made = [[e] for name in ("chat", "task_child", "http_400", "permission_once") for e in events_of(name, translator)]
    asyncio.run(append(plain / "store", made, segment_bytes=6000))
    shutil.copytree(plain, small)
    asyncio.run(compress_closed(small / "store"))
    assert len(list((small / "store" / "log").glob("*.zst"))) > 5
    spawned = run(plain, "query", "--type", "agent.spawned", "--json").objects()[0]["event"]
    stream, event_id = spawned["stream_id"], spawned["id"]
    for words in (
        ["streams"],
        ["tree", "--json"],
        ["log", stream],
        ["log", stream, "--json", "--last", "3"],
        ["show", event_id],
        ["why", event_id],
        ["query", "--json"],
        ["query", "--text", "agent"],
        ["export", stream],
    ):
        wanted, found = run(plain, *words), run(small, *words)
        told, before = (re.sub(r'"exported_ms":\d+', "", done.out) for done in (found, wanted))
        assert (found.code, told, found.err) == (wanted.code, before, wanted.err), words
        assert wanted.out and wanted.code == 0, words
    verified = run(small, "verify", "--json")
    assert verified.code == 0 and verified.out == run(plain, "verify", "--json").out
    assert run(small, "doctor", "--json").objects() != []
    status: dict[str, Any] = run(small, "status", "--json").objects()[0]["log"]["segments"]
    other = run(plain, "status", "--json").objects()[0]["log"]["segments"]
    assert status["compressed"] == status["files"] - 1 and other["compressed"] == 0
    assert status["bytes"] == other["bytes"] == other["disk_bytes"] > status["disk_bytes"]

    damaged = next((small / "store" / "log").glob("*.zst"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for words in (["query", "--json"], ["verify"], ["status"], ["tree"]):
        refused = run(small, *words)
        assert refused.code == 1 and str(damaged) in refused.out + refused.err, words
