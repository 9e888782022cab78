"""Background work in the real terminal of OpenCode 2, 80 columns wide: the card, toasts, and ``/background``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.install.tui import TUI_NAME
from sidecar.install.tui2 import SETTINGS_NAME
from tests.real import rings
from tests.real.background import assert_typing_answers, cancel_from_the_list, one, only, spawn, window
from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode2 import RealOpenCode2
from tests.real.terminal import ENTER, READY, Terminal
from tests.sidecar.background.receiver import Receiver
from tools.install_opencode import VERSION_2, binary_path

pytestmark = pytest.mark.real_opencode

WIDE = 150
"""A terminal of this width has a sidebar."""


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        yield stream


@pytest.fixture
def client(model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode2]:
    durable.start()
    config = {"snapshot": False, "permission": {"bash": "ask"}}
    with RealOpenCode2(binary_path(VERSION_2), model.port, config=config, serve=False) as opencode:
        durable.in_project(opencode, "install")
        opencode.start()  # type: ignore[attr-defined]
        opencode.api("GET", f"/api/model?location[directory]={opencode.project}")  # type: ignore[attr-defined]
        yield opencode  # type: ignore[misc]
        durable.end_with(opencode)


def test_an_ordinary_turn_that_was_long_rings_the_phone(model: ModelServer, durable: DurableStream) -> None:
    with Receiver() as phone:
        rings.configure(durable, phone)
        durable.start()
        config = {"snapshot": False}
        with RealOpenCode2(binary_path(VERSION_2), model.port, config=config, serve=False) as opencode:
            durable.in_project(opencode, "install")
            opencode.start()  # type: ignore[attr-defined]
            opencode.api("GET", f"/api/model?location[directory]={opencode.project}")  # type: ignore[attr-defined]
            with window(opencode) as screen:
                screen.wait_for(READY)
                screen.wait_for("Mock 1 Mock")
                rings.assert_rings(screen, durable, model, phone)
            durable.end_with(opencode)


def prompt(screen: Terminal, text: str) -> None:
    screen.wait_for(READY)
    screen.wait_for("Mock 1 Mock")  # before that, it does not send
    screen.press(text.encode())
    screen.wait_for("SAY:started")
    screen.press(ENTER)
    screen.wait_for("in background")


def open_list(screen: Terminal) -> None:
    screen.press(b"/background")
    screen.wait_for("What is running and waiting")  # the menu
    screen.press(ENTER)
    screen.wait_for("Search")


def test_what_waits_is_shown_and_answered_in_the_list_or_by_typing_and_its_end_is_a_toast(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    with window(client, columns=80) as screen:
        prompt(screen, spawn('CALL:shell {"command": "echo it", "description": "x"}'))
        screen.wait_for("OpenCode waits: permission")  # a toast
        screen.wait_for("1 in background, 1 waiting for you")
        only(durable, "permission")
        before = len(model.requests)
        open_list(screen)
        screen.wait_for("Waiting for you")
        screen.press(ENTER)
        screen.wait_for("reject")
        assert len(model.requests) == before, "no call of the model"
        screen.press(ENTER)
        screen.wait_for("count things in project finished")
        screen.wait_until(lambda lines: not any("in background" in line for line in lines), "no card")
        assert one(durable, "completed")["result"].startswith("RESULT<<it")
        done = one(durable, "completed")
        client.wait(done["parent"])  # the result woke it
        client.prompt(done["session"], "SAY:a person prompts it")
        screen.wait_for("This background work has ended")  # a toast: how it can go on
        assert_typing_answers(screen, durable, client.project.name)
        settings = client.config_directory / SETTINGS_NAME
        assert TUI_NAME in settings.read_text(), "it copied the plugin of OpenCode 1, without a word"
        durable.in_project(client, "install")
        assert TUI_NAME not in settings.read_text()


def test_what_runs_is_in_the_sidebar_and_is_cancelled_from_the_list(
    client: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    with window(client, columns=WIDE) as screen:
        prompt(screen, spawn("HOLD:native SAY:never"))
        screen.wait_for("count things in project started")  # a toast
        running = one(durable, "running")
        screen.wait_for("• count things")
        screen.wait_for("running · ")
        client.wait(running["parent"])
        wait_until(lambda: running["session"] in [r.session for r in model.requests], "its call of the model")
        before = len(model.requests)
        open_list(screen)
        cancel_from_the_list(screen, durable)
        assert len(model.requests) == before, "no call of the model"
    model.release("native")
