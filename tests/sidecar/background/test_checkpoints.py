"""The life of a checkpoint: the first answer wins, wherever it comes from, and it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.effects.policy import Effect
from sidecar.background.intents.works import Asker, user
from sidecar.background.messages import alerts
from sidecar.background.messages.agent import NAME, MessageAgent
from sidecar.background.messages.answers import ANSWER
from sidecar.background.messages.deliver import WAKE
from sidecar.background.messages.person import SEND, SHOW
from sidecar.background.people.people import People
from sidecar.background.people.sentences import heading
from sidecar.home import Home
from sidecar.notify_config import NotifyConfig
from sidecar.read.ask_text import checkpoint_id
from sidecar.read.rendering.agents import agent_troubles
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.memory import MemoryStore
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.kinds import Clock
from tests.sidecar.agents.support import agents, until
from tests.sidecar.background.support import PLAIN, Bench, Only, Script, bench
from tests.sidecar.background.test_people import Host

PHANTOM, CHILD, PARENT = "ses_phantom", "ses_child", "ses_parent"
ASKED = checkpoint_id(CHILD, "per_1")


class Checkpoints(MessageAgent):
    """With background work in two sessions."""

    def __init__(self) -> None:
        self.at_work = {each: Asker("int_1", PARENT, "count things", "/home/ada/shop") for each in (PHANTOM, CHILD)}
        super().__init__(asker=lambda session: self.at_work.get(session) or user(session))


@asynccontextmanager
async def asking(kind: Script | None = None) -> AsyncIterator[tuple[Bench, Checkpoints, Script]]:
    """Background work with a child session; and what messages to sessions lead to."""
    agent, wake = Checkpoints(), Script({"status": "sent", "saved": True})
    kinds = {ANSWER: kind or Script({"status": "answered"}), WAKE: wake, SHOW: Script({"shown": False})}
    async with bench(MemoryStore(), [agent], kinds) as run:
        yield run, agent, wake


def woken(wake: Script) -> list[str]:
    """The sessions that got a message, in order."""
    return [args["session"] for args in wake.runs]


async def permission(run: Bench, session: str = CHILD, state: str = "asked", **about: Any) -> None:
    given = {"kind": "permission", "state": state, "request": "per_1", "permission": "bash", "patterns": ["make *"]}
    await run.happened("workflow.checkpoint", session=session, **{**given, **about})


async def answer(run: Bench, checkpoint: str, *given: str) -> list[str]:
    return await run.command(
        NAME, "message.answer", message=checkpoint, answer=list(given), by="user", key=f"key-{given}", ask={}
    )


async def ask(run: Bench, session: str, checkpoint: str = "chk_1", **about: Any) -> list[str]:
    given = {"message": checkpoint, "session": session, "text": "Ship?", "options": [], "default": "", "expires": 0}
    return await run.command(NAME, "message.ask", **{**given, **about})


async def test_an_ask_below_background_work_is_opened_and_answered_once() -> None:
    kind = Script({"status": "answered"})
    async with asking(kind) as (run, agent, _):
        await permission(run)
        known = agent.data.messages[ASKED]
        assert (known.is_open, known.intent, known.to) == (True, "int_1", PARENT)
        assert await answer(run, ASKED, "once") == ["message.answering", "effect.requested"]
        assert known.state == "answered"
        assert await answer(run, ASKED, "reject") == ["message.late"]
        await permission(run, state="replied", reply="once")
        assert (known.answer, known.key) == (["once"], "key-('once',)")
        assert len(kind.runs) == 1


async def test_what_opencode_rejected_together_with_another_is_withdrawn() -> None:
    async with asking() as (run, agent, _):
        for request in ("per_1", "per_2", "per_3"):
            await permission(run, request=request)
        await answer(run, ASKED, "reject")
        for request in ("per_2", "per_3"):
            await permission(run, state="replied", reply="reject", request=request, **{"with": "per_1"})
        second = agent.data.messages[checkpoint_id(CHILD, "per_2")]
        assert (second.state, second.why, second.by) == ("withdrawn", f"rejected with {ASKED}", "")
        assert await answer(run, second.id, "once") == ["message.late"]


async def test_the_model_is_told_who_answered() -> None:
    async with asking() as (run, _, wake):
        for by, said in (("user", "The user answered"), ("process", "A process of the user answered")):
            await ask(run, PARENT, f"chk_{by}")
            await run.command(NAME, "message.later", messages=[f"chk_{by}"])
            given = {"message": f"chk_{by}", "answer": ["yes"], "by": by, "key": by, "ask": {}}
            await run.command(NAME, "message.answer", **given)
            assert said in wake.runs[-1]["texts"][0]["text"]


async def test_an_ask_of_the_user_is_not_opened_by_itself() -> None:
    async with asking() as (run, agent, _):
        await permission(run, PARENT)
        assert agent.data.messages == {}
    everywhere = MessageAgent([["desktop"]])
    async with bench(MemoryStore(), [everywhere], {}) as run:
        await permission(run, PARENT)
        assert [c.to for c in everywhere.data.messages.values()] == [PARENT]


async def typed(run: Bench, session: str, text: str, **about: Any) -> None:
    await run.happened("human.input", session=session, parts=[{"type": "text", "text": text}], **about)


async def test_what_a_person_types_answers_the_ask_that_their_session_waits_for() -> None:
    async with asking() as (run, agent, wake):
        await ask(run, PARENT)
        await typed(run, "ses_other", "no")
        await typed(run, PARENT, "", shell="ls")
        await typed(run, PARENT, "what was typed long ago", metadata={"history": True})
        known = agent.data.messages["chk_1"]
        assert known.is_open
        await typed(run, PARENT, "yes, do")
        assert (known.state, known.answer, known.by, known.via) == (
            "answered",
            ["yes, do"],
            "user",
            {"channel": "opencode"},
        )
        assert woken(wake) == [], "the call that waits returns it"


async def test_a_message_answers_nothing_if_it_is_not_clear_what_it_answers() -> None:
    async with asking() as (run, agent, _):
        await ask(run, PARENT)
        await ask(run, PARENT, "chk_2")
        await ask(run, "ses_cut", "chk_3", left_out=7)
        await ask(run, "ses_left", "chk_4")
        await run.command(NAME, "message.later", messages=["chk_4"])
        for session in (PARENT, "ses_cut", "ses_left"):
            await typed(run, session, "yes")
        assert all(each.is_open for each in agent.data.messages.values())


class Held(Script):
    """A host that takes the answer only after ``free``."""

    def __init__(self) -> None:
        super().__init__({"status": "gone"})
        self.begun, self.free = asyncio.Event(), asyncio.Event()

    async def run(self, effect: Effect, key: str) -> Any:
        self.begun.set()
        await self.free.wait()
        return await super().run(effect, key)


async def test_an_answer_in_opencode_wins_over_one_that_is_on_its_way() -> None:
    kind = Held()
    async with asking(kind) as (run, agent, _):
        await permission(run)
        ours = asyncio.create_task(answer(run, ASKED, "once"))
        await kind.begun.wait()
        assert agent.data.messages[ASKED].state == "answering"
        theirs = asyncio.create_task(permission(run, state="replied", reply="reject"))
        await until(lambda: agent.data.messages[ASKED].state != "answering")
        kind.free.set()
        await asyncio.gather(ours, theirs)
        known = agent.data.messages[ASKED]
        assert (known.state, known.answer, known.key) == ("answered", ["reject"], "")
        assert await answer(run, ASKED, "once") == ["message.late"]


async def test_an_answer_that_did_not_arrive_leaves_it_open() -> None:
    kind = Script(ConnectionError("away"))
    async with asking(kind) as (run, agent, _):
        await permission(run)
        await answer(run, ASKED, "once")
        assert agent.data.messages[ASKED].is_open
        assert len(kind.runs) == 5
        kind.result = {"status": "gone"}
        await answer(run, ASKED, "always")
        assert agent.data.messages[ASKED].state == "withdrawn"


async def test_an_answer_that_arrived_before_its_sidecar_died_is_the_answer() -> None:
    async with asking(Script({"status": "gone"})) as (run, agent, _):
        await permission(run)
        await answer(run, ASKED, "once")
        assert agent.data.messages[ASKED].state == "withdrawn"
        await permission(run, state="replied", reply="once")
        known = agent.data.messages[ASKED]
        assert (known.state, known.key) == ("answered", "key-('once',)")


@pytest.mark.parametrize(
    ("type_", "about", "state"),
    [
        ("turn.ended", {"session": CHILD, "outcome": "aborted"}, "withdrawn"),
        ("turn.ended", {"session": CHILD, "outcome": "continued"}, "queued"),
        ("turn.ended", {"session": PHANTOM, "outcome": "completed"}, "queued"),
        ("lifecycle.session.ended", {"session": CHILD}, "withdrawn"),
        ("intent.cancelled", {"intent": "int_1"}, "withdrawn"),
        ("intent.cancelled", {"intent": "int_2"}, "queued"),
    ],
)
async def test_it_ends_with_what_asked(type_: str, about: dict[str, Any], state: str) -> None:
    async with asking() as (run, agent, _):
        await permission(run)
        await run.happened(type_, **about)
        assert agent.data.messages[ASKED].state == state


async def test_nobody_answers_in_time() -> None:
    async with asking() as (run, agent, wake):
        await ask(run, PARENT, expires=run.clock.now_ms + 60_000, default="no")
        assert agent.deadline() == run.clock.now_ms + 60_000
        await run.command(NAME, "message.later", messages=["chk_1"])
        await run.tick(NAME, 59)
        assert agent.data.messages["chk_1"].is_open
        await run.tick(NAME, 1)
        known = agent.data.messages["chk_1"]
        assert (known.state, known.answer) == ("expired", ["no"])
        assert woken(wake) == [PARENT] and "default" in wake.runs[0]["texts"][0]["text"]
        assert await answer(run, "chk_1", "yes") == ["message.late"]


async def test_an_answer_goes_to_the_call_that_waits_and_else_to_the_session_once() -> None:
    async with asking() as (run, agent, wake):
        await ask(run, PARENT)
        await answer(run, "chk_1", "yes")
        assert woken(wake) == []
        await run.command(NAME, "message.return", message="ntc_1", about="chk_1", session=PARENT, call="")
        assert woken(wake) == []

        await ask(run, PARENT, "chk_2")
        await answer(run, "chk_2", "yes")
        # The call gave up, or its process died, before it could return the answer.
        await run.command(NAME, "message.later", messages=["chk_2"])
        await run.command(NAME, "message.later", messages=["chk_2"])
        assert woken(wake) == [PARENT]
        assert agent.data.messages["chk_2"].waiting is False


async def test_a_call_whose_turn_was_stopped_waits_no_more() -> None:
    async with asking() as (run, agent, wake):
        await ask(run, PARENT)
        await run.happened("turn.ended", session=PARENT, outcome="aborted")
        assert agent.data.messages["chk_1"].is_open and not agent.data.messages["chk_1"].waiting
        await answer(run, "chk_1", "yes")
        assert woken(wake) == [PARENT]


@pytest.mark.parametrize(
    ("hook", "outcome", "kept"),
    [
        ("event", "interrupted", True),
        (None, "interrupted", False),
        # OpenCode died between the hook and what it keeps: the hook is all that capture has.
        ("tool.execute.after", "interrupted", False),
        # It was only slow to report the part's end.
        ("tool.execute.after", "completed", True),
    ],
)
async def test_an_answer_that_opencode_did_not_keep_goes_to_the_session(
    hook: str | None, outcome: str, kept: bool
) -> None:
    async with asking() as (run, agent, wake):
        await ask(run, PARENT)
        (known,) = agent.data.messages.values()
        await answer(run, known.id, "yes")
        await run.command(NAME, "message.return", message="ntc_1", about=known.id, session=PARENT, call="call_1")
        if hook is not None:
            step = {"session": PARENT, "call": "call_1", "kind": "tool", "status": "completed"}
            await run.happened("execution.step", metadata={"hook": hook}, **step)
        await run.happened("turn.ended", session=PARENT, outcome=outcome)
        await run.happened("turn.ended", session=PARENT, outcome="completed")
        assert len(wake.runs) == (0 if kept else 1)


async def test_the_answer_for_background_work_that_ended_goes_to_the_session_above() -> None:
    async with asking() as (run, agent, wake):
        await ask(run, PHANTOM)
        await run.command(NAME, "message.later", messages=["chk_1"])
        agent.at_work.clear()
        await run.happened("intent.completed", intent="int_1")
        assert agent.data.messages["chk_1"].is_open
        await answer(run, "chk_1", "yes")
        assert woken(wake) == [PARENT]


async def test_an_answer_that_ended_work_did_not_read_is_told_to_a_person() -> None:
    async with asking() as (run, agent, wake):
        agent.at_work[PHANTOM] = Asker("int_1", None, "zones", "/p")
        await ask(run, PHANTOM)
        await run.command(NAME, "message.later", messages=["chk_1"])
        assert await answer(run, "chk_1", "zone-b") == ["message.answered", "message.queued"]
        agent.at_work.clear()
        await run.happened("intent.completed", intent="int_1", ends=PHANTOM, title="zones", directory="/p")
        assert agent.data.messages["ntc_1"].state == "withdrawn"
        told = agent.data.messages["alr_1"]
        assert (told.kind, told.about, told.is_open, woken(wake)) == ("alert", "int_1", True, [])


@pytest.mark.parametrize("is_handled", [False, True])
async def test_an_answer_that_comes_after_the_end_of_work_without_a_session_above_is_late(is_handled: bool) -> None:
    async with asking() as (run, agent, _):
        agent.at_work[PHANTOM] = Asker("int_1", None, "zones", "/p")
        await ask(run, PHANTOM)
        agent.at_work.clear()
        if is_handled:
            await run.happened("intent.completed", intent="int_1", ends=PHANTOM)
        late = ["message.late"] if is_handled else ["message.withdrawn", "message.late"]
        assert await answer(run, "chk_1", "zone-b") == late
        assert agent.data.messages["chk_1"].state == "withdrawn"


async def test_what_a_person_lets_ended_work_ask_names_the_work_and_its_project() -> None:
    """OpenCode only knows the copy, whose name is an id."""
    ended = Asker(None, PHANTOM, "count things", "/home/ada/shop")
    agent = MessageAgent([["desktop"]], asker=lambda session: ended)
    async with bench(MemoryStore(), [agent], {}) as run:
        await permission(run, PHANTOM, "asked")
        (known,) = agent.data.messages.values()
        assert heading(known) == "count things in shop asks for permission"


class Moody(Counter):
    """An agent with the health that the test sets."""

    name = "moody"

    def __init__(self) -> None:
        super().__init__()
        self.mood: Any = "READY"

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["type"] == "feel":
            return [{"type": "moody.felt", "payload": event["payload"]}]
        return super().receive(event)

    def apply(self, event: dict[str, Any]) -> None:
        super().apply(event)
        if event["type"] == "moody.felt":
            self.mood = event["payload"]["mood"]

    def health(self) -> Any:
        return self.mood if isinstance(self.mood, str) else tuple(self.mood)


def trouble(about: str) -> dict[str, Any]:
    return {"about": f"agents:{about}", "text": f"{about} is wrong", "hint": "look", "may_pass": False}


async def test_a_trouble_rings_once_until_it_is_over() -> None:
    send, agent = Script({}), MessageAgent([["json:1"]], NotifyConfig())
    async with bench(MemoryStore(), [agent], {SEND: send}) as run:

        async def are(*abouts: str) -> list[str]:
            """The messages that this makes."""
            send.runs.clear()
            await run.command(NAME, "message.troubles", troubles=[trouble(each) for each in abouts])
            for _ in range(2):
                await run.tick(NAME, 31)
            return [args["text"] for args in send.runs]

        assert await are("one") == ["one is wrong. look"]
        assert await are("one") == []
        (both,) = await are("one", "two", "three")
        assert "two is wrong" in both and "three is wrong" in both
        assert await are("two") == []
        assert {a.about for a in agent.data.messages.values() if a.is_open} == {"agents:two"}
        assert await are("one", "two") == ["one is wrong. look"], "again, because it had ended"
        assert agent.deadline() is None


@asynccontextmanager
async def watched(path: Path, *, lasts: float = 0.0) -> AsyncIterator[tuple[People, Bench, list[dict[str, str]]]]:
    """A person with a channel, an agent, and what could not be loaded."""
    home, clock, problems = Home(path / "home"), Clock(), list[dict[str, str]]()
    home.create()
    store = await Log.open(home.store_path, seeded_identity(1))
    config = NotifyConfig(command=("true",), escalate_after_seconds=lasts)
    made = People(
        home,
        config,
        clock.identity(store.head + 9),
        Only(Host()),  # type: ignore[arg-type]
        PLAIN,
        lambda: run.runtime,
        lambda: {"agents": run.runtime.status(), "problems": problems},
    )
    async with bench(store, [made.messages, *agents(Moody)], made.kinds, clock, seed=store.head + 3) as run:
        run._count = store.head + 100
        await run.settled()
        yield made, run, problems
    await store.close()


async def told(made: People, run: Bench) -> list[str]:
    """What is known to be wrong, after the sidecar has looked."""
    await made.keep_time()
    await run.settled()
    open_ = {a.about for a in made.messages.data.messages.values() if a.is_open}
    assert open_ == alerts.troubles(made.messages.data)
    return sorted(about.removeprefix("agents:") for about in open_)


async def test_the_troubles_of_agents_are_told(tmp_path: Path) -> None:
    async with watched(tmp_path) as (made, run, problems):
        assert await told(made, run) == []
        problems.append({"spec": "a.py:A", "reason": "no such file"})
        await run.command("moody", "feel", mood=["DEGRADED", ["the shop is slow", "and closed"]])
        assert await told(made, run) == ["a.py:A not loaded", "moody degraded"]
        (text,) = [a.text for a in made.messages.data.messages.values() if "moody" in a.about]
        assert "the shop is slow; and closed" in text and "durable-stream agents" in text
        for n in range(2):  # the last delivery of a message, and another
            given = Command(f"k{n}", "fail", {})
            letter = await run.runtime.bury("moody", given, "as asked", {"attempts": 5}, key=f"m{n}")
            await run.settled()
            assert await told(made, run) == ["a.py:A not loaded", "moody dead", "moody degraded"]
        assert len(made.messages.data.messages) == 3
    async with watched(tmp_path) as (made, run, problems):
        problems.append({"spec": "a.py:A", "reason": "no such file"})
        assert await told(made, run) == ["a.py:A not loaded", "moody dead", "moody degraded"]
        assert len(made.messages.data.messages) == 3, "a restart raises no alert again"
        for letter_id in list(run.runtime.view.dead):
            await run.runtime.drop(letter_id)
        await run.command("moody", "feel", mood="READY")
        problems.clear()
        assert await told(made, run) == [] and letter.event.id not in run.runtime.view.dead
        await run.command("moody", "feel", mood=["FAILED", ["it burned down"]])
        assert await told(made, run) == ["moody failed"]


async def test_what_passes_is_not_told(tmp_path: Path) -> None:
    async with watched(tmp_path, lasts=3600.0) as (made, run, _):
        await run.command("moody", "feel", mood=["DEGRADED", ["slow"]])
        assert await told(made, run) == [] and made.messages.data.messages == {}
        await run.command("moody", "feel", mood=["FAILED", ["slow"]])
        assert await told(made, run) == ["moody failed"]


async def test_a_dropped_letter_is_no_trouble_any_more(tmp_path: Path) -> None:
    """The error of an event makes a dead letter and degrades the agent; both are one trouble, which a person ends."""
    async with watched(tmp_path) as (made, run, _):
        moody = run.runtime.engines["moody"].agent
        moody.events = ("shop.opened",)
        moody._agent.receive = _fail  # type: ignore[attr-defined]
        run.runtime._listing.cache_clear()
        await run.happened("shop.opened")
        (row,) = [row for row in run.runtime.status() if row["name"] == "moody"]
        assert (row["health"], row["dead"]) == ("DEGRADED", 1)
        assert await told(made, run) == ["moody dead"]
        (letter,) = run.runtime.view.dead
        await run.runtime.drop(letter)
        assert await told(made, run) == []


def _fail(event: dict[str, Any]) -> Any:
    raise RuntimeError("as asked")


@pytest.mark.parametrize("row", [{"health": "READY", "in_doubt": 2}, {"health": "FAILED", "in_doubt": 1}])
def test_a_doubt_is_told_by_its_checkpoint_alone(row: dict[str, Any]) -> None:
    plain = {"name": "moody", "reasons": ["why"], "dead": 0, "last_error": ""}
    found = agent_troubles({"agents": [plain | row]})
    assert [each.is_asked for each in found] == [False] * (row["health"] == "FAILED") + [True]
