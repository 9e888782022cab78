"""Which turns are read from OpenCode's history, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bridge.opencode.capture.history import session_items, turn_items, turns_of
from bridge.opencode.capture.translate import Origin, Token
from bridge.opencode.link.frames import HookItem
from bridge.opencode.link.link import CallError
from sidecar.record.back_fill import BackFill
from streams.store import Record
from tests.bridge.opencode.playing import Player
from tests.bridge.opencode.test_history import answer, finish, said, user
from tests.memory import MemoryStore

MESSAGES = [
    user("msg_1", "one", 1001),
    answer("msg_2", "msg_1", 1002, said("one", 1003), finish()),
    user("msg_3", "two", 1020),
    answer("msg_4", "msg_3", 1021, said("two", 1022), finish()),
    user("msg_5", "three", 1040),
    answer("msg_6", "msg_5", 1041, said("three", 1042), finish()),
]


class Link:
    """An OpenCode with these messages."""

    def __init__(self) -> None:
        self.fails = False
        self.calls = 0

    async def call(self, method: str, args: dict[str, Any], timeout: float = 0) -> Any:
        self.calls += 1
        if self.fails:
            raise CallError("call", "away")
        return MESSAGES


class Ingest:
    """Takes what is fed to a translator; a stand-in for the one that writes to a log."""

    def __init__(self, player: Player) -> None:
        self.player, self.link = player, Link()

    def link_of(self, boot_id: str, directory: str | None) -> Link:
        return self.link

    def take(self, origin: Origin, first_seq: int, items: Iterable[HookItem], link: None) -> None:
        self.player.feed([(Token(origin, seq), item) for seq, item in enumerate(items, first_seq)])
        self.player.wait()


def record(player: Player, type_: str) -> Record:
    """The last event of a type, as the log returns it."""
    return Record(player.of(type_)[-1], 1, 1, "")


@pytest.fixture
def player() -> Player:
    """What was recorded of the session: its first turn in one process, and its third in another."""
    made = Player()
    info = {"id": "ses_1", "directory": "/d", "title": "t", "version": "1.18.0", "time": {"created": 1000}}
    feed(made, "b", list(session_items(info, MESSAGES[:2])))
    feed(made, "c", hooks(MESSAGES[4:]))
    made.wait()
    return made


def hooks(messages: list[dict[str, Any]]) -> list[HookItem]:
    return list(turn_items("ses_1", messages))


def feed(player: Player, boot: str, items: list[HookItem], first: int = 1) -> None:
    player.feed([(Token(Origin(boot * 32, "d" * 16), seq), item) for seq, item in enumerate(items, first)])


async def filled(player: Player, *, fails: bool = False) -> Ingest:
    """Tell a back-fill what capture appended, and wait for what it does."""
    ingest = Ingest(player)
    ingest.link.fails = fails
    fill = BackFill(ingest, MemoryStore(), player.translator.state)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        await fill.start(stack)
        fill.recorded([record(player, "lifecycle.session.resumed"), record(player, "turn.ended")])
        while fill.owes():
            await asyncio.sleep(0)
    return ingest


def turns(player: Player) -> list[str]:
    return [event.payload["message"] for event in player.of("turn.ended")]


async def test_only_the_missing_turn_is_read(player: Player) -> None:
    assert turns(player) == ["msg_1", "msg_5"]
    await filled(player)
    assert turns(player) == ["msg_1", "msg_5", "msg_3"]
    assert [e.payload["message"] for e in player.of("human.input")] == ["msg_1", "msg_5", "msg_3"]


async def test_a_turn_that_runs_is_not_disturbed(player: Player) -> None:
    feed(player, "c", hooks([user("msg_7", "four", 1060), answer("msg_8", "msg_7", 1061)])[:2], 90)
    ingest = await filled(player)
    assert ingest.link.calls == 1
    assert turns(player) == ["msg_1", "msg_5"]


async def test_an_opencode_that_does_not_answer_changes_nothing(player: Player) -> None:
    await filled(player, fails=True)
    assert turns(player) == ["msg_1", "msg_5"]


def test_a_turn_is_a_user_message_and_its_answers() -> None:
    assert [(first, len(each)) for first, each in turns_of(MESSAGES[1:]).items()] == [("msg_3", 2), ("msg_5", 2)]
    assert turns_of([{}, {"info": 5}]) == {}
