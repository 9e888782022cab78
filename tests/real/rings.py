"""Ordinary turns that ring a phone, with either OpenCode in its terminal."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.terminal import ENTER, Terminal
from tests.sidecar.background.receiver import Receiver

LEAST_S = 0.5
FRONT, AWAY = b"\x1b[I", b"\x1b[O"
"""What a terminal reports when it comes to the front, and when it no longer is."""


def wait_focus(durable: DurableStream, focus: str) -> None:
    """Wait until a terminal has told this focus."""

    def told() -> bool:
        return focus in "".join(path.read_text() for path in (durable.home / "terminals").glob("*.json"))

    wait_until(told, "the focus")


def configure(durable: DurableStream, phone: Receiver) -> None:
    durable.home.mkdir(mode=0o700)
    notify = (
        f'urls = [{json.dumps(phone.url)}]\nturns = "away"\nmin_seconds = {LEAST_S}\nescalate_after_seconds = 0.5\n'
    )
    (durable.home / "config.toml").write_text(f"[notify]\n{notify}")


def assert_rings(screen: Terminal, durable: DurableStream, model: ModelServer, phone: Receiver) -> None:
    """A long turn rings, also one that fails; but none while its terminal is in front."""

    def over() -> list[str]:
        ended = [e["event"] for s in durable.whole_log().values() for e in s if e["event"]["type"] == "turn.ended"]
        return [each["payload"]["outcome"] for each in ended]

    def long_turn(name: str, then: str, *, kill: bool = False) -> None:
        before = len(over())
        screen.press(f"HOLD:{name} {then}".encode())
        screen.wait_for(f"HOLD:{name} {then}")
        screen.press(ENTER)
        model.wait_held(name)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2 * LEAST_S, "a long turn")
        if kill:
            os.kill(pid := durable.wait_running(), signal.SIGKILL)
            durable.wait_running([pid])
        model.release(name)
        wait_until(lambda: len(over()) > before, "the end of the turn")

    def turns() -> list[dict[str, Any]]:
        return [each for each in durable.lines("notices") if each["about"].startswith("turn:")]

    screen.prompt("SAY:warm", "warm")  # nobody knows the focus yet
    screen.press(AWAY)
    wait_focus(durable, "away")
    long_turn("long", "SAY:long done", kill=True)
    wait_until(lambda: len(phone.taken) == 1, "the long turn on the phone")
    assert "finished (ses_" in phone.taken[0]["message"]
    screen.press(FRONT)
    wait_focus(durable, "front")
    long_turn("front", "SAY:in front")
    wait_until(lambda: [each["state"] for each in turns()][-2:] == ["seen"] * 2, "the turn in front")
    screen.press(AWAY)
    wait_focus(durable, "away")
    long_turn("failing", "HTTPERR:400")
    wait_until(lambda: len(phone.taken) == 2, "the failing turn on the phone")
    assert "failed" in phone.taken[1]["message"]
    assert (over(), phone.asked) == (["completed"] * 3 + ["failed"], 2)
