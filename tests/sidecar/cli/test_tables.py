"""Tables on a terminal: what is never cut, however narrow the terminal is."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from sidecar.cli.printing.output import Column, Output

ID = "chk_f877f6d0128a"
COLUMNS = (
    Column("id"),
    Column("state"),
    Column("started"),
    Column("ran", right=True),
    Column("cost", right=True),
    Column("title"),
)
ROW = (ID, "completed", "12 min ago", "1 min", "$0.0123", "Look for the cause of the failing login test")


def drawn(width: int, *rows: tuple[str, ...]) -> list[str]:
    """The lines of a table on a terminal of that width, the heading first."""
    out = Output()
    file = StringIO()
    out.terminal = True
    out.__dict__["console"] = Console(file=file, width=width, highlight=False, markup=False)
    out.table(COLUMNS, rows)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 50, 60, 70, 80, 90, 95])
def test_only_the_text_is_cut(width: int) -> None:
    heading, _, line = drawn(width, ROW)
    shown = heading.split()
    assert shown[0] == "id" and shown[-1] == "title"
    assert shown[1:-1] == ["state", "started", "ran", "cost"][: len(shown) - 2]
    assert all(text in line for text in ROW[: len(shown) - 1])
    assert cell_len(line) <= width and line.split("  ")[-1].rstrip().endswith("…")


def test_a_column_is_left_out_only_where_the_text_would_have_no_room() -> None:
    assert drawn(75, ROW)[0].split() == ["id", "state", "started", "ran", "cost", "title"]
    assert drawn(50, ROW)[0].split() == ["id", "state", "title"]
    assert drawn(64, (*ROW[:-1], "-"))[0].split() == ["id", "state", "started", "ran", "cost", "title"]
