"""Logs for the tests of pruning and forgetting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from streams.identity import seeded_identity
from streams.log.log import Log
from streams.retention import Removed
from streams.stores.disk import Disk
from tests.streams.disks import FastDisk
from tests.streams.retention_contract import NOW

SEGMENT_BYTES = 1500
Remove = Callable[[Log], Any]


async def open_log(store: Path, disk: Disk | None = None) -> Log:
    return await Log.open(store, seeded_identity(1), disk=disk or FastDisk(), segment_bytes=SEGMENT_BYTES)


async def prune(log: Log) -> Removed:
    return await log.prune({"ses_0": 4, "ses_1": 99}, at_ms=NOW)


async def forget(log: Log) -> Removed:
    return await log.forget(["ses_0", "ses_2"], at_ms=NOW)
