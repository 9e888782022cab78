"""What the page on costs shows, and that what it keeps is what it would read."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from sidecar.inspector.spending import MOST_MODELS, Spending, stacked, weeks
from sidecar.read.story.costs import WAYS, Cell
from streams.event import StreamEvent
from streams.log.reader import LogReader
from tests.sidecar.cli.helpers import append
from tests.sidecar.cli.test_costs import DAY, begun, happened, step, work

TODAY = date(2026, 3, 20)


def cell(day: int, model: str, cost: float, tokens: int = 1) -> Cell:
    return Cell(f"2026-03-{day:02}", "ses_one", model, "build", -1, 0, 1, cost, False, {"total": tokens})


def test_days_are_stacked_by_the_dearest_models_and_the_others_together() -> None:
    models = [f"m{number}" for number in range(MOST_MODELS + 2)]
    found = stacked([*(cell(20, model, 10.0 - n) for n, model in enumerate(models)), cell(18, "m1", 5.0)], 7, TODAY)
    assert found["models"] == ["m1", "m0", *models[2:MOST_MODELS], None]
    assert [each["day"] for each in found["days"]] == [f"2026-03-{day}" for day in range(14, 21)]
    assert found["days"][-1]["used"][:2] == [[9.0, 1], [10.0, 1]]
    assert found["days"][-1]["used"][-1] == [10.0 - MOST_MODELS + 9.0 - MOST_MODELS, 2]
    assert found["days"][4]["used"][0] == [5.0, 1] and found["days"][0]["used"][0] == [0.0, 0]


def test_without_a_range_the_picture_begins_with_the_first_day() -> None:
    assert [each["day"] for each in stacked([cell(18, "m", 1.0)], 0, TODAY)["days"]] == [
        "2026-03-18",
        "2026-03-19",
        "2026-03-20",
    ]
    assert len(stacked([], 0, TODAY)["days"]) == 1


def test_a_week_is_the_last_seven_days() -> None:
    some = [cell(20, "m", 1.0), cell(14, "m", 2.0), cell(13, "m", 4.0), cell(7, "m", 8.0), cell(6, "m", 16.0)]
    assert weeks([*some, cell(21, "m", 32.0)], TODAY) == [3.0, 12.0]


def ended(session: str, day: int, message: str, cost: float) -> list[StreamEvent]:
    used: dict[str, Any] = {"kind": "inference", "turn": message, "message": "a", "cost": cost}
    said = {"message": message, "parts": [{"type": "text", "text": f"About {message}"}]}
    return [
        happened("human.input", session, day * DAY, **said),
        happened("turn.started", session, day * DAY, message=message, model={"provider": "p", "model": "large"}),
        happened("execution.step", session, day * DAY, tokens={"input": 5}, **used),
    ]


@pytest.mark.parametrize("by", WAYS)
def test_what_is_kept_is_what_would_be_read(tmp_path: Path, by: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    now = int(datetime(1970, 1, 20, tzinfo=UTC).timestamp() * 1000)
    parts = [
        [begun("ses_one"), step("ses_one", 14, 0.5, 10), *ended("ses_one", 15, "m1", 0.25)],
        [begun("ses_child", parent="ses_one", stream="ses_one"), step("ses_child", 15, 0.2, 20, "small", "ses_one")],
        [*ended("ses_one", 16, "m2", 1.0), step("ses_one", 15, 0.125, 5), begun("ses_work", "/home/ada/copy")],
        [*work("int_1", "ses_work", parent="ses_one", root="ses_one"), step("ses_work", 3, 0.1, 1)],
    ]

    async def told() -> None:
        kept = Spending(LogReader(home / "store"))
        for part in parts:
            await append(home / "store", [[event] for event in part])
            for days in (7, 30):
                found = await kept.shown(by, days, now)
                fresh = await Spending(LogReader(home / "store")).shown(by, days, now)
                assert {**found, "sums": {each["key"]: each for each in found["sums"]}} == {
                    **fresh,
                    "sums": {each["key"]: each for each in fresh["sums"]},
                }
        assert found["total"]["cost"] == 2.175 and found["total"]["sessions"] == 1
        assert [(each["asked"], each["cost"]) for each in found["turns"][:2]] == [("About m2", 1.125), ("", 0.5)]

    asyncio.run(told())
