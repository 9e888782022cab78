"""Background work in the real terminal of OpenCode 2, 80 columns wide: the card, toasts, and ``/background``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.install.tui import TUI_NAME
from sidecar.install.tui2 import SETTINGS_NAME
from tests.real import rings
from tests.real.background import assert_typing_answers, cancel_from_the_list, intents, one, only, spawn, window
from tests.real.durable import DurableStream
from tests.real.model_server import ModelServer
from tests.real.opencode2 import Api2Error, RealOpenCode2
from tests.real.terminal import ENTER, READY, Terminal
from tests.sidecar.background.receiver import Receiver
from tools.install_opencode import VERSION_2, binary_path

pytestmark = pytest.mark.real_opencode

WIDE = 150
"""A terminal of this width has a sidebar."""


def test_long_turns_ring_and_work_is_shown_cancelled_answered_and_ends_with_a_toast(
    model: ModelServer, tmp_path: Path
) -> None:
    config = {"permission": {"bash": "ask"}}
    with (
        Receiver() as phone,
        DurableStream(tmp_path / "home") as durable,
        RealOpenCode2(binary_path(VERSION_2), model.port, config=config, serve=False) as client,
    ):
        rings.configure(durable, phone)
        durable.start()
        durable.in_project(client, "install")
        client.start()
        client.api("GET", f"/api/model?location[directory]={client.project}")
        with window(client, columns=80) as screen:
            is_ready(screen)
            rings.assert_rings(screen, durable, model, phone, kill=False)
            asks_in_the_list(screen, client, durable, model)
        with window(client, columns=WIDE) as screen:
            is_ready(screen)
            shows_in_the_sidebar(screen, client, durable, model)
        durable.end_with(client)


def is_ready(screen: Terminal) -> None:
    screen.wait_for(READY)
    screen.wait_for("Mock 1 Mock")  # before that, it does not send


def prompt(screen: Terminal, text: str) -> None:
    screen.press(text.encode())
    screen.wait_for("SAY:started")
    screen.press(ENTER)
    screen.wait_for("in background")


def open_list(screen: Terminal) -> None:
    screen.press(b"/background")
    screen.wait_for("What is running and waiting")  # the menu
    screen.press(ENTER)
    screen.wait_for("Search")


def shows_in_the_sidebar(screen: Terminal, client: RealOpenCode2, durable: DurableStream, model: ModelServer) -> None:
    """What runs is in the sidebar, and is cancelled from the list."""
    prompt(screen, spawn("HOLD:native SAY:never"))
    screen.wait_for("count things in project started")  # a toast
    running = one(durable, "running", intents(durable)[-1]["root"])
    screen.wait_for("• count things")
    screen.wait_for("running · ")
    client.wait(running["parent"])
    model.wait_held("native")
    before = len(model.requests)
    open_list(screen)
    cancel_from_the_list(screen, durable)
    assert len(model.requests) == before, "no call of the model"
    model.release("native")


def asks_in_the_list(screen: Terminal, client: RealOpenCode2, durable: DurableStream, model: ModelServer) -> None:
    """What waits is shown and answered in the list, or by typing, and the end of work is a toast."""
    prompt(screen, spawn('CALL:shell {"command": "echo it", "description": "x"}', "say it"))
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
    screen.wait_for("say it in project finished")
    screen.wait_until(lambda lines: not any("in background" in line for line in lines), "no card")
    done = one(durable, "completed", intents(durable)[-1]["root"])
    assert done["result"].startswith("RESULT<<it")
    client.wait(done["parent"])  # the result woke it
    before = len(model.requests)
    with pytest.raises(Api2Error, match="500"):
        client.prompt(done["session"], "SAY:a person prompts it")
    assert len(model.requests) == before, "its copy is gone, and no turn runs elsewhere"
    assert_typing_answers(screen, durable, client.project.name)
    settings = client.config_directory / SETTINGS_NAME
    assert TUI_NAME in settings.read_text(), "it copied the plugin of OpenCode 1, without a word"
    durable.in_project(client, "install")
    assert TUI_NAME not in settings.read_text()
