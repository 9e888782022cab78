"""Background work in the real terminal: ``/background``, the card, toasts, and what the phone hears of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real import rings
from tests.real.background import (
    assert_typing_answers,
    cancel_from_the_list,
    intents,
    of_session,
    one,
    only,
    spawn,
    window,
)
from tests.real.durable import DurableStream, wait_until
from tests.real.host_contract import QUESTIONS
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.terminal import ENTER, READY, Terminal
from tests.sidecar.background.receiver import Receiver

pytestmark = pytest.mark.real_opencode


def open_list(screen: Terminal) -> None:
    screen.press(b"/background")
    screen.wait_until(
        lambda lines: sum("/background" in line and "Answer" not in line for line in lines) == 2,
        "one command, and the menu",
    )
    screen.press(ENTER)


def test_long_turns_ring_the_list_cancels_and_answers_the_card_shows_what_runs_and_asks_and_the_phone_hears_the_rest(
    opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> None:
    with Receiver() as phone, RealOpenCode(opencode_binary, model.port, serve=False) as client:
        rings.configure(durable, phone)
        durable.start()
        durable.in_project(client, "install")
        with window(client, columns=170) as screen:
            screen.wait_for(READY)
            rings.assert_rings(screen, durable, model, phone, kill=True)
            say(screen, spawn("HOLD:native SAY:never"), "HOLD:native")
            running = one(durable, "running")
            screen.wait_for("count things in project started")  # a toast
            wait_until(lambda: "turn.ended" in [e["event"]["type"] for e in durable.log(running["parent"])], "its turn")
            model.wait_held("native")
            before = len(model.requests)
            screen.wait_for("1 in background")
            screen.wait_for("• count things")
            screen.wait_for("running · ")
            open_list(screen)
            cancel_from_the_list(screen, durable)
            assert len(model.requests) == before, "no call of the model"
            model.release("native")

            say(screen, spawn(f"CALL:question {json.dumps({'questions': QUESTIONS})}", "ask things"), "Which window")
            only(durable, "question")
            screen.wait_until(lambda lines: not any("esc interrupt" in line for line in lines), "the end of the turn")
            open_list(screen)
            screen.wait_for("Waiting for you")
            screen.press(ENTER)
            for asked, answer in (("Which door?", "Red"), ("Which window?", "none of them")):
                screen.wait_for(asked)
                screen.wait_for("Your answer")
                screen.press(answer.encode())
                screen.wait_for(answer)
                screen.press(ENTER)
            screen.wait_for("Answered: Red; none of them")
            wait_until(lambda: intents(durable)[-1]["state"] == "completed", "the end of the work")
            result = intents(durable)[-1]["result"]
            assert '"Which door?"="Red", "Which window?"="none of them"' in result
            screen.wait_until(lambda lines: not any("esc interrupt" in line for line in lines), "the end of the turn")

            assert_typing_answers(screen, durable, client.project.name)

            (durable.home / "config.toml").write_text(
                f"[notify]\nurls = [{json.dumps(phone.url)}]\nmin_seconds = 0\nescalate_after_seconds = 0.5\n"
            )
            durable.stop()
            durable.wait_linked()
            screen.press(b"/new")
            screen.wait_for("New session")
            screen.press(ENTER)
            screen.wait_for(READY)
            assert_the_phone_hears_what_no_window_shows(screen, client, durable, model, phone)


def assert_the_phone_hears_what_no_window_shows(
    screen: Terminal, client: RealOpenCode, durable: DurableStream, model: ModelServer, phone: Receiver
) -> None:
    """The phone rings for the work of a new session, and a result waits for a closed terminal."""
    before = len(phone.taken)

    def spawned(name: str) -> dict[str, Any]:
        say(screen, spawn(f"HOLD:{name} SAY:forty two", name), f"HOLD:{name}")
        model.wait_held(name)
        screen.wait_until(lambda lines: not any("esc interrupt" in line for line in lines), "the end of the turn")
        return next(each for each in durable.lines("intents") if each["title"] == name)

    looked = spawned("looked")
    screen.press(rings.FRONT)
    rings.wait_focus(durable, "front")
    model.release("looked")
    wait_until(lambda: [each["state"] for each in _alerts(durable, looked)] == ["seen"], "a look at it")
    hidden = spawned("hidden")
    screen.press(rings.AWAY)
    rings.wait_focus(durable, "away")
    model.release("hidden")
    wait_until(lambda: len(phone.taken) == before + 1, "the phone, although the screen shows the session")
    closed = spawned("closed")
    screen.close()
    model.release("closed")
    wait_until(lambda: len(phone.taken) == before + 2, "the phone")
    hears = [each["message"] for each in phone.taken[before:]]
    assert hidden["id"] in hears[0]
    assert hears[1] == f"closed in {client.project.name} finished: forty two ({closed['id']})"
    works = [looked["id"], hidden["id"], closed["id"]]
    assert [each["state"] for each in intents(durable) if each["id"] in works] == ["completed"] * 3
    with window(client, "--session", closed["parent"]) as screen:
        screen.wait_for("background-agent")
    woken = [m for m in of_session(durable, closed["parent"]) if m["event"]["type"] == "agent.input"]
    assert [json.dumps(woken).count(work) for work in works] == [1] * 3, "the parent is woken once"


def say(screen: Terminal, text: str, part: str) -> None:
    """Type a prompt, and send it once this part of it is shown."""
    screen.press(text.encode())
    screen.wait_for(part)
    screen.press(ENTER)


def _alerts(durable: DurableStream, intent: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in durable.lines("notices") if each["about"] == intent["id"] and each["kind"] == "alert"]
