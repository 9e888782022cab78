"""What the last message of a session of OpenCode 2 says about it. The contract is in ``tests/real``."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.orchestrator.v2 import _is_over, _quiet_ms

NOW = 10_000


def quiet(recorded_ms: int = 0, **last: Any) -> int:
    return _quiet_ms(last, recorded_ms, NOW)


def tool(status: str, **time: int) -> dict[str, Any]:
    return {"type": "tool", "state": {"status": status}, "time": time}


def test_it_is_silent_since_the_newest_thing_that_began_or_ended() -> None:
    text = {"type": "text", "text": "so far"}
    assert quiet(time={"created": 1_000}, content=[text]) == 9_000
    assert (
        quiet(time={"created": 1_000}, content=[tool("completed", created=2_000, ran=3_000, completed=4_000)]) == 6_000
    )
    assert quiet(7_000, time={"created": 1_000, "completed": 5_000}) == 3_000


def test_while_a_tool_runs_or_a_provider_is_to_be_tried_again_it_is_not_silent() -> None:
    assert quiet(time={"created": 1_000}, content=[tool("running", created=2_000, ran=3_000)]) == 0
    assert quiet(time={"created": 1_000}, retry={"at": NOW + 4_000}) == 0
    assert quiet(time={"created": 1_000}, retry={"at": NOW - 500}) == 500


def test_without_any_time_nothing_is_said() -> None:
    assert quiet() == 0


@pytest.mark.parametrize(
    ("message", "is_over"),
    [
        ({"type": "assistant", "finish": "stop"}, True),
        ({"type": "assistant", "finish": "error", "error": {"type": "provider.invalid-request"}}, True),
        ({"type": "assistant", "finish": "error", "error": {"type": "aborted"}}, False),
        ({"type": "assistant", "finish": "tool-calls"}, False),
        ({"type": "assistant"}, False),
        ({"type": "user"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_an_answer_that_was_interrupted_ends_no_turn(message: dict[str, Any] | None, is_over: bool) -> None:
    assert _is_over(message) is is_over
