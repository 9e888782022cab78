"""How long is waited before another attempt."""

from __future__ import annotations

from streams.system.retry import Retry


def test_waits_double_up_to_the_longest() -> None:
    retry = Retry(0.2, 60.0)
    assert [retry.pause(failures) for failures in range(6)] == [0.2, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert retry.pause(9) == 51.2 and retry.pause(10) == retry.pause(10**6) == 60.0
    assert Retry(0.0, 0.0).pause(10**6) == 0.0


def test_only_a_number_of_attempts_ends_them() -> None:
    assert [Retry(1.0, 2.0, attempts=3).is_last(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert not Retry(1.0, 2.0).is_last(10**6)
