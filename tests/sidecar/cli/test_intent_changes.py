"""``intents ID``: the changes of background work in a worktree, whole, and what is only in a worktree that was kept."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.worktrees.worktrees import MAX_DIFF, Worktree, Worktrees
from tests.sidecar.background.projects import ID, repository, write
from tests.sidecar.cli.helpers import append, run
from tests.sidecar.cli.test_top import NOW, intent


async def _work(project: Path, home: Path) -> tuple[Worktree, dict[str, Any]]:
    worktrees = Worktrees(home / "worktrees")
    made = await worktrees.add(ID, str(project))
    assert made is not None
    root = Path(made.root)
    write(root / "a_big.txt", "a line\n" * 60_000)
    write(root / "zz_hook.sh")
    write(root / "out/report.txt")
    return made, await worktrees.collect(ID, made.repository, made.base, made.folder)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    project = repository(tmp_path / "project", {".gitignore": "out\n"})
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    made, changes = asyncio.run(_work(project, home))
    assert len(changes["diff"]) == MAX_DIFF and changes["is_cut"]
    setup = [{"command": "make deps", "code": 0, "seconds": 72.0, "output": "built \x1b[1mall\n"}]
    isolated = ("intent.isolated", {"worktree": made._asdict(), "setup": setup})
    started = ("intent.started", {"session": "ses_1", "parent": None, "ts": NOW})
    ended = ("intent.completed", {"ts": NOW, "changes": changes})
    asyncio.run(append(home / "store", [[event] for event in intent(ID, isolated, started, ended)]))
    return home


def test_the_diff_is_whole(home: Path) -> None:
    shown = run(home, "intents", ID, "--diff").out
    assert shown.count("\n+a line") == 60_000 and "+++ b/zz_hook.sh\n" in shown


def test_what_is_only_in_a_kept_worktree_is_named(home: Path) -> None:
    shown = run(home, "intents", ID).out
    assert str(home / "worktrees" / ID) in shown and "out/report.txt" in shown
    (row,) = run(home, "intents", ID, "--json").objects()
    assert row["changes"]["kept"] == str(home / "worktrees" / ID) and row["changes"]["unsaved_count"] == 1


def test_what_the_setup_did_is_shown(home: Path) -> None:
    shown = run(home, "intents", ID).out
    assert "make deps" in shown and "all" in shown and "\x1b" not in shown


def test_doctor_says_how_much_ended_work_left_behind(home: Path) -> None:
    (found,) = [row for row in run(home, "doctor", "--json").objects() if row["name"] == "worktrees"]
    assert found["level"] == "note" and "1 worktree" in found["text"] and ID in found["hint"]
    shutil.rmtree(home / "worktrees" / ID)
    assert "worktrees" not in [row["name"] for row in run(home, "doctor", "--json").objects()]


def test_a_diff_that_cannot_be_read_is_an_error(home: Path) -> None:
    (home.parent / "project").rename(home.parent / "gone")
    done = run(home, "intents", ID, "--diff")
    assert (done.code, done.err.rstrip()[-12:]) == (1, "[git-failed]")
