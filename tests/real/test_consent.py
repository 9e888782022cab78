"""With the real clients: a person allows only what was shown whole, and a model cannot bury a person in questions."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.people.alerts import MOST_ALONE
from sidecar.background.people.people import MOST_ASKS
from tests.real.background import intents, only, refused, spawn, two_with_plugin, with_plugin
from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import free_port
from tests.real.test_notify import press
from tests.sidecar.background.receiver import Receiver

pytestmark = pytest.mark.real_opencode

HIDDEN = "\u202etxt.exe\u2066\x1b[2J"
"""Two characters that change the order in which the others are shown, and one that drives a terminal."""

LONG = f"echo {HIDDEN} {'A' * 5000} ; echo END"


@pytest.fixture
def phone() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def durable(tmp_path: Path, phone: Receiver) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        stream.home.mkdir(mode=0o700)
        notify = f"[notify]\nurls = [{json.dumps(phone.url)}]\nmin_seconds = 0\nescalate_after_seconds = 0.2\n"
        (stream.home / "config.toml").write_text(f"{notify}answer_port = {free_port()}\n")
        yield stream


def questions(count: int) -> str:
    return "".join(f"CALL:checkpoint_ask {json.dumps({'question': f'May I do {n}?'})} " for n in range(count))


def assert_only_what_is_shown_is_allowed(durable: DurableStream, phone: Receiver, ends: Callable[[], bool]) -> None:
    """What the phone, its page and the command line show of the long command, and what they let a person answer."""
    asked = only(durable, "permission")
    wait_until(lambda: phone.taken, "the message")
    message = phone.taken[0]["message"]
    link = re.search(r"http\S+", message)
    assert link is not None
    with urllib.request.urlopen(link[0], timeout=30) as answer:
        page = answer.read().decode()
    shown = durable.cli("checkpoints", asked["id"])
    for text, is_cut in ((message, True), (page, True), (shown, False)):
        assert not set(text) & set("\u202e\u2066\x1b"), "what could change the look of the text is shown as what it is"
        assert ("left out" in text) == is_cut and "END" in text, "a cut text keeps its end"
    assert re.findall('button name=answer value="(.*?)"', page) == ["reject"]
    for what in ("once", "always"):
        with pytest.raises(urllib.error.HTTPError):
            press(link[0], what)
    assert asked["id"] == only(durable, "permission")["id"], "it still waits"
    assert asked["always"] and all(pattern in shown for pattern in asked["always"]), "always says what it covers"
    durable.cli("checkpoints", asked["id"], "--answer", "once")
    wait_until(ends, "the end of the work")
    assert refused(durable, "checkpoints", asked["id"], "--answer", "reject") == "already-answered"


def assert_not_buried(durable: DurableStream, phone: Receiver, states: Callable[[], list[str]]) -> None:
    """Of many questions of a session, some wait, the others were refused, and the phone has few messages."""
    wait_until(lambda: len(durable.lines("checkpoints")) == MOST_ASKS and len(states()) == MOST_ASKS + 3, "the calls")
    assert [each["kind"] for each in durable.lines("checkpoints")] == ["ask"] * MOST_ASKS
    assert len(phone.taken) <= 1 + MOST_ALONE, phone.taken
    for each in durable.lines("checkpoints"):
        durable.cli("checkpoints", each["id"], "--answer", "no")
    # OpenCode 2 keeps the results of calls that were made together until all of them are there.
    wait_until(lambda: sorted(states()) == ["completed"] * MOST_ASKS + ["error"] * 3, "the answers and the refusals")


def test_on_opencode_1(durable: DurableStream, phone: Receiver, opencode_binary: Path, model: ModelServer) -> None:
    config = {"permission": {"bash": "ask"}}
    with with_plugin(opencode_binary, model, durable, config=config) as client:
        session = client.create_session("parent")
        client.prompt(session, spawn(f"CALL:bash {json.dumps({'command': LONG, 'description': 'say it'})}"))
        assert_only_what_is_shown_is_allowed(durable, phone, lambda: intents(durable)[0]["state"] == "completed")
        client.prompt_async(session, questions(MOST_ASKS + 3))

        def states() -> list[str]:
            calls = [part for part in client.parts(session, "tool") if part["tool"] == "checkpoint_ask"]
            return [str(call["state"]["status"]) for call in calls]

        assert_not_buried(durable, phone, states)


def test_on_opencode_2(durable: DurableStream, phone: Receiver, model: ModelServer) -> None:
    durable.start()
    config: dict[str, Any] = {"permissions": [{"action": "shell", "resource": "*", "effect": "ask"}]}
    with two_with_plugin(model, durable, config=config) as client:
        session = client.new_session()
        client.prompt(session, spawn(f"CALL:shell {json.dumps({'command': LONG})}"))
        assert_only_what_is_shown_is_allowed(durable, phone, lambda: intents(durable)[0]["state"] == "completed")
        client.wait(session)
        client.prompt(session, questions(MOST_ASKS + 3))

        def states() -> list[str]:
            parts = [part for message in client.messages(session) for part in message.get("content", [])]
            calls = [part for part in parts if part["type"] == "tool" and part.get("name") == "checkpoint_ask"]
            return [str(call["state"]["status"]) for call in calls]

        assert_not_buried(durable, phone, states)
