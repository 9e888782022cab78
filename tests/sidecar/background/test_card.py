"""The file from which a terminal draws its status card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sidecar.background.intents.state import Intent
from sidecar.background.people.checkpoints import Checkpoint
from sidecar.background.people.teller import IN_LIST, TYPE_IT
from sidecar.background.people.terminals import NAME, CardFile, card_text


def test_it_says_what_runs_and_what_waits_on_one_line_each() -> None:
    intent = Intent("int_1", "a prompt", "two\nlines", "ses_1", "/p", 5, state="running", started=7, root="ses_0")
    intent.asks = ["chk_open"]
    (agent,) = json.loads(card_text([intent], ()))["agents"]
    assert (agent["since"], agent["asks"], agent["parent"], agent["root"]) == (7, 1, "ses_1", "ses_0")
    assert "\n" not in agent["title"] and "a prompt" not in agent.values()


def test_what_a_session_asks_stays_on_its_screen_with_the_options_and_how_to_answer() -> None:
    about = {"session": "ses_1", "opened": 8, "tell": "ses_1", "directory": "/home/ada/shop"}
    mine = Checkpoint("chk_1", "ask", text="Ship it?", options=["yes", "no"], **about)
    shown = Checkpoint("chk_2", "permission", text="bash make", **about)
    below = Checkpoint("chk_3", "permission", text="bash make", intent="int_1", work="tidy", **about)
    asks = json.loads(card_text((), [mine, shown, below, replace(mine, id="chk_4", state="answered")]))["asks"]
    assert [each["id"] for each in asks] == ["chk_1", "chk_3"], "OpenCode shows its own permissions by itself"
    typed, listed = (each["text"].split("\n") for each in asks)
    assert (typed[0], listed[0]) == ("shop asks: Ship it? [yes | no]", "tidy in shop asks for permission: bash make")
    assert typed[1].startswith(TYPE_IT) and listed[1].startswith(IN_LIST)


def test_it_is_written_when_something_runs_and_emptied_when_nothing_does(tmp_path: Path) -> None:
    nothing = card_text((), ())
    card = CardFile(tmp_path)
    assert card.written == nothing, "a home without background work gets no file"
    card.write(card_text([Intent("int_1", "p", "t", None, "/p", 5)], ()))
    assert CardFile(tmp_path).written != nothing, "the next sidecar does not trust what it finds"
    card.write(nothing)
    assert (tmp_path / NAME).read_bytes() == nothing == card.written
