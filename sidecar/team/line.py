"""A connection to the team's Postgres for a part of the sidecar that must never wait for it on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg

from sidecar.notify_config import TeamConfig
from sidecar.team.connection import connect, cut, translated
from sidecar.team.errors import TeamRefused, TeamUnavailable
from sidecar.team.packing import register
from streams.errors import StoreClosed

Answer = TypeVar("Answer")

PATIENCE_SECONDS: Final = 15.0
"""How long a server may take for an answer. A server that was stopped in the middle of its work says nothing at all."""


class Line:
    """A connection with a thread of its own: no other thread waits with it for a server that does not answer.

    The connection is made when it is first needed, and again after it was lost. ``session`` is the SQL with which it
    begins.
    """

    def __init__(self, config: TeamConfig, session: str, patience: float | None = None) -> None:
        self._config, self._session, self._patience = config, session, patience or PATIENCE_SECONDS
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="team")
        self._connection: psycopg.Connection[Any] | None = None
        self._is_cut = False
        self._failed: TeamUnavailable | TeamRefused | None = None
        self._failed_at = 0.0

    async def ask(self, work: Callable[[psycopg.Connection[Any], bool], Answer]) -> Answer:
        """Run ``work`` on the thread, with a connection in which each statement is a transaction of its own.

        A connection that was used before may have been lost long ago. ``work`` is then run once more, with another one,
        and with ``True``. Cancelling ends the wait, not the work.

        Raises:
            TeamUnavailable, TeamRefused, StoreClosed
        """
        loop = asyncio.get_running_loop()
        try:
            waiting = loop.run_in_executor(self._thread, self._run, work, time.monotonic())
        except RuntimeError:
            raise StoreClosed("the connection to the team's Postgres is closed", "open the log again") from None
        limit = loop.call_later(self._patience, self.cut)
        try:
            return await waiting
        finally:
            limit.cancel()

    def _run(self, work: Callable[[psycopg.Connection[Any], bool], Answer], asked: float) -> Answer:
        is_used, self._is_cut = self._connection is not None, False
        with translated(self._config):
            try:
                return work(self._connected(asked), False)
            except psycopg.OperationalError:
                if self._is_cut or not is_used or self._connection is None or not self._connection.closed:
                    raise
            return work(self._connected(asked), True)

    def _connected(self, asked: float) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = None
            # Whoever was already waiting while an attempt failed need not wait for another one.
            if self._failed is not None and asked < self._failed_at:
                raise type(self._failed)(self._failed.reason, self._failed.hint)
            try:
                self._connection = connect(self._config)
            except (TeamUnavailable, TeamRefused) as error:
                self._failed, self._failed_at = error, time.monotonic()
                raise
            # A pooler that changes the server in the middle would lose what a session begins with, too.
            self._connection.prepare_threshold = 1
            register(self._connection)
            self._connection.execute(self._session.encode())
        return self._connection

    def cut(self) -> None:
        """End what waits for the server, with ``TeamUnavailable``."""
        self._is_cut = True
        cut(self._connection)

    async def close(self, seconds: float) -> None:
        """Close the connection once the work that was given before has ended, or after some seconds. Idempotent."""
        limit = asyncio.get_running_loop().call_later(seconds, self.cut)
        with suppress(RuntimeError):  # the thread has ended before
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        limit.cancel()
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
