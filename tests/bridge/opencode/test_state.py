"""The capture state from a snapshot equals that folded from the whole log."""

from __future__ import annotations

import pytest

from bridge.opencode.capture.state import CaptureState
from streams.event import StreamEvent
from tests.bridge.opencode.playing import names, play


def fold(events: list[StreamEvent], state: CaptureState | None = None) -> CaptureState:
    state = state if state is not None else CaptureState()
    for event in events:
        state.apply(event)
    return state


@pytest.mark.parametrize("name", names())
def test_a_snapshot_and_the_rest_make_the_whole(name: str) -> None:
    events = list(play(name).log.events.values())
    whole = fold(events)
    for cut in range(0, len(events) + 1, 1 + len(events) // 25):
        resumed = fold(events[cut:], CaptureState.load(fold(events[:cut]).dump()))
        assert vars(resumed) == vars(whole), cut


@pytest.mark.parametrize("dumped", [b"", b"[]", b"{}", b'{"sessions":{"a":{}},"told":{},"spawns":{}}', b"\xff"])
def test_what_is_no_dump_is_refused(dumped: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        CaptureState.load(dumped)
