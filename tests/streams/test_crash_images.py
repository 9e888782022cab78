"""Power loss: acknowledged records are there, whichever unsynced writes the disk kept.

Every change to a store's files is recorded while a script is played (appends over several segments, the head file,
cursors, snapshots, a torn tail, moves between the backends with their change of the pointer, pruning,
forgetting). For a moment of the script
``images.py`` makes a possible disk, and the store on it is opened. Acknowledged records must be there, nothing may be
invented, and all but a torn tail must verify.

``TORTURE_IMAGES`` sets the number of images of each backend's script.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from streams.errors import StreamError
from streams.store import Record
from streams.stores.directory import Backend
from tests.streams.calls import Call, watching
from tests.streams.images import Disk, Loss
from tests.streams.script import play
from tests.streams.sizes import is_set, size
from tests.streams.survivors import check, whole
from tests.torture.figures import note, seeded

IMAGES = size("IMAGES", 120)
LENGTH = 200 if is_set("IMAGES") else 48


@cache
def traced(home: Path, start: Backend) -> tuple[list[Call], list[int], list[int]]:
    """Every change to the disk, and how many came before the ack of each record and each removal."""
    calls: list[Call] = []
    acked: list[int] = []
    removed: list[int] = []

    def told(records: list[Record]) -> None:
        acked.extend([len(calls)] * len(records))

    home.mkdir()
    with watching(home, calls.append):
        store = home / "home" / "store"
        asyncio.run(play(store, start, told, LENGTH, removed=lambda: removed.append(len(calls))))
    return calls, acked, removed


@pytest.mark.parametrize("start", ["jsonl", "sqlite"])
async def test_after_a_power_loss_what_was_acknowledged_is_there(
    tmp_path: Path, start: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, acked, removed = await asyncio.to_thread(traced, tmp_path / "traced", start)
    random = seeded(f"images {start}")
    # Half of them where most is at stake: SQLite makes ten times as many changes as everything else.
    busy = [n for n, call in enumerate(calls) if call.by == "python" and call.kind in ("sync", "sync directory")]
    moments = Counter(
        random.choice(busy) if random.random() < 0.5 else random.randrange(len(calls) + 1) for _ in range(IMAGES)
    )
    disk, made, torn, lost = Disk(str(tmp_path / "traced")), 0, 0, 0
    await asyncio.to_thread(whole, start, LENGTH)
    # What is opened here need not survive anything.
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("os.fdatasync", lambda fd: None)
    # In memory where there is such a place.
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    wrong: list[str] = []
    for moment in range(len(calls) + 1):
        for _ in range(moments[moment]):
            made += 1
            image = Path(tempfile.mkdtemp(dir=place))
            loss: Loss = random.choice(get_args(Loss))
            sector = random.choice([512, 4096])
            lost += disk.image(image, Random(random.random()), loss, sector)
            count, removals = (sum(at <= moment for at in each) for each in (acked, removed))
            try:
                _, was_torn = await check(
                    image / "home" / "store",
                    start,
                    LENGTH,
                    count,
                    removals,
                    power_lost=True,
                    again=made % 25 == 0,
                )
                torn += was_torn
            except (StreamError, AssertionError, OSError) as error:
                next_call = calls[moment] if moment < len(calls) else None
                told = f"{next_call.kind} {Path(next_call.path).name}" if next_call else "the end"
                wrong.append(f"before {told} ({moment}), lost {loss} by {sector}: {type(error).__name__} {error}")
                if len(wrong) < 3:
                    shutil.copytree(image, tmp_path / f"wrong{len(wrong)}")
            shutil.rmtree(image)
        if moment < len(calls):
            disk.feed(calls[moment])
    note(f"crash-images {start}", inputs=made, torn=torn, lost=len(wrong))
    assert wrong == [], f"{len(wrong)} of {made}:\n" + "\n".join(wrong[:20])
    assert torn or start == "sqlite"
