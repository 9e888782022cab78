"""Filters across streams. Pure: a filter decides whether an event matches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import orjson

from streams.event import StreamEvent
from streams.hashing import canonical

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_DAYS = {"today": 0, "yesterday": 1}
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@dataclass(frozen=True, slots=True)
class Filter:
    """All given conditions must hold; a filter without conditions matches everything.

    ``types`` match exactly, or as a prefix if they end in ``.*`` (``agent.*``).
    ``since_ms`` is inclusive and ``until_ms`` exclusive; both are compared with the event's ``ts``, or with its time in
    ``times``, which names events whose own time cannot be true by their ids. ``trace_id`` is the
    trace id in the event's ``traceparent``. ``text`` is found in any string or number of the payload,
    case-insensitively; never in a field's name.
    """

    types: Sequence[str] = ()
    streams: Sequence[str] = ()
    actors: Sequence[str] = ()
    correlation_id: str | None = None
    causation_id: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    text: str | None = None
    trace_id: str | None = None
    times: Mapping[str, int] = field(default_factory=dict)

    def matches(self, event: StreamEvent) -> bool:
        if self.types and not any(type_matches(event.type, wanted) for wanted in self.types):
            return False
        if self.streams and event.stream_id not in self.streams:
            return False
        if self.actors and event.actor not in self.actors:
            return False
        if self.correlation_id is not None and event.correlation_id != self.correlation_id:
            return False
        if self.causation_id is not None and event.causation_id != self.causation_id:
            return False
        if not self.in_time(event):
            return False
        if self.trace_id is not None and (event.traceparent or "")[3:35] != self.trace_id:
            return False
        return self.text is None or holds_text(event, self.text)

    def in_time(self, event: StreamEvent) -> bool:
        ts = self.times.get(event.id, event.ts)
        return (self.since_ms is None or ts >= self.since_ms) and (self.until_ms is None or ts < self.until_ms)


EVERYTHING: Final = Filter()


def type_matches(actual: str, wanted: str) -> bool:
    """True if the type ``actual`` equals ``wanted`` or, if ``wanted`` ends in ``.*``, begins with its prefix."""
    return actual.startswith(wanted[:-1]) if wanted.endswith(".*") else actual == wanted


def payload_text(event: StreamEvent) -> str:
    return canonical(event.payload).decode()


def holds_text(event: StreamEvent, text: str) -> bool:
    # Search the JSON text first: most events do not match, and testing each value takes several times as long.
    needle = json_needle(text)
    try:
        # The order of keys does not matter, so avoid the slower ``canonical``.
        looked = orjson.dumps(event.payload).decode()
    except (TypeError, RecursionError):
        looked = payload_text(event)
    if needle is None or needle not in looked.casefold():
        return False
    return not text or value_with(event.payload, text) is not None


def value_with(value: Any, text: str) -> str | None:
    """The first string or number in a JSON value that contains ``text``, as a string; ``None`` if none does."""
    return _value_in([value], text.casefold())


@lru_cache(maxsize=8)
def json_needle(text: str) -> str | None:
    """``text`` as it is in case-folded JSON; ``None`` if it has a lone surrogate, which no record has."""
    try:
        return orjson.dumps(text)[1:-1].decode().casefold()
    except TypeError:
        return None


def _value_in(values: Iterable[Any], folded: str) -> str | None:
    for value in values:
        kind = type(value)  # compare exact types, because reading JSON gives no subclasses
        if kind is str:
            if folded in value.casefold():
                return str(value)
        elif kind is dict or kind is list:
            if (found := _value_in(value.values() if kind is dict else value, folded)) is not None:
                return found
        elif kind is int or kind is float:
            number = canonical(value).decode()
            if folded in number:
                return number
    return None


def parse_moment(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 for ``2h`` or ``7d`` (ago), ``today``, ``yesterday``, an ISO time (local if it has no
    zone), or milliseconds.

    Raises:
        ValueError: ``text`` is not a time; the message lists the accepted forms.
    """
    text = text.strip()
    try:
        if age := _AGE.fullmatch(text):
            return now_ms - round(float(age[1]) * _UNIT_MS[age[2]])
        if text in _DAYS:
            day = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().date() - timedelta(days=_DAYS[text])
            return round(datetime(day.year, day.month, day.day).astimezone().timestamp() * 1000)
        if text.isdecimal() and len(text) >= 12:
            return int(text)
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time: use an age (90s, 30m, 2h, 7d), today, yesterday, "
            "an ISO time (2026-11-22T09:30), "
            "or milliseconds since 1970"
        ) from None


def describe_span(milliseconds: float) -> str:
    """A duration for people: ``85ms``, ``1.2s``, ``3m 05s``, ``2h 10m``, ``3d 04h``; never less than ``0ms``."""
    whole = max(int(milliseconds), 0)
    if whole < 1000:
        return f"{whole}ms"
    tenths = (whole + 50) // 100
    if tenths < 600:
        return f"{tenths // 10}.{tenths % 10}s"
    seconds = max(whole // 1000, 60)
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02}s"
    hours = seconds // 3600
    return f"{hours}h {seconds % 3600 // 60:02}m" if hours < 48 else f"{hours // 24}d {hours % 24:02}h"
