"""The state table of the embedded server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.mirror.server.life import TABLE, WITH_PROCESS, Happening, State, after


def test_it_is_never_started_while_there_is_a_process() -> None:
    into = {state for (state, _), next_state in TABLE.items() if next_state is State.STARTING}
    assert into == {State.STOPPED, State.WAITING} and not into & WITH_PROCESS


@given(st.lists(st.sampled_from(Happening), max_size=40))
def test_stopping_ends_stopped_whatever_came_before(happenings: list[Happening]) -> None:
    state = State.STOPPED
    for happening in happenings:
        if (state, happening) in TABLE:
            state = after(state, happening)
    state = after(state, Happening.STOP)
    if state is State.STOPPING:
        state = after(state, Happening.EXITED)
    assert state is State.STOPPED


def test_what_cannot_happen_is_an_error() -> None:
    with pytest.raises(ValueError, match="server that is stopped"):
        after(State.STOPPED, Happening.READY)
