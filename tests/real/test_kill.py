"""kill -9 of the sidecar and of OpenCode, at moments that OpenCode itself reports: nothing lost or doubled."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.real.durable import PLUGIN, DurableStream, is_alive, wait_until
from tests.real.events import Event, EventStream
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.recorded import Family, expected, family
from tests.real.scripts import bash, task

pytestmark = pytest.mark.real_opencode

# OpenCode kills itself as soon as the plugin has taken the fifth hook of the kind that the test sends.
SUICIDAL = """(plugin) => async (given) => {
  const hooks = await plugin(given);
  const inner = hooks.event;
  let taken = 0;
  hooks.event = (input) => {
    const done = inner(input);
    const { type, properties } = input.event;
    if (type === "session.created" && properties.info.title === "counted") taken += 1;
    if (taken === 5) process.kill(process.pid, "SIGKILL");
    return done;
  };
  return hooks;
}"""


@pytest.fixture(scope="module")
def opencode(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    plugins = {PLUGIN: durable.plugin(around=SUICIDAL)}
    with RealOpenCode(opencode_binary, model.port, plugins=plugins) as client:
        yield client
        durable.end_with(client)


def of_type(kind: str) -> Callable[[Event], bool]:
    return lambda event: event["type"] == kind


def tool_is(status: str, tool: str = "bash") -> Callable[[Event], bool]:
    def predicate(event: Event) -> bool:
        part = event["properties"].get("part", {})
        return part.get("tool") == tool and part["state"]["status"] == status

    return predicate


def tool_says(word: str) -> Callable[[Event], bool]:
    def predicate(event: Event) -> bool:
        state = event["properties"].get("part", {}).get("state", {})
        return word in str(state.get("metadata", {}).get("output", ""))

    return predicate


# The prompt, what it is answered, and when the sidecar dies: at an event of OpenCode's, or while the
# model holds its answer ("a request named so is held"). Several moments are several kills in one prompt.
# Each kind of moment is here once: `TestCrashes` in `test_translate.py` ends a sidecar at each event of a recording.
Moment = Callable[[Event], bool] | str
CHILD = f"{task(bash('echo kid'))} THEN: SAY:fathered"
ROUNDS: list[tuple[str, str, list[Moment]]] = [
    ("SAY:pong", "pong", [of_type("message.updated")]),
    ("DRIP:4,0.05 SAY:a long answer", "a long answer", [of_type("message.part.delta")]),
    ("SAY:pong", "pong", [of_type("session.idle")]),
    (f"{bash('echo one')} {bash('echo two')} THEN: SAY:both", "both", [tool_is("running")]),
    (CHILD, "fathered", [of_type("session.created")]),
    (CHILD, "fathered", [tool_is("completed", "task")]),
    (
        f"HOLD:a {bash('echo one')} THEN: HOLD:b {task('HOLD:c ' + bash('echo kid') + ' THEN: HOLD:d SAY:kid')} "
        "THEN: SAY:held",
        "held",
        ["a", "b", "c", "d"],
    ),
]


def test_ten_kills_of_the_sidecar(
    durable: DurableStream, opencode: RealOpenCode, model: ModelServer, events: EventStream
) -> None:
    killed: list[int] = []
    took: list[float] = []

    def ask(session: str, prompt: str, answer: str, moments: list[Moment]) -> None:
        since, began = events.mark(), time.monotonic()
        opencode.prompt_async(session, prompt)
        for moment in moments:
            if isinstance(moment, str):
                model.wait_held(moment)
            else:
                events.wait_for(moment, since=since)
            killed.append(durable.wait_running(killed))
            os.kill(killed[-1], signal.SIGKILL)
            if isinstance(moment, str):
                model.release(moment)
        events.wait_type("session.idle", session, since)
        took.append(time.monotonic() - began)
        last = opencode.messages(session)[-1]
        assert [part["text"] for part in last["parts"] if part["type"] == "text"] == [answer]
        assert "error" not in last["info"]

    sessions = [opencode.create_session() for _ in range(3)]
    ask(sessions[0], "SAY:warm", "warm", [])
    for number, (prompt, answer, moments) in enumerate(ROUNDS):
        if number % 3:
            durable.wait_linked()
        else:
            durable.wait_running()  # it dies while it takes what the one before left
        ask(sessions[number % len(sessions)], prompt, answer, moments)
    assert len(killed) == len(set(killed)) == 10
    times = f"prompts took {min(took):.2f} to {max(took):.2f} s"
    for session in sessions:
        durable.assert_recorded(expected(family(opencode, session)), times)
    durable.assert_whole()


def test_opencode_and_a_hung_sidecar_killed_in_a_tool(durable: DurableStream, opencode: RealOpenCode) -> None:
    session = opencode.create_session()
    opencode.prompt(session, bash("echo before"))
    sidecar = durable.wait_linked()
    os.kill(sidecar, signal.SIGSTOP)
    kill_in_a_tool(opencode, session)
    assert list((durable.home / "spool").iterdir())
    # It has read nothing of that prompt, and what lay in its socket dies with it.
    os.kill(sidecar, signal.SIGKILL)
    wait_until(lambda: not is_alive(sidecar), "the end of the sidecar")
    opencode.start()
    opencode.prompt(session, "SAY:here again")
    records = durable.assert_recorded(expected(family(opencode, session, resumed={session: 1})))
    outcomes = [r["event"]["payload"]["outcome"] for r in records if r["event"]["type"] == "turn.ended"]
    assert outcomes == ["completed", "interrupted", "completed"]
    wait_until(lambda: durable.status()["spool"]["files"] == 0, "the end of the spool")
    durable.assert_whole()


def test_opencode_killed_after_five_hooks_when_it_is_linked_and_before(
    durable: DurableStream, opencode: RealOpenCode
) -> None:
    durable.wait_linked()
    for _ in range(2):
        with pytest.raises((OSError, http.client.HTTPException)):
            for _ in range(6):
                opencode.create_session("counted")
        opencode.kill9()  # it is dead; this takes note of it
        durable.stop()  # so the next one has no link yet
        opencode.start()
    told = sorted(session["id"] for session in opencode.sessions() if session["title"] == "counted")
    assert len(told) == 10
    wait_until(lambda: counted(durable) == told, "all of them in the log")
    durable.assert_whole()


def test_opencode_killed_in_a_tool(durable: DurableStream, opencode: RealOpenCode) -> None:
    session = opencode.create_session()
    opencode.prompt(session, bash("echo before"))
    sidecar = durable.wait_linked()
    told = kill_in_a_tool(opencode, session)
    told.killed = True
    durable.assert_recorded(expected(told))
    assert durable.running() == sidecar
    (stream,) = (one for one in durable.lines("streams") if one["stream_id"] == session)
    assert stream["status"] == "idle"
    durable.assert_whole()


def counted(durable: DurableStream) -> list[str]:
    created = (r["event"]["payload"] for r in durable.lines("query", "--type", "lifecycle.session.created"))
    return sorted(each["session"] for each in created if each["title"] == "counted")


def kill_in_a_tool(opencode: RealOpenCode, session: str) -> Family:
    """Kill OpenCode while a tool runs; return its report of the session just before."""
    with opencode.events() as events:
        opencode.prompt_async(session, f"{bash('echo done')} THEN: {bash('echo started; sleep 600')}")
        events.wait_for(tool_says("started"))
        told = family(opencode, session)
        opencode.kill9()
    return told
