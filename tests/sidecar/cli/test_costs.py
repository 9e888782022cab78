"""``costs``: each step counts once, in the session that a person started."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bridge.nats.l0.context import ContextProjection
from sidecar.background.intents.state import KEPT_ENDED
from sidecar.background.reading import costs_of
from sidecar.read.story.costs import WAYS, By
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.reader import LogReader
from streams.query import EVERYTHING
from streams.store import Record
from tests.bridge.opencode.playing2 import play2
from tests.sidecar.cli.helpers import append, run
from tests.sidecar.cli.test_terminal import ANSI, on_terminal
from tests.sidecar.cli.test_top import intent
from tests.streams.builders import event

DAY = 86_400_000
IDENTITY = seeded_identity(3)


def happened(type_: str, session: str, ts: int, stream: str = "", actor: str = "build", **payload: Any) -> StreamEvent:
    about: dict[str, Any] = {"actor": actor, "ts": ts, "payload": {"session": session, **payload}}
    return event(stream=stream or session, type_=type_, identity=IDENTITY, **about)


def begun(session: str, directory: str = "/home/ada/shop", stream: str = "", **more: Any) -> StreamEvent:
    given = {"title": f"About {session}", "directory": directory, **more}
    return happened("lifecycle.session.created", session, DAY, stream, **given)


def step(session: str, day: int, cost: float, tokens: int, model: str = "large", stream: str = "") -> StreamEvent:
    used = {"cost": cost, "tokens": {"total": tokens, "input": tokens}, "model": {"provider": "p", "model": model}}
    return happened("execution.step", session, day * DAY, stream, kind="inference", **used)


def work(name: str, session: str, **given: Any) -> list[StreamEvent]:
    started = ("intent.started", {"session": session, "parent": given.get("parent"), "ts": DAY})
    return intent(name, started, ("intent.completed", {"ts": DAY}), **given)


@pytest.fixture(scope="module")
def spent_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sessions that a person started, one of them in the background; the first has a child and background work
    that ended so long ago that the list of background work no longer has it."""
    made = [
        begun("ses_one"),
        begun("ses_child", parent="ses_one", stream="ses_one"),
        begun("ses_back", "/home/ada/copy"),
        begun("ses_own", "/home/ada/site"),
        begun("ses_two", "/home/ada/site"),
        *work("int_1", "ses_back", parent="ses_one", root="ses_one"),
        *work("int_2", "ses_own"),
        *(each for n in range(KEPT_ENDED + 2) for each in work(f"int_later{n}", f"ses_later{n}")),
        step("ses_one", 1, 0.1, 10),
        step("ses_child", 1, 0.2, 20, "small", "ses_one"),
        step("ses_back", 2, 0.3, 30),
        step("ses_own", 2, 0.01, 1),
        step("ses_two", 2, 0.05, 5),
        step("ses_two", 2, 1e300, 5),
        happened("execution.step", "ses_two", 2 * DAY, kind="tool", tool="bash", cost=9.0),
    ]
    home = tmp_path_factory.mktemp("costs") / "home"
    home.mkdir(mode=0o700)
    asyncio.run(append(home / "store", [[event] for event in made]))
    return home


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("day", [("1970-01-02", 0.3, 30, 2, 1), ("1970-01-03", 0.36, 41, 4, 3)]),
        ("session", [("ses_one", 0.6, 60, 3, 1), ("ses_two", 0.05, 10, 2, 1), ("ses_own", 0.01, 1, 1, 1)]),
        ("project", [("/home/ada/shop", 0.6, 60, 3, 1), ("/home/ada/site", 0.06, 11, 3, 2)]),
        ("model", [("p/large", 0.46, 51, 5, 3), ("p/small", 0.2, 20, 1, 1)]),
        ("agent", [("build", 0.66, 71, 6, 3)]),
    ],
)
def test_each_step_counts_once_in_its_root(spent_home: Path, by: str, expected: list[tuple[Any, ...]]) -> None:
    found = run(spent_home, "costs", "--by", by, "--json", TZ="UTC").objects()
    assert [(s["key"], s["cost"], s["tokens"]["total"], s["steps"], s["sessions"]) for s in found] == expected


def test_a_pipe_gets_whole_numbers_with_names(spent_home: Path) -> None:
    head, *rows = run(spent_home, "costs", "--by", "session").rows()
    assert head == ["cost", "tokens", "steps", "sessions", "session", "title"]
    assert rows[0] == ["0.6", "60", "3", "1", "ses_one", "About ses_one"]


