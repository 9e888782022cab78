"""What the palette makes of what somebody typed."""

from __future__ import annotations

import pytest

from sidecar.inspector.search import asked, snippet

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
