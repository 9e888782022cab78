"""What a person does with background work that has ended, as the command line asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.link.protocol import RequestError
from sidecar.background.intents.registering import RegisterArgs
from sidecar.background.service import DurableStream
from sidecar.registry import Requests
from tests.sidecar.background.projects import git, repository, write
from tests.sidecar.background.support import Bench
from tests.sidecar.background.test_service import PARENT, orchestration


async def ask(made: DurableStream, name: str, **args: Any) -> dict[str, Any]:
    table = Requests()
    made.register(table)
    found: dict[str, Any] = await table.answer(name, args)
    return found


async def worked(made: DurableStream, run: Bench, project: Path, does: Callable[[Path], Any]) -> str:
    """An intent that has ended."""
    intent = await made.register_intent(
        RegisterArgs(prompt="do it", directory=str(project), parent=PARENT, agent="build")
    )
    await run.settled()
    does(Path(made.data.intents[intent.id].place))
    await run.happened("turn.ended", session=f"ses_{intent.id}", outcome="completed")
    assert made.data.intents[intent.id].state == "completed"
    return intent.id


async def test_what_is_discarded_is_gone_and_no_longer_offered(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"a.txt": "one\n", ".gitignore": "*.log\n"})
    async with orchestration(tmp_path, "worktree") as (made, _, run):
        intent = await worked(made, run, project, lambda root: (write(root / "a.txt"), write(root / "only.log")))
        root = made.data.intents[intent].worktree["root"]
        seen = await ask(made, "intent_discard", intent=intent, preview=True)
        assert seen == {"id": intent, "ref": f"refs/durable-stream/{intent}", "worktree": root} and Path(root).is_dir()
        assert await ask(made, "intent_discard", intent=intent) == seen and not Path(root).exists()
        assert git(project, "for-each-ref", "refs/durable-stream") == ""
        assert await ask(made, "intent_discard", intent=intent) == {"id": intent, "ref": "", "worktree": ""}
        with pytest.raises(RequestError) as raised:
            await ask(made, "intent_apply", intent=intent)
        assert raised.value.code == "no-changes" and made.data.intents[intent].discarded


async def test_ended_work_goes_on_with_the_rights_of_its_session(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    async with orchestration(tmp_path, "worktree") as (made, host, run):
        old = await worked(made, run, project, lambda root: write(root / "a.txt", "first\n"))
        given = {"prompt": "and now", "directory": "/elsewhere", "continues": old[:8]}
        new = (await ask(made, "spawn", **given))["id"]
        await run.settled()
        first, second = made.data.intents[old], made.data.intents[new]
        for name in ("session", "parent", "agent", "directory", "environment", "root", "place"):
            assert getattr(first, name) == getattr(second, name), name
        assert Path(second.place, "a.txt").read_text() == "first\n" and len(host.created) == 1
        for name, args in (("spawn", given), ("intent_discard", {"intent": old})):
            with pytest.raises(RequestError) as raised:
                await ask(made, name, **args)
            assert raised.value.code == "still-running"
        await run.happened("turn.ended", session=second.session, outcome="completed")
        assert made.data.intents[new].changes["count"] == 1 and not Path(second.place).exists()
        with pytest.raises(RequestError) as raised:
            await ask(made, "spawn", **given, agent="other")
        assert raised.value.code == "bad-arguments"


async def test_a_worktree_in_which_later_work_was_done_goes_with_the_later_work(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"a.txt": "one\n", ".gitignore": "*.log\n"})
    async with orchestration(tmp_path, "worktree") as (made, _, run):
        old = await worked(made, run, project, lambda root: write(root / "only.log"))
        new = (await ask(made, "spawn", prompt="and now", directory="/p", continues=old))["id"]
        await run.settled()
        root = Path(made.data.intents[new].place)
        await run.happened("turn.ended", session=f"ses_{old}", outcome="completed")
        assert (await ask(made, "intent_discard", intent=old))["worktree"] == "" and root.is_dir()
        assert (await ask(made, "intent_discard", intent=new))["worktree"] == str(root) and not root.exists()
