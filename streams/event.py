"""The one event envelope, ``StreamEvent``.

Unknown fields survive a round trip, so an event from a newer writer is readable and keeps its bytes. This module does
no I/O and reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, NoReturn, Self, TypeVar

from msgspec import Meta, Struct, ValidationError, convert, field
from msgspec.structs import asdict

SCHEMA_VERSION = 1
"""The version of new events. An event of another version is read as it was written."""

# Each character can match in one way only, so a long id takes no longer to match than it must.
_STREAM_PART = r"[A-Za-z0-9][A-Za-z0-9_~-]*(\.[A-Za-z0-9_~-]+)*\.?"
STREAM_ID = re.compile(f"{_STREAM_PART}(/{_STREAM_PART})*")
"""Stream ids appear in messages and file contents, never in paths or in the text of SQL, and in subjects only in
escaped form. A stream id contains no ``..``.
"""

EVENT_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
ULID_TEXT = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")

MAX_STREAM_ID = 200
MAX_TYPE = 160
MAX_KEY = 512


class _Value:
    """A frozen value. Unknown fields are kept separately, so that no field can hide a method."""

    __slots__ = ("__dict__", "_payload", "_stored", "_unknown")
    __hash__ = None  # type: ignore[assignment] # a payload has no hash

    _payload: bytes
    _stored: bytes
    _unknown: dict[str, Any]

    def fields(self) -> dict[str, Any]:
        """All fields as plain JSON values, unknown ones included; the dictionaries are not copied."""
        return {**self.__dict__, **self._unknown}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and type(other) is type(self) and self.fields() == other.fields()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")


_Made = TypeVar("_Made", bound=_Value)


class Source(_Value):
    __slots__ = ()

    agent: str
    adapter: str


class StreamEvent(_Value):
    """An event, in the form in which it is stored.

    ``id`` is a ULID and sorts by creation within one process. ``ts`` is the time of the event in milliseconds UTC, if
    the source knows this time. ``causation_id`` is the id of the event that caused this one. The cause is ``None`` for
    a root event or if it is unknown; it is never guessed. ``idempotency_key`` has the form ``scope:key`` and is unique
    in the whole log.
    """

    __slots__ = ()

    id: str
    ts: int
    type: str
    schema_version: int
    stream_id: str
    idempotency_key: str
    causation_id: str | None
    correlation_id: str | None
    actor: str
    source: Source
    traceparent: str | None
    payload: dict[str, Any]
    metadata: dict[str, Any]

    @classmethod
    def parse(cls, fields: Mapping[str, Any], payload: bytes = b"") -> Self:
        """Validate ``fields`` into an event. ``payload`` is the payload in canonical form, if it is known.

        Raises:
            InvalidEvent: the error names the invalid fields, without their values.
        """
        # msgspec checks an event in a third of the time that pydantic takes, and refuses all that pydantic refuses.
        # The rare rest is left to pydantic: unknown fields, values of another type, and faults, which it explains.
        try:
            given = asdict(convert(fields, _Given))
        except (ValidationError, UnicodeEncodeError):
            return cls.trusted(_validated(fields))
        is_named = is_stream_id(given["stream_id"]) and is_event_type(given["type"])
        if not is_named or not is_key(given["idempotency_key"]) or ULID_TEXT.fullmatch(given["id"]) is None:
            return cls.trusted(_validated(fields))
        given["source"] = _plain_source(given["source"].agent, given["source"].adapter)
        return _made(cls, given, _NONE_UNKNOWN, payload=payload)

    @classmethod
    def trusted(cls, fields: dict[str, Any], stored: bytes = b"") -> Self:
        """Build an event from stored ``fields`` without checks, because they were validated when they were first
        written. ``stored`` is the JSON that they were read from.

        The event takes ownership of ``fields``, so the caller must not use it afterwards.
        """
        # This method runs for every record that is read, so it is written for speed.
        fields["source"] = _source(fields["source"])
        if [*fields] == _CANONICAL_ORDER:
            return _made(cls, fields, _NONE_UNKNOWN, stored)
        defaults = {**_DEFAULTS, "payload": {}, "metadata": {}}
        known = {k: v for k, v in fields.items() if k in _EVENT_FIELDS}
        return _made(cls, {**defaults, **known}, {k: v for k, v in fields.items() if k not in _EVENT_FIELDS}, stored)

    @property
    def stored(self) -> bytes:
        """The canonical bytes that the event was read from; empty if it was not read from a log."""
        return self._stored

    @property
    def canonical_payload(self) -> bytes:
        """The payload in canonical form, if whoever made the event has written it; else empty."""
        return self._payload

    def fields(self) -> dict[str, Any]:
        """All fields as plain JSON values, unknown ones included; the dictionaries are not copied."""
        return {**self.__dict__, "source": self.source.fields(), **self._unknown}

    def is_known(self) -> bool:
        """Whether the event and its source have no unknown fields."""
        return not (self._unknown or self.source._unknown)


def is_stream_id(value: str) -> bool:
    """Whether ``value`` may name a stream: letters, digits and ``._~-``, in parts joined by ``/``."""
    return len(value) <= MAX_STREAM_ID and _matches(STREAM_ID, value)


def is_event_type(value: str) -> bool:
    """Whether ``value`` may be the type of an event."""
    return len(value) <= MAX_TYPE and _matches(EVENT_TYPE, value)


@lru_cache(maxsize=1024)  # the same few names come again and again
def _matches(pattern: re.Pattern[str], value: str) -> bool:
    return pattern.fullmatch(value) is not None


def is_key(value: str) -> bool:
    """Whether ``value`` may be an idempotency key: printable text of the form ``scope:key``."""
    scope, colon, key = value.partition(":")
    return bool(scope and colon and key) and len(value) <= MAX_KEY and value.isprintable()


class _GivenSource(Struct, forbid_unknown_fields=True):
    agent: str
    adapter: str


class _Given(Struct, forbid_unknown_fields=True, kw_only=True):
    """A new event without unknown fields, in the order of the canonical form."""

    actor: str
    causation_id: str | None = None
    correlation_id: str | None = None
    id: str
    idempotency_key: str
    metadata: dict[str, Any] = field(default_factory=dict)
    payload: dict[str, Any] = field(default_factory=dict)
    schema_version: Annotated[int, Meta(ge=1)] = SCHEMA_VERSION
    source: _GivenSource
    stream_id: str
    traceparent: str | None = None
    ts: Annotated[int, Meta(ge=0, lt=2**53)]
    type: str


def _validated(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Validate with ``event_schema``, imported only here, because loading pydantic takes 0.1 s."""
    global _validated
    from streams.event_schema import validated

    _validated = validated
    return validated(fields)


