"""Defines a valid event, and explains what is wrong with an invalid one.

``StreamEvent.parse`` has the same rules in a quicker form, and asks this module about what it refuses. Readers trust
what was validated when it was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from streams.errors import InvalidEvent
from streams.event import EVENT_TYPE, MAX_KEY, MAX_STREAM_ID, MAX_TYPE, STREAM_ID, ULID_TEXT, is_key


def _key(value: str) -> str:
    if not is_key(value):
        raise ValueError(f"must be printable text of the form `scope:key`, with at most {MAX_KEY} characters")
    return value


def _whole(pattern: str) -> str:
    """The pattern in the form for pydantic's own matcher, which is several times faster than a validator in Python."""
    return f"^(?:{pattern})$"


class _Source(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    agent: str
    adapter: str


class _Event(TypedDict):
    """In alphabetical order, which is the order of the canonical form (see ``StreamEvent.trusted``)."""

    __pydantic_config__ = ConfigDict(extra="allow", populate_by_name=True)  # type: ignore[misc]

    actor: str
    causation_id: NotRequired[str | None]
    correlation_id: NotRequired[str | None]
    id: Annotated[str, Field(pattern=_whole(ULID_TEXT.pattern))]
    idempotency_key: Annotated[str, AfterValidator(_key)]
    metadata: NotRequired[dict[str, Any]]
    payload: NotRequired[dict[str, Any]]
    schema_version: NotRequired[Annotated[int, Field(ge=1)]]
    source: _Source
    stream_id: Annotated[str, Field(pattern=_whole(STREAM_ID.pattern), max_length=MAX_STREAM_ID)]
    traceparent: NotRequired[str | None]
    ts: Annotated[int, Field(validation_alias=AliasChoices("ts", "timestamp"), ge=0, lt=2**53)]
    type: Annotated[str, Field(pattern=_whole(EVENT_TYPE.pattern), max_length=MAX_TYPE)]


_ADAPTER: TypeAdapter[Any] = TypeAdapter(_Event)


def validated(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event, including unknown fields, but without defaults for missing fields.

    Raises:
        InvalidEvent: the error names the invalid fields, without their values.
    """
    try:
        found: dict[str, Any] = _ADAPTER.validate_python(fields)
    except ValidationError as error:
        faults = "; ".join(_fault(".".join(map(str, e["loc"])), e) for e in error.errors(include_input=False))
        raise InvalidEvent(f"not a valid event: {faults}") from None
    return found


_EXPECTED = {"id": "not a ULID", "stream_id": "not a stream id", "type": "not a dotted event type"}


def _fault(name: str, error: Mapping[str, Any]) -> str:
    said = _EXPECTED.get(name) if error["type"] == "string_pattern_mismatch" else None
    return f"{name or 'event'}: {said or error['msg']}"
