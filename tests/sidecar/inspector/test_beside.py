"""Turns of two runs beside each other."""

from __future__ import annotations

from sidecar.inspector.beside import aligned


def test_prompts_that_match_stand_side_by_side() -> None:
    assert aligned(["a", "b", "c"], ["a", "c", "d"]) == [(0, 0), (1, None), (2, 1), (None, 2)]
    assert aligned([], ["a"]) == [(None, 0)] and aligned([], []) == []
    assert aligned(["x", "a"], ["y", "a"]) == [(0, None), (None, 0), (1, 1)]


def test_every_turn_of_both_sides_is_told_once_and_in_order() -> None:
    left, right = list("abcabcab"), list("bcxcab")
    pairs = aligned(left, right)
    assert [one for one, _ in pairs if one is not None] == [*range(len(left))]
    assert [other for _, other in pairs if other is not None] == [*range(len(right))]
    assert all(left[one] == right[other] for one, other in pairs if one is not None and other is not None)
