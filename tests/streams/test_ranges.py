"""Which positions are removed: pure arithmetic."""

from __future__ import annotations

from random import Random

from streams.retention import Ranges


def test_ranges_are_the_set_of_positions_that_they_were_given() -> None:
    random = Random(1)
    for _ in range(100):
        positions = {random.randrange(30) for _ in range(random.randrange(25))}
        ranges = Ranges((position, position + 1) for position in positions)
        assert ranges.count == len(positions)
        for first in range(32):
            assert ranges.holds(first) is (first in positions)
            assert ranges.following(first) == next(p for p in range(first, 99) if p not in positions)
            for end in range(first, 32):
                lost = set(range(first, end)) - positions
                assert (ranges.covers(first, end), ranges.kept(first, end)) == (not lost, len(lost))
