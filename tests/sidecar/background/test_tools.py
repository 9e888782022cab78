"""The tools that the model gets: what they cost and say, and that no session reads or changes what is another's."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.capture.state import SessionState
from bridge.opencode.link.protocol import CallError, RequestError
from sidecar import components
from sidecar.background.intents.registration import RegisterArgs
from sidecar.background.messages.signals import MOST_AWAITED
from sidecar.background.people.people import AnswerArgs, SignalArgs
from sidecar.background.service import BackgroundWork, write_tools
from sidecar.background.tool_calls import MOST_WAITS, ToolCalls
from sidecar.background.tools import TOOLS, WAIT_MS, AskArgs, WaitArgs, check, tools_json
from sidecar.home import Home
from tests.sidecar.background.orchestrations import orchestration
from tests.sidecar.background.support import Bench

MOST_TOKENS = 1850


def tokens(text: str) -> int:
    """An upper estimate: each mark is a token, and each word one for every six letters begun."""
    return sum(-(-len(word) // 6) for word in re.findall(r"\w+|[^\w\s]", text))


def sent(name: str) -> dict[str, Any]:
    """A tool as a request to a model contains it."""
    tool = tools_json()[name]
    parameters = {"type": "object", "properties": tool["args"], "required": tool["required"]}
    about = {"name": name, "description": tool["description"], "parameters": parameters}
    return {"type": "function", "function": about}


def test_all_tools_together_cost_little() -> None:
    # As OpenCode sends them; the real client's tests compare this.
    assert tokens(json.dumps([sent(name) for name in TOOLS])) < MOST_TOKENS


@pytest.mark.parametrize("name", TOOLS)
def test_a_description_says_when_when_not_and_what_comes_back(name: str) -> None:
    tool = tools_json()[name]
    text = tool["description"]
    assert re.search(r"\bUse it\b|\bRead\b", text), "when to use it"
    assert re.search(r"\b[Dd]o not\b", text), "when not"
    assert re.search(r"\bReturns\b", text), "what comes back"
    assert len(text) < 500
    for argument, schema in tool["args"].items():
        assert schema["description"], argument
    assert set(tool["required"]) <= set(tool["args"])


def test_every_tool_is_named_in_no_other_words() -> None:
    named = set(re.findall(r"\b[a-z]+_[a-z]+\b", json.dumps([each["description"] for each in tools_json().values()])))
    assert named <= set(TOOLS)


def test_the_plugin_waits_longer_than_a_tool_may() -> None:
    longest = next(each.le for each in WaitArgs.model_fields["seconds"].metadata if hasattr(each, "le"))
    assert longest * 1000 < WAIT_MS
    assert {name for name, each in tools_json().items() if "wait_ms" in each} == {"checkpoint_ask", "wait_for"}


def test_they_can_be_switched_off(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    for wanted in (True, False):
        write_tools(home, wanted, {})
        assert bool(json.loads((home.path / "tools.json").read_text())) == wanted


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("wait_for", {"what": "x", "seconds": 601}),
        ("wait_for", {}),
        ("checkpoint_ask", {"question": ""}),
        ("checkpoint_ask", {"question": "x", "options": "yes"}),
        ("stream_read", {"stream": "ses_1", "last": 201}),
        ("notify_user", {"message": "x", "channel": "phone"}),
        ("unknown", {}),
    ],
)
def test_a_wrong_call_is_refused(name: str, given: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        check(name, given)


OURS, THEIRS, TASK = "ses_ours", "ses_theirs", "ses_theirs_task"
SECRET = "hunter2"


class Two:
    """A session of ours and one of theirs, each with background work and a question."""

    def __init__(self, made: BackgroundWork, run: Bench) -> None:
        self.made, self.run = made, run
        self.tools = ToolCalls(made, made._state, made._identity)
        self.intents: dict[str, str] = {}
        self.asks: dict[str, str] = {}
        self._count = 0

    async def call(self, session: str, name: str, **args: Any) -> str:
        """A session's model calls a tool; an error is a text for the model, too."""
        self._count += 1
        link = SimpleNamespace(identity=SimpleNamespace(service=None), pid=1, directory="/", worktree="/")
        context = {"sessionID": session, "messageID": "msg_a", "callID": f"call_{self._count}", "worktree": "/"}
        try:
            return await self.tools.call(link, name, args, context)
        except CallError as error:
            return f"error: {error}"

    async def begin(self) -> None:
        for session, parent, text in ((OURS, None, "mine"), (THEIRS, None, SECRET), (TASK, THEIRS, SECRET)):
            self.made._state.sessions[session] = SessionState(session, "s", session, parent, known=True, event_id="e")
            about = {"session": session, "directory": f"/{session}", "parent": parent, "title": text}
            await self.run.happened("lifecycle.session.created", stream=session, **about)
            await self.run.happened(
                "human.input", stream=session, session=session, parts=[{"type": "text", "text": text}]
            )
            work = RegisterArgs(prompt=text, title=f"{text} work", directory=f"/{session}", parent=session)
            self.intents[session] = (await self.made.register_intent(work)).id
            await self.made.people.ask(session, AskArgs(question=f"{text}?"), "call_0", seconds=0)
            (ask,) = (c.id for c in self.made.people.messages.data.questions() if c.session == session)
            self.asks[session] = ask
            await self.made.people.keep_time()
        await self.run.settled()

    def theirs(self) -> str:
        """All that belongs to them, to compare."""
        people, data = self.made.people, self.made.agent.state()
        told = people.messages.state()
        return json.dumps(
            [
                {key: each for key, each in data["intents"].items() if each["parent"] != OURS},
                {key: each for key, each in told["messages"].items() if OURS not in (each["to"], each["session"])},
                {s: n for n, of in people.messages.data.signals.awaited.items() for s in of if s != OURS},
            ],
            sort_keys=True,
        )


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with orchestration(tmp_path) as (made, _, run):
        world = Two(made, run)
        await world.begin()
        made.people.ask = partial(made.people.ask, seconds=0.0)  # type: ignore[method-assign]
        yield world


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "POLL_SECONDS", 0.001)


