"""Keeping a connection: the one that is open, or the next one, made with what is known then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError, NatsUnavailable
from bridge.nats.jetstream.options import ConnectOptions

log = logging.getLogger("sidecar.nats")

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0


class Sessions:
    """At most one open connection, shared. Belongs to its event loop; made anew after each end.

    ``options`` is asked before every attempt: an embedded server that was
    restarted has another port and another token. It raises ``NatsUnavailable``
    while there is none.
    """

    def __init__(self, options: Callable[[], Awaitable[ConnectOptions]]) -> None:
        self._options = options
        self._open: JetStream | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self.opened = 0
        """How many connections there were."""
        self.problem = ""
        """Why the last attempt failed; empty after one that did not."""

    @property
    def current(self) -> JetStream | None:
        """The connection that is open now, if there is one."""
        return self._open if self._open is not None and self._open.is_open else None

    async def get(self) -> JetStream:
        """The open connection; if there is none, one attempt to make one.

        Raises:
            NatsUnavailable: no server, or closed.
            NatsRefused: the settings cannot work.
        """
        async with self._connecting:
            if self._closed:
                raise NatsUnavailable("this end was closed")
            if self._open is not None:
                if self._open.is_open:
                    return self._open
                await self._open.close()
                self._open = None
            try:
                self._open = await JetStream.connect(await self._options())
            except NatsError as error:
                self.problem = str(error)
                raise
            self.problem = ""
            self.opened += 1
            return self._open

    async def wait(self) -> JetStream:
        """The open connection, however long it takes; attempts come further and further apart.

        A refusal is tried again as well: what is missing may be put there. It ends
        by being cancelled, or with ``NatsUnavailable`` after ``close``.
        """
        pause, told = FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                return await self.get()
            except NatsError as error:
                if self._closed:
                    raise
                if str(error) != told:
                    told = str(error)
                    log.info("no connection to NATS yet: %s", told)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def close(self) -> None:
        """End the connection, and have no other. Idempotent."""
        self._closed = True
        async with self._connecting:
            if self._open is not None:
                await self._open.close()
                self._open = None
