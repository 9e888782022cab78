"""Pruning and forgetting, cut off at any step by a kill or a disk error."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streams.hashing import is_digest
from streams.log.reader import LogReader
from streams.retention import StreamRemoval
from streams.store import Record
from streams.stores.directory import Backend
from streams.stores.sqlite import removal as sqlite_removal
from tests.streams import removing_process
from tests.streams.builders import event
from tests.streams.opened import collect
from tests.streams.removals import BACKENDS, Remove, faults, forget, open_log, prune
from tests.streams.retention_contract import check_chains, fill
from tests.streams.sizes import size

KILLS = size("REMOVING_KILLS", 5)


async def check_images(images: Path, backend: Backend, before: list[Record], after: list[Record]) -> int:
    """Check that each image opens as not begun or as done, and continues; return the number of images."""
    seen = set()
    for image in sorted(images.iterdir()):
        reader = LogReader(image)
        read = await collect(reader.read_all())
        await reader.close()
        # What a reader sees meanwhile is between the two, but never less than what stays.
        assert [r.position for r in after] == [r.position for r in read if r.position in {r.position for r in after}]
        log = await open_log(image, backend)
        found = await collect(log.read_all())
        assert found in (before, after), image.name
        seen.add(len(found) == len(after) and found == after)
        for record in before:
            answer = (await log.append([record.event]))[0]
            assert answer.duplicate and answer[1:4] == record[1:4]
        assert (await log.append([event("more", stream="ses_0")]))[0].position == len(before)
        await check_chains(log)
        assert len(list(image.glob("log/*.new"))) == 0
        await log.close()
        assert await faults(image) == []
    assert seen == {False, True}, "some images are of before, some of after"
    return len(list(images.iterdir()))


class TestCutOff:
    @pytest.mark.parametrize("remove", [prune, forget])
    async def test_sqlite_is_right_after_a_kill_between_any_two_transactions(
        self, tmp_path: Path, remove: Remove, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (images := tmp_path / "images").mkdir()
        log = await open_log(tmp_path / "store", "sqlite")
        before = await fill(log)
        transact = sqlite_removal.SqliteRemover._transact
        count = 0

        def imaged(self: Any, work: Any) -> Any:
            nonlocal count
            for name in ("before", "after"):
                if name == "after":
                    result = transact(self, work)
                shutil.copytree(tmp_path / "store", images / f"{count:04}-{name}")
            count += 1
            return result

        monkeypatch.setattr(sqlite_removal.SqliteRemover, "_transact", imaged)
        monkeypatch.setattr("streams.stores.sqlite.removed.CHUNK", 2)
        await remove(log)
        after = await collect(log.read_all())
        await log.close()
        monkeypatch.setattr(sqlite_removal.SqliteRemover, "_transact", transact)
        assert await check_images(images, "sqlite", before, after) > 8


# Writers are forked from a clean process that has imported everything once.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.streams.removing_process"])


@pytest.mark.parametrize("backend", BACKENDS)
async def test_killed_while_removing_nothing_is_lost_and_nothing_comes_back(tmp_path: Path, backend: Backend) -> None:
    random = Random(5)
    journal: list[Any] = []
    for run in range(KILLS):
        journal += await asyncio.to_thread(
            _run_and_kill, tmp_path, backend, run, random.randrange(2, 6), random.randrange(12)
        )
        log = await open_log(tmp_path, backend)
        gone = await log.removed()
        kept = {record.position: record for record in await collect(log.read_all())}
        await check_chains(log)
        for what, *told in journal:
            if what == "append":
                stream, key, text, position, offset, hash_ = told
                if offset >= gone.get(stream, StreamRemoval()).first_offset:
                    assert (kept[position].offset, kept[position].hash) == (offset, hash_)
                    is_forgotten = offset < gone.get(stream, StreamRemoval()).forgotten_to
                    assert is_digest(kept[position].event.payload) is is_forgotten
                else:
                    assert position not in kept
                answer = (await log.append([event(key, stream=stream, payload={"text": text})]))[0]
                assert answer.duplicate and (answer.position, answer.hash) == (position, hash_)
            elif what == "prune":
                assert gone[told[0]].first_offset >= told[1]
            else:
                assert gone[told[0]].forgotten_to >= told[1]
        await log.close()
        assert await faults(tmp_path) == []
    assert {entry[0] for entry in journal} == {"append", "prune", "forget"}


def _run_and_kill(store: Path, backend: Backend, run: int, removals: int, more: int) -> list[Any]:
    """A process's reports before it was killed, after some removals and more acks."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=removing_process.run, args=(store, backend, run, theirs))
    process.start()
    theirs.close()
    journal: list[Any] = []
    try:
        while (removals > 0 or more > 0) and ours.poll(30):
            journal.append(json.loads(ours.recv_bytes()))
            if removals > 0:
                removals -= journal[-1][0] != "append"
            else:
                more -= 1
    finally:
        process.kill()
    with suppress(EOFError):
        while True:
            journal.append(json.loads(ours.recv_bytes()))
    process.join(30)
    ours.close()
    return journal
