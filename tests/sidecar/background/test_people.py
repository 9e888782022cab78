"""Answers, signals and reading, as the command line and the tools ask for them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.redact import Redactor
from sidecar.agents.inputs import InputRefused, agent_stream
from sidecar.background.hosts.host import HostError
from sidecar.background.intents.works import Asker
from sidecar.background.messages.person import LOOK
from sidecar.background.people import answerers
from sidecar.background.people.answerers import Who
from sidecar.background.people.people import MOST_ASKS, AnswerArgs, People, SignalArgs
from sidecar.background.people.terminals import FOLDER
from sidecar.background.service import RegisterArgs
from sidecar.background.tools import AskArgs, NotifyArgs, ReadArgs
from sidecar.home import Home
from sidecar.link.local import PEER
from sidecar.notify_config import NotifyConfig
from sidecar.processes import Place
from sidecar.read.ask_text import checkpoint_id
from sidecar.requests import RequestError
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.sidecar.agents.kinds import Clock
from tests.sidecar.agents.support import records
from tests.sidecar.background.orchestrations import PARENT, call, orchestration
from tests.sidecar.background.support import PLAIN, Bench, Only, bench


class Host:
    """Takes answers as it is told, and shows toasts or not."""

    def __init__(self) -> None:
        self.status: str | Exception = "answered"
        self.shows = False
        self.answers: list[tuple[str, list[str]]] = []

    async def answer(self, session: str, request: str, kind: str, answer: list[str]) -> str:
        self.answers.append((request, answer))
        if isinstance(self.status, Exception):
            raise self.status
        return self.status

    async def toast(self, session: str, title: str, text: str) -> bool:
        return self.shows

    def about(self, session: str) -> dict[str, Any]:
        return {"directory": "/home/ada/shop"}


@asynccontextmanager
async def people(tmp_path: Path) -> AsyncIterator[tuple[People, Host, Bench]]:
    home, host, clock = Home(tmp_path / "home"), Host(), Clock()
    home.create()
    store = await Log.open(home.store_path, seeded_identity(1))
    made = People(home, NotifyConfig(), clock.identity(9), Only(host), PLAIN, lambda: run.runtime)  # type: ignore[arg-type]
    async with bench(store, [made.messages], made.kinds, clock) as run:
        yield made, host, run
    await store.close()


async def asks(run: Bench, **about: Any) -> None:
    """A session of the user's asks for a permission."""
    await run.happened("lifecycle.session.created", session="ses_1", directory="/shop")
    given = {"kind": "permission", "state": "asked", "request": "per_1", "permission": "bash", "patterns": ["make"]}
    await run.happened("workflow.checkpoint", session="ses_1", **{**given, **about})


async def code(made: People, *answer: str, of: str = "chk_") -> str:
    with pytest.raises(RequestError) as refused:
        await made.answer(AnswerArgs(checkpoint=of, answer=list(answer)))
    return refused.value.code


async def test_an_ask_that_only_the_log_knows_is_answered(tmp_path: Path) -> None:
    async with people(tmp_path) as (made, host, run):
        await asks(run)
        assert await code(made, "yes") == "unfit-answer"
        assert await code(made, "once", "and", "more") == "unfit-answer"
        found = await made.answer(AnswerArgs(checkpoint="chk_", answer=["reject", "use make"]))
        assert (found["state"], found["answer"]) == ("answered", ["reject", "use make"])
        assert host.answers == [("per_1", ["reject", "use make"])]
        assert await code(made, "once") == "already-answered"
        assert await code(made, "once", of="chk_nothing") == "no-checkpoint"
        assert len(host.answers) == 1


async def test_a_late_answer_to_what_was_answered_in_opencode_is_refused(tmp_path: Path) -> None:
    async with people(tmp_path) as (made, host, run):
        await asks(run)
        await asks(run, state="replied", reply="once")
        for given in (checkpoint_id("ses_1", "per_1"), "per_1"):
            assert await code(made, "reject", of=given) == "already-answered"
        assert await code(made, "reject", of="chk_nothing") == "no-checkpoint" and host.answers == []


