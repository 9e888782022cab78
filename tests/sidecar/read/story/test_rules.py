"""What the rules make of every recording."""

from __future__ import annotations

import pytest

from tests.sidecar.read.story.playing import RECORDINGS, content, recorded, tables_of


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_session_that_rests_is_read_back_as_it_was(name: str) -> None:
    records = recorded(name)
    assert content(tables_of(records, most_live=0)) == content(tables_of(records))


def test_the_tables_of_recordings_are_not_empty() -> None:
    found = content(tables_of(recorded("task_child")))
    assert {"session", "turn", "item", "span", "step", "branch", "spawn", "mark", "live"} <= {
        table for table, rows in found.items() if rows
    }
