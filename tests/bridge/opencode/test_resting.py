"""A session that rests in a row is the same to every hook as one in memory."""

from __future__ import annotations

import pytest

from tests.bridge.opencode.playing import Player, Resting, dumped, names, recording
from tests.bridge.opencode.playing2 import Player2, Recording
from tests.bridge.opencode.playing2 import names as names2


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", names())
def test_sessions_that_rest_change_nothing(name: str, every: int) -> None:
    """Only one session stays in memory after a save; and so after a restart at any point."""
    items = recording(name)
    for cut in range(0, len(items) + 1, 1 + len(items) // 5):
        usual, resting = Player(), Player(resting=Resting(every))
        for player in (usual, resting):
            player.feed(items[:cut])
            player.crash()
            player.feed(items)
            player.wait()
        assert resting.events() == usual.events()
        assert dumped(resting.translator.state) == dumped(usual.translator.state)


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", names2())
def test_sessions_of_opencode_2_that_rest_change_nothing(name: str, every: int) -> None:
    recorded = Recording(name)
    for cut in range(0, len(recorded.items) + 1, 1 + len(recorded.items) // 5):
        usual, resting = Player2(recorded.told), Player2(recorded.told, resting=Resting(every))
        for player in (usual, resting):
            player.feed(recorded.items[:cut])
            player.crash()
            player.feed(recorded.items)
            player.settle()
        assert list(resting.log.events.values()) == list(usual.log.events.values())
        assert dumped(resting.translator.state) == dumped(usual.translator.state)
