"""A record that does not continue its stream is explained by as many lost records as it skips, and no more."""

from __future__ import annotations

import pytest

from streams.hashing import GENESIS, chain, encode
from streams.stores.chains import Chains
from tests.streams.builders import event


@pytest.mark.parametrize(
    ("lost", "offset", "is_explained"), [(0, 2, False), (1, 2, True), (1, 3, False), (2, 3, True), (5, 0, False)]
)
def test_a_jump_is_explained_by_as_many_lost_records_and_no_more(lost: int, offset: int, is_explained: bool) -> None:
    chains, previous, made = Chains({}), GENESIS, []
    for number in range(4):
        encoded = encode(event(f"k{number}", stream="a"))
        previous = chain(previous, encoded.digest_form)
        made.append((previous, encoded.canonical))
    assert chains.take("a", 0, *made[0], lost=0) is None
    fault = chains.take("a", offset, *made[offset], lost=lost)
    assert fault == (None if is_explained else f"its stream offset is {offset}; expected 1")
