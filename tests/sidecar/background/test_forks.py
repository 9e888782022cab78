"""Forks: where they end, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.forks.cut import Cut, cut_at, kept
from sidecar.home import Home
from streams.identity import seeded_identity
from streams.store import Record
from tests.sidecar.cli.helpers import make_home, run
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
    assert (cut.message, cut.is_prompt, kept(MESSAGES, cut)) == (message, is_prompt, count)
    assert LOG[cut.position + 1][0] == "human.input" if is_prompt else cut.position == at


def test_before_the_first_message_there_is_nothing_to_fork() -> None:
    assert cut_at(newest_first(0), S) is None
    assert cut_at(newest_first(4), CHILD) is None


def test_a_message_that_the_session_no_longer_has_is_told_apart() -> None:
    assert kept(MESSAGES, Cut("msg_gone", False, 0)) is None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two sessions of OpenCode 1, of which none is open."""
    made = make_home(tmp_path_factory.mktemp("forks") / "home", "chat", "task_parallel")
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
