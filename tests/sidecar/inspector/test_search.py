"""What the palette makes of what somebody typed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sidecar.inspector.data import Data
from sidecar.inspector.search import LOOKED, MOST_SESSIONS, RECENT, asked, snippet
from sidecar.read.find_by_id import open_reader
from tests.sidecar.inspector.conftest import COUNT, DAY, NOW, ROOT


async def nothing(*_: Any) -> dict[str, Any]:
    return {}


def opened(home: Path) -> Data:
    return Data(home, open_reader(home / "store"), lambda: NOW, nothing, nothing)


@pytest.mark.parametrize(
    ("text", "words", "filters"),
    [
        ("", (), {}),
        ("login test", ("login", "test"), {}),
        ('"login test" "failed"', ("login test", "failed"), {}),
        ('"half a quote', ("half a quote",), {}),
        ("tool:Bash failed project:Shop x", ("x",), {"tool": "bash", "failed": "", "project": "shop"}),
        ('project:"my shop" agent:build model:mock', (), {"project": "my shop", "agent": "build", "model": "mock"}),
        ("https://a.b/c std::vec what: tool:", ("https://a.b/c", "std::vec", "what:", "tool:"), {}),
    ],
)
def test_words_and_operators_are_told_apart(text: str, words: tuple[str, ...], filters: dict[str, str]) -> None:
    found = asked(text, NOW)
    assert (found.words, found.filters, found.faults) == (words, filters, ())


def test_times_are_ages_and_days() -> None:
    found = asked("since:7d until:1d", NOW)
    assert (found.since, found.until) == (NOW - 7 * DAY, NOW - DAY)
    wrong = asked("since:whenever x", NOW)
    assert wrong.words == ("x",) and wrong.since is None and len(wrong.faults) == 1


def test_a_snippet_is_cut_around_the_text() -> None:
    assert snippet({"a": 1, "b": [{"c": "x" * 100 + "Needle" + "y" * 100}]}, "needle") == (
        "…" + "x" * 60 + "Needle" + "y" * 60 + "…"
    )
    assert snippet({"needle": "a key, not a value"}, "needle") == ""


@pytest.mark.parametrize(
    ("text", "agents"),
    [
        ("agent:general", {"opencode"}),
        ("agent:general login", {"general", "opencode"}),
        ("agent:build model:mock", {"user", "build"}),
        ("agent:build login", {"user", "build"}),
    ],
)
async def test_an_agent_is_found_in_the_turns_that_it_had(filled: Path, text: str, agents: set[str]) -> None:
    """Also one that worked in a child session only; of a session with several agents, only the turns of this one."""
    data = opened(filled)
    found = {group["stream_id"]: group["hits"] for group in (await data.search(text))["groups"]}
    actors = {str((await data.reader.find_event(hit["event"])).event.actor) for hit in found[ROOT]}  # type: ignore[union-attr]
    await data.reader.close()
    assert actors and actors <= agents


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        ("", range(COUNT)),
        ("since:6h", range(3)),
        ("since:2h", (0,)),
        ("since:30d", range(COUNT)),
        ("until:1d", range(11, COUNT)),
        ("since:12h until:8h", (3, 4, 5)),
        ("project:shop", range(0, COUNT, 3)),
        ("project:work", range(COUNT)),
        ("project:shop until:1d", range(12, COUNT, 3)),
        ("agent:plan", range(1, COUNT, 2)),
        ("agent:build project:shop", range(0, COUNT, 6)),
        ("agent:explore", (0,)),
        ("failed", range(0, COUNT, 5)),
        ("failed until:1d", range(15, COUNT, 5)),
        ("failed agent:plan", range(5, COUNT, 10)),
        ("model:none", ()),
    ],
)
async def test_filters_alone_fit_all_sessions_the_newest_first(
    imported: Path, text: str, fitting: Iterable[int]
) -> None:
    """Newest by the time of what happened, as in the list, and not by when that was recorded; what is left out
    counts."""
    data = opened(imported)
    found, rows = await data.search(text), (await data.sessions())["sessions"]
    await data.reader.close()
    names = [f"ses_{each:02}" for each in fitting]
    assert [row["stream_id"] for row in rows if row["stream_id"] in names] == names, "the list has the same order"
    assert [each["stream_id"] for each in found["groups"]] == names[: MOST_SESSIONS if text else RECENT]
    assert (found["total"], found["is_all"], found["faults"]) == (len(names), True, [])
    assert all(each["hits"] for each in found["groups"]) or not any(word in text for word in ("failed", "agent:"))


async def test_a_text_says_how_many_sessions_have_it(imported: Path) -> None:
    data = opened(imported)
    found = await data.search("by hand")
    some = await data.search("by hand since:12h")
    await data.reader.close()
    assert (len(found["groups"]), found["total"], found["is_all"]) == (MOST_SESSIONS, COUNT, COUNT < LOOKED)
    assert [each["stream_id"] for each in some["groups"]] == [f"ses_{each:02}" for each in range(6)]


async def test_only_a_home_of_a_team_has_a_machine(imported: Path) -> None:
    reader = open_reader(imported / "store")
    of_team = Data(imported, reader, lambda: NOW, nothing, nothing, "ada-laptop")
    assert len((await opened(imported).search("machine:ada"))["faults"]) == 1
    for text, count in (
        ("machine:ada failed", 6),
        ("machine:ada hand", COUNT),
        ("machine:bob", 0),
        ("machine:b hand", 0),
    ):
        found = await of_team.search(text)
        assert (found["total"], found["faults"]) == (count, [])
    await reader.close()
