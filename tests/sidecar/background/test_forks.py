"""Forks: where they end, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.opencode.capture.state import CaptureState, SessionState
from sidecar.agents.inputs import effects_stream
from sidecar.background.forks.cut import Cut, copied, cut_at
from sidecar.background.forks.forks import ForkArgs, Forks
from sidecar.background.hosts.host import HostError, Part
from sidecar.background.intents.intents import NAME, IntentAgent
from sidecar.background.intents.state import State
from sidecar.background.intents.works import Works
from sidecar.background.messages.agent import MessageAgent
from sidecar.background.people.answerers import Answerers
from sidecar.background.reading import read_intents, read_notices
from sidecar.config import PhantomConfig
from sidecar.home import Home
from sidecar.read.find_by_id import open_reader
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.store import Record
from tests.memory import MemoryStore
from tests.sidecar.agents.kinds import Clock
from tests.sidecar.agents.support import records
from tests.sidecar.background.support import Bench, Only, Script, bench
from tests.sidecar.cli.helpers import RECORDINGS, make_home, run
from tests.sidecar.life import end_sidecars

S, CHILD = "ses_1", "ses_2"
LOG = (
    ("lifecycle.session.created", S, {}),
    ("human.input", S, {"message": "msg_1"}),
    ("turn.started", S, {"message": "msg_1", "assistant_message": "msg_2"}),
    ("execution.step.started", S, {"message": "msg_2", "turn": "msg_1"}),
    ("lifecycle.session.created", CHILD, {}),
    ("agent.input", CHILD, {"message": "msg_c1"}),
    ("execution.output", CHILD, {"message": "msg_c2", "turn": "msg_c1"}),
    ("execution.step", S, {"message": "msg_2", "turn": "msg_1"}),
    ("workflow.checkpoint", S, {"turn": "msg_1", "state": "asked"}),
    ("execution.output", S, {"message": "msg_3", "turn": "msg_1"}),
    ("turn.ended", S, {"message": "msg_1"}),
    ("human.input", S, {"message": "msg_4"}),
    ("agent.error", S, {"message": "msg_5", "turn": "msg_4"}),
    ("turn.ended", S, {"message": "msg_4"}),
    ("human.input", S, {"message": "msg_6"}),
    ("turn.ended", S, {"message": "msg_6"}),
)
MESSAGES = [f"msg_{number}" for number in range(1, 7)]


def newest_first(at: int) -> Iterator[Record]:
    """The log's records up to number ``at``, from 0."""
    identity = seeded_identity(1)
    about = {"stream_id": S, "actor": "a", "source": {"agent": "a", "adapter": "t"}}
    for position in reversed(range(at + 1)):
        type_, session, payload = LOG[position]
        event = identity.stamp({**about, "type": type_, "payload": {"session": session, **payload}})
        yield Record(event, position, position, "", False)


@pytest.mark.parametrize(
    ("at", "message", "is_prompt", "count"),
    [
        (1, "msg_1", True, 0),
        (2, "msg_1", True, 0),
        (3, "msg_2", False, 2),
        (5, "msg_2", False, 2),  # an event of a child, which asks for its root
        (7, "msg_2", False, 2),
        (8, "msg_2", False, 2),
        (9, "msg_3", False, 3),
        (10, "msg_3", False, 3),
        (11, "msg_4", True, 3),
        (12, "msg_5", False, 5),
        (13, "msg_5", False, 5),
        (15, "msg_6", True, 5),  # a prompt without an answer
    ],
)
def test_a_fork_ends_after_an_answer_and_before_a_prompt(at: int, message: str, is_prompt: bool, count: int) -> None:
    cut = cut_at(newest_first(at), S)
    assert cut is not None
    assert (cut.message, cut.is_prompt, copied(MESSAGES, cut)) == (message, is_prompt, count)
    assert LOG[cut.position + 1][0] == "human.input" if is_prompt else cut.position == at


def test_before_the_first_message_there_is_nothing_to_fork() -> None:
    assert cut_at(newest_first(0), S) is None
    assert cut_at(newest_first(4), CHILD) is None


