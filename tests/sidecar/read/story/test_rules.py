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


@pytest.mark.parametrize("name", ["task_resumed_child", "permission_once", "2/permission", "2/background", "revert"])
def test_the_past_is_as_it_was(name: str) -> None:
    """The rows that hold at a record are those of a log that ends with it."""
    records = recorded(name)
    whole = content(tables_of(records))
    for upto in range(1, len(records)):
        n = records[upto - 1].position
        then = content(tables_of(records[:upto]))
        for table in ("session", "turn", "item", "undone", "place"):
            of = {name: number for number, name in enumerate(_columns(table))}
            born, died = of["born"], of["died"]
            alive = [row for row in whole[table] if row[born] <= n and (row[died] is None or row[died] > n)]
            assert len(alive) == len([row for row in then[table] if row[died] is None])


def _columns(table: str) -> list[str]:
    from sidecar.read.story.tables import columns

    return [each.split()[0] for each in columns(table)]
