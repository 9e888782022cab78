"""Which positions are removed: pure arithmetic."""

from __future__ import annotations

from random import Random

from streams.retention import Mark, Ranges, Removal, StreamRemoval


def test_ranges_merge_and_count() -> None:
    random = Random(1)
    for _ in range(200):
        positions = {random.randrange(40) for _ in range(random.randrange(30))}
        ranges = Ranges()
        for part in (sorted(positions)[::2], sorted(positions)[1::2]):
            ranges = ranges.including(part)
        assert {p for first, end in ranges.pairs() for p in range(first, end)} == positions
        assert ranges.count == len(positions) and bool(ranges) is bool(positions)
        assert ranges == Ranges(random.sample(ranges.pairs(), len(ranges.pairs())))
        assert all(b > a for (_, a), (b, _) in zip(ranges.pairs(), ranges.pairs()[1:], strict=False))
        for first in range(42):
            assert ranges.holds(first) is (first in positions)
            assert ranges.following(first) == next(p for p in range(first, 99) if p not in positions)
            for end in range(42):
                lost = set(range(first, end)) - positions
                assert ranges.covers(first, end) is (first <= end and not lost)
                assert ranges.kept(first, end) == len(lost)


def test_a_removal_says_what_is_gone() -> None:
    removal = Removal(marks={"ses_b": Mark(4, 9)})
    assert removal.gone() == {"ses_b": StreamRemoval(0, None, 4, 9)} and removal and not Removal()
    assert [removal.is_forgotten("ses_b", n, n) for n in (3, 4)] == [True, False]
