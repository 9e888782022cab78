"""``changes`` as a person sees it: whole screens at two widths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sidecar.cli.helpers import make_home
from tests.sidecar.cli.test_read import SCREENS, drawn, shown
from tests.sidecar.cli.test_terminal import on_terminal
from tests.sidecar.read.conversations import DEMO


@pytest.fixture(scope="module")
def changes_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only: edits, an approved command, and one that was rejected in a session of its own."""
    return make_home(tmp_path_factory.mktemp("changes") / "home", DEMO, "permission_reject")


@pytest.mark.parametrize(("options", "width"), [([], 80), (["--diff"], 200)])
def test_the_screen_is_as_drawn(changes_home: Path, options: list[str], width: int) -> None:
    output = on_terminal(changes_home, "changes", *options, width=width, HOME="/home/ada")
    golden = SCREENS / f"{'-'.join(['changes', *(option.strip('-') for option in options)])}-{width}.txt"
    screen = shown(drawn(output, width))
    if os.environ.get("DRAW_SCREENS"):
        golden.write_text(screen)
    assert screen == golden.read_text(), "if it is meant: DRAW_SCREENS=1 pytest " + __file__
