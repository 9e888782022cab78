"""What the palette makes of what somebody typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.inspector.search import asked, search, snippet
from sidecar.read.find_by_id import open_reader
from tests.sidecar.inspector.conftest import ROOT

NOW = 1_800_000_000_000
DAY = 86_400_000


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
    reader = open_reader(filled / "store")
    found = {group["stream_id"]: group["hits"] for group in (await search(reader, text, NOW))["groups"]}
    actors = {str((await reader.find_event(hit["event"])).event.actor) for hit in found[ROOT]}  # type: ignore[union-attr]
    await reader.close()
    assert actors and actors <= agents
