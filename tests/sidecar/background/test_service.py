"""The façade ``BackgroundWork``: keys, tools and what a restart does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.opencode.link.protocol import CallError, RequestError
from sidecar.agents.effects.policy import Effect
from sidecar.agents.inputs import InputRefused
from sidecar.background.hosts.rights import Rule
from sidecar.background.intents import state as intent_state
from sidecar.background.intents.intent_effects import ISOLATE
from sidecar.background.intents.registration import RegisterArgs
from sidecar.background.messages.deliver import GATHER_MS
from sidecar.background.requests import WorkRequests
from sidecar.background.service import BackgroundWork
from sidecar.home import Home
from sidecar.registry import Requests
from streams.lineage import trace_id
from tests.sidecar.agents.support import records
from tests.sidecar.background.orchestrations import PARENT, RIGHTS, call, orchestration
from tests.sidecar.background.projects import ID, git, repository, write
from tests.sidecar.background.support import Bench
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import running, start


async def test_work_that_is_known_to_wait_only_after_its_opencode_is_back_goes_on(tmp_path: Path) -> None:
    async with orchestration(tmp_path, links=[SimpleNamespace(is_open=True)]) as (made, host, run):
        host.is_away = True
        given = RegisterArgs(prompt="do it", directory="/p", parent=PARENT)
        intent = (await made.register_intent(given)).id
        await run.settled()
        assert (made.data.intents[intent].waits, made.data.intents[intent].session) == ("environment", None)
        host.is_away = False
        await made._offer()
        await run.settled()
        assert made.data.intents[intent].state == "running"
        before = await run.types("intents")
        await made._offer()
        await run.settled()
        assert await run.types("intents") == before, "nothing waits any more"


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_result_that_a_call_returned_is_not_told_again_unless_its_turn_was_stopped(
    tmp_path: Path, stopped: bool
) -> None:
    async with orchestration(tmp_path) as (made, host, run):
        host.idle = False
        intent = await made.register_intent(RegisterArgs(prompt="do it", directory="/p", parent=PARENT))
        await run.settled()
        host.answers("msg_1")
        assert "still running" in await call(made, "wait_for", what=intent.id, seconds=0.01)
        waits = asyncio.create_task(call(made, "wait_for", what=intent.id))
        await asyncio.sleep(0)
        if stopped:
            host.answers("msg_2")
        phantom = f"ses_{intent.id}"
        await run.answered(phantom, "forty two")
        (notice,) = made.people.messages.data.messages.values()
        assert await waits == notice.text and "forty two" in notice.text
        await run.settled()
        assert made.people.messages.data.messages[notice.id].state == ("queued" if stopped else "returned")
        assert await call(made, "intent_result", intent=intent.id) == notice.text


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ({}, "mock/parent"),
        ({"agent": "build"}, "mock/parent"),
        ({"agent": "thinker"}, None),
        ({"agent": "thinker", "model": "mock/given"}, "mock/given"),
    ],
)
async def test_work_gets_model_agent_and_rights_of_the_session_that_asks_unless_others_are_named(
    tmp_path: Path, given: dict[str, str], model: str | None
) -> None:
    async with orchestration(tmp_path) as (made, host, run):
        await call(made, "agent_spawn", prompt="do it", title="it", **given)
        await run.settled()
        assert [about["model"] for _, _, about in host.prompts] == [model]
        (about,) = host.created
        assert (about["agent"], about["rights"]) == (given.get("agent", "build"), RIGHTS)
        assert "rights" not in json.dumps(made.status()), "they are not listed"


async def test_calls_to_which_a_model_gave_one_id_are_as_many_as_they_differ(tmp_path: Path) -> None:
    async with orchestration(tmp_path) as (made, _host, _run):
        for prompt in ("one", "two", "one"):
            await call(made, "agent_spawn", prompt=prompt, title="it")
        assert sorted(intent.prompt for intent in made.data.intents.values()) == ["one", "two"]
        for text in ("first", "second", "first"):
            await call(made, "notify_user", message=text)
        assert sorted(alert.text for alert in made.people.messages.data.messages.values()) == ["first", "second"]


async def test_one_chain_of_causes_and_one_trace_lead_from_the_call_to_the_message_with_the_result(
    tmp_path: Path,
) -> None:
    async with orchestration(tmp_path) as (made, host, run):
        host.answers("msg_1")
        await call(made, "agent_spawn", prompt="do it", title="work")
        await run.settled()
        (intent,) = made.data.intents.values()
        session = f"ses_{intent.id}"
        about = made.asked("ses_new", intent.id)
        assert about is None, "a fork of its session has its mark"
        about = made.asked(session, intent.id)
        assert about is not None and (about.parent, about.turn, about.call) == (PARENT, "msg_1", "call_1")
        # The end comes from another chain.
        await run.command("intents", "intent.cancel", intent="int_none")
        await run.answered(session)
        await run.settled()
        events = {r.event.id: r.event for r in await records(run.store, "agent/intents")}
        for stream in ("agent/intents/effects", "agent/messages", "agent/messages/effects"):
            events |= {r.event.id: r.event for r in await records(run.store, stream)}
        (notice,) = made.people.messages.data.messages.values()
        woken = made.asked(PARENT, notice.key)
        assert woken is not None and events[woken.cause].type == "message.queued"
        for first in (about, woken):
            cause = first.cause
            while cause in events:
                cause = events[cause].causation_id or ""
            assert cause == "e", "the parent's turn"
        own = [e for e in events.values() if intent.id in json.dumps(e.payload) and e.type != "agent.received"]
        assert {e.traceparent[3:35] for e in own if e.traceparent} == {trace_id(PARENT)}


async def test_a_result_that_waits_for_others_when_the_sidecar_dies_is_told_once(tmp_path: Path) -> None:
    async with orchestration(tmp_path) as (made, _, run):
        for key in "ab":
            given = RegisterArgs(prompt="do it", directory="/p", parent=PARENT, key=key)
            intent = await made.register_intent(given)
        await run.settled()
        await run.answered(f"ses_{intent.id}")
        assert [notice.state for notice in made.people.messages.data.messages.values()] == ["queued"]
    async with orchestration(tmp_path) as (made, host, run):
        assert host.prompts == []
        for _ in range(3):
            run.clock.now_ms += GATHER_MS
            await run.settled()
        assert [session for session, _, _ in host.prompts].count(PARENT) == 1
        assert [notice.state for notice in made.people.messages.data.messages.values()] == ["seen"]


async def test_nothing_starts_while_it_is_not_known_what_the_session_may_do(tmp_path: Path) -> None:
    async with orchestration(tmp_path) as (made, host, _):
        host.works = False
        with pytest.raises(CallError):
            await call(made, "agent_spawn", prompt="do it", title="it")
        assert made.data.intents == {}


@pytest.mark.parametrize("named", [None, "shared", "copy"])
async def test_a_model_does_not_leave_the_copy_that_the_user_wants(tmp_path: Path, named: str | None) -> None:
    async with orchestration(tmp_path, "copy") as (made, _, _run):
        await call(made, "agent_spawn", prompt="do it", title="it", **({"isolation": named} if named else {}))
        assert [intent.isolation for intent in made.data.intents.values()] == ["copy"]


async def test_the_same_key_is_the_same_intent_also_when_many_have_ended_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = 20
    monkeypatch.setattr(intent_state, "KEPT_ENDED", kept)
    async with orchestration(tmp_path) as (made, host, run):
        host.works = False
        given = RegisterArgs(prompt="do it", directory="/p", key="mine")
        first = await made.register_intent(given)
        assert (await made.register_intent(given)).id == first.id
        await run.settled()
        for n in range(kept):
            await made.register_intent(RegisterArgs(prompt=f"{n}", directory="/p"))
        await run.settled()
        for n in range(2):
            await made.register_intent(RegisterArgs(prompt=f"late {n}", directory="/p"))
            await run.settled()
        assert first.id not in made.data.intents
        again = await made.register_intent(given)
        assert (again.id, again.state, again.code) == (first.id, "failed", "no-session")
        with pytest.raises(InputRefused, match=first.id):
            await made.register_intent(given.model_copy(update={"prompt": "something else"}))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"prompt": "something else"}, "prompt"),
        ({"models": []}, "models"),
        ({"parent": PARENT}, "parent"),
        ({"minutes": 5, "tokens": 7, "cost": 0.5}, "minutes, tokens, cost"),
    ],
)
async def test_a_key_is_refused_for_other_work_and_names_what_differs(
    tmp_path: Path, other: dict[str, Any], named: str
) -> None:
    async with orchestration(tmp_path) as (made, _, run):
        given = RegisterArgs(prompt="do it", directory="/p", key="mine", models=["mock/a", "mock/b"])
        first = await made.register_intent(given)
        with pytest.raises(InputRefused) as refused:
            await made.register_intent(given.model_copy(update=other))
        assert refused.value.code == "key-conflict"
        assert first.id in str(refused.value) and f"differs in {named})" in str(refused.value)
        await run.settled()
        assert len(made.data.intents) == 1
        await run.happened("turn.ended", session=f"ses_{first.id}", outcome="failed", error="overloaded")
        assert made.data.intents[first.id].models == ["mock/b"], "the next model took over"
        assert (await made.register_intent(given.model_copy(update={"title": "a name"}))).id == first.id


async def test_a_start_resumes_unfinished_work_and_tells_other_agents_so(tmp_path: Path) -> None:
    async with orchestration(tmp_path) as (made, _, run):
        async with AsyncExitStack() as stack:
            await made.start(stack)
        assert "resume" not in await run.types("intents"), "without background work nothing is recorded"
        intent = await made.register_intent(RegisterArgs(prompt="do it", directory="/p"))
        await run.settled()
        async with AsyncExitStack() as stack:
            await made.start(stack)
            await run.settled()
        heard = [r.event for r in await records(run.store, "agent/watcher") if r.event.type == "watcher.heard"]
        assert [event.payload["intents"] for event in heard] == [[intent.id]]
        assert (await run.steps("intents", "opencode.check"))[-1] == "effect.completed"


def test_work_that_no_opencode_can_do_is_refused_and_the_same_key_is_the_same_intent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    home = Home(tmp_path / "home")
    home.create()
    home.config_path.write_text('link.scripts_may = ["spawn"]\n')
    process = start(home)
    try:
        running(home)
        more = ("--tokens", "5", "--cost", "0.5", "--directory", str(tmp_path))
        refused = run(home.path, "spawn", "do it", "--key", "mine", *more)
        assert "`durable-stream install` [not-installed]" in refused.err
        assert not run(home.path, "intents").out
        assert run(home.path, "install").code == 0
        said = [run(home.path, "spawn", "do it", "--key", "mine", *more) for _ in range(2)]
        assert len({done.out.split()[0] for done in said}) == 1, said
        assert [done.code for done in said] == [0] * 2 and "The work waits" in said[0].err
        (intent,) = {done.out.split()[0] for done in said}
        waited = run(home.path, "spawn", "do it", "--key", "mine", *more, "--wait=0.01")
        assert (waited.code, intent in waited.out, intent in waited.err) == (0, True, True)
        refused = run(home.path, "spawn", "do that", "--key", "mine", *more)
        assert intent in refused.err and refused.err.endswith("[key-conflict]\n"), refused
        (row,) = run(home.path, "intents", "--json").out.splitlines()
        assert (json.loads(row)["max_tokens"], json.loads(row)["max_cost"]) == (5, 0.5)
    finally:
        process.terminate()
        process.wait(30)


async def ask(made: BackgroundWork, name: str, **args: Any) -> dict[str, Any]:
    table = Requests()
    WorkRequests(made, made._identity).register(table)
    found: dict[str, Any] = await table.answer(name, args)
    return found


async def worked(made: BackgroundWork, run: Bench, project: Path, does: Callable[[Path], Any]) -> str:
    """An intent that has ended."""
    intent = await made.register_intent(
        RegisterArgs(prompt="do it", directory=str(project), parent=PARENT, agent="build")
    )
    await run.settled()
    does(Path(made.data.intents[intent.id].place))
    await run.answered(f"ses_{intent.id}")
    assert made.data.intents[intent.id].state == "completed"
    return intent.id


async def test_what_is_discarded_is_gone_and_no_longer_offered(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"a.txt": "one\n", ".gitignore": "*.log\n"})
    async with orchestration(tmp_path, "copy") as (made, _, run):
        intent = await worked(made, run, project, lambda root: (write(root / "a.txt"), write(root / "only.log")))
        root = made.data.intents[intent].copy["root"]
        seen = await ask(made, "intent_discard", intent=intent, preview=True)
        assert seen == {"id": intent, "changes": True, "copy": root} and Path(root).is_dir()
        assert await ask(made, "intent_discard", intent=intent) == seen and not Path(root).exists()
        assert git(project, "for-each-ref").count("\n") == 1 and not made.copies.result(intent).exists()
        assert await ask(made, "intent_discard", intent=intent) == {"id": intent, "changes": False, "copy": ""}
        with pytest.raises(RequestError) as raised:
            await ask(made, "intent_apply", intent=intent)
        assert raised.value.code == "no-changes" and made.data.intents[intent].discarded


async def test_what_other_edits_had_made_already_is_not_called_applied(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"a.txt": "one\n"})
    async with orchestration(tmp_path, "copy") as (made, _, run):
        first = await worked(made, run, project, lambda root: write(root / "a.txt", "two\n"))
        second = await worked(made, run, project, lambda root: write(root / "a.txt", "two\n"))
        assert (await ask(made, "intent_apply", intent=first))["count"] == 1
        found = await ask(made, "intent_apply", intent=second)
        assert (found["count"], found["applied"]) == (0, None)
        again = await ask(made, "intent_apply", intent=first)
        assert again["count"] == 0 and again["applied"]
        assert (await ask(made, "intent_apply", intent=first, undo=True))["applied"] is None
        assert (await ask(made, "intent_apply", intent=second))["count"] == 1


ANY = Rule("*", "*", "allow")
NAMED: list[tuple[list[Rule], dict[str, str]]] = [
    ([ANY], {"build": "", "other": "", "careful": ""}),
    ([ANY, Rule("task", "*", "deny")], {"build": "", "other": "agent-denied", "careful": "agent-denied"}),
    ([ANY, Rule("task", "*", "deny"), Rule("task", "care*", "allow")], {"other": "agent-denied", "careful": ""}),
    ([ANY, Rule("task", "careful", "deny")], {"other": "", "careful": "agent-denied"}),
    ([ANY, Rule("task", "careful", "ask")], {"build": "", "other": "", "careful": "agent-asks"}),
    ([ANY, Rule("subagent", "*", "deny")], {"careful": ""}),
    ([Rule("read", "*", "allow")], {"build": "", "careful": "agent-asks"}),
]


@pytest.mark.parametrize("tool", ["task", "subagent"])
@pytest.mark.parametrize(("rules", "codes"), NAMED)
async def test_a_session_starts_only_agents_that_it_may_start_with_opencode_s_own_tool(
    tmp_path: Path, tool: str, rules: list[Rule], codes: dict[str, str]
) -> None:
    names = {"task": tool, "subagent": "task" if tool == "subagent" else "subagent"}
    async with orchestration(tmp_path, "shared") as (made, host, _):
        host.starts, host.rules = tool, tuple(rule._replace(what=names.get(rule.what, rule.what)) for rule in rules)

        async def code(agent: str | None, call: str | None) -> str:
            args = RegisterArgs(prompt="do it", directory=str(tmp_path), parent=PARENT, agent=agent)
            try:
                await made.register_intent(args, agent="build", call=call)
            except RequestError as error:
                return error.code
            return ""

        assert await code(None, "call_1") == ""
        assert {agent: await code(agent, "call_1") for agent in codes} == codes
        by_person = {agent: "" if code == "agent-asks" else code for agent, code in codes.items()}
        assert {agent: await code(agent, None) for agent in codes} == by_person, "a person agrees by asking"


async def test_ended_work_goes_on_with_the_rights_of_its_session(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    async with orchestration(tmp_path, "copy") as (made, host, run):
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
        await run.answered(second.session)
        assert made.data.intents[new].changes["count"] == 1 and not Path(second.place).exists()
        with pytest.raises(RequestError) as raised:
            await ask(made, "spawn", **given, agent="other")
        assert raised.value.code == "bad-arguments"


async def test_a_copy_in_which_later_work_was_done_goes_with_the_later_work(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"a.txt": "one\n", ".gitignore": "*.log\n"})
    async with orchestration(tmp_path, "copy") as (made, _, run):
        old = await worked(made, run, project, lambda root: write(root / "only.log"))
        new = (await ask(made, "spawn", prompt="and now", directory="/p", continues=old))["id"]
        await run.settled()
        root = Path(made.data.intents[new].place)
        await run.answered(f"ses_{old}")
        assert (await ask(made, "intent_discard", intent=old))["copy"] == "" and root.is_dir()
        assert (await ask(made, "intent_discard", intent=new))["copy"] == str(root) and not root.exists()


async def test_a_copy_has_what_the_setting_lists(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {".gitignore": ".venv\nout\n"})
    for name in (".venv", "out"):
        write(project / name / "x")
    async with orchestration(tmp_path, listed=(".venv",)) as (made, _, _):
        args = {"intent": ID, "directory": str(project)}
        found = await made.kinds[ISOLATE].run(Effect(ISOLATE, args, "run"), "key")
    assert sorted(each.name for each in Path(found["root"]).iterdir()) == [".git", ".gitignore", ".venv"]
