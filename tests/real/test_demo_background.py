"""The demo of background work prints what the README shows.

Kills at every point: ``tests/torture/test_background_kills.py``.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tools.demo import background

pytestmark = pytest.mark.real_opencode

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.usefixtures("opencode_binary")
def test_the_demo_closes_opencode_and_kills_both_as_the_readme_shows() -> None:
    told = io.StringIO()
    assert background.main(Console(file=told)) == 0, told.getvalue()
    shown = README.read_text().split("```text\n", 1)[1].split("```", 1)[0]
    assert without_ids(shown) in without_ids(told.getvalue())


def without_ids(text: str) -> str:
    return re.sub(r"int_[0-9a-f]+|\d+", "N", text)
