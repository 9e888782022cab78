"""The only source of wall clock, randomness and ULIDs.

All other code asks an ``Identity``. A test or a deterministic run injects a seeded one and gets the same ids and times
every time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from threading import Lock
from typing import Any

from streams.event import SCHEMA_VERSION, StreamEvent

_RANDOM_BITS = 80
_PAGE = 4096

_EMPTY: dict[str, Any] = {
    "schema_version": None,
    "causation_id": None,
    "correlation_id": None,
    "traceparent": None,
}


@cache
def _pairs() -> list[str]:
    """The two letters for each ten bits of a ULID. The library's own encoder goes letter by letter and takes three
    times as long, which would be a quarter of the time in which an event is made."""
    from ulid.base32 import ENCODE  # the import takes 20 ms, and most commands make no id

    return [high + low for high in ENCODE for low in ENCODE]


class Identity:
    """Clock, randomness and ids of one process.

    ULIDs increase strictly, even within a millisecond and when the clock steps back, so their order
    in one process is the order of creation. Safe to share between threads.
    """

    def __init__(self, clock_ms: Callable[[], int], random_bytes: Callable[[int], bytes]) -> None:
        self._clock_ms = clock_ms
        self._random_bytes = random_bytes
        self._lock = Lock()
        self._last = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return self._clock_ms()

    def ulid(self) -> str:
        """A new ULID, greater than every ULID that this object returned before."""
        with self._lock:
            value = (self._clock_ms() << _RANDOM_BITS) | int.from_bytes(self._random_bytes(10), "big")
            self._last = value = max(value, self._last + 1)
        pairs = _pairs()
        return "".join([pairs[value >> shift & 1023] for shift in range(120, -1, -10)])

    def nonce(self) -> str:
        """256 random bits as 64 hex characters, for tokens and handshakes."""
        return self._random_bytes(32).hex()

    def stamp(self, fields: Mapping[str, Any], payload: bytes = b"") -> StreamEvent:
        """Complete ``fields`` into an event: keep the given values, and fill in values that are missing or ``None``.

        ``id``, ``ts`` and ``schema_version`` are filled in; an event without an idempotency key gets the key
        ``event:{id}``. ``payload`` is the payload in canonical form, if the caller has written it.

        Raises:
            InvalidEvent: the completed event does not match the envelope.
        """
        filled = {**_EMPTY, **fields}
        if filled.get("id") is None:
            filled["id"] = self.ulid()
        if filled.get("idempotency_key") is None:
            filled["idempotency_key"] = f"event:{filled['id']}"
        if filled["schema_version"] is None:
            filled["schema_version"] = SCHEMA_VERSION
        if filled.get("ts") is None:
            upstream = filled.pop("timestamp", None)
            filled["ts"] = self.now_ms() if upstream is None else upstream
        return StreamEvent.parse(filled, payload)


def system_identity() -> Identity:
    """The real clock and the operating system's randomness, fetched a page at a time."""
    return Identity(lambda: time.time_ns() // 1_000_000, _Randomness().take)


class _Randomness:
    """Random bytes in pages, because a system call for every id would cost more than the id."""

    def __init__(self) -> None:
        self._page, self._at = b"", 0
        self._lock = Lock()
        # A forked child must forget its copy of the page, because two processes must never use the same random bytes.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._page, self._at, self._lock = b"", 0, Lock()

    def take(self, count: int) -> bytes:
        with self._lock:
            if self._at + count > len(self._page):
                self._page, self._at = os.urandom(max(_PAGE, count)), 0
            self._at += count
            return self._page[self._at - count : self._at]


def seeded_identity(seed: int, start_ms: int = 1_700_000_000_000, step_ms: int = 1) -> Identity:
    """A reproducible identity: the clock starts at ``start_ms`` and advances by ``step_ms`` at each reading."""
    random = Random(seed)  # noqa: S311 - reproducibility is the purpose
    ticks = iter(range(start_ms, 2**48, step_ms)) if step_ms else None
    clock: Callable[[], int] = (lambda: next(ticks)) if ticks is not None else (lambda: start_ms)
    return Identity(clock, random.randbytes)