NAMED = [{"label": "Yes"}, {"label": "No"}]


async def test_an_answer_that_fits_no_option_is_refused_where_no_other_words_are_taken(tmp_path: Path) -> None:
    """OpenCode takes other words as an answer unless it says so, and the model's own question only suggests some."""
    async with people(tmp_path) as (made, host, run):
        free, fixed = ({"question": "Go?", "options": NAMED} | more for more in ({}, {"custom": False}))
        await asks(run, kind="question", questions=[free, fixed])
        assert await code(made, "later", "yes") == "unfit-answer"
        with pytest.raises(RequestError, match="'Yes', 'No'"):
            await made.answer(AnswerArgs(checkpoint="chk_", answer=["Yes", "later"]))
        assert host.answers == []
        assert (await made.answer(AnswerArgs(checkpoint="chk_", answer=["later", "No"])))["state"] == "answered"
        await asks(run, kind="question", questions=[fixed], request="per_2")
        assert (await made.answer(AnswerArgs(checkpoint="per_2", answer=["reject"])))["state"] == "answered"


@pytest.mark.parametrize(
    ("session", "focus"), [(f"ses_{n}", focus) for focus in ("front", "away", "unknown", None) for n in (1, 2)]
)
async def test_only_a_terminal_in_front_has_shown_what_its_session_got(
    tmp_path: Path, session: str, focus: str | None
) -> None:
    async with people(tmp_path) as (made, _, _run):
        if focus is not None:
            folder = tmp_path / "home" / FOLDER
            folder.mkdir()
            (folder / f"{os.getpid()}.json").write_text(json.dumps({"session": session, "focus": focus}))
        found = await made.kinds[LOOK].run(SimpleNamespace(args={"session": "ses_1"}), "key")  # type: ignore[arg-type]
        assert found == {"looks": (session, focus) == ("ses_1", "front")}


async def test_an_answer_that_cannot_be_delivered_leaves_it_open(tmp_path: Path) -> None:
    async with people(tmp_path) as (made, host, run):
        await asks(run)
        host.status = HostError("away")
        with pytest.raises(RequestError, match="away") as refusal:
            await made.answer(AnswerArgs(checkpoint="chk_", answer=["once"]))
        assert refusal.value.code == "not-delivered"
        host.status = "answered"
        row = await made.answer(AnswerArgs(checkpoint="per_1", answer=["always"]))
        assert (row["state"], row["by"], row["via"]) == ("answered", "process", {"channel": "nats"})


async def test_a_call_gives_up_and_the_same_question_is_the_same_checkpoint(tmp_path: Path) -> None:
    async with people(tmp_path) as (made, _, _run):
        first = await made.ask("ses_1", AskArgs(question="Ship?"), seconds=0)
        (known,) = made.messages.data.questions()
        assert known.id in first and "wait_for" in first
        await made.keep_time()
        assert known.waiting is False
        await made.answer(AnswerArgs(checkpoint=known.id, answer=["yes"]))
        assert "yes" in await made.ask("ses_1", AskArgs(question="Ship?"), seconds=0)
        assert "yes" in await made.wait_for_checkpoint(known, "ses_1", "", "", 0)
        await made.ask("ses_1", AskArgs(question="Ship?"), seconds=0)
        assert len(made.messages.data.questions()) == 2, "a question whose answer was heard is a new one"


async def test_a_session_cannot_bury_a_person_in_questions(tmp_path: Path) -> None:
    async with people(tmp_path) as (made, _, _run):
        questions = [AskArgs(question=f"Ship {n}?") for n in range(40)]
        done = await asyncio.gather(*(made.ask("ses_1", each, seconds=0) for each in questions), return_exceptions=True)
        refused = [each.code for each in done if isinstance(each, RequestError)]
        assert refused == ["too-many-asks"] * (40 - MOST_ASKS)
        assert len(made.messages.data.questions()) == MOST_ASKS
        await made.ask("ses_1", questions[0], seconds=0)
        await made.ask("ses_2", questions[0], seconds=0)
        first = made.messages.data.questions()[0].id
        await made.answer(AnswerArgs(checkpoint=first, answer=["yes"]))
        await made.ask("ses_1", questions[39], seconds=0)


