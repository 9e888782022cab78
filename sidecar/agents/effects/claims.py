"""Claims of effects: one runner at a time carries out an effect, for each run and key.

The holder of a claim knows that an attempt without an end has died, because all that others record of the effect is in
the log before they let the claim go, or is refused later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from streams.errors import StreamError
from streams.event import StreamEvent
from streams.store import OnKnown, Record, StreamStore


class ClaimLost(StreamError):
    """Somebody else has taken the effect over. Nothing was written."""

    code: ClassVar[str] = "claim-lost"

    def __str__(self) -> str:
        return "another home has taken this effect over, so its end is not recorded here"


class Claim(Protocol):
    """One effect, held."""

    async def append(self, events: Sequence[StreamEvent], *, on_known: OnKnown) -> list[Record]:
        """As ``StreamStore.append``. Raises ``ClaimLost`` if the effect is not held any more."""
        ...

    async def release(self) -> None:
        """Let others take the effect. Raises nothing."""
        ...


class Claims(Protocol):
    is_shared: bool
    """Whether processes elsewhere carry out effects of the same log, so that who began an attempt is not known."""

    async def take(self, run: str, key: str) -> Claim:
        """Wait until nobody else has the effect. Cancelling is safe.

        Raises:
            StreamError: the log cannot be used.
        """
        ...


_LOCKS: Final[WeakKeyDictionary[StreamStore, WeakValueDictionary[tuple[str, str], asyncio.Lock]]] = WeakKeyDictionary()
"""For each log, the lock of each run and key that somebody works on."""


class OwnClaims:
    """``Claims`` for a log that this process alone writes: all runners over it share one lock for each key."""

    is_shared = False

    def __init__(self, store: StreamStore) -> None:
        self._store, self._locks = store, _LOCKS.setdefault(store, WeakValueDictionary())

    async def take(self, run: str, key: str) -> Claim:
        lock = self._locks.setdefault((run, key), asyncio.Lock())
        await lock.acquire()
        return _Locked(self._store, lock)


class _Locked:
    def __init__(self, store: StreamStore, lock: asyncio.Lock) -> None:
        self._store, self._lock = store, lock

    async def append(self, events: Sequence[StreamEvent], *, on_known: OnKnown) -> list[Record]:
        return await self._store.append(events, on_known=on_known)

    async def release(self) -> None:
        self._lock.release()