def test_what_is_not_known_is_a_dash_in_a_pipe_too(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    asyncio.run(append(home / "store", [[begun("ses_one"), step("ses_one", 1, 0, 10), begun("ses_two")]]))
    assert run(home, "costs").rows()[1][0] == "-"
    head, *rows = run(home, "streams").rows()
    assert [row[head.index("cost")] for row in rows] == ["-", "-"]
    assert ["cost", "-", "-"] in run(home, "diff", "ses_one", "ses_two").rows()


@pytest.mark.parametrize("by", WAYS)
def test_the_total_is_the_same_in_whatever_way_costs_are_added_up(spent_home: Path, by: By) -> None:
    costs = asyncio.run(costs_of(LogReader(spent_home / "store"), by, EVERYTHING))
    total = costs.total().as_json()
    assert total == {"key": "", "cost": 0.66, "steps": 6, "sessions": 3, "tokens": {"total": 71, "input": 71}}


def test_tokens_of_both_opencodes_add_up(tmp_path: Path) -> None:
    """OpenCode 2 names no total."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    without = happened("execution.step", "ses_two", DAY, kind="inference", tokens={"input": 5, "cache": {"read": 2}})
    asyncio.run(append(home / "store", [[begun("ses_one"), step("ses_one", 1, 0, 10), begun("ses_two"), without]]))
    assert run(home, "costs").rows()[1][1] == "17"
    (found,) = run(home, "costs", "--json").objects()
    assert found["tokens"] == {"total": 17, "input": 15, "cache_read": 2}


@pytest.mark.parametrize("is_early", [True, False], ids=["recorded-first", "recorded-last"])
def test_background_work_belongs_to_the_project_that_it_was_done_for(tmp_path: Path, is_early: bool) -> None:
    home, copy = tmp_path / "home", "/home/ada/.durable/copies/int_0123456789ab/files/home/ada/shop"
    home.mkdir(mode=0o700)
    started = ("intent.started", {"session": "ses_work", "parent": None, "directory": "/home/ada/shop", "ts": DAY})
    known, made = begun("ses_work", copy), intent("int_1", started, directory="/home/ada/shop")
    step_ = {"kind": "tool", "tool": "write", "input": {"filePath": f"{copy}/a.txt", "content": "x\n"}}
    turn = {"message": "m1", "turn": "m1"}
    edit = happened("execution.step", "ses_work", DAY, status="completed", part="p1", **step_, **turn)
    events = [*([known] if is_early else []), *made, *([] if is_early else [known]), step("ses_work", 1, 0.5, 9)]
    events += [happened("turn.started", "ses_work", DAY, **turn), edit]
    asyncio.run(append(home / "store", [[event] for event in events]))
    assert [each["key"] for each in run(home, "costs", "--by", "project", "--json").objects()] == ["/home/ada/shop"]
    (stream,) = [each for each in run(home, "streams", "--json").objects() if each["stream_id"] == "ses_work"]
    assert stream["directory"] == "/home/ada/shop"
    log = run(home, "log", "--project", "/home/ada/shop", "--json").objects()
    assert {each["event"]["stream_id"] for each in log} == {"ses_work"}
    changes = ANSI.sub("", on_terminal(home, "changes", "ses_work", width=120))
    assert "/home/ada/shop" in changes and " a.txt" in changes and copy not in changes
    read = ANSI.sub("", on_terminal(home, "read", "ses_work", "--no-pager", width=120))
    assert "/home/ada/shop" in read and "int_0123456789ab" not in read


def test_a_moved_session_is_in_its_new_project_and_what_it_had_cost_stays_in_the_old_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    moved = [
        happened("opencode.session.moved", "ses_one", DAY, directory=f"/home/ada/{name}", project=name)
        for name in ("site", "docs")
    ]
    steps = [step("ses_one", 1, cost, 1) for cost in (0.1, 0.2, 0.4, 0.8)]
    child = [begun("ses_child", parent="ses_one", stream="ses_one"), step("ses_child", 1, 1.6, 1, stream="ses_one")]
    events = [begun("ses_one", project="shop"), *steps[:2], moved[0], steps[2], moved[1], steps[3], *child]
    asyncio.run(append(home / "store", [[event] for event in events]))
    costs = run(home, "costs", "--by", "project", "--json").objects()
    assert {found["key"]: found["cost"] for found in costs} == {
        "/home/ada/shop": 0.3,
        "/home/ada/site": 0.4,
        "/home/ada/docs": 2.4,
    }
    (stream,) = run(home, "streams", "--json").objects()
    assert (stream["directory"], stream["project"]) == ("/home/ada/docs", "docs")
    contexts, projects = ContextProjection(), []
    for position, each in enumerate(events):
        contexts.apply(Record(each, position, position, ""))
        projects.append(contexts.of(each).project)
    assert projects[:7] == ["shop"] * 3 + ["site"] * 2 + ["docs"] * 2


def test_what_opencode_2_announces_without_a_step_is_said_to_be_left_out(spent_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    asyncio.run(append(home / "store", [list(play2("compaction").log.events.values())]))
    assert "compactions" in run(home, "costs").err and run(spent_home, "costs").err == ""
    assert "turn completed (compaction.failed)" in run(home, "tree").out, "a failed compaction is told"


def test_since_leaves_earlier_steps_out(spent_home: Path) -> None:
    found = run(spent_home, "costs", "--since", "1970-01-02T12:00:00Z", "--json").objects()
    assert [each["cost"] for each in found] == [0.36]
    done = run(spent_home, "costs", "--since", "1971-01-01T00:00:00Z")
    assert (done.code, done.out) == (0, "") and done.err