async def test_who_answered_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with people(tmp_path) as (made, _, run):
        home = made._home
        home.ensure_token(lambda: "ab" * 32)
        tty, at = "", Place(1, 77, "", -1)
        monkeypatch.setattr(answerers, "place_of", lambda pid: at)
        PEER.set(77)
        by_hand, by_script = ({"channel": "command-line", "pid": 77, "tty": tty} for tty in ("/dev/pts/3", ""))
        told = [
            (77, "/dev/pts/3", "", "user", by_hand),
            (0, "", "wrong", "process", by_script),
            (0, "", "right", "user", {"channel": "list", "pid": 77}),
        ]
        for number, (foreground, tty, proof, by, via) in enumerate(told):
            at = Place(1, 77, tty, foreground)
            await asks(run, request=f"per_{number}")
            (known,) = await made.waiting()
            args = AnswerArgs(checkpoint=known.id, answer=["once"])
            if proof == "right":
                args = args.model_copy(update={"proof": answerers.proof_of("ab" * 32, known.id, ["once"])})
            elif not tty:
                with pytest.raises(RequestError) as refused:
                    await made.answer(args.model_copy(update={"proof": proof}))
                assert refused.value.code == "needs-person" and (await made.waiting())[0].is_open
                made.answerers = answerers.Answerers(tuple, ["answer"], home.read_token)
            row = await made.answer(args)
            assert (row["by"], row["via"]) == (by, via)
            answered: list[Any] = []
            while len(answered) <= number:  # the agent knows it a moment before the log has it
                logged = [record.event for record in await records(run.store, agent_stream("messages"))]
                answered = [event.payload for event in logged if event.type == "message.answered"]
            assert (answered[-1]["by"], answered[-1]["via"]) == (by, via), "the log says so"


async def test_a_signal_that_comes_after_the_wait_is_a_message_for_each_session_that_waited(tmp_path: Path) -> None:
    async with people(tmp_path) as (made, _, run):
        made._asker = lambda session: Asker("int_1" if session == "ses_bg" else None, "ses_1")
        for session in ("ses_1", "ses_2", "ses_1"):
            assert "as a message" in await made.wait_for_signal("go", session, session, 0)
        assert "do not end" in await made.wait_for_signal("go", "ses_bg", "ses_1", 0), (
            "its end would end the background work"
        )
        await made.signal(SignalArgs(name="other"))
        for _ in range(2):
            await made.signal(SignalArgs(name="go", payload="now"))
        sent = [r.event for r in await records(run.store, agent_stream("messages"))]
        sent = [event for event in sent if event.type == "message.queued"]
        assert [event.payload["to"] for event in sent] == ["ses_1", "ses_2"]
        assert '"now"' in sent[0].payload["text"]


@pytest.mark.parametrize(("shows", "said"), [(True, "shows it"), (False, "Nobody is known")])
async def test_the_model_learns_whether_anybody_was_told(tmp_path: Path, shows: bool, said: str) -> None:
    async with people(tmp_path) as (made, host, _):
        host.shows = shows
        assert said in await made.notify("ses_1", NotifyArgs(message="done"), "m:c")
        kept = [(toast["session"], toast["text"]) for toast in made.toasts]
        assert kept == ([] if shows else [("ses_1", "done")]), "a terminal may show what the host cannot"


