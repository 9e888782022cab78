"""Connects through the client library, and overrides the library's client where it misbehaves.

Only this file and ``client_errors.py`` import the library. The library's own reconnecting is off, because a restarted
embedded server has another address and token.

A comment at each override, private methods included, says what the library would do instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bridge.nats.jetstream.client_errors import OtherServer, not_connected, short
from bridge.nats.jetstream.errors import NatsRefused
from bridge.nats.jetstream.options import ConnectOptions, check_credentials, tls_context
from bridge.nats.jetstream.wire import HeaderBlock, Received, ServerFacts

log = logging.getLogger("sidecar.mirror")

CLOSE_SECONDS: Final = 2.0
"""How many seconds closing a connection waits until the last messages are sent."""

FLUSH_SECONDS: Final = 10.0
"""How many seconds a sender waits for the socket. After that time the sender continues, because there is also a limit
on how long it waits for the answer.
"""

_CONNECTS: Final = 2
"""How many times the library tries each server before giving up."""


async def connected(options: ConnectOptions, ended: asyncio.Future[str]) -> GuardedClient:
    """Connect to the first server that accepts the connection. ``ended`` receives the reason when the connection ends.

    Raises:
        NatsRefused: the settings (files, TLS or token) cannot work. No secret was sent.
        NatsUnavailable: no server answered in time.
    """
    if not options.servers:
        raise NatsRefused("no NATS server is configured", "set `servers` in [nats]")
    context = tls_context(options)
    if options.credentials is not None:
        check_credentials(options.credentials)
    problems: list[Exception] = []

    async def note(error: Exception) -> None:
        problems.append(error)
        del problems[:-8]

    async def closed() -> None:
        if not ended.done():
            ended.set_result(short(problems[-1]) if problems else "the connection was closed")

    client = GuardedClient(options, ended)
    try:
        async with asyncio.timeout(options.connect_seconds * (1 + len(options.servers))):
            await client.connect(
                servers=list(options.servers),
                token=options.token,
                user_credentials=options.credentials,
                name=options.name,
                inbox_prefix=options.inbox_prefix,
                tls=context,
                tls_hostname=options.tls_hostname,
                tls_handshake_first=options.tls_handshake_first,
                allow_reconnect=False,
                max_reconnect_attempts=_CONNECTS - 1,
                reconnect_time_wait=0,
                connect_timeout=options.connect_seconds,  # type: ignore[arg-type]
                ping_interval=options.ping_seconds,  # type: ignore[arg-type]
                max_outstanding_pings=2,
                flush_timeout=FLUSH_SECONDS,
                error_cb=note,
                closed_cb=closed,
            )
    except BaseException as error:
        ended.cancel()
        # ``close`` would wait forever after a failed TLS handshake. The client has not started any task yet.
        client.abort()
        if not isinstance(error, Exception):
            raise
        check_not_cancelled()
        raise not_connected(options, error, problems) from None
    return client


def check_not_cancelled() -> None:
    """Raise the cancellation that Python 3.11's ``wait_for``, used by the library, may have swallowed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class GuardedClient(Client):
    """The library's client, which checks the server's greeting before it sends a secret.

    If a server that should use TLS does not offer it, the library itself continues in plain text and sends the token.
    """

    def __init__(self, options: ConnectOptions, ended: asyncio.Future[str]) -> None:
        super().__init__()
        self._wanted, self._ended = options, ended

    def _connect_command(self) -> bytes:
        if self._wanted.wants_tls and self._transport._io_writer.get_extra_info("ssl_object") is None:  # type: ignore[union-attr]
            raise nats.errors.SecureConnRequiredError
        if self._wanted.server_id not in (None, self._server_info.get("server_id")):
            raise OtherServer
        return super()._connect_command()

    async def subscribe_directly(self, pattern: str, on_message: Callable[[Received], None]) -> Subscription:
        """Call ``on_message`` directly when a message is read from the socket: in order, with no queue and no task in
        between.
        """

        async def callback(message: Msg) -> None:
            """The library requires one, but our ``_process_msg`` never calls it."""

        callback.on_message = on_message  # type: ignore[attr-defined]
        return await self.subscribe(pattern, cb=callback)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        # Bypass the library's header parser, which is so slow that it takes half the time of reading a stream.
        subscription = self._subs.get(sid)
        on_message = getattr(subscription._cb, "on_message", None) if subscription is not None else None
        if on_message is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            on_message(Received(subject.decode(), reply.decode(), HeaderBlock(headers) if headers else {}, data))

    async def send_bytes(self, command: bytes) -> None:
        await self._send_command(command)
        await self._flush_pending(force_flush=True)

    async def _process_pong(self) -> None:
        # Handle the answer to a cancelled flush here, because the library would fail on it and lose the connection.
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pongs_received += 1
            self._pings_outstanding = 0
        else:
            await super()._process_pong()

    async def _process_op_err(self, e: Exception) -> None:
        # Report the end at once, because the library first writes all unsent data, to a peer that may never read it.
        if not self._ended.done() and not self.is_connecting:
            self._ended.set_result(short(e))
        self.abort()
        await super()._process_op_err(e)

    def abort(self) -> None:
        """Drop the socket and all unsent data at once. Idempotent."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        # Discard unsent data, because with such data the library's ``close`` fails halfway and leaves tasks behind.
        self._pending.clear()
        self._pending_data_size = 0
        # Wake the tasks that wait for a flush, because the library's writer forgets them when it ends.
        while self._flush_queue is not None and not self._flush_queue.empty():
            waiting = self._flush_queue.get_nowait()
            if not waiting.done():
                waiting.set_result(None)

    def facts(self) -> ServerFacts:
        info = self._server_info
        return ServerFacts(str(info.get("server_id", "")), str(info.get("version", "")), int(self.max_payload))

    async def discard(self) -> None:
        """Close the client and what closing may leave behind, in at most ``CLOSE_SECONDS``; never fails."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.close()
        except (OSError, nats.errors.Error, AttributeError, TimeoutError) as error:
            # The library's ``close`` may fail on parts that are not open yet, or wait for a peer that never answers.
            log.debug("closing a connection failed: %s", short(error))
        finally:
            self.abort()
            for subscription in list(self._subs.values()):
                subscription._stop_processing()
