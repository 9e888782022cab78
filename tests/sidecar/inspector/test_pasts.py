"""A long session is shown before all of it was read, and is then the same as ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inspector import STREAM, build
from sidecar.home import Home
from sidecar.inspector import pasts
from sidecar.inspector.data import MOST_ROWS, Data
from sidecar.read.past import newest
from sidecar.read.select import SelectError, open_reader
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.stores.sqlite import reader as sqlite_reader


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read beside the answers until one needs it."""
    monkeypatch.setattr(pasts, "REST_SECONDS", 3600.0)
    monkeypatch.setattr(pasts, "SHORT", 300)
    monkeypatch.setattr(newest, "RECORDS", 200)


@asynccontextmanager
async def opened(path: Path, count: int) -> AsyncIterator[Data]:
    home = Home(path / str(count))
    await build(home, count + 100, count)

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    data = Data(home.path, open_reader(home.store_path), seeded_identity(1).now_ms, nothing, nothing)
    yield data
    await data.pasts.close()
    await data.reader.close()


async def answers(data: Data, end: int) -> list[dict[str, Any]]:
    """What the tabs ask for when the page opens."""
    head = await data.session(STREAM, None)
    return [head, await data.conversation(STREAM, None, None), await data.events(STREAM, None, end - 100)]


async def test_the_first_answers_read_no_more_of_a_longer_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def counted(row: Any, file: str, real: Any = sqlite_reader.record_of) -> Any:
        nonlocal read
        read += 1
        return real(row, file)

    monkeypatch.setattr(sqlite_reader, "record_of", counted)
    counts = []
    for count in (1000, 4000):
        async with opened(tmp_path, count) as data:
            await data.warm()
            read = 0
            found = await answers(data, count)
            assert [each["whole"] for each in found[:2]] == [False, False] and found[0]["records"] == count
            counts.append(read)
    assert counts[0] == counts[1] < 1000


async def test_the_newest_part_is_the_end_of_the_whole(tmp_path: Path) -> None:
    async with opened(tmp_path, 1000) as data:
        head, talk, events = await answers(data, 1000)
        assert data.pasts.read == 0
        await data.session(STREAM, 10)
        assert data.pasts.read == 1
        later, whole_talk, whole_events = await answers(data, 1000)
        assert later["whole"] and later["counts"] and later["marks"]
        same = set(head) - {"whole", "first_ts", "waiting_ms", "counts", "marks"}
        assert {name: head[name] for name in same} == {name: later[name] for name in same}
        texts = [turn["html"] for turn in whole_talk["turns"]]
        shown = [turn["html"] for turn in talk["turns"]]
        assert 2 < len(shown) <= len(texts) and texts[-len(shown) :] == shown
        assert events == whole_events and len(events["rows"]) == 100 < MOST_ROWS


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


async def test_what_is_not_in_the_newest_part_waits_for_the_whole(tmp_path: Path) -> None:
    async with opened(tmp_path, 1000) as data:
        assert [row["number"] for row in (await data.events(STREAM, None, 0))["rows"][:2]] == [0, 1]
        assert data.pasts.read == 1


async def test_the_marks_that_a_page_has_are_not_sent_again(tmp_path: Path) -> None:
    async with opened(tmp_path, 200) as data:
        found = await data.session(STREAM, None)
        assert found["whole"] and len(found["marks"]) > 5
        assert (await data.session(STREAM, 100, marks=5))["marks"] == found["marks"][5:]


async def test_new_records_arrive_in_a_session_that_was_read(tmp_path: Path) -> None:
    async with opened(tmp_path, 1000) as data:
        assert (await data.session(STREAM, 1000))["records"] == 1000
        log = await Log.open(data.reader.store, seeded_identity(77))
        said = {"session": STREAM, "message": "new", "parts": [{"type": "text", "text": "One more thing"}]}
        about = {"stream_id": STREAM, "actor": "user", "source": {"agent": "user", "adapter": "opencode"}}
        await log.append([seeded_identity(78).stamp({**about, "type": "human.input", "payload": said})])
        await log.close()
        assert (await data.session(STREAM, None))["records"] == 1001
        assert "One more thing" in (await data.conversation(STREAM, None, None))["turns"][-1]["html"]


async def test_sessions_that_nobody_looks_at_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path, 1000) as data:
        kept = await data.pasts.whole(STREAM)
        assert await data.pasts.whole(STREAM) is kept
        monkeypatch.setattr(pasts, "MOST_RECORDS", 10)
        other = await data.pasts.whole("ses_00000000root")
        assert await data.pasts.whole("ses_00000000root") is other
        assert await data.pasts.whole(STREAM) is not kept
        with pytest.raises(SelectError):
            await data.pasts.whole("ses_none")