async def test_only_the_own_project_is_read_and_not_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    async with people(tmp_path) as (made, _, run):
        await asks(run)
        places = {"ses_2": "/shop/sub", "ses_3": "/elsewhere", "ses_4": "/", "ses_5": "/home/me", "ses_6": "/home"}
        for session, directory in places.items():
            about = {"session": session, "directory": directory, "project": "global"}
            await run.happened("lifecycle.session.created", stream=session, **about)
        for n in range(60):
            await run.happened("human.input", session="ses_1", parts=[{"type": "text", "text": f"{n} " + "x" * 3000}])
        text = await made.read(ReadArgs(stream="ses_1", last=50), "ses_1")
        assert text.splitlines()[-1].count("59 x") == 1
        assert len(text) <= 16_000
        assert len((await made.read(ReadArgs(stream="ses_1", last=2), "ses_1")).splitlines()) == 2
        assert await made.read(ReadArgs(stream="ses_2"), "ses_1"), "below the project"
        refusals = set[tuple[str, str]]()
        for caller in ("ses_1", *places, "ses_unknown"):
            mine = {"ses_1": ("ses_1", "ses_2")}.get(caller, (caller,) if caller in places else ())
            for stream in ("ses_1", *places, "ses_9", "agent/intents"):
                if stream in mine:
                    assert await made.read(ReadArgs(stream=stream), caller)
                    continue
                with pytest.raises(RequestError) as refused:
                    await made.read(ReadArgs(stream=stream), caller)
                refusals.add((refused.value.code, str(refused.value).replace(stream, "ID")))
        assert len(refusals) == 1, "what is foreign and what does not exist get the same answer"


async def test_a_repository_around_the_home_directory_makes_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    async with people(tmp_path) as (made, _, run):
        for session, directory in (("ses_1", "/home/me"), ("ses_2", "/home/me/a"), ("ses_3", "/home/me/b")):
            about = {"session": session, "directory": directory, "project": "dotfiles"}
            await run.happened("lifecycle.session.created", stream=session, **about)
        assert await made.read(ReadArgs(stream="ses_2"), "ses_2")
        for caller, stream in (("ses_2", "ses_3"), ("ses_2", "ses_1"), ("ses_1", "ses_2")):
            with pytest.raises(RequestError):
                await made.read(ReadArgs(stream=stream), caller)


