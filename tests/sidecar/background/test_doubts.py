"""An effect that may or may not have happened: a person is asked, and what they decide is carried out once."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.agent import Agent
from sidecar.agents.effects.runner import Reconciled
from sidecar.agents.inputs import MAX_DEPTH, effects_stream
from sidecar.agents.runtime import Runtime
from sidecar.agents.stops import Point
from sidecar.background.messages.agent import NAME
from sidecar.background.people import answer_link, effects_in_doubt
from sidecar.background.people.consent import MAX_TEXT
from sidecar.background.people.people import AnswerArgs, People
from sidecar.background.people.sentences import asks, sentence
from sidecar.background.reading import whole
from sidecar.home import Home
from sidecar.notify_config import NotifyConfig
from sidecar.read.find_by_id import open_reader
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.store import StreamStore
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.kinds import Clock, Policy, Work, never_ends
from tests.sidecar.agents.support import agents, records, state, until
from tests.sidecar.background.support import PLAIN, Bench, Only, bench
from tests.sidecar.background.test_people import Host
from tests.sidecar.mirror.killed_process import killing

ANSWERS = list(effects_in_doubt.DECISIONS)
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.sidecar.background.test_doubts"])


class Wordy(Counter):
    """Asks for one effect, with all that it was told."""

    name = "wordy"

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["type"] == "call":
            return [{"effect": "work", "payload": event["payload"]}]
        return super().receive(event)


def made_people(path: Path, clock: Clock, runtime: Callable[[], Runtime]) -> tuple[People, list[Agent]]:
    home = Home(path / "home")
    home.create()
    made = People(home, NotifyConfig(command=["true"]), clock.identity(9), Only(Host()), PLAIN, runtime)  # type: ignore[arg-type]
    return made, [made.messages, *agents(Wordy)]


@asynccontextmanager
async def doubting(
    path: Path, kind: Work, *, cut_off: bool = True, depth: int = 0, **payload: Any
) -> AsyncIterator[tuple[People, Bench]]:
    """A home whose last process ended while it did an unsafe effect."""
    clock = Clock()
    made, all_ = made_people(path, clock, lambda: run.runtime)
    store = await Log.open(made._home.store_path, seeded_identity(1))
    if cut_off:
        async with bench(store, agents(Wordy), {"work": Work(never_ends, effect_class="unsafe")}, clock, seed=5) as run:
            await run.runtime.command("wordy", Command("a", "call", payload or {"n": 7}, depth=depth))
            await until(lambda: run.runtime.effects.is_busy)
            while not await ledger(store):
                await asyncio.sleep(0.002)
    clock.now_ms += 60_000
    try:
        async with bench(store, all_, {"work": kind, **made.kinds}, clock, seed=3 if cut_off else 4) as run:
            run._count = store.head + 100  # the keys of its commands are no earlier process's
            await run.settled()
            yield made, run
    finally:
        await store.close()


def unsafe(*script: Any, **more: Any) -> Work:
    return Work(*script, effect_class="unsafe", **more)


async def answered(made: People, *given: str, of: str = "chk_") -> str:
    """The state after an answer, or the code of its refusal."""
    try:
        row = await made.answer(AnswerArgs(checkpoint=of, answer=list(given)))
    except RequestError as error:
        return error.code
    return str(row["state"])


async def ledger(store: StreamStore) -> list[tuple[str, int]]:
    found = await records(store, effects_stream("wordy"))
    return [(one.event.type.removeprefix("effect."), one.event.payload["attempt"]) for one in found]


async def test_a_doubt_is_a_checkpoint_that_says_what_since_when_and_how_to_answer(tmp_path: Path) -> None:
    async with doubting(tmp_path, unsafe(), text="hello\u202e", to="ada") as (made, run):
        (known,) = await made.waiting()
        assert (known.kind, known.is_open, known.options) == ("effect", True, ANSWERS)
        assert (known.effect["agent"], known.effect["kind"], known.effect["attempt"]) == ("wordy", "work", 1)
        assert known.queued == run.clock.now_ms and known.session == "" and known.expires is None
        for said in ("wordy", "work", '"text": "hello<U+202E>"', '"to": "ada"', *ANSWERS):
            assert said in asks(known) and said in sentence(known)
        assert [a.stages for a in made.messages.data.messages.values()] == [known.stages], "it rings as other asks do"
        page = answer_link.form_page(known)
        assert all(f'value="{each}"' in page for each in ANSWERS)
        assert page.count("<form") == 3, "nothing else can be answered"
        assert await answered(made, "yes") == await answered(made, ANSWERS[0], "x") == "unfit-answer"
        assert state(run.runtime, "wordy")["results"][-1]["type"] == "effect.in_doubt"


@pytest.mark.parametrize(
    ("answer", "attempts", "result"),
    [
        ("it happened", 0, {"type": "effect.completed", "result": None}),
        ("try again", 1, {"type": "effect.completed", "result": {"n": 1}}),
        ("give up", 0, {"type": "effect.failed", "result": None}),
    ],
)
async def test_the_first_answer_settles_the_effect(tmp_path: Path, answer: str, attempts: int, result: Any) -> None:
    kind = unsafe()
    async with doubting(tmp_path, kind) as (made, run):
        assert await answered(made, answer) == "answered"
        await run.settled()
        assert state(run.runtime, "wordy")["results"][-1] == result
        assert len(kind.keys) == attempts
        assert [row["in_doubt"] for row in run.runtime.status() if row["name"] == "wordy"] == [0]
        for late in ANSWERS:
            assert await answered(made, late) == "already-answered"
        settled = [r.event.payload for r in await records(run.store, effects_stream("wordy"))]
        assert [each["resolved_by"] for each in settled if "resolved_by" in each] == ["process"]
        (known,) = made.messages.data.questions()
        assert (known.answer, known.by, known.closed) == ([answer], "process", run.clock.now_ms)
        assert await made.waiting() == []


async def test_two_answers_at_once_are_one_decision(tmp_path: Path) -> None:
    kind = unsafe()
    async with doubting(tmp_path, kind) as (made, run):
        done = await asyncio.gather(*(answered(made, each) for each in ("try again", "give up", "try again")))
        assert sorted(done) == ["already-answered", "already-answered", "answered"]
        await run.settled()
        assert len(kind.keys) == (done[1] != "answered")


async def test_an_attempt_that_is_in_doubt_again_is_asked_about_again(tmp_path: Path) -> None:
    kind = unsafe(TimeoutError(), TimeoutError())
    async with doubting(tmp_path, kind) as (made, run):
        (first,) = await made.waiting()
        assert await answered(made, "try again") == "answered"
        await run.settled()
        (second,) = await made.waiting()
        assert second.id != first.id and second.effect["attempt"] == 2
        assert await answered(made, "it happened", of=first.id) == "already-answered"
        assert await answered(made, "it happened", of=second.id) == "answered"
        assert await ledger(run.store) == [
            *(("started", 1), ("in_doubt", 1), ("failed", 1)),
            *(("started", 2), ("in_doubt", 2), ("completed", 2)),
        ]


async def test_what_goes_on_by_itself_is_no_longer_asked(tmp_path: Path) -> None:
    async with doubting(tmp_path, unsafe()) as (made, run):
        (known,) = await made.waiting()
    async with doubting(tmp_path, unsafe(found=Reconciled(True, {"id": 3})), cut_off=False) as (made, run):
        assert await made.waiting() == []
        assert made.messages.data.messages[known.id].state == "withdrawn"
        assert await answered(made, "try again") == "already-answered"
        assert state(run.runtime, "wordy")["results"][-1] == {"type": "effect.completed", "result": {"id": 3}}


async def test_a_text_that_is_cut_is_whole_in_the_terminal_and_answered_only_there(tmp_path: Path) -> None:
    text = f"{'A' * 9000} the end"
    async with doubting(tmp_path, unsafe(), text=text) as (made, _):
        (known,) = await made.waiting()
        assert len(known.text) <= MAX_TEXT and known.left_out > 4000
        assert "<form" not in answer_link.form_page(known)
        with pytest.raises(RequestError) as refused:
            await made.answer(AnswerArgs(checkpoint=known.id, answer=["try again"]), most=MAX_TEXT)
        assert refused.value.code == "cut-text"
        shown = await whole(open_reader(made._home.store_path), known)
        assert text in shown.text and shown.left_out == 0
        assert await answered(made, "give up") == "answered"


async def test_a_doubt_at_the_end_of_a_chain_rings_too(tmp_path: Path) -> None:
    async with doubting(tmp_path, unsafe(), depth=MAX_DEPTH - 2) as (made, run):
        (known,) = await made.waiting()
        assert [a.id for a in made.messages.data.messages.values()] == [known.id]
        assert await answered(made, "it happened") == "answered"
        await run.settled()
        assert state(run.runtime, "wordy")["results"][-1]["type"] == "effect.completed"


async def test_an_effect_of_the_same_name_as_a_checkpoint_answers_nothing(tmp_path: Path) -> None:
    """The results of all agents' effects reach the agent, and only its own may say how an answer arrived."""
    async with doubting(tmp_path, unsafe()) as (made, run):
        (known,) = await made.waiting()
        given = {"node": known.id, "final": True, "kind": "work", "result": {"status": "answered"}, "attempt": 1}
        about = {"run": "other", "idempotency_key": "k", "request": "x"}
        event = await run.happened("effect.completed", effects_stream("other"), **given, **about)
        assert event.event.actor != NAME and (await made.waiting())[0].is_open


