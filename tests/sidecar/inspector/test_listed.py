"""The list of sessions keeps rows, and they are what would be read."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sidecar.inspector import listed
from sidecar.inspector.data import Data
from sidecar.inspector.once import Once
from sidecar.read.find_by_id import open_reader
from streams.event import StreamEvent
from streams.identity import system_identity
from tests.sidecar.cli.helpers import append
from tests.sidecar.cli.test_costs import DAY, begun, happened, step, work
from tests.sidecar.inspector.test_spending import ended
from tests.streams.builders import event


async def nothing(*_: Any) -> dict[str, Any]:
    return {}


def named(session: str, name: str) -> StreamEvent:
    return happened("stream.named", session, DAY, actor="user", name=name)


@pytest.mark.parametrize("few", [0, 100], ids=["read-at-once", "one-by-one"])
def test_what_is_kept_is_what_would_be_read(tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed, "FEW", few)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    parts = [
        [begun("ses_one"), step("ses_one", 1, 0.5, 10), begun("ses_child", parent="ses_late")],
        [*ended("ses_child", 1, "m1", 0.25), begun("ses_two", title="")],
        [begun("ses_late"), step("ses_late", 3, 0.2, 1), *ended("ses_two", 2, "m2", 1.0)],
        [happened("turn.ended", "ses_two", 2 * DAY, message="m2", outcome="failed"), named("ses_one", "Mine")],
        [begun("ses_work"), *work("int_1", "ses_work", parent="ses_one", root="ses_one")],
        [step("ses_work", 3, 0.1, 1), begun("ses_grandchild", parent="ses_two", stream="ses_two")],
    ]

    async def told() -> dict[str, Any]:
        def data() -> Data:
            return Data(home, open_reader(home / "store"), lambda: 9 * DAY, nothing, nothing)

        kept = data()
        for part in parts:
            await append(home / "store", [[event] for event in part])
            assert await kept.sessions() == await data().sessions()
        return await kept.sessions()

    found = asyncio.run(told())
    rows = {each["stream_id"]: each for each in found["sessions"]}
    assert rows.keys() == {"ses_one", "ses_two", "ses_late"}
    times = [each["last_ts"] for each in found["sessions"]]
    assert times == sorted(times, reverse=True), "newest first, in whichever order they were recorded"
    assert rows["ses_two"]["title"] == "About m2" and rows["ses_two"]["status"] == "failed"
    assert rows["ses_two"]["sessions"] == 2
    assert rows["ses_one"]["title"] == "Mine" and rows["ses_one"]["background"] == 1


async def test_many_tabs_share_an_answer_until_the_log_changes_or_an_opencode_ends(tmp_path: Path) -> None:
    home, made = tmp_path / "home", 0
    home.mkdir(mode=0o700)
    opencode = subprocess.Popen(["sleep", "600"])
    about: dict[str, Any] = {"ts": system_identity().now_ms(), "metadata": {"pid": opencode.pid}}
    open_ = event(stream="ses_one", type_="turn.started", payload={"session": "ses_one", "message": "m"}, **about)
    reader = open_reader(home / "store")
    once = Once(reader)

    async def make() -> dict[str, Any]:
        nonlocal made
        made += 1
        return {"made": made}

    async def asked() -> set[int]:
        return {each["made"] for each in await asyncio.gather(*(once.get("list", make) for _ in range(10)))}

    try:
        await append(home / "store", [[begun("ses_one")], [open_]])
        assert await asked() == await asked() == {1}
        await append(home / "store", [[begun("ses_two")]])
        assert await asked() == await asked() == {2}
    finally:
        opencode.kill()
        opencode.wait()
    assert await asked() == await asked() == {3}
    await reader.close()
