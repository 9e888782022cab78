"""When the event loop itself may wait for the disk."""

from __future__ import annotations

from streams.stores.commit import FAST_SECONDS, STALL_SECONDS, Trust

FAST, SLOW, STALL = FAST_SECONDS / 2, FAST_SECONDS * 2, STALL_SECONDS * 2


def trusted(*syncs: float) -> bool:
    trust = Trust()
    for seconds in syncs:
        trust.note(seconds)
    return bool(trust)


def test_a_disk_nobody_knows_is_not_trusted() -> None:
    assert not trusted()
    assert not trusted(*[FAST] * 16)
    assert trusted(*[FAST] * 17)


def test_one_slow_sync_now_and_then_is_no_matter() -> None:
    assert trusted(*[FAST] * 100, SLOW)
    assert trusted(*([FAST] * 20 + [SLOW]) * 10)


def test_two_close_together_or_a_stall_are() -> None:
    assert not trusted(*[FAST] * 100, SLOW, FAST, FAST, SLOW, SLOW)
    assert not trusted(*[FAST] * 100, STALL)
    assert not trusted(*[FAST] * 100, STALL, *[FAST] * 32)
    assert trusted(*[FAST] * 100, STALL, *[FAST] * 33)


def test_a_slow_disk_is_forgiven_in_bounded_time() -> None:
    assert trusted(*[STALL] * 10_000, *[FAST] * 49)
