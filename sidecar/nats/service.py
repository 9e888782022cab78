"""NATS as the sidecar has it: nothing, a connection to configured servers, or to a server of its own.

Nothing here may keep the sidecar from recording: whatever is wrong is told by
``status`` and in the log, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bridge.nats.errors import NatsUnavailable
from bridge.nats.options import ConnectOptions
from sidecar.config import NatsConfig
from sidecar.home import Home, HomeError
from sidecar.nats.settings import external_options

if TYPE_CHECKING:
    from bridge.nats.sessions import Sessions
    from sidecar.nats.server import EmbeddedServer

log = logging.getLogger("sidecar.nats")

LIBRARY = frozenset({"nats", "nkeys", "nacl"})
"""What the client library's packages are called."""

MISSING = "the library nats-py is missing; pip install 'opencode-durable-stream[nats]'"


class NatsService:
    """What runs for ``[nats]``: ``start`` returns at once, ``close`` leaves nothing. Belongs to its event loop."""

    def __init__(self, home: Home, config: NatsConfig, new_token: Callable[[], str]) -> None:
        self._home, self._config, self._new_token = home, config, new_token
        self._problem = ""
        self._server: EmbeddedServer | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.sessions: Sessions | None = None
        """The connection, for whoever publishes; None while ``[nats]`` is off or cannot work at all."""

    def start(self) -> None:
        """Begin, in the background. The caller holds the home's lock."""
        if self._config.mode == "off":
            return
        try:
            # The library is in an extra, and loading it costs a tenth of a second: only who wants NATS pays.
            from bridge.nats.sessions import Sessions
            from sidecar.nats.server import EmbeddedServer
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] not in LIBRARY:
                raise
            self._fail(MISSING)
            return
        if self._config.mode == "embedded":
            try:
                self._home.make_private(self._home.nats_path)
            except HomeError as error:
                self._fail(str(error))
                return
            self._server = EmbeddedServer(self._home.nats_path, self._config, self._new_token)
            self._server.start()
        self.sessions = Sessions(self._options)
        self._keeping = asyncio.create_task(self._keep(self.sessions))

    async def close(self) -> None:
        """End the connection, then the server. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self.sessions is not None:
            await self.sessions.close()
        if self._keeping is not None:
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        if self._server is not None:
            await self._server.stop()

    def status(self) -> dict[str, Any]:
        """For ``status``: ``mode``, ``connected``, ``servers`` (shown without secrets), ``version``, ``problem``, and
        ``server``, the embedded server's own account or null.
        """
        session = self.sessions.current if self.sessions is not None else None
        server = self._server.status() if self._server is not None else None
        problem = self._problem or (server["problem"] if server is not None else "")
        if not problem and session is None and self.sessions is not None:
            problem = self.sessions.problem
        return {
            "mode": self._config.mode,
            "connected": session is not None,
            "servers": external_options(self._config).shown if self._config.mode == "external" else "",
            "version": session.server.version if session is not None else None,
            "problem": problem,
            "server": server,
        }

    async def address(self) -> dict[str, Any]:
        """How another process of this user reaches the embedded server now: ``port``, ``token`` and ``server_id``.

        Raises:
            NatsUnavailable: it does not run, or there is none; why.
        """
        if self._server is None:
            raise NatsUnavailable(self._problem or "this sidecar has no NATS server of its own")
        options = await self._server.options()
        port = self._server.status()["port"]
        return {"port": port, "token": options.token, "server_id": options.server_id}

    async def _options(self) -> ConnectOptions:
        if self._server is not None:
            return await self._server.options()
        if self._config.mode != "external":
            raise NatsUnavailable("there is no NATS server")
        return external_options(self._config)

    async def _keep(self, sessions: Sessions) -> None:
        """Have a connection before somebody needs it, so that ``status`` can tell."""
        while True:
            session = await sessions.wait()
            log.info("connected to NATS %s", session.server.version)
            log.info("the connection to NATS ended: %s", await session.ended())

    def _fail(self, problem: str) -> None:
        self._problem = problem
        log.error("no NATS: %s", problem)
