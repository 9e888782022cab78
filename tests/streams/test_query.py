"""Filters and moments. What stores do with filters is in the store contract."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.event import StreamEvent
from streams.hashing import canonical
from streams.query import Filter, describe_span, holds_text, parse_moment, payload_text, value_with
from tests.streams.builders import event

NOW = 1_790_000_000_000


@pytest.mark.parametrize(
    ("conditions", "is_wanted"),
    [
        ({}, True),
        ({"types": ["agent.error"]}, True),
        ({"types": ["agent.*"]}, True),
        ({"types": ["agent.error.*"]}, False),
        ({"types": ["agen.*"]}, False),
        ({"types": ["other", "agent.*"]}, True),
        ({"streams": ["ses_a"]}, True),
        ({"actors": ["plan", "build"]}, True),
        ({"actors": ["plan"]}, False),
        ({"correlation_id": "msg_1"}, True),
        ({"causation_id": "other"}, False),
        ({"since_ms": 1000}, True),
        ({"since_ms": 1001}, False),
        ({"until_ms": 1000}, False),
        ({"until_ms": 1001}, True),
        ({"since_ms": 0, "until_ms": 0}, False),
        ({"text": "DISK full"}, True),
        ({"text": "straße"}, True),
        ({"text": "STRASSE"}, True),
        ({"text": '"n":1'}, False),
        ({"text": "1"}, True),
        ({"text": "text"}, False),
        ({"text": "true"}, False),
        ({"text": 'deep "quoted"\nline\t\\ end'}, True),
        ({"text": ""}, True),
        ({"text": "nothing"}, False),
        ({"text": "agent.error"}, False),
        ({"types": ["agent.*"], "actors": ["plan"]}, False),
    ],
)
def test_all_conditions_must_hold(conditions: dict[str, Any], is_wanted: bool) -> None:
    made = event(
        "a",
        type_="agent.error",
        ts=1000,
        correlation_id="msg_1",
        payload={"text": "Disk full, Straße", "n": 1, "inner": [{"x": 'Deep "quoted"\nline\t\\ end'}, 2.5, True, None]},
    )
    assert Filter(**conditions).matches(made) is is_wanted


def test_the_text_of_any_payload_can_be_searched() -> None:
    odd = event("a", payload={"lone": "\ud800", "big": 2**70, "text": "here"})
    assert Filter(text="HERE").matches(odd)
    assert payload_text(odd).startswith('{"big":')
    assert Filter(text="e+21").matches(odd), "a number as JSON writes it"
    assert not Filter(text="\ud800").matches(odd)


@given(
    st.dictionaries(st.text(max_size=6), st.text(max_size=20) | st.lists(st.text(max_size=9))),
    st.text(min_size=1, max_size=4),
)
def test_the_first_look_misses_no_text(payload: dict[str, Any], text: str) -> None:
    made = event("a", payload=payload)
    kept = StreamEvent.trusted(orjson.loads(canonical(made.fields())))
    assert holds_text(kept, text) is (value_with(kept.payload, text) is not None)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("30m", NOW - 1_800_000),
        ("1.5h", NOW - 5_400_000),
        (" 7d ", NOW - 604_800_000),
        ("2 w", NOW - 1_209_600_000),
        ("250ms", NOW - 250),
        ("2.3s", NOW - 2300),
        ("1700000000000", 1_700_000_000_000),
        ("2026-11-22T09:30:00Z", 1_795_339_800_000),
        ("2026-11-22T09:30:00+02:00", 1_795_332_600_000),
        ("2026-11-22 09:30:00.001+00:00", 1_795_339_800_001),
    ],
)
def test_moments(text: str, milliseconds: int) -> None:
    assert parse_moment(text, NOW) == milliseconds


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 22, 9, 30)
    assert parse_moment("2026-11-22T09:30", NOW) == local.timestamp() * 1000
    assert parse_moment("2026-11-22", NOW) == datetime(2026, 11, 22).timestamp() * 1000


@pytest.mark.parametrize(
    "text", ["", "2y", "-5m", "12", "2026-13-01", "h", "1e3s", "9" * 400 + "w", "9" * 5000, "0001-01-01T00:00+14:00"]
)
def test_what_is_no_moment_is_told_which_forms_are(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-1, "0ms"),
        (0, "0ms"),
        (85, "85ms"),
        (1200, "1.2s"),
        (59_940, "59.9s"),
        (59_960, "1m 00s"),
        (185_000, "3m 05s"),
        (7_800_000, "2h 10m"),
        (7 * 86_400_000 + 3_600_000, "7d 01h"),
        (1e300, f"{int(1e300) // 86_400_000}d {int(1e300) // 3_600_000 % 24:02}h"),
    ],
)
def test_spans_for_people(milliseconds: float, text: str) -> None:
    assert describe_span(milliseconds) == text
