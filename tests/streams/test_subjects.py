"""The grammar of subjects and patterns."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.bus.subjects import (
    MAX_SUBJECT,
    SubjectError,
    check_pattern,
    check_subject,
    covers,
    dead_letter_subject,
    matches,
    overlap,
)
from tests.streams.sizes import size

many = settings(max_examples=size("EXAMPLES", 200), deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        ("", "empty"),
        (".", "empty token"),
        (".a", "empty token"),
        ("a.", "empty token"),
        ("a..b", "empty token"),
        ("a.*", "patterns"),
        ("a.>", "patterns"),
        ("a*.b", "patterns"),
        ("a b", "white space"),
        ("a\tb", "white space"),
        ("a\r\nPUB x 0", "white space"),
        ("a\x00b", "control"),
        ("a\x7fb", "control"),
        ("a\x85b", "white space"),
        ("a\u2028b", "white space"),
        ("a\ud800b", "surrogate"),
        ("a" * (MAX_SUBJECT + 1), "longer"),
        ("中" * 1001, "longer"),
    ],
)
def test_a_bad_subject_is_told(subject: str, told: str) -> None:
    with pytest.raises(SubjectError, match=told) as raised:
        check_subject(subject)
    assert len(str(raised.value)) < 300 and str(raised.value).isascii()


@pytest.mark.parametrize("pattern", ["a.>.b", ">.a", "a*", "*a", "a.b>", ">>", "**", "a. >", "", "a..>", "a.>."])
def test_a_bad_pattern_is_told(pattern: str) -> None:
    with pytest.raises(SubjectError):
        check_pattern(pattern)


subjects = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(".".join)
patterns = st.tuples(st.lists(st.sampled_from("ab*"), min_size=0, max_size=3), st.booleans()).map(
    lambda drawn: ".".join([*drawn[0], *([">"] if drawn[1] or not drawn[0] else [])])
)


def by_expression(pattern: str, subject: str) -> bool:
    """The same rule, implemented in another way."""
    expression = re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+")
    return re.fullmatch(expression, subject) is not None


@many
@given(patterns, subjects)
def test_matching_agrees_with_regular_expressions(pattern: str, subject: str) -> None:
    assert matches(check_pattern(pattern), subject) == by_expression(pattern, subject)


EVERY = [".".join(tokens) for length in range(1, 6) for tokens in product("abx", repeat=length)]
"""All subjects of up to five tokens, one more than any pattern drawn here has; ``x`` is what no pattern names."""


@many
@given(patterns, patterns)
def test_overlap_and_covers_agree_with_trying_all_subjects(one: str, other: str) -> None:
    mine = {s for s in EVERY if matches(one, s)}
    theirs = {s for s in EVERY if matches(other, s)}
    assert overlap(one, other) == overlap(other, one) == bool(mine & theirs)
    assert covers(one, other) == (theirs <= mine)


def test_a_dead_letter_keeps_the_subject_it_had() -> None:
    assert dead_letter_subject("oracle_consumer", "cmd.p.w.oracle.run") == "dlq.oracle_consumer.cmd.p.w.oracle.run"
    for durable in ("", "a.b", "a b", "*", "a\r\n"):
        with pytest.raises(SubjectError):
            dead_letter_subject(durable, "cmd.a")


def test_a_dead_letter_of_the_longest_subject_has_a_subject_too() -> None:
    longest = "cmd." + "a" * (MAX_SUBJECT - 4)
    made = dead_letter_subject("worker", longest)
    assert made.startswith("dlq.worker.cmd.%~") and len(made) < 100
    assert made == dead_letter_subject("worker", longest) != dead_letter_subject("worker", longest[:-1] + "b")
    assert matches("dlq.*.cmd.>", made)
    alone = dead_letter_subject("w" * 200, "ü" * (MAX_SUBJECT // 2))
    assert check_subject(alone) == alone
