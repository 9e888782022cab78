"""Ordinary turns that ring a phone, with either OpenCode in its terminal."""

from __future__ import annotations

import json
import os
import signal
import time

from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.terminal import ENTER, Terminal
from tests.sidecar.background.receiver import Receiver

LEAST_S = 1.5
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


def assert_rings(screen: Terminal, durable: DurableStream, model: ModelServer, phone: Receiver, *, kill: bool) -> None:
    """A long turn rings, one that succeeds while its sidecar is killed, or one that fails; but none while its terminal
    is in front."""

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

    screen.prompt("SAY:warm", "warm")  # nobody knows the focus yet
    wait_until(lambda: len(over()) == 1, "the end of the first turn, which is a short one")
    screen.press(AWAY)
    wait_focus(durable, "away")
    long_turn("long", "SAY:long done" if kill else "HTTPERR:400", kill=kill)
    wait_until(lambda: len(phone.taken) == 1, "the long turn on the phone")
    assert ("finished (ses_" if kill else "failed") in phone.taken[0]["message"]
    screen.press(FRONT)
    wait_focus(durable, "front")
    long_turn("front", "SAY:in front")
    turns = lambda: [each["state"] for each in durable.lines("notices") if each["about"].startswith("turn:")]  # noqa: E731
    wait_until(lambda: turns()[-2:] == ["seen"] * 2, "the turn in front")
    assert (over(), phone.asked) == (["completed", "completed" if kill else "failed", "completed"], 1)