def arguments(tool: str, named: str) -> dict[str, Any]:
    """The arguments of a call; those that may hold an id hold ``named``."""
    return {
        "agent_spawn": {"prompt": named, "title": named[:50], "agent": named},
        "intent_status": {"unfinished": True},
        "intent_result": {"intent": named},
        "intent_cancel": {"intent": named},
        "wait_for": {"what": named, "seconds": 0.001},
        "notify_user": {"message": named},
        "checkpoint_ask": {"question": named},
        "stream_read": {"stream": named},
        "reserve": {"paths": [named], "why": named},
        "release": {"paths": [named]},
    }[tool]


IDS = ("own", "foreign", "task", "unknown")
NAMED = st.tuples(st.sampled_from(("intent", "ask", "session", "signal")), st.sampled_from(IDS), st.integers(0, 16))


def named(world: Two, what: str, whose: str, length: int) -> str:
    """An id, or with ``length`` only how it begins."""
    session = {"own": OURS, "foreign": THEIRS, "task": TASK}.get(whose, "ses_unknown")
    ids = {
        "intent": world.intents.get(session, "int_123456789abc"),
        "ask": world.asks.get(session, "chk_123456789abc"),
        "session": session,
        "signal": f"signal-{whose}",
    }
    return ids[what][: length or None]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(TOOLS)), NAMED), min_size=1, max_size=12))
def test_whatever_a_session_calls_it_reads_and_changes_nothing_of_anothers(calls: list[Any]) -> None:
    async def scenario(tmp: str) -> None:
        async with two(Path(tmp)) as world:
            before = world.theirs()
            for tool, (what, whose, length) in calls:
                said = await world.call(OURS, tool, **arguments(tool, named(world, what, whose, length)))
                assert SECRET not in said, (tool, what, whose, length)
            await world.run.settled()
            assert world.theirs() == before

    with tempfile.TemporaryDirectory() as tmp:
        asyncio.run(scenario(tmp))


@pytest.mark.parametrize("tool", ["intent_result", "intent_cancel", "wait_for", "stream_read"])
async def test_a_foreign_id_gets_the_answer_of_an_unknown_one(tmp_path: Path, tool: str) -> None:
    async with two(tmp_path) as world:
        unknown = {"int_": "int_123456789abc", "chk_": "chk_123456789abc", "ses_": "ses_unknown"}
        given = {"stream_read": [THEIRS, TASK], "wait_for": [*world.intents.values(), *world.asks.values()]}
        for foreign in given.get(tool, list(world.intents.values())):
            if foreign in (world.intents[OURS], world.asks[OURS]):
                continue
            for beginning in (foreign, foreign[:9], f"{foreign}0"):
                other = unknown[foreign[:4]]
                said = [await world.call(OURS, tool, **arguments(tool, name)) for name in (beginning, other)]
                assert said[0].replace(beginning, "ID") == said[1].replace(other, "ID")
                assert said[0].startswith("error: ")


