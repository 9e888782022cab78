"""The capture state from a snapshot equals that folded from the whole log."""

from __future__ import annotations

import pytest

from bridge.opencode.capture.state import CaptureState
from streams.event import StreamEvent
from streams.rows import MemoryRows
from tests.bridge.opencode.playing import Player, Resting, dumped, names, play, recording
from tests.bridge.opencode.playing2 import Player2, Recording
from tests.bridge.opencode.playing2 import names as names2


def fold(events: list[StreamEvent], state: CaptureState | None = None) -> CaptureState:
    state = state if state is not None else CaptureState()
    for event in events:
        state.apply(event)
    return state


@pytest.mark.parametrize("name", names())
def test_a_snapshot_and_the_rest_make_the_whole(name: str) -> None:
    events = list(play(name).log.events.values())
    whole = dumped(fold(events))
    for cut in range(0, len(events) + 1, 1 + len(events) // 25):
        rest, changes = fold(events[:cut]).changes()
        state = CaptureState.load(rest, MemoryRows(changes))
        assert dumped(fold(events[cut:], state)) == whole, cut


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


@pytest.mark.parametrize("dumped", [b"", b"[]", b"{}", b'{"told":{},"spawns":{},"busy":1}', b"\xff"])
def test_what_is_no_dump_is_refused(dumped: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        CaptureState.load(dumped, MemoryRows())
