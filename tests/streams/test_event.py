"""The envelope."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.errors import InvalidEvent
from streams.event import MAX_KEY, MAX_STREAM_ID, MAX_TYPE, StreamEvent, is_stream_id
from streams.event_schema import validated
from streams.hashing import canonical, encode
from tests.streams.sizes import size

SECRET = "hunter2 and other secrets"


def fields(**more: Any) -> dict[str, Any]:
    return {
        "id": "01HF7YAT0072TECMQ49PKZ57H0",
        "ts": 1_700_000_000_000,
        "type": "execution.step",
        "stream_id": "ses_a",
        "idempotency_key": "test:a",
        "actor": "build",
        "source": {"agent": "build", "adapter": "opencode"},
        **more,
    }


def test_the_smallest_event_has_every_field() -> None:
    event = StreamEvent.parse(fields())
    assert event.fields() == {
        **fields(),
        "schema_version": 1,
        "causation_id": None,
        "correlation_id": None,
        "traceparent": None,
        "payload": {},
        "metadata": {},
    }


@pytest.mark.parametrize("name", ["id", "ts", "type", "stream_id", "idempotency_key", "actor", "source"])
def test_mandatory_fields_are_mandatory(name: str) -> None:
    given = fields()
    del given[name]
    with pytest.raises(InvalidEvent, match=rf"not a valid event: {name}: Field required"):
        StreamEvent.parse(given)


BAD: dict[str, list[Any]] = {
    "id": [SECRET, "01HF7YAT0072TECMQ49PKZ57H", "81HF7YAT0072TECMQ49PKZ57H0", "01hf7yat0072tecmq49pkz57h0"],
    "ts": [-1, 2**53, 1.5, SECRET, None],
    "type": [SECRET, "", ".a", "a.", "a..b", "1a", "a\n", "a" * (MAX_TYPE + 1)],
    "schema_version": [0],
    "stream_id": [SECRET, "a/", "a//b", "../../etc/passwd", "a..b", "ses_a\n", "a\0b", "é", "a" * (MAX_STREAM_ID + 1)],
    "idempotency_key": [SECRET, ":a", "a:", "a:b\n", "a:" + "b" * MAX_KEY],
    "actor": [5],
    "source": [SECRET, {"agent": "build"}, {"adapter": "opencode"}],
    "payload": [SECRET, [SECRET], None],
    "metadata": [SECRET],
    "causation_id": [5],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_named_by_its_field_and_not_shown(name: str, value: Any) -> None:
    with pytest.raises(InvalidEvent) as raised:
        StreamEvent.parse(fields(**{name: value}))
    text = str(raised.value)
    assert text.startswith(f"not a valid event: {name}")
    assert SECRET not in text and len(text) < 200
    assert raised.value.__cause__ is None and raised.value.__suppress_context__, "pydantic's error shows the values"


@pytest.mark.parametrize("given", [None, SECRET, [], 5])
def test_something_else_than_an_object_is_refused(given: Any) -> None:
    with pytest.raises(InvalidEvent) as raised:
        StreamEvent.parse(given)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("value", ["ses_a", "agent/a-1", "intent/01HF", "system", "a.b~c_d-e", "A" * MAX_STREAM_ID])
def test_stream_ids(value: str) -> None:
    assert is_stream_id(value)
    assert StreamEvent.parse(fields(stream_id=value)).stream_id == value


def test_the_timestamp_of_older_envelopes_is_the_time() -> None:
    given = fields(timestamp=12345)
    del given["ts"]
    event = StreamEvent.parse(given)
    assert event.ts == 12345
    assert "timestamp" not in event.fields() and event.fields()["ts"] == 12345


def test_unknown_fields_survive_everywhere() -> None:
    """A newer writer's event keeps its bytes when an older version reads and writes it again."""
    given = fields(schema_version=7, invented={"a": [1, None]}, source={"agent": "a", "adapter": "b", "version": "2"})
    event = StreamEvent.parse(given)
    assert event.schema_version == 7
    assert event.fields()["invented"] == {"a": [1, None]}
    assert event.fields()["source"]["version"] == "2"
    stored = encode(event).canonical
    trusted = StreamEvent.trusted(orjson.loads(stored))
    assert StreamEvent.parse(orjson.loads(stored)) == event == trusted
    assert canonical(trusted.fields()) == stored


any_text = st.sampled_from(
    ["", "a", "a:b", ":", "a\n", "a:\u2028", "\ud800", "é", "01HF7YAT0072TECMQ49PKZ57H0", "a.b", "a..b"]
)
any_value = st.one_of(
    any_text,
    st.none(),
    st.booleans(),
    st.integers(-1, 2) | st.sampled_from([2**53, 2**70, 5.0, 1.5]),
    st.dictionaries(any_text | st.integers(0, 1), any_text, max_size=2),
    st.just({"agent": "a", "adapter": "b"}),
)


@settings(max_examples=size("EXAMPLES", 300), deadline=None, derandomize=True, database=None)
@given(
    st.dictionaries(
        st.sampled_from([*fields(), "payload", "metadata", "schema_version", "traceparent", "timestamp", "new"]),
        any_value,
        max_size=3,
    ),
    any_value,
)
def test_the_quick_check_decides_as_pydantic_does(changed: dict[Any, Any], other: Any) -> None:
    for each in (fields(**changed), {**fields(), other: 1} if isinstance(other, str | int) else other):
        try:
            wanted = StreamEvent.trusted(validated(each))
        except InvalidEvent:
            wanted = None
        try:
            found = StreamEvent.parse(each)
        except InvalidEvent:
            found = None
        assert (None if found is None else found.fields()) == (None if wanted is None else wanted.fields())


def test_a_long_stream_id_is_refused_at_once() -> None:
    assert not is_stream_id("a." + "a" * (MAX_STREAM_ID - 3) + "/")


def test_an_event_is_frozen() -> None:
    event = StreamEvent.parse(fields())
    with pytest.raises(AttributeError, match="frozen"):
        event.type = "another"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        event.source.agent = "another"  # type: ignore[misc]
