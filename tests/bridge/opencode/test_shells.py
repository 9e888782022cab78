"""A command that a person runs with ``!``: its input, its turn and its step, whatever dies in between."""

from __future__ import annotations

import pytest

from bridge.opencode.capture.translate import Origin, Token
from tests.bridge.opencode.playing import Item, Player, play, recording

NOTE, ANSWER, RUNNING, COMPLETED, ENDED = 3, 4, 5, 7, 8
"""Places in the recording of one command: the user message's note, the answer, its part, and their ends."""

OUTCOMES = ["completed", "aborted", "completed"]
"""Of the turns in ``shell_abort``: a command, an interrupted one, a prompt."""


def test_nothing_of_a_command_is_acknowledged_before_its_text_is_known() -> None:
    player, items = Player(), recording("shell")
    player.feed(items[:RUNNING])
    assert player.of("human.input") == []
    assert {items[NOTE][0], items[ANSWER][0]}.isdisjoint(player.finished)
    player.feed(items[RUNNING : RUNNING + 1])
    assert {items[NOTE][0], items[ANSWER][0]} <= player.finished
    assert player.of("human.input")[0].payload["shell"] == "echo hi"


def test_a_command_whose_part_never_comes_is_told_without_its_text() -> None:
    player, items = Player(), recording("shell")
    player.feed(items[:RUNNING])
    player.wait()
    assert player.of("human.input")[0].payload["shell"] == ""
    assert player.of("turn.started")[0].payload["trigger"] == "shell"
    assert player.finished == {token for token, _ in items[:RUNNING]}
    player.feed(items[RUNNING:])
    assert [e.payload["outcome"] for e in player.of("turn.ended")] == ["completed"]
    assert len(player.of("human.input")) == 1


def test_a_note_without_an_answer_says_nothing() -> None:
    player, items = Player(), recording("shell")
    player.feed(items[:ANSWER])
    player.wait()
    assert player.of("human.input") == player.of("turn.started") == []
    assert player.finished == {token for token, _ in items[:ANSWER]}


def test_idle_ends_the_wait_for_a_part() -> None:
    player, items = Player(), recording("shell")
    player.feed([*items[:RUNNING], *items[ENDED + 1 :]])
    assert [e.payload["outcome"] for e in player.of("turn.ended")] == ["aborted"]
    assert player.translator.next_deadline() is None


@pytest.mark.parametrize("behind", [1, 3])
def test_two_copies_of_the_plugin_tell_it_once_also_when_the_sidecar_dies(behind: int) -> None:
    items = recording("shell_abort")
    second = [(Token(Origin(token.origin.boot_id, "1" * 16), token.seq), item) for token, item in items]
    told: list[Item] = []
    for place in range(len(items) + behind):
        told += items[place : place + 1] + (second[place - behind : place - behind + 1] if place >= behind else [])
    wanted = sorted(play("shell_abort").log.events)
    for cut in range(len(told)):
        player = Player()
        player.feed(told[:cut])
        player.crash()
        player.feed([item for item in told if item[0] not in player.finished])
        player.wait()
        assert sorted(player.log.events) == wanted, cut
        assert [e.payload["outcome"] for e in player.of("turn.ended")] == OUTCOMES, cut
