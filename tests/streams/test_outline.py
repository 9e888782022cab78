"""The quick check of a jsonl log's files reports each missing or short one, and never an intact one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from streams.errors import CorruptLog
from streams.stores.jsonl.reader import JsonlReader
from tests.streams.logs import make_log
from tests.streams.opened import collect

EVERY = 101
"""Every so manieth cut is read, too."""

BATCHES = [2, 3, 1, 2, 4, 2, 3]


def segments(store: Path) -> list[Path]:
    return sorted((store / "log").glob("*.jsonl*"))


async def fault(work: Any) -> str | None:
    try:
        await work
    except CorruptLog as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outline")
    make_log(directory / "made", BATCHES, text=10, segment_bytes=1500).put(directory / "store")
    assert len(segments(directory / "store")) == 3
    return directory / "store"


async def test_a_file_cut_at_any_byte_is_noticed_and_told_as_reading_tells_it(store: Path, tmp_path: Path) -> None:
    for number, whole in enumerate(segments(store)):
        damaged = tmp_path / str(number)
        shutil.copytree(store, damaged)
        path, reader = segments(damaged)[number], JsonlReader(damaged)
        for size in range(whole.stat().st_size - 1, -1, -1):
            os.truncate(path, size)
            assert reader._doubt() is not None, (path.name, size)
            if size % EVERY == 0:
                assert await fault(reader.glance()) == await fault(collect(reader.read_all())) is not None, size
        path.unlink()
        assert await fault(reader.glance()) == await fault(collect(reader.read_all())) is not None
