"""How background work is stopped, and when its changes are collected. The host and the worktrees are fakes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sidecar.background import effects
from sidecar.background.effects import HostActs
from sidecar.background.hosts.host import HostError, Status
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.intents.state import intent_of
from sidecar.background.intents.texts import changes_text
from sidecar.background.worktrees import effects as worktree_effects
from sidecar.background.worktrees.effects import WorktreeActs
from sidecar.background.worktrees.setup import Setup
from sidecar.background.worktrees.worktrees import Worktrees
from tests.sidecar.background.support import PLAIN, Only

ARGS = {"intent": "int_1", "session": "ses_1", "stop": True, "work": "/work", "repository": "/r", "base": "b"}


class FakeHost:
    """A session that says these things about itself, the last one for ever."""

    def __init__(self, *statuses: Status | HostError, abort: HostError | None = None) -> None:
        self.statuses, self.error, self.aborts = list(statuses), abort, 0

    async def abort(self, session: str, *, directory: str) -> None:
        self.aborts += 1
        if self.error is not None:
            raise self.error

    async def status(self, session: str) -> Status:
        said = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(said, HostError):
            raise said
        return said


class FakeWorktrees:
    def __init__(self) -> None:
        self.removed = False

    async def collect(self, *_: Any) -> dict[str, Any]:
        self.removed = True
        return {"ref": ""}


async def collected(host: FakeHost) -> bool:
    """Whether the worktree was removed; if not, the effect failed, and is tried again."""
    worktrees = FakeWorktrees()
    acts = WorktreeActs(cast(Worktrees, worktrees), cast(Hosts, Only(host)), cast(Any, None), bool, Setup())
    try:
        await acts.collect(dict(ARGS), "key")
    except HostError:
        assert not worktrees.removed
    return worktrees.removed


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree_effects, "_POLL_SECONDS", 0.0)


@pytest.mark.parametrize("status", ["idle", "absent"])
async def test_a_session_that_rests_or_has_no_process_is_collected(status: Status) -> None:
    assert await collected(FakeHost("busy", status))
    assert await collected(FakeHost(status, abort=HostError("the service is away")))


async def test_the_worktree_of_a_session_that_does_not_stop_is_left() -> None:
    assert not await collected(FakeHost("busy"))


def test_what_is_only_in_a_kept_worktree_is_told() -> None:
    unsaved = [{"file": "out/report.txt", "why": "ignored by git"}]
    kept = {"ref": "", "files": [], "count": 0, "diff": "", "kept": "/w/int_1", "unsaved": unsaved, "unsaved_count": 9}
    intent = intent_of({"intent": "int_1", "prompt": "p", "title": "t", "directory": "/p", "ts": 1})
    said = "\n".join(changes_text(intent, kept))
    assert "/w/int_1" in said and "out/report.txt" in said and "8 more" in said
    saved = {**kept, "ref": "refs/durable-stream/int_1", "files": [{"file": "b.txt", "added": 1, "removed": 0}]}
    said = "\n".join(changes_text(intent, saved))
    assert "b.txt" in said and "out/report.txt" in said


@pytest.mark.parametrize(("args", "aborts"), [({}, 1), ({"late": True}, 3)])
async def test_a_turn_that_begins_after_a_late_abort_is_aborted(
    args: dict[str, Any], aborts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "LATE_SECONDS", 0.0)
    host = FakeHost("idle", "busy", "busy", "idle")
    acts = HostActs(cast(Hosts, Only(host)), PLAIN, print)
    assert await acts.abort({"session": "ses_1", "directory": "/p", **args}, "key") == {}
    assert host.aborts == aborts