# --- kill -9 between the answer and its end ---

POINTS: tuple[Point, ...] = ("after-commit", "effect-started", "effect-done")
CUT_OFF: list[tuple[str, Point]] = [*(("try again", point) for point in POINTS)]
CUT_OFF += [("it happened", "effect-started"), ("give up", "after-commit")]
"""Each point with the answer that acts; the others at one, because all are carried out alike."""


async def live(path: Path, answer: str, point: Point) -> None:
    """Do the effect, and be killed in it; or, with an answer, give it and be killed at ``point``."""
    clock = Clock()
    made, all_ = made_people(path, clock, lambda: runtime)
    store = await Log.open(made._home.store_path, seeded_identity(1))
    stops = [] if answer else [killing(point, 1)]
    runtime = Runtime(
        store,
        clock.identity(len(answer) + 20),
        all_,
        kinds={"work": unsafe(), **made.kinds},
        policy=Policy(attempts=5),
        stop=lambda at: stops[0](at) if stops else None,
    )
    await runtime.start()
    run = Bench(runtime, store, clock, all_)
    run._count = store.head + 100
    if not answer:
        await runtime.command("wordy", Command("a", "call", {"n": 7}))
    await run.settled()
    stops.append(killing(point, 1))
    await made.answer(AnswerArgs(checkpoint="chk_", answer=[answer]))
    await run.settled()


