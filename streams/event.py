"""The one event envelope, ``StreamEvent``.

It unites the EventEnvelope V1 of seed 003 with the envelope of seed 004, 2.1.
Unknown fields survive a round trip, so an event of a newer writer is readable
and keeps its bytes. This module does no I/O and reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from streams.errors import InvalidEvent

SCHEMA_VERSION = 1

STREAM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]*(/[A-Za-z0-9][A-Za-z0-9._~-]*)*")
"""Stream ids name histories in messages and files' contents, never paths, subjects or SQL."""

EVENT_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
ULID_TEXT = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")

MAX_STREAM_ID = 200
MAX_TYPE = 160
MAX_KEY = 512


Model = TypeVar("Model", bound=BaseModel)


class Source(BaseModel):
    """Who made the event: the ``agent``, and the ``adapter`` it came through (seed 003)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    agent: str
    adapter: str


class StreamEvent(BaseModel):
    """One thing that happened, as it is stored.

    ``id`` is a ULID and sorts by creation within one process. ``ts`` is in
    milliseconds UTC, the time the thing happened where the source knows it.
    ``causation_id`` is the id of the event that caused this one; ``None`` on a
    root, and where the cause is unknown: it is never guessed.
    ``idempotency_key`` is scoped, ``scope:key``, and unique in the whole log.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    id: str
    ts: int = Field(validation_alias=AliasChoices("ts", "timestamp"), ge=0, lt=2**53)
    type: str
    schema_version: int = Field(default=SCHEMA_VERSION, ge=1)
    stream_id: str
    idempotency_key: str
    causation_id: str | None = None
    correlation_id: str | None = None
    actor: str
    source: Source
    traceparent: str | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("id")
    @classmethod
    def _is_ulid(cls, value: str) -> str:
        if not ULID_TEXT.fullmatch(value):
            raise ValueError("not a ULID")
        return value

    @field_validator("stream_id")
    @classmethod
    def _is_stream_id(cls, value: str) -> str:
        if not is_stream_id(value):
            raise ValueError("not a stream id")
        return value

    @field_validator("type")
    @classmethod
    def _is_type(cls, value: str) -> str:
        if len(value) > MAX_TYPE or not EVENT_TYPE.fullmatch(value):
            raise ValueError("not a dotted event type")
        return value

    @field_validator("idempotency_key")
    @classmethod
    def _is_key(cls, value: str) -> str:
        scope, colon, key = value.partition(":")
        if not (scope and colon and key) or len(value) > MAX_KEY or not value.isprintable():
            raise ValueError("not of the form scope:key")
        return value

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Validate ``fields`` into an event.

        Raises:
            InvalidEvent: names the fields at fault, without their values.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'event'}: {e['msg']}" for e in error.errors(include_input=False)
            )
            raise InvalidEvent(f"not a valid event: {faults}") from None

    @classmethod
    def trusted(cls, fields: dict[str, Any]) -> Self:
        """Build an event from stored ``fields``, validated when they were first written; no checks."""
        event = _bare(cls, fields, _EVENT_FIELDS, _EVENT_DEFAULTS)
        event.__dict__["source"] = _bare(Source, event.__dict__["source"], _SOURCE_FIELDS, {})
        return event

    def fields(self) -> dict[str, Any]:
        """All fields as plain JSON values, unknown ones included; the dictionaries are not copied."""
        flat = dict(self.__dict__)
        source = self.source
        flat["source"] = {**source.__dict__, **(source.__pydantic_extra__ or {})}
        if self.__pydantic_extra__:
            flat.update(self.__pydantic_extra__)
        return flat


def is_stream_id(value: str) -> bool:
    """Whether ``value`` may name a stream: letters, digits and ``._~-``, in parts joined by ``/``."""
    return len(value) <= MAX_STREAM_ID and STREAM_ID.fullmatch(value) is not None and ".." not in value


_EVENT_FIELDS = frozenset(StreamEvent.model_fields)
_EVENT_DEFAULTS: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "causation_id": None,
    "correlation_id": None,
    "traceparent": None,
}
_SOURCE_FIELDS = frozenset(Source.model_fields)


def _bare(cls: type[Model], fields: dict[str, Any], known: frozenset[str], defaults: dict[str, Any]) -> Model:
    """``model_construct`` without its per-field work, which costs five times the parsing of a line."""
    model = cls.__new__(cls)
    extra = None
    if not known.issuperset(fields):
        extra = {k: v for k, v in fields.items() if k not in known}
        fields = {k: v for k, v in fields.items() if k in known}
    object.__setattr__(model, "__dict__", {**defaults, **fields})
    object.__setattr__(model, "__pydantic_fields_set__", set(fields))
    object.__setattr__(model, "__pydantic_extra__", extra if extra is not None else {})
    object.__setattr__(model, "__pydantic_private__", None)
    return model
