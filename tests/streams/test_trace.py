"""W3C trace context, derived as the lineage of sessions derives it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.lineage import trace_id
from streams.trace import made_trace, parse_traceparent
from tests.streams.sizes import size

many = settings(max_examples=size("EXAMPLES", 100), deadline=None, derandomize=True, database=None)
ids = st.text(st.characters(codec=None, categories=None), max_size=30)
EXAMPLE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The standard's own."""


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (EXAMPLE, "01"),
        (EXAMPLE[:-2] + "00", "00"),
        ("cc" + EXAMPLE[2:], "01"),
        ("cc" + EXAMPLE[2:] + "-what-the-future-brings", "01"),
        ("cc" + EXAMPLE[2:-2] + "fe", "00"),
        (EXAMPLE[:-2] + "ff", "ff"),
    ],
)
def test_what_is_valid_is_read(text: str, flags: str) -> None:
    context = parse_traceparent(text)
    assert context is not None and context.flags == flags
    assert str(context).startswith("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-")


@pytest.mark.parametrize(
    "text",
    [
        *("", "00", EXAMPLE + "-x", EXAMPLE + "-", "ff" + EXAMPLE[2:], EXAMPLE.upper(), EXAMPLE[:-1], EXAMPLE + "0"),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        *(EXAMPLE.replace("-", "_"), EXAMPLE + "\n", "0g" + EXAMPLE[2:], " " + EXAMPLE),
        *("cc" + EXAMPLE[2:] + "x", "cc" + EXAMPLE[2:] + "-\r\n"),
        "cc" + EXAMPLE[2:] + "-" + "x" * 512,
    ],
)
def test_what_is_not_valid_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


@many
@given(ids, st.lists(ids, max_size=6, unique=True))
def test_a_chain_of_causes_keeps_its_trace_and_has_a_span_for_each_hop(root: str, hops: list[str]) -> None:
    context = made_trace(root)
    chain = [context]
    for hop in hops:
        context = context.child(hop)
        chain.append(context)
    assert {each.trace_id for each in chain} == {trace_id(root)}
    assert len({each.span_id for each in chain}) == len(chain)
    assert all(parse_traceparent(str(each)) == each for each in chain)