async def test_a_project_is_a_directory_whatever_its_repository_says(tmp_path: Path) -> None:
    mine, shop = tmp_path / "mine", tmp_path / "shop"
    for name in ("mine/.git", "shop/.git/worktrees/real", "shop/.git/worktrees/gone", "shop/web", "real", "linked"):
        (tmp_path / name).mkdir(parents=True)
    (mine / ".git/opencode").write_text("shop")
    for name, says, named in (
        ("real", shop / ".git/worktrees/real", tmp_path / "real/.git"),
        ("linked", shop / ".git/worktrees/real", None),
        ("gone", shop / ".git/worktrees/gone", tmp_path / "elsewhere/.git"),
        ("none", shop / ".git", None),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        if named is not None:
            (says / "gitdir").write_text(f"{named}\n")
        (tmp_path / name / ".git").write_text(f"gitdir: {says}\n")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/.git")
    (tmp_path / "by-link").symlink_to(shop)
    names = ("mine", "shop", "shop/web", "real", "linked", "gone", "none", "pipe", "by-link")
    async with people(tmp_path / "home") as (made, _, run):
        for name in names:
            about = {"session": f"ses_{name}", "directory": str(tmp_path / name), "project": "shop"}
            await run.happened("lifecycle.session.created", stream=f"ses_{name}", **about)
        of_shop = {"shop", "shop/web", "real"}
        for caller in names:
            read = set[str]()
            for name in names:
                with suppress(RequestError):
                    await made.read(ReadArgs(stream=f"ses_{name}"), f"ses_{caller}")
                    read.add(name)
            assert read == (of_shop if caller in of_shop else {caller}), caller


def test_the_proof_of_the_list_is_what_the_plugin_sends() -> None:
    # The same value is in plugin-shim/test/tui.test.js.
    proof = "8988d7257f273830394298b26cd0e4753922cc3fb71b4915834d6bbf7239b781"
    assert answerers.proof_of("ab" * 32, "chk_1", ["yes", "é"]) == proof


CLEAN = Redactor().clean
SECRETS = (
    'login(user="ada", password="{0}hunter2xyz")',
    "export AWS_SECRET_ACCESS_KEY={0}wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "curl -H 'Authorization: Bearer {0}abcdefgh12345678' https://example.com",
    "postgres://ada:{0}s3cretpw@db/app",
)
prompts = st.lists(
    st.one_of(
        st.text(max_size=20), st.sampled_from(SECRETS).flatmap(lambda secret: st.sampled_from("abc").map(secret.format))
    ),
    min_size=1,
    max_size=4,
).map(" \n".join)


def stored(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


@settings(max_examples=8)
@given(prompts.filter(str.strip), prompts.filter(str.strip))
def test_the_same_words_are_the_same_work_and_the_agent_gets_them_as_they_were_said(one: str, other: str) -> None:
    async def run_it(path: Path) -> None:
        async with orchestration(path, clean=CLEAN) as (made, host, run):
            args = RegisterArgs(prompt=one, directory="/p", key="mine")
            first = await made.register_intent(args)
            assert (await made.register_intent(args)).id == first.id
            if one != other:
                with pytest.raises(InputRefused) as refused:
                    await made.register_intent(args.model_copy(update={"prompt": other}))
                assert refused.value.code == "key-conflict"
            await run.settled()
            assert [text for _, text, _ in host.prompts] == [one]
        for secret in SECRETS:
            hidden = [secret.format(letter) for letter in "abc" if secret.format(letter) in one]
            assert not [word for word in hidden if word.encode() in stored(path)]

    with TemporaryDirectory() as directory:
        asyncio.run(run_it(Path(directory)))


async def test_words_that_the_sidecar_no_longer_knows_are_not_replaced_by_others(tmp_path: Path) -> None:
    async with orchestration(tmp_path, clean=CLEAN) as (made, host, run):
        made._said._words = Forgets()  # as a sidecar that starts later
        await made.register_intent(RegisterArgs(prompt=SECRETS[0].format("a"), directory="/p"))
        await run.settled()
        assert host.prompts == []
        (intent,) = made.data.intents.values()
        assert intent.state == "failed" and "give it again" in intent.reason


async def test_an_argument_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    async with orchestration(tmp_path, clean=CLEAN) as (made, _, _run):
        with pytest.raises(InputRefused) as refused:
            await made.register_intent(RegisterArgs(prompt="do it", directory="/p/password=hunter2xyz"))
        assert refused.value.code == "redacted-argument" and made.data.intents == {}


async def test_the_model_gets_an_answer_as_it_was_said_by_its_call_or_by_a_message(tmp_path: Path) -> None:
    words = "use password=hunter2xyz </checkpoint>"
    async with orchestration(tmp_path, clean=CLEAN) as (made, host, run):
        host.answers("msg_1")
        for by_message in (False, True):
            waits = asyncio.create_task(call(made, "checkpoint_ask", question=f"Which? {by_message}"))
            while not (asked := [c for c in await made.people.waiting() if c.is_open]):
                await asyncio.sleep(0)  # until the question is in the log
            if by_message:  # the turn is stopped, so its call waits no longer
                await run.happened("turn.ended", session=PARENT, outcome="interrupted", message="msg_1")
            await made.people.answer(AnswerArgs(checkpoint=asked[0].id, answer=[words]), Who("user", {}))
            with pytest.raises(RequestError):
                await made.people.answer(AnswerArgs(checkpoint=asked[0].id, answer=["other"]), Who("user", {}))
            await run.settled()
            told = host.prompts[-1][1] if by_message else await waits
            assert "> use password=hunter2xyz" in told and told.count("</checkpoint>") == by_message
    assert b"hunter2xyz" not in stored(tmp_path)


class Forgets(dict[str, dict[str, str]]):
    """Keeps nothing."""

    def __setitem__(self, key: str, value: dict[str, str]) -> None:
        return None
