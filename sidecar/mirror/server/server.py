"""The embedded NATS server: starts it, probes it, restarts it with growing pauses, and ends it with the sidecar.

The server is a child process in the home's ``nats`` directory. Every start uses a new token, so the token of an earlier
server is useless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError, NatsUnavailable
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.wire import ServerFacts
from sidecar.config import NatsConfig
from sidecar.mirror.server.executable import StartFailed, find_executable
from sidecar.mirror.server.process import ServerProcess, clear_orphan
from sidecar.mirror.settings import FREE_PORT, embedded_options, server_config
from streams.system.retry import Retry

log = logging.getLogger("sidecar.mirror")

RESTART: Final = Retry(0.2, 60.0)
_STARTING_SECONDS: Final = 0.05
"""The pause between two probes of a server that starts: it may still read its store when its port is already open."""


class State(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    UNWELL = "not answering"
    """The server's process is running, but its last probe failed."""
    WAITING = "waiting to be started again"


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds. After ``misses`` consecutive failed probes, the server is restarted.

    Once a server has run for ``settled`` seconds, the next pause is the first one again.
    """

    start: float = 60.0
    probe: float = 5.0
    answer: float = 5.0
    misses: int = 3
    stop: float = 10.0
    restart: Retry = RESTART
    settled: float = 60.0


class EmbeddedServer:
    """A home's NATS server, bound to one event loop. Only the holder of the home's lock may create this object.

    ``directory`` must exist and be private to the user. ``new_token`` returns 64 random hex characters.
    """

    def __init__(
        self, directory: Path, config: NatsConfig, new_token: Callable[[], str], timing: Timing | None = None
    ) -> None:
        self._directory, self._config, self._new_token = directory, config, new_token
        self._timing: Final = timing or Timing()
        self.state = State.STOPPED
        self.problem = ""
        """Why the server is not running, or why it last failed; empty while the server works."""
        self.restarts = 0
        self._process: ServerProcess | None = None
        self._options: ConnectOptions | None = None
        self._facts: ServerFacts | None = None
        self._port = config.port or FREE_PORT
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the server and keep it running, in the background."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End the server for good. Idempotent; no process is left when this returns."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._end()
        self.state = State.STOPPED

    async def options(self) -> ConnectOptions:
        """The options for connecting to the server now.

        Raises:
            NatsUnavailable: the server is not running.
        """
        if self._options is None:
            reason = f"the embedded NATS server is {self.state}"
            raise NatsUnavailable(f"{reason}: {self.problem}" if self.problem else reason)
        return self._options

    def status(self) -> dict[str, Any]:
        """What ``status`` shows about the server. ``pid``, ``port`` and ``version`` are null while the server is not
        running.
        """
        return {
            "state": self.state.value,
            "pid": self._process.pid if self._process is not None else None,
            "port": self._port if self._options is not None else None,
            "version": self._facts.version if self._facts is not None else None,
            "restarts": self.restarts,
            "problem": self.problem,
        }

    # --- its life ---

    async def _keep(self) -> None:
        timing, failures = self._timing, 0
        loop = asyncio.get_running_loop()
        while True:
            self.state, began = State.STARTING, loop.time()
            try:
                await self._serve()
            except (StartFailed, OSError) as error:
                self._note(str(error))
            await self._end()
            self.state = State.WAITING
            failures = 1 if loop.time() - began >= timing.settled else failures + 1
            pause = timing.restart.pause(failures)
            log.warning("restarting the NATS server in %.1f s: %s", pause, self.problem)
            await asyncio.sleep(pause)
            self.restarts += 1

    async def _serve(self) -> None:
        """Start the server, and probe it until it fails. Raises ``StartFailed``, with the reason."""
        timing = self._timing
        if left := await clear_orphan(self._directory, timing.stop):
            log.warning("ended a NATS server (pid %d) that an earlier sidecar left behind", left)
        found = await find_executable(self._config.executable)
        token = self._new_token()
        config = server_config(self._directory, self._config, token=token, port=self._port)
        # If this start fails, perhaps because the remembered port is in use, the next one uses the configured port or
        # any free port.
        self._port = self._config.port or FREE_PORT
        self._process = process = await ServerProcess.start(found.path, self._directory, config)
        late = f"the server was not ready within {timing.start:g} s"
        deadline = asyncio.get_running_loop().time() + timing.start
        try:
            async with asyncio.timeout_at(deadline):
                port = await process.port()
        except TimeoutError:
            raise StartFailed(late) from None
        except StartFailed as error:
            raise StartFailed(self._explained(str(error))) from None
        options, misses = embedded_options(port=port, token=token, server_id=None), 0
        while not await process.exits(timing.probe if self._options is not None else _STARTING_SECONDS):
            try:
                facts = await self._probe(self._options or options)
            except NatsError as error:
                if self._options is None:
                    if asyncio.get_running_loop().time() >= deadline:
                        raise StartFailed(late) from None
                    continue
                misses += 1
                self._note(str(error))
                self.state = State.UNWELL
                if misses >= timing.misses:
                    raise StartFailed(f"the server did not answer {misses} probes in a row: {error}") from None
                continue
            if self._options is None:
                log.info("NATS server %s is running on port %d, pid %d", facts.version, port, process.pid)
                # Remember the port for the next start, so that clients with a fixed port keep working.
                self._port, self._facts = port, facts
                self._options = embedded_options(port=port, token=token, server_id=facts.id)
            misses, self.problem, self.state = 0, "", State.RUNNING
        raise StartFailed(f"the server exited: {process.last_words()}")

    def _explained(self, problem: str) -> str:
        if not self._config.port or "address already in use" not in problem:
            return problem
        other = "set another `port` in [nats], or 0 for any free port"
        return f"port {self._config.port} is in use by another program; {other}"

    async def _probe(self, options: ConnectOptions) -> ServerFacts:
        """Check that a new connection, the token and JetStream all work."""
        patience = self._timing.answer
        session = await JetStream.connect(replace(options, connect_seconds=patience, request_seconds=patience))
        try:
            await session.api("INFO")
            return session.server
        finally:
            await session.close()

    async def _end(self) -> None:
        process, self._process = self._process, None
        self._options = self._facts = None
        if process is not None:
            await process.end(self._timing.stop)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("the NATS server: %s", problem)
        self.problem = problem
