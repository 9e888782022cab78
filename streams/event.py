"""The one event envelope, ``StreamEvent``.

It unites the EventEnvelope V1 of seed 003 with the envelope of seed 004, 2.1.
Unknown fields survive a round trip, so a newer writer's event is readable
and keeps its bytes. This module does no I/O and reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Self, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from streams.errors import InvalidEvent

SCHEMA_VERSION = 1

_STREAM_PART = r"[A-Za-z0-9](\.?[A-Za-z0-9_~-])*\.?"
STREAM_ID = re.compile(f"{_STREAM_PART}(/{_STREAM_PART})*")
"""Stream ids appear in messages and file contents, never in paths (no ``..``), subjects or SQL."""

EVENT_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
ULID_TEXT = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")

MAX_STREAM_ID = 200
MAX_TYPE = 160
MAX_KEY = 512


Model = TypeVar("Model", bound=BaseModel)


def _whole(pattern: re.Pattern[str]) -> str:
    """The pattern for pydantic's own matcher, several times faster than a Python validator."""
    return f"^(?:{pattern.pattern})$"


class Source(BaseModel):
    """Who made the event: the ``agent``, and the ``adapter`` it came through (seed 003)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    agent: str
    adapter: str


class StreamEvent(BaseModel):
    """One thing that happened, as stored.

    ``id`` is a ULID and sorts by creation within one process. ``ts`` is in
    milliseconds UTC, the time it happened if the source knows it.
    ``causation_id`` is the id of the event that caused this one; ``None`` on a
    root, or if the cause is unknown: it is never guessed.
    ``idempotency_key`` is scoped, ``scope:key``, and unique in the whole log.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    id: str = Field(pattern=_whole(ULID_TEXT))
    ts: int = Field(validation_alias=AliasChoices("ts", "timestamp"), ge=0, lt=2**53)
    type: str = Field(pattern=_whole(EVENT_TYPE), max_length=MAX_TYPE)
    schema_version: int = Field(default=SCHEMA_VERSION, ge=1)
    stream_id: str = Field(pattern=_whole(STREAM_ID), max_length=MAX_STREAM_ID)
    idempotency_key: str
    causation_id: str | None = None
    correlation_id: str | None = None
    actor: str
    source: Source
    traceparent: str | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)

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
            faults = "; ".join(_fault(".".join(map(str, e["loc"])), e) for e in error.errors(include_input=False))
            raise InvalidEvent(f"not a valid event: {faults}") from None

    @classmethod
    def trusted(cls, fields: dict[str, Any]) -> Self:
        """Build an event from stored ``fields``, validated when they were first written; no checks.

        ``fields`` becomes the event's own: the caller no longer uses it.
        """
        fields["source"] = _source(fields["source"])
        if [*fields] != _CANONICAL_ORDER:
            return _bare(cls, fields, _EVENT_FIELDS, _EVENT_DEFAULTS)
        # ``_whole_model``, without the call: this runs for every record read.
        event = _new(cls)
        _set(event, "__dict__", fields)
        _set_fields_set(event, _EVENT_FIELDS)
        _set_extra(event, _NO_EXTRA)
        _set_private(event, None)
        return event

    def fields(self) -> dict[str, Any]:
        """All fields as plain JSON values, including unknown ones; dictionaries are not copied."""
        flat = dict(self.__dict__)
        source = self.source
        flat["source"] = {**source.__dict__, **(source.__pydantic_extra__ or {})}
        if self.__pydantic_extra__:
            flat.update(self.__pydantic_extra__)
        return flat


def is_stream_id(value: str) -> bool:
    """True if ``value`` may name a stream: letters, digits and ``._~-``, in parts joined by ``/``."""
    return len(value) <= MAX_STREAM_ID and STREAM_ID.fullmatch(value) is not None


_EXPECTED = {"id": "not a ULID", "stream_id": "not a stream id", "type": "not a dotted event type"}


def _fault(name: str, error: Mapping[str, Any]) -> str:
    """One faulty field, in words: what it should be, not the pattern it fails."""
    said = _EXPECTED.get(name) if error["type"] == "string_pattern_mismatch" else None
    return f"{name or 'event'}: {said or error['msg']}"


@lru_cache(maxsize=1024)
def _plain_source(agent: str, adapter: str) -> Source:
    """A shared source: a log has few, and they are frozen."""
    return _bare(Source, {"agent": agent, "adapter": adapter}, _SOURCE_FIELDS, {})


def _source(fields: dict[str, Any]) -> Source:
    if len(fields) == len(_SOURCE_FIELDS):
        return _plain_source(fields["agent"], fields["adapter"])
    return _bare(Source, fields, _SOURCE_FIELDS, {})


def _bare(cls: type[Model], fields: dict[str, Any], known: set[str], defaults: dict[str, Any]) -> Model:
    """``model_construct`` without its per-field work, which takes five times as long as parsing."""
    present, extra = known, _NO_EXTRA
    if fields.keys() != known:
        present = known & fields.keys()
        extra = {k: v for k, v in fields.items() if k not in known}
        fields = {**defaults, **{k: fields[k] for k in present}}
    # The model is frozen, so complete ones can share their set of fields.
    return _whole_model(cls, fields, present, extra)


def _whole_model(cls: type[Model], fields: dict[str, Any], present: set[str], extra: dict[str, Any]) -> Model:
    model = _new(cls)
    _set(model, "__dict__", fields)
    _set_fields_set(model, present)
    _set_extra(model, extra)
    _set_private(model, None)
    return model


_new = object.__new__
_set = object.__setattr__
# pydantic's own slots, so that their setters are looked up once.
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__
_NO_EXTRA: dict[str, Any] = {}
_EVENT_FIELDS = set(StreamEvent.model_fields)
_CANONICAL_ORDER = sorted(_EVENT_FIELDS)
_EVENT_DEFAULTS: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "causation_id": None,
    "correlation_id": None,
    "traceparent": None,
}
_SOURCE_FIELDS = set(Source.model_fields)
