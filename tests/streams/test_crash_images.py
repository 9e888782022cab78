"""A kill at every change to the disk, and power losses: what was acknowledged is there.

Every change to a store's files is recorded while a script of 200 operations is played: appends over several segments,
the head file, cursors, snapshots, a torn tail, moves to the database, pruning and
forgetting. For a moment of the script ``images.py`` makes a possible disk, and the store on it is opened. After a kill
the disk has all that was written before that moment, and perhaps some pages of the write under way; after a power loss,
any part of what was not synced. Acknowledged records must be there, nothing may be invented, a removal is done or not
begun, and all but a torn tail must verify. ``test_kill.py`` kills real processes, at random moments.

``TORTURE_KILL_CHUNKS`` = n kills at every change, in n parts; ``TORTURE_IMAGES`` sets the number of power losses.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from streams.errors import StreamError
from streams.store import Record
from tests.streams.calls import Call, watching
from tests.streams.images import Disk, Loss
from tests.streams.script import play
from tests.streams.sizes import is_set, size
from tests.streams.survivors import check, whole
from tests.torture.figures import note, seeded

CHUNKS = size("KILL_CHUNKS", 1)
IMAGES = size("IMAGES", 60)
LENGTH = 200 if is_set("KILL_CHUNKS") or is_set("IMAGES") else 48
"""Operations of the script; the short one has all kinds of them too."""
BETWEEN = 30
PLACE = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""In memory where there is such a place."""


@cache
def traced() -> tuple[str, list[Call], list[int], list[int]]:
    """The directory, every change to the disk below it, and how many came before the ack of each record and each
    removal."""
    calls: list[Call] = []
    acked: list[int] = []
    removed: list[int] = []

    def told(records: list[Record]) -> None:
        acked.extend([len(calls)] * len(records))

    with tempfile.TemporaryDirectory(dir=PLACE) as directory, watching(Path(directory), calls.append):
        store = Path(directory) / "home" / "store"
        asyncio.run(play(store, told, LENGTH, removed=lambda: removed.append(len(calls))))
    whole(LENGTH)
    return directory, calls, acked, removed


async def judge(
    moments: Counter[int], loss_at: Callable[[Call | None], tuple[Loss, bool]], random: Random
) -> tuple[int, list[str]]:
    """Open a disk of each moment with what ``loss_at`` says is lost, and whether by a power loss; return the number of
    torn tails, and what was wrong."""
    directory, calls, acked, removed = await asyncio.to_thread(traced)
    disk, made, torn = Disk(directory), 0, 0
    wrong: list[str] = []
    for moment in range(len(calls) + 1):
        call = calls[moment] if moment < len(calls) else None
        for _ in range(moments[moment]):
            made += 1
            image = Path(tempfile.mkdtemp(dir=PLACE))
            loss, power_lost = loss_at(call)
            disk.image(image, random, loss, random.choice([512, 4096]), half=None if power_lost else call)
            count, removals = (sum(at <= moment for at in each) for each in (acked, removed))
            try:
                store = image / "home" / "store"
                _, was_torn = await check(store, LENGTH, count, removals, power_lost=power_lost, again=made % 20 == 0)
                torn += was_torn
            except (StreamError, AssertionError, OSError) as error:
                told = f"{call.kind} {Path(call.path).name}" if call else "the end"
                wrong.append(f"before {told} ({moment}), lost {loss}: {type(error).__name__} {error}")
            shutil.rmtree(image)
        if call is not None:
            disk.feed(call)
    return torn, wrong


@pytest.fixture(autouse=True)
def nothing_here_need_last(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"os.{name}", lambda fd: None)


def killed_at(calls: Sequence[Call], chunk: int) -> list[int]:
    if is_set("KILL_CHUNKS"):
        return list(range(chunk, len(calls), CHUNKS))
    # The last of each kind: the log holds something then.
    kinds = {(call.kind, call.by, "store.json" in call.path): n for n, call in enumerate(calls)}
    return [*kinds.values(), *range(0, len(calls), len(calls) // BETWEEN)]


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_killed_at_any_change_nothing_acknowledged_is_lost(chunk: int) -> None:
    moments = Counter(killed_at((await asyncio.to_thread(traced))[1], chunk))
    torn, wrong = await judge(moments, lambda call: ("nothing", False), seeded("kills"))
    note("call-kills", kills=moments.total(), torn=torn, lost=len(wrong))
    assert wrong == [], "\n".join(wrong[:20])


async def test_after_a_power_loss_what_was_acknowledged_is_there() -> None:
    _, calls, _, _ = await asyncio.to_thread(traced)
    random = seeded("images")
    # Half of them where most is at stake: SQLite makes ten times as many changes as everything else.
    busy = [n for n, call in enumerate(calls) if call.by == "python" and call.kind in ("sync", "sync directory")]
    moments = Counter(
        random.choice(busy) if random.random() < 0.5 else random.randrange(len(calls) + 1) for _ in range(IMAGES)
    )
    torn, wrong = await judge(moments, lambda call: (random.choice(get_args(Loss)), True), random)
    note("crash-images", inputs=IMAGES, torn=torn, lost=len(wrong))
    assert wrong == [], f"{len(wrong)} of {IMAGES}:\n" + "\n".join(wrong[:20])
    assert torn
