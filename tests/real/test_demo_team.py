"""The demo of a team tells its story: a reservation that the other machine heeds, work and an answer that cross."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tools.demo import team

pytestmark = pytest.mark.real_opencode


@pytest.mark.usefixtures("opencode_binary")
def test_two_machines_work_as_one_team() -> None:
    told = io.StringIO()
    assert team.main(Console(file=told, width=400)) == 0, told.getvalue()
    for said in ("is reserved by ‘Fix the login’ on laptop", team.RESULT, "machines on one page        2"):
        assert said in told.getvalue()
