"""A session that rests in a row is the same to every hook as one in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, cycle, zip_longest
from typing import Any

import pytest

from streams.lineage import FORKED
from tests.bridge.opencode.playing import Content, Item, Player, Resting, content, dumped, names, recording
from tests.bridge.opencode.playing2 import Player2, Recording
from tests.bridge.opencode.playing2 import names as names2


def cuts(items: list[Any]) -> Iterable[tuple[int, int]]:
    """Where a sidecar dies in a recording, and after how many hooks it saves."""
    return zip(range(0, len(items) + 1, 1 + len(items) // 5), cycle((1, 7)), strict=False)


@pytest.mark.parametrize("name", names())
def test_sessions_that_rest_change_nothing(name: str) -> None:
    """Only one session stays in memory after a save; and so after a restart at any point."""
    items = recording(name)
    for cut, every in cuts(items):
        usual, resting = Player(), Player(resting=Resting(every))
        for player in (usual, resting):
            player.feed(items[:cut])
            player.crash()
            player.feed(items)
            player.wait()
        assert resting.events() == usual.events()
        assert dumped(resting.translator.state) == dumped(usual.translator.state)


@pytest.mark.parametrize("name", names2())
def test_sessions_of_opencode_2_that_rest_change_nothing(name: str) -> None:
    recorded = Recording(name)
    for cut, every in cuts(recorded.items):
        usual, resting = Player2(recorded.told), Player2(recorded.told, resting=Resting(every))
        for player in (usual, resting):
            player.feed(recorded.items[:cut])
            player.crash()
            player.feed(recorded.items)
            player.settle()
        assert list(resting.log.events.values()) == list(usual.log.events.values())
        assert dumped(resting.translator.state) == dumped(usual.translator.state)


def disturb(player: Player | Player2, lanes: Iterable[list[Item]]) -> None:
    """Feed the lanes in turn; after each item the sidecar dies, and what it did not acknowledge comes again."""
    waiting: list[Item] = []
    for item in filter(None, chain.from_iterable(zip_longest(*lanes))):
        player.crash()
        player.feed([*waiting, item])
        waiting = [each for each in (*waiting, item) if each[0] not in player.finished]


@pytest.mark.parametrize("name", names())
def test_sessions_at_the_same_times_stay_apart_whatever_dies(name: str) -> None:
    """A fork's origin is known by the times of its messages alone, so only the first one's can be told."""
    lanes = [recording(name, teller) for teller in ("One", "Two", "Three")]
    wanted = Counter[Content]()
    for lane in lanes:
        alone = Player()
        alone.feed(lane)
        alone.wait()
        wanted.update(content(each) for each in alone.events() if lane is lanes[0] or each.type != FORKED)
    player = Player(resting=Resting(1))
    player.feed(lanes[0])
    disturb(player, lanes[1:])
    player.wait()
    assert Counter(map(content, player.events())) == wanted


@pytest.mark.parametrize("name", names2())
def test_sessions_of_opencode_2_at_the_same_times_stay_apart_whatever_dies(name: str) -> None:
    """The service tells a sidecar that comes again of all its messages, so one that died as often is what is right."""

    def told_of(*lanes: Recording, resting: Resting | None = None) -> Counter[Content]:
        player = Player2({session: told for lane in lanes for session, told in lane.told.items()}, resting=resting)
        disturb(player, [lanes[0].items])
        disturb(player, [lane.items for lane in lanes[1:]])
        player.settle()
        return Counter(map(content, player.log.events.values()))

    lanes = [Recording(name, teller) for teller in ("One", "Two", "Three")]
    assert told_of(*lanes, resting=Resting(1)) == sum(map(told_of, lanes), Counter[Content]())
