"""Who carries out an effect of the team's agents: a row of ``claims``, by the clock of the team's Postgres.

A claim that its holder does not renew in time may be taken by another home. What the former holder then records under
it is refused, in the call that would write it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import count
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from sidecar.team.log import Fence, TeamLog
from streams.errors import StoreUnavailable
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.store import OnKnown, Record

log = logging.getLogger("sidecar.team")

TERM_SECONDS: Final = 30.0
"""How long a claim lasts without being renewed. A home that sleeps longer may find its effects taken over."""

IN_A_TERM: Final = 3
"""How often a claim is renewed in a term, and one that somebody else has is asked for."""

PAUSE_SECONDS: Final = 1.0
"""How long to wait before Postgres is tried again."""


class _Wanted(NamedTuple):
    fence: Fence
    got: asyncio.Future[None]


class TeamClaims:
    """``Claims`` over the team's log. ``name`` is of this process alone. Bound to one event loop; close it before the
    log."""

    is_shared = True

    def __init__(self, store: TeamLog, name: str, term_seconds: float | None = None) -> None:
        self._store, self._database, self._name, self._term = store, store.database, name, term_seconds or TERM_SECONDS
        self._numbers = count()
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        """Requests of this process with the same key wait for each other here, so each claim has one holder."""
        self._wanted: dict[Fence, _Wanted] = {}
        self._held: set[Fence] = set()
        self._news = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def take(self, run: str, key: str) -> HeldClaim:
        """See ``Claims``. Waits, too, while Postgres is away."""
        effect = sha256(canonical([run, key])).digest()[:16]
        lock = self._locks.setdefault(effect, asyncio.Lock())
        await lock.acquire()
        # Each claim has a token of its own: one that was lost, and taken again, is not the same one.
        fence = Fence(effect, f"{self._name}:{next(self._numbers)}")
        held = HeldClaim(self, self._store, fence, lock)
        wanted = self._wanted[fence] = _Wanted(fence, asyncio.get_running_loop().create_future())
        self._news.set()
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep())
        try:
            await wanted.got
        except BaseException:
            self.let_go(held)  # Postgres may just have given it
            raise
        return held

    def let_go(self, held: HeldClaim) -> asyncio.Task[None]:
        """Let others take a claim, in the background."""
        self._wanted.pop(held.fence, None)
        self._held.discard(held.fence)
        task = asyncio.create_task(self._release(held))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def _release(self, held: HeldClaim) -> None:
        try:
            await self._database.release(held.fence)
        except StoreUnavailable as error:
            log.info("an effect's claim ends by itself: %s", error)
        finally:
            held.lock.release()

    async def _keep(self) -> None:
        """Ask for what is wanted, and renew what is held."""
        loop = asyncio.get_running_loop()
        period = self._term / IN_A_TERM
        renewed = loop.time()
        while self._wanted or self._held:
            self._news.clear()
            pause = period
            try:
                if self._held and loop.time() - renewed >= period:
                    asked = [*self._held]
                    kept = await self._database.renew(asked, self._term)
                    # Whoever has lost one learns it from the log.
                    self._held -= {fence for fence in asked if fence.token not in kept}
                    renewed = loop.time()
                if self._wanted:
                    self._came(await self._database.claim([*self._wanted], self._term))
            except StoreUnavailable:
                pause = min(PAUSE_SECONDS, period)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()

    def _came(self, tokens: set[str]) -> None:
        for fence in [fence for fence in self._wanted if fence.token in tokens]:
            wanted = self._wanted.pop(fence)
            if not wanted.got.done():
                self._held.add(fence)
                wanted.got.set_result(None)

    async def close(self) -> None:
        """Wait until the claims that were let go are there for others. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await asyncio.gather(*self._leaving)


class HeldClaim:
    """``Claim`` of one effect."""

    def __init__(self, claims: TeamClaims, store: TeamLog, fence: Fence, lock: asyncio.Lock) -> None:
        self._claims, self._store, self.fence, self.lock = claims, store, fence, lock

    async def append(self, events: Sequence[StreamEvent], *, on_known: OnKnown) -> list[Record]:
        return await self._store.append(events, on_known=on_known, fence=self.fence)

    async def release(self) -> None:
        await asyncio.shield(self._claims.let_go(self))