@lru_cache(maxsize=1024)
def _plain_source(agent: str, adapter: str) -> Source:
    return _made(Source, {"agent": agent, "adapter": adapter}, _NONE_UNKNOWN)


def _source(fields: dict[str, Any]) -> Source:
    if len(fields) == len(_SOURCE_FIELDS):
        return _plain_source(fields["agent"], fields["adapter"])
    known = {name: fields[name] for name in _SOURCE_FIELDS}
    return _made(Source, known, {k: v for k, v in fields.items() if k not in known})


def _made(
    kind: type[_Made], known: dict[str, Any], unknown: dict[str, Any], stored: bytes = b"", payload: bytes = b""
) -> _Made:
    made = _new(kind)
    _set(made, "__dict__", known)
    _set(made, "_unknown", unknown)
    _set(made, "_stored", stored)
    _set(made, "_payload", payload)
    return made


_new = object.__new__
_set = object.__setattr__
_NONE_UNKNOWN: dict[str, Any] = {}
_EVENT_FIELDS = frozenset(StreamEvent.__annotations__)
_CANONICAL_ORDER = sorted(_EVENT_FIELDS)
_SOURCE_FIELDS = frozenset(Source.__annotations__)
_DEFAULTS: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "causation_id": None,
    "correlation_id": None,
    "traceparent": None,
}