def lives(path: Path, answer: str, point: Point) -> None:
    asyncio.run(live(path, answer, point))


def killed(path: Path, answer: str = "", point: Point = "effect-started") -> None:
    process = CONTEXT.Process(target=lives, args=(path, answer, point))
    process.start()
    process.join(60)
    # 255: starting another process, in another thread, may read the code first.
    assert process.exitcode in (-SIGKILL, 255)


@pytest.fixture(scope="module")
def cut_off_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose process was killed in an effect."""
    path = tmp_path_factory.mktemp("doubts")
    killed(path)
    return path


@pytest.mark.parametrize(("answer", "point"), CUT_OFF)
async def test_an_answer_survives_kill_9_until_it_is_carried_out(
    tmp_path: Path, cut_off_home: Path, answer: str, point: Point
) -> None:
    path = tmp_path / "copy"
    await asyncio.to_thread(shutil.copytree, cut_off_home, path)
    await asyncio.to_thread(killed, path, answer, point)
    kind = unsafe()
    async with doubting(path, kind, cut_off=False) as (made, run):
        (known,) = made.messages.data.questions()
        assert (known.state, known.answer) == ("answered", [answer])
        assert [each for each in await ledger(run.store) if each[1] == 1] == [
            ("started", 1),
            ("in_doubt", 1),
            ("completed" if answer == "it happened" else "failed", 1),
        ]
        assert len(kind.keys) <= (answer == "try again")
        assert await answered(made, answer) == "already-answered"
