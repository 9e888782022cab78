"""Keeps one connection open and reopens it with the current settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError, NatsUnavailable
from bridge.nats.jetstream.options import ConnectOptions
from streams.system.retry import Retry

log = logging.getLogger("sidecar.mirror")

RECONNECT: Final = Retry(0.05, 5.0)


class Sessions:
    """At most one open connection, which callers share and which is reopened after each end. Bound to its event loop.

    ``options`` is called before every attempt, because a restarted embedded server has a different port and token.
    ``options`` raises ``NatsUnavailable`` while no server is running.
    """

    def __init__(self, options: Callable[[], Awaitable[ConnectOptions]]) -> None:
        self._options = options
        self._open: JetStream | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self.problem = ""
        """Why the last attempt failed; empty after a success."""

    @property
    def current(self) -> JetStream | None:
        return self._open if self._open is not None and self._open.is_open else None

    async def get(self) -> JetStream:
        """The open connection. If none is open, make one attempt to connect.

        Raises:
            NatsUnavailable: no server answered, or ``close`` was called.
            NatsRefused: the settings cannot work.
        """
        async with self._connecting:
            if self._closed:
                raise NatsUnavailable("the NATS connection was closed locally")
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
            log.info("connected to NATS %s", self._open.server.version)
            return self._open

    async def wait(self) -> JetStream:
        """Wait for an open connection, without a time limit; the pauses between attempts grow.

        Refusals are also retried, because somebody may supply the missing file. The wait ends when cancelled, or with
        ``NatsUnavailable`` after ``close``.
        """
        failures, logged = 0, ""
        while True:
            try:
                return await self.get()
            except NatsError as error:
                if self._closed:
                    raise
                if str(error) != logged:
                    logged = str(error)
                    log.info("no connection to NATS yet: %s", logged)
            failures += 1
            await asyncio.sleep(RECONNECT.pause(failures))

    async def close(self) -> None:
        """Close the connection for good. Idempotent."""
        self._closed = True
        async with self._connecting:
            if self._open is not None:
                await self._open.close()
                self._open = None
