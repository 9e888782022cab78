"""A jump to any moment of a session is right and quick, also while records arrive and while others look at it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inspector import STREAM, build
from sidecar.background.intents.state import State
from sidecar.background.reading import read_intents
from sidecar.home import Home
from sidecar.inspector.data import MOST_ROWS, Data
from sidecar.read.find_by_id import SelectError, open_reader
from sidecar.read.story import reading, tables
from sidecar.read.story.past import Past, asked, named
from sidecar.read.story.writing import StoryTables
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.stores.sqlite import derived
from streams.stores.sqlite import reader as sqlite_reader
from tests.streams.unmoved import nothing_moves


@asynccontextmanager
async def opened(path: Path, count: int) -> AsyncIterator[Data]:
    home = Home(path / str(count))
    await build(home, count + 100, count)

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    data = Data(home.path, open_reader(home.store_path), seeded_identity(1).now_ms, nothing, nothing)
    yield data
    await data.reader.close()


async def answers(data: Data, at: int) -> list[dict[str, Any]]:
    """What the tabs show of a moment."""
    return [
        await data.session(STREAM, at, 10**6),
        await data.conversation(STREAM, at, None),
        await data.timeline(STREAM, at, 800, None, None),
        await data.files(STREAM, at, 0),
        await data.events(STREAM, at, at - 50),
    ]


@asynccontextmanager
async def log_of(data: Data) -> AsyncIterator[Log]:
    log = await Log.open(data.reader.store, seeded_identity(77), derived=StoryTables())
    yield log
    await log.close()


async def said(data: Data, text: str, stream: str = STREAM) -> None:
    """Record one more input of the long session, or in another stream."""
    given = {"session": STREAM, "message": text, "parts": [{"type": "text", "text": text}]}
    about = {"stream_id": stream, "actor": "user", "source": {"agent": "user", "adapter": "opencode"}}
    identity = seeded_identity(sum(text.encode()))
    async with log_of(data) as log:
        await log.append([identity.stamp({**about, "type": "human.input", "payload": given})])


async def test_a_jump_reads_no_more_of_a_longer_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted(row: Any, file: str, real: Any = sqlite_reader.record_of) -> Any:
        nonlocal read
        read += 1
        return real(row, file)

    monkeypatch.setattr(sqlite_reader, "record_of", counted)
    monkeypatch.setattr(derived, "record_of", counted)
    counts = []
    for count in (1000, 4000):
        async with opened(tmp_path, count) as data:
            await data.warm()
            read = 0
            assert (await answers(data, 800))[0]["records"] == count
            counts.append(read)
    assert 100 < counts[0] == counts[1] < 1500


async def test_a_moment_is_the_same_before_and_after_others_were_shown(tmp_path: Path) -> None:
    async with opened(tmp_path, 600) as data:
        first = await answers(data, 333)
        assert [row["number"] for row in first[-1]["rows"]][-1] == 332 and first[0]["at"] == 332
        for at in (599, 12, 600, 331):
            await answers(data, at)
        assert await answers(data, 333) == first


async def test_a_turn_as_long_as_a_session_is_shown_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.inspector.data.MOST_ITEMS", 3)
    async with opened(tmp_path, 200) as data:
        found = await data.conversation(STREAM, None, None)
        assert [turn["number"] for turn in found["turns"]] == [found["count"] - 1] and found["left_out"] > 3
        whole = await data.conversation(STREAM, None, found["count"] - 1)
        assert whole["left_out"] == 0 and whole["turns"][0]["html"].endswith(found["turns"][0]["html"][-200:])
        assert len(whole["turns"][0]["html"]) > len(found["turns"][0]["html"])


async def test_the_marks_that_a_page_has_are_not_sent_again(tmp_path: Path) -> None:
    async with opened(tmp_path, 200) as data:
        found = await data.session(STREAM, None)
        assert len(found["marks"]) == sum(found["counts"].values()) > 5
        assert (await data.session(STREAM, 100, marks=5))["marks"] == found["marks"][5:]
        assert (await data.session(STREAM, 100, marks=len(found["marks"])))["marks"] == []


@pytest.mark.parametrize("in_journal", [False, True])
async def test_new_records_arrive_in_a_session_that_is_open(tmp_path: Path, in_journal: bool) -> None:
    async with opened(tmp_path, 1000) as data:
        before = await answers(data, 700)
        assert (await data.session(STREAM, None))["records"] == 1000
        if in_journal:
            with nothing_moves():
                await said(data, "One more thing")
        else:
            await said(data, "One more thing")
        assert (await data.session(STREAM, None))["records"] == 1001
        assert "One more thing" in (await data.conversation(STREAM, None, None))["turns"][-1]["html"]
        after = await answers(data, 700)
        assert after[1:] == before[1:] and after[0] == before[0] | {"records": 1001}
        assert len((await data.events(STREAM, None, 0))["rows"]) == MOST_ROWS


async def test_background_work_is_read_again_only_once_something_was_recorded_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    async def counted(reader: LogReader, real: Any = read_intents) -> State:
        read.append(reader.head)
        return await real(reader)

    async def again(data: Data) -> int:
        read.clear()
        assert (await data.session(STREAM, None))["records"] >= 200
        return len(read)

    monkeypatch.setattr("sidecar.inspector.data.read_intents", counted)
    async with opened(tmp_path, 200) as data:
        assert await again(data) == 1
        await said(data, "About a session")
        assert await again(data) == 0
        await said(data, "About the work", "agent/intents")
        assert await again(data) == 1
        async with log_of(data) as log:
            await log.forget([STREAM], at_ms=1)
        await said(data, "After that")
        assert await again(data) == 1


async def test_two_pages_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Both answers are under way at the same time, and a record that comes meanwhile is in neither."""
    async with opened(tmp_path, 200) as data:
        met, own = threading.Barrier(2, timeout=60), await named(data.reader, STREAM)

        def question(past: Past) -> int:
            met.wait()
            return past.count

        both = [asked(data.reader, question, own) for _ in range(2)]
        assert await asyncio.gather(*both) == [200, 200]


async def test_a_session_that_nobody_recorded_is_not_found(tmp_path: Path) -> None:
    async with opened(tmp_path, 200) as data:
        with pytest.raises(SelectError):
            await data.session("ses_none", None)


async def test_records_that_are_still_being_read_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path, 200) as data:
        assert (await data.session(STREAM, None))["behind"] == 0
        monkeypatch.setattr(tables, "STORY_VERSION", 0)
        monkeypatch.setattr(reading, "MOST_ABOVE", 10)
        found = await data.timeline(STREAM, None, 800, None, None, 0)
        assert (found["svg"], found["head"]["records"], found["head"]["behind"]) == ("", 0, 300)