def test_a_message_that_the_session_no_longer_has_is_told_apart() -> None:
    assert copied(MESSAGES, Cut("msg_gone", False, 0)) is None


class Origin:
    """A host without a fork of its own. It says nothing of a new session until it is asked to act in it."""

    def __init__(self, state: CaptureState) -> None:
        self._state = state
        self.said: list[tuple[str, bool]] = []
        self.kept: set[str] = set()

    async def message_ids(self, session: str, *, directory: str) -> list[str] | None:
        return self.messages

    async def fork(self, session: str, before: str | None, *, directory: str) -> str:
        raise HostError("this version does not support it", permanent=True)

    async def begin(self, session: str, title: str, *, directory: str) -> str:
        self._state.sessions["ses_new"] = SessionState("ses_new", "ses_new", "ses_new", None, True, "e")
        return "ses_new"

    async def prompt(self, session: str, parts: Sequence[Part], *, reply: bool = True, **about: Any) -> bool:
        self.said += [(part.text, reply) for part in parts]
        self.kept |= {part.key for part in parts}
        return True

    async def holds(self, session: str, key: str, *, directory: str) -> bool:
        return key in self.kept

    messages: list[str]


async def test_without_a_fork_of_the_host_a_new_session_gets_the_conversation_and_then_the_prompt(
    tmp_path: Path,
) -> None:
    (tmp_path / "here.jsonl").write_text(
        (RECORDINGS / "chat_two_turns.jsonl").read_text().replace("/home/dev/project", str(tmp_path))
    )
    home = await asyncio.to_thread(make_home, tmp_path / "home", str(tmp_path / "here"))
    reader = open_reader(home / "store")
    log = [record async for record in reader.read_all()]
    state = CaptureState()
    for record in log:
        state.apply(record.event)
    host, told = Origin(state), list[StreamEvent]()
    host.messages = [
        str(r.event.payload["message"]) for r in log if r.event.type in ("human.input", "execution.output")
    ]
    answer = next(record.event for record in log if record.event.type == "execution.output")

    async def add(events: list[StreamEvent]) -> None:
        told.extend(events)

    async def flushed() -> None:
        return None

    ingest = SimpleNamespace(add=add, flushed=flushed)
    nobody = Answerers(tuple, (), str)
    forks = Forks(Home(home), Only(host), state, ingest, seeded_identity(2), nobody, Works(State, state))  # type: ignore[arg-type]
    args = ForkArgs(stream=answer.stream_id, event=answer.id, prompt="on")
    plan = await forks.fork(args.model_copy(update={"preview": True}))
    assert plan["messages"] == 2 and told == [] == host.said
    made = await forks.fork(args)
    assert (made["fork"], made["messages"], made["directory"]) == ("ses_new", None, str(tmp_path))
    (conversation, _), prompt = host.said
    assert "SAY:pong" in conversation and "pong2" not in conversation and prompt == ("on", True)
    assert [reply for _, reply in host.said] == [False, True]
    (event,) = told
    assert (event.type, event.causation_id, event.stream_id) == ("lineage.forked", answer.id, "ses_new")
    assert event.payload["fork"]["session"] == answer.stream_id


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two sessions of OpenCode 1, of which none is open."""
    made = make_home(tmp_path_factory.mktemp("forks") / "home", "chat", "task_parallel")
    (made / "config.toml").write_text('[link]\nscripts_may = ["fork", "forget"]\n')
    yield made
    end_sidecars(Home(made))


def of_type(home: Path, type_: str) -> list[dict[str, Any]]:
    return [each["event"] for each in run(home, "query", "--type", type_, "--json").objects()]


def test_what_cannot_be_forked_is_refused_with_a_code(home: Path) -> None:
    chat, task = (each["stream_id"] for each in of_type(home, "human.input"))
    created, answer = of_type(home, "lifecycle.session.created")[0]["id"], of_type(home, "turn.ended")[0]["id"]
    assert of_type(home, "turn.ended")[0]["stream_id"] == chat
    for code, *arguments in (
        ("not-confirmed", chat, "--at", answer),
        ("not-confirmed", chat, "--at", answer, "--json"),
        ("not-found", task, "--at", answer, "--yes"),
        ("not-found", chat, "--at", "00000000000000000000000000", "--yes"),
        ("not-found", "ses_nowhere", "--at", answer, "--yes"),
        ("no-message", chat, "--at", created, "--yes"),
        ("no-opencode", chat, "--at", answer, "--yes"),
    ):
        done = run(home, "fork", *arguments)
        assert (done.code, done.out, done.err.rstrip().endswith(f"[{code}]")) == (1, "", True), done
    assert run(home, "forget", chat, "--yes").code == 0
    assert run(home, "fork", chat, "--at", answer, "--yes").err.rstrip().endswith("[forgotten]")
    assert of_type(home, "lineage.forked") == []


RESULTS = {
    "copy.make": {"directory": "/w/sub", "root": "/w", "name": "int_1"},
    "opencode.create": {"session": "ses_bg"},
    "opencode.prompt": {},
    "copy.collect": {"saved": True, "files": [], "count": 0, "diff": "+one"},
    "opencode.wake": {"status": "sent", "saved": True},
    "opencode.toast": {"shown": True},
}


REGISTERED = {"intent": "int_1", "title": "count things", "prompt": "do it", "directory": "/p", "parent": "ses_user"}
CAPTURED: list[tuple[str, dict[str, Any]]] = [
    ("execution.output", {"kind": "text", "text": "forty two"}),
    ("execution.step", {"kind": "inference", "finish": "stop", "tokens": {"input": 7}, "cost": 0.5}),
    ("turn.ended", {"outcome": "completed"}),
]
AGENTS = ("agent/intents", "agent/messages")


def ends_a_batch(event: StreamEvent) -> bool:
    return event.stream_id not in AGENTS or "state" in event.metadata


@asynccontextmanager
async def running(store: MemoryStore, now_ms: int) -> AsyncIterator[Bench]:
    kinds = {kind: Script(result) for kind, result in RESULTS.items()}
    agents = (IntentAgent(PhantomConfig()), MessageAgent())
    async with bench(store, agents, kinds, Clock(now_ms), seed=now_ms % 97) as run:
        yield run


async def test_it_goes_on_wherever_it_was_cut_off() -> None:
    store = MemoryStore()
    async with running(store, 1_700_000_000_000) as run:
        await run.command(NAME, "intent.register", **REGISTERED, above=["ses_user"], isolation="copy")
        for type_, about in CAPTURED:
            await run.happened(type_, session="ses_bg", **about)
    older = [record.event async for record in store.read_all()]
    captured = [event for event in older if not event.stream_id.startswith("agent/")]
    cuts = [n for n, event in enumerate(older, 1) if ends_a_batch(event)]
    assert len(cuts) > 20
    for cut in cuts:
        store = MemoryStore()
        async with running(store, 1_700_000_000_000):
            pass  # the agents have begun
        await store.append(older[:cut])
        async with running(store, 1_700_000_100_000) as run:
            run._count = len(older)  # the keys of its commands are new ones
            await run.settled()
            for event in captured:
                if event not in older[:cut]:
                    await store.append([event])
                    await run.settled()
            intent = (await read_intents(store)).intents["int_1"]
            assert (intent.state, intent.result, intent.tokens) == ("completed", "forty two", 7), cut
            wakes = [row["state"] for row in await read_notices(store) if row["kind"] == "wake"]
            assert wakes == ["seen"], cut
        done = [r.event.payload for name in (NAME, "messages") for r in await records(store, effects_stream(name))]
        acts = [each for each in done if each["kind"] in RESULTS and each.get("final")]
        acts = [each for each in acts if each["kind"] != "opencode.toast"]
        assert Counter(each["kind"] for each in acts) == dict.fromkeys(RESULTS.keys() - {"opencode.toast"}, 1), cut
        assert not any("error" in each for each in acts), cut
