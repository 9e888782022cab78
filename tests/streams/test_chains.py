"""A record that does not continue its stream is explained by pruned and lost records, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from streams.hashing import GENESIS, chain, stored_form_of
from streams.retention import Base
from streams.stores.chains import Chains
from tests.streams.builders import event

CHANGED = "does not continue its stream's hash chain"


def records(count: int, previous: bytes = GENESIS) -> list[tuple[bytes, dict[str, Any]]]:
    """(hash, event) of a stream's records, the first after ``previous``."""
    made = []
    for number in range(count):
        fields = event(f"k{number}", stream="a").fields()
        previous = chain(previous, stored_form_of(fields)[1])
        made.append((previous, fields))
    return made


def test_a_sound_stream_is_taken_and_counted() -> None:
    chains = Chains({})
    assert [chains.take("a", n, *record, lost=0) for n, record in enumerate(records(3))] == [None] * 3
    assert chains.kept == 1


def test_a_pruned_stream_goes_on_where_its_base_says_and_counts_once_it_holds_a_record() -> None:
    base = b"b" * 32
    chains = Chains({"a": Base(7, base, 1)})
    assert chains.kept == 0
    [(hash_, fields)] = records(1, base)
    assert chains.take("a", 7, hash_, fields, lost=0) is None and chains.kept == 1


def test_a_changed_record_is_one_fault_not_two() -> None:
    chains = Chains({})
    first, second, third = records(3)
    assert chains.take("a", 0, *first, lost=0) is None
    fault = chains.take("a", 1, b"x" * 32, second[1], lost=0)
    assert fault is not None and CHANGED in fault
    after = chain(b"x" * 32, stored_form_of(third[1])[1])
    assert chains.take("a", 2, after, third[1], lost=0) is None


@pytest.mark.parametrize(
    ("lost", "offset", "is_explained"),
    [(0, 2, False), (1, 2, True), (1, 3, False), (2, 3, True), (5, 0, False)],
    ids=["none is lost", "as many as are lost", "more than are lost", "two of two", "backwards"],
)
def test_a_jump_is_explained_by_as_many_lost_records_and_no_more(lost: int, offset: int, is_explained: bool) -> None:
    chains = Chains({})
    made = records(4)
    assert chains.take("a", 0, *made[0], lost=0) is None
    fault = chains.take("a", offset, *made[offset], lost=lost)
    assert (fault is None) is is_explained, fault
    if fault is not None:
        assert fault == f"its stream offset is {offset}; expected 1"


def test_a_lost_record_explains_no_second_jump_of_the_same_stream() -> None:
    chains = Chains({})
    made = records(5)
    assert chains.take("a", 0, *made[0], lost=3) is None, "they were lost before the stream began here"
    fault = chains.take("a", 2, *made[2], lost=3)
    assert fault == "its stream offset is 2; expected 1"
    assert chains.take("a", 4, *made[4], lost=4) is None