async def test_an_answer_goes_to_the_session_that_asked_although_another_waits_for_it(tmp_path: Path) -> None:
    async with two(tmp_path) as world:
        asked = world.asks[THEIRS]
        theirs = asyncio.create_task(world.call(THEIRS, "wait_for", what=asked))
        ours = [asyncio.create_task(world.call(OURS, "wait_for", what=what)) for what in (asked, asked[:6])]
        await asyncio.gather(*ours)
        await world.made.people.answer(AnswerArgs(checkpoint=asked, answer=["the answer"]))
        assert "the answer" in await theirs
        assert all("the answer" not in each.result() for each in ours)


async def test_a_session_looks_at_what_its_tree_asked_and_the_answer_still_goes_to_the_asker(tmp_path: Path) -> None:
    async with two(tmp_path) as world:
        asked = world.asks[TASK]
        looks = asyncio.create_task(world.call(THEIRS, "wait_for", what=asked))
        await world.run.settled()
        known = world.made.people.messages.data.messages[asked]
        assert not known.waiting
        await world.made.people.answer(AnswerArgs(checkpoint=asked, answer=["the answer"]))
        assert "the answer" in await looks
        await world.run.settled()
        told = [n.to for n in world.made.people.messages.data.messages.values() if "the answer" in n.text]
        assert told == [TASK]
        assert (await world.call(TASK, "wait_for", what=world.asks[THEIRS])).startswith("error: "), "not upwards"


async def test_only_the_history_of_the_session_that_asked_proves_that_an_answer_was_told(tmp_path: Path) -> None:
    async with two(tmp_path) as world:
        asked, known = world.asks[THEIRS], world.made.people.messages.data.messages
        theirs = asyncio.create_task(world.call(THEIRS, "wait_for", what=asked))
        await world.run.settled()
        about = {"message": f"ntc_{asked[4:]}", "about": asked}
        await world.run.command("messages", "message.return", **about, session=OURS, call="call_x")
        assert known[asked].waiting, "a call of another session returns nothing of theirs"
        await world.made.people.answer(AnswerArgs(checkpoint=asked, answer=["the answer"]))
        await theirs
        told = known[f"ntc_{asked[4:]}"]
        step = {"call": told.call, "kind": "tool", "status": "completed"}
        await world.run.happened("execution.step", stream=OURS, session=OURS, **step)
        assert told.state == "returned"
        await world.run.happened("execution.step", stream=THEIRS, session=THEIRS, **step)
        assert told.state == "seen"


async def test_background_work_names_its_own_and_the_session_above_names_it(tmp_path: Path) -> None:
    async with two(tmp_path) as world:
        phantom = str(world.made.data.intents[world.intents[OURS]].session)
        below = await world.made.register_intent(RegisterArgs(prompt="below", directory="/p", parent=phantom))
        assert below.id in await world.call(phantom, "intent_result", intent=below.id)
        assert below.id in await world.call(OURS, "intent_result", intent=below.id)
        assert (await world.call(phantom, "intent_cancel", intent=world.intents[OURS])).startswith("error: ")
        assert (await world.call(THEIRS, "intent_result", intent=below.id)).startswith("error: ")


async def test_many_calls_that_wait_leave_room_for_other_sessions(tmp_path: Path) -> None:
    async with two(tmp_path) as world:
        waits = [asyncio.create_task(world.call(THEIRS, "wait_for", what="never")) for _ in range(MOST_WAITS)]
        await asyncio.sleep(0)
        assert (await world.call(TASK, "wait_for", what="never")).startswith("error: ")
        assert "has not come" in await world.call(OURS, "wait_for", what="never", seconds=0.001)
        await world.made.people.signal(SignalArgs(name="never"))
        assert not any(said.startswith("error: ") for said in await asyncio.gather(*waits))
        assert "came" in await world.call(TASK, "wait_for", what="never")


async def test_many_waits_of_one_tree_displace_no_others(tmp_path: Path) -> None:
    async with two(tmp_path) as world:
        await world.call(OURS, "wait_for", what="deployed", seconds=0.001)
        for number in range(MOST_AWAITED + 5):
            session = (THEIRS, TASK)[number % 2]
            said = await world.call(session, "wait_for", what=f"name-{number}", seconds=0.001)
            assert said.startswith("error: ") is (number >= MOST_AWAITED)
        awaited = world.made.people.messages.data.signals.awaited
        assert list(awaited.pop("deployed")) == [OURS] and len(awaited) == MOST_AWAITED
        await world.made.people.signal(SignalArgs(name="name-0"))
        assert not (await world.call(THEIRS, "wait_for", what="one-more", seconds=0.001)).startswith("error: ")
        with pytest.raises(RequestError):
            await world.made.people.wait_for_signal("no name", OURS, OURS, 0)
