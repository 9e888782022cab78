"""What the messages of a session of OpenCode 2 say of its prompt, and how long it has been silent."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from sidecar.background.hosts.v2_turn import Turn, quiet_ms, turn_of

NOW = 10_000
Json = dict[str, Any]


def quiet(recorded_ms: int = 0, **last: Any) -> int:
    return quiet_ms(last, recorded_ms, NOW)


def tool(status: str, **time: int) -> Json:
    return {"type": "tool", "state": {"status": status}, "time": time}


def test_it_is_silent_since_the_newest_thing_that_began_or_ended() -> None:
    text = {"type": "text", "text": "so far"}
    assert quiet(time={"created": 1_000}, content=[text]) == 9_000
    assert (
        quiet(time={"created": 1_000}, content=[tool("completed", created=2_000, ran=3_000, completed=4_000)]) == 6_000
    )
    assert quiet(7_000, time={"created": 1_000, "completed": 5_000}) == 3_000


def test_while_a_tool_runs_or_a_provider_is_to_be_tried_again_it_is_not_silent() -> None:
    assert quiet(time={"created": 1_000}, content=[tool("running", created=2_000, ran=3_000)]) == 0
    assert quiet(time={"created": 1_000}, retry={"at": NOW + 4_000}) == 0
    assert quiet(time={"created": 1_000}, retry={"at": NOW - 500}) == 500


def test_without_any_time_nothing_is_said() -> None:
    assert quiet() == 0


# --- the messages of a session ---
def user(key: str = "", *, prompt: bool = False) -> Json:
    mark = {"durable_stream": {"key": key} | ({"prompt": True} if prompt else {})} if key else {}
    return {"type": "user", "text": "do it", "metadata": mark}


def answer(*said: str, **more: Any) -> Json:
    return {"type": "assistant", "finish": "stop", "content": [{"type": "text", "text": each} for each in said], **more}


def call(name: str, state: str = "completed", finish: str = "tool-calls", error: Any = None, **about: Any) -> Json:
    part = {"type": "tool", "name": name, "state": {"status": state, "metadata": about}}
    return {"type": "assistant", "finish": finish, "content": [part]} | ({"error": error} if error else {})


def idle(outcome: str = "succeeded") -> Json:
    return {"type": "idle", "outcome": outcome}


def launch(child: str) -> Json:
    return call("subagent", sessionID=child, status="running", truncated=False)


def report(child: str) -> Json:
    about = {"source": "subagent", "childID": child, "state": "completed"}
    return {"type": "synthetic", "text": "<subagent…>", "metadata": about}


RUNS = call("shell", shellID="sh_1", status="running")
SHELL_REPORT = {"type": "synthetic", "text": "<shell…>", "metadata": {"source": "shell", "shellID": "sh_1"}}
ABORTED = {"type": "aborted", "message": "Step interrupted"}
PROMPT = user("key", prompt=True)
WAKE = user("ntc_1")
PERSON = user()
SAID = answer("forty", "two")
DONE = Turn("answered", "forty\ntwo")
REFUSED = call("shell", "error", "error", ABORTED)
BROKEN_OFF = answer(finish="error", error=ABORTED)
CONTINUED = {"type": "synthetic", "text": "The server restarted…", "description": "Continuing after restart"}
SHELL = {"type": "shell", "command": "ls", "status": "exited"}
SWITCHED = {"type": "agent-switched", "agent": "plan"}
COMPACTED = {"type": "compaction", "status": "completed", "summary": "what was said"}
STEP = call("shell")
TAILS: dict[str, tuple[list[Json], Turn]] = {
    "not begun": ([], Turn("open")),
    "a step": ([STEP], Turn("open")),
    "an answer whose turn is not over": ([SAID], Turn("open", "forty\ntwo")),
    "an unfinished answer": ([{"type": "assistant", "content": []}], Turn("open")),
    "succeeded": ([STEP, SAID, idle()], DONE),
    "failed": (
        [answer(finish="error", error={"type": "provider.invalid-request", "message": "no"}), idle("failed")],
        Turn("failed", "no"),
    ),
    "failed without an answer": ([idle("failed")], Turn("failed")),
    "succeeded without an answer": ([idle()], Turn("open")),
    "succeeded after an answer that an abort broke off": (
        [answer("for", finish="error", error=ABORTED), CONTINUED, idle()],
        Turn("open", "for"),
    ),
    "succeeded after an unfinished answer": ([answer("for", finish=""), idle()], Turn("open", "for")),
    "failed, with some outcome of a later version": ([SAID, idle("lost")], Turn("failed")),
    "recovered from an error": ([answer(error={"type": "x", "message": "no"}), SAID, idle()], DONE),
    "aborted": ([BROKEN_OFF, idle("interrupted")], Turn("aborted")),
    "refused": ([STEP, REFUSED], Turn("cut")),
    "refused and closed": ([REFUSED, idle()], Turn("stopped")),
    "refused, and continued by a person": ([REFUSED, PERSON, SAID, idle()], Turn("stopped")),
    "refused, and woken by a report": ([launch("c"), REFUSED, report("c"), SAID, idle()], Turn("stopped")),
    "cut off": ([BROKEN_OFF], Turn("cut")),
    "about to go on": ([BROKEN_OFF, CONTINUED], Turn("open")),
    "going on": ([BROKEN_OFF, CONTINUED, STEP], Turn("open")),
    "went on": ([BROKEN_OFF, CONTINUED, SAID, idle()], DONE),
    "went on after a tool": ([call("shell", "error", finish=""), CONTINUED, SAID, idle()], DONE),
    "cut off too often": ([CONTINUED, BROKEN_OFF, idle("failed")], Turn("failed", "Step interrupted")),
    "compacted on the way": ([STEP, COMPACTED, SAID, idle()], DONE),
    "steered by a person": ([STEP, PERSON, SAID, idle()], DONE),
    "switched on the way": ([SWITCHED, STEP, SWITCHED, SAID, idle()], DONE),
    "a shell command on the way": ([STEP, SHELL, SAID, idle()], DONE),
    "a subagent in the foreground": ([call("subagent", sessionID="c", status="completed"), SAID, idle()], DONE),
    "a subagent that runs": ([launch("c"), answer("started"), idle()], Turn("waiting", "started", ("c",))),
    "one of two that runs": (
        [launch("c"), launch("d"), answer("started"), idle(), report("c"), SAID, idle()],
        Turn("waiting", "forty\ntwo", ("d",)),
    ),
    "a subagent that has reported": ([launch("c"), answer("started"), idle(), report("c"), SAID, idle()], DONE),
    "a subagent that reported on the way": ([launch("c"), STEP, report("c"), SAID, idle()], DONE),
    "a subagent that was used again": (
        [launch("c"), idle(), report("c"), launch("c"), idle()],
        Turn("waiting", "", ("c",)),
    ),
    "its report is being answered": ([launch("c"), answer("started"), idle(), report("c")], Turn("open", "started")),
    "a notice while a subagent runs": (
        [launch("c"), idle(), WAKE, answer("other"), idle(), report("c"), SAID, idle()],
        DONE,
    ),
    "aborted while a subagent runs": ([launch("c"), BROKEN_OFF, idle("interrupted")], Turn("aborted")),
    "a background command": ([RUNS, answer("started"), idle()], Turn("waiting", "started", ("sh_1",))),
    "a background command that has reported": ([RUNS, answer("started"), idle(), SHELL_REPORT, SAID, idle()], DONE),
    "aborted while a background command runs": ([RUNS, BROKEN_OFF, idle("interrupted")], Turn("aborted")),
}
LATER: dict[str, list[Json]] = {
    "nothing": [],
    "a person's turn": [PERSON, answer("other"), idle()],
    "a person's turn that goes on": [PERSON, STEP],
    "a person's turn that was aborted": [PERSON, BROKEN_OFF, idle("interrupted")],
    "a person's turn that was refused": [PERSON, REFUSED],
    "a person's turn that was cut off": [PERSON, BROKEN_OFF, CONTINUED, answer("other"), idle()],
    "a notice": [WAKE, answer("other"), idle()],
    "an empty turn": [idle()],
    "a compaction": [COMPACTED, idle()],
    "a shell command": [
        SHELL,
        {"type": "synthetic", "text": "out", "metadata": {"source": "shell"}},
        answer("x"),
        idle(),
    ],
    "another agent": [SWITCHED],
    "a late report": [report("z"), answer("other"), idle()],
}
OVER = {name: tail for name, tail in TAILS.items() if tail[1].state in ("answered", "failed", "aborted", "stopped")}


@pytest.mark.parametrize("name", TAILS)
def test_what_became_of_a_prompt(name: str) -> None:
    tail, turn = TAILS[name]
    assert turn_of([PROMPT, *tail]) == turn
    assert turn_of([PERSON, answer("before"), idle(), WAKE, idle(), PROMPT, *tail]) == turn


@pytest.mark.parametrize(("name", "later"), list(product(OVER, LATER)))
def test_what_is_over_is_over_whatever_comes_later(name: str, later: str) -> None:
    tail, turn = OVER[name]
    assert turn_of([PROMPT, *tail, *LATER[later]]) == turn


@pytest.mark.parametrize("name", TAILS)
def test_a_new_prompt_counts_alone(name: str) -> None:
    tail, turn = TAILS[name]
    for before, _ in TAILS.values():
        assert turn_of([PROMPT, *before, user("again", prompt=True), *tail]) == turn


def test_without_a_prompt_nothing_is_known() -> None:
    assert turn_of([]) is None
    assert turn_of([PERSON, SAID, idle(), WAKE, SAID, idle(), CONTINUED]) is None


@pytest.mark.parametrize("odd", [{}, {"type": 3}, {"type": "assistant", "content": 7, "error": "x"}, {"type": "later"}])
def test_a_message_of_an_unknown_kind_changes_nothing(odd: Json) -> None:
    assert turn_of([odd, PROMPT, odd, SAID, idle(), odd]) == DONE
