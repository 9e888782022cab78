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
from sidecar.mirror.server.executable import Executable, NoServer, find_executable
from sidecar.mirror.server.process import ServerProcess, StartFailed, clear_orphan
from sidecar.mirror.settings import FREE_PORT, embedded_options, server_config
from streams.system.retry import Retry

log = logging.getLogger("sidecar.mirror")


RESTART: Final = Retry(0.2, 60.0)


class State(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    UNWELL = "not answering"
    """The server's process is running, but its last probe failed."""
    ENDING = "being ended"
    """The server no longer answers, so it is killed and restarted."""
    WAITING = "waiting to be started again"
    STOPPING = "stopping"


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
        self._failures = 0
        self._keeping: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Start the server and keep it running, in the background."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End the server for good. Idempotent; no process is left when this returns."""
        if self._keeping is not None:
            self._is(State.STOPPING)
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._end(self._timing.stop)
        self._is(State.STOPPED)

    async def options(self) -> ConnectOptions:
        """The options for connecting to the server now.

        Raises:
            NatsUnavailable: the server is not running.
        """
        if self._options is None:
            reason = f"the embedded NATS server is {self.state}"
            raise NatsUnavailable(f"{reason}: {self.problem}" if self.problem else reason)
        return self._options

    async def until(self, *states: State) -> None:
        while self.state not in states:
            self._changed.clear()
            await self._changed.wait()

    def status(self) -> dict[str, Any]:
        """What ``status`` shows about the server. ``pid``, ``port`` and ``version`` are null while the server is not
        running.
        """
        facts, options = self._facts, self._options
        return {
            "state": self.state.value,
            "pid": self._process.pid if self._process is not None else None,
            "port": self._port if options is not None else None,
            "version": facts.version if facts is not None else None,
            "restarts": self.restarts,
            "problem": self.problem,
        }

    # --- its life ---

    async def _keep(self) -> None:
        timing = self._timing
        loop = asyncio.get_running_loop()
        while True:
            self._is(State.STARTING)
            began = loop.time()
            try:
                try:
                    await self._begin()
                    await self._watch()
                finally:
                    self._options = self._facts = None
            except (StartFailed, NoServer, NatsError, OSError) as error:
                self._note(str(error))
            await self._end(0 if self.state is State.ENDING else timing.stop)
            self._is(State.WAITING)
            self._failures = 1 if loop.time() - began >= timing.settled else self._failures + 1
            pause = timing.restart.pause(self._failures)
            log.warning("restarting the NATS server in %.1f s: %s", pause, self.problem)
            await asyncio.sleep(pause)
            self.restarts += 1

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        left = await loop.run_in_executor(None, clear_orphan, self._directory, self._timing.stop)
        if left is not None:
            log.warning("ended a NATS server (pid %d) that an earlier sidecar left behind", left)
        found: Executable = await find_executable(self._config.executable)
        token = self._new_token()
        config = server_config(self._directory, self._config, token=token, port=self._port)
        # If this start fails, perhaps because the remembered port is in use, the next one uses the configured port or
        # any free port.
        self._port = self._config.port or FREE_PORT
        self._process = process = await ServerProcess.start(found.path, self._directory, config)
        try:
            async with asyncio.timeout(self._timing.start):
                port = await self._listening(process)
                options = embedded_options(port=port, token=token, server_id=None)
                facts = await self._first_answer(options)
        except TimeoutError:
            self._is(State.ENDING)
            raise StartFailed(f"the server was not ready within {self._timing.start:g} s") from None
        # Remember the port for the next start, so that clients with a fixed port keep working.
        self._port = port
        self._facts = facts
        self._options = embedded_options(port=port, token=token, server_id=facts.id)
        self.problem = ""
        self._is(State.RUNNING)
        log.info("NATS server %s is running on port %d, pid %d", facts.version, port, process.pid)

    async def _listening(self, process: ServerProcess) -> int:
        try:
            return await process.port()
        except StartFailed as error:
            if not self._config.port or "address already in use" not in str(error):
                raise
            taken = (
                f"port {self._config.port} is in use by another program; set another `port` in [nats], or 0 for any "
                "free port"
            )
            raise StartFailed(taken) from None

    async def _first_answer(self, options: ConnectOptions) -> ServerFacts:
        """Wait for the first answer, because JetStream may still be reading its store when the port is already open."""
        assert self._process is not None
        while True:
            try:
                return await self._probe(options)
            except NatsUnavailable:
                exited = asyncio.ensure_future(self._process.exited())
                done, _ = await asyncio.wait((exited,), timeout=0.05)
                exited.cancel()
                if done:
                    raise StartFailed(await self._process.last_words()) from None

    async def _watch(self) -> None:
        assert self._process is not None and self._options is not None
        process = self._process
        exited = asyncio.ensure_future(process.exited())
        misses = 0
        try:
            while True:
                await asyncio.wait((exited,), timeout=self._timing.probe)
                if exited.done():
                    raise StartFailed(f"the server exited: {await process.last_words()}")
                try:
                    await self._probe(self._options)
                except NatsError as error:
                    misses += 1
                    if exited.done():
                        continue
                    self._note(str(error))
                    self._is(State.UNWELL)
                    if misses >= self._timing.misses:
                        self._is(State.ENDING)
                        raise StartFailed(f"the server did not answer {misses} probes in a row: {error}") from None
                else:
                    misses, self.problem = 0, ""
                    self._is(State.RUNNING)
        finally:
            exited.cancel()

    async def _probe(self, options: ConnectOptions) -> ServerFacts:
        """Check that a new connection, the token and JetStream all work."""
        patience = self._timing.answer
        session = await JetStream.connect(replace(options, connect_seconds=patience, request_seconds=patience))
        try:
            await session.api("INFO")
            return session.server
        finally:
            await session.close()

    async def _end(self, patience_seconds: float) -> None:
        process, self._process = self._process, None
        self._options = self._facts = None
        if process is not None:
            await process.end(patience_seconds)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("the NATS server: %s", problem)
        self.problem = problem

    def _is(self, state: State) -> None:
        self.state = state
        self._changed.set()
