"""The client library as we use it: connecting, and what is mended of its client.

Beside ``client_errors.py`` the only file that imports the library. Its own reconnecting is off: its pull subscriptions
may stay dead after it (nats.py issue 504), and what it resends may come after what was sent later.

Where its client is overridden, also in what it keeps to itself, a comment says what it does otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bridge.nats.jetstream.client_errors import OtherServer, not_connected, short
from bridge.nats.jetstream.errors import NatsRefused
from bridge.nats.jetstream.options import ConnectOptions, check_credentials, tls_context
from bridge.nats.jetstream.wire import HeaderBlock, Received, ServerFacts

log = logging.getLogger("sidecar.nats")


def _is_of_use(record: logging.LogRecord) -> bool:
    """asyncio warns of each TLS connection that a stream reader ends; there is nothing that anybody could do."""
    return "eof_received()" not in record.getMessage()


logging.getLogger("asyncio").addFilter(_is_of_use)

_Callback = Callable[[Msg], Awaitable[None]]

CLOSE_SECONDS: Final = 2.0
"""How long what was sent last may take on its way out when a connection is closed."""

_CONNECTS: Final = 2
"""How often the library tries each server before it says that none is there."""


async def connected(options: ConnectOptions, ended: asyncio.Future[str]) -> GuardedClient:
    """A client that is connected to the first of the servers that takes us; ``ended`` gets to know why it ends.

    Raises:
        NatsRefused: the settings cannot work: files, TLS, token. Nothing secret was sent.
        NatsUnavailable: no server answered, or not in time.
    """
    if not options.servers:
        raise NatsRefused("no NATS server is named", "set servers in [nats]")
    context = tls_context(options)
    if options.credentials is not None:
        check_credentials(options.credentials)
    problems: list[Exception] = []

    async def note(error: Exception) -> None:
        problems.append(error)
        del problems[:-8]

    async def closed() -> None:
        if not ended.done():
            ended.set_result(short(problems[-1]) if problems else "it was closed")

    client = GuardedClient(options, ended)
    more: dict[str, Any] = {}
    if context is not None:
        more["tls"] = context
    if options.tls_hostname is not None:
        more["tls_hostname"] = options.tls_hostname
    try:
        async with asyncio.timeout(options.connect_seconds * (1 + len(options.servers))):
            await client.connect(
                servers=list(options.servers),
                token=options.token,
                user_credentials=options.credentials,
                name=options.name,
                inbox_prefix=options.inbox_prefix,
                tls_handshake_first=options.tls_handshake_first,
                allow_reconnect=False,
                max_reconnect_attempts=_CONNECTS - 1,
                reconnect_time_wait=0,
                connect_timeout=options.connect_seconds,  # type: ignore[arg-type]
                ping_interval=options.ping_seconds,  # type: ignore[arg-type]
                max_outstanding_pings=2,
                error_cb=note,
                closed_cb=closed,
                **more,
            )
    except BaseException as error:
        ended.cancel()
        # Not ``close``: after a TLS handshake that failed it waits for ever. Nothing of it runs yet.
        client.abort()
        if not isinstance(error, Exception):
            raise
        check_not_cancelled()
        raise not_connected(options, error, problems) from None
    return client


def check_not_cancelled() -> None:
    """Python 3.11's ``wait_for``, which the library uses, may swallow a cancellation; it is made good here."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class GuardedClient(Client):
    """The library's client, with a last look between the server's greeting and our secrets.

    By itself it would go on in plain text, and send its token, when a server that
    should speak TLS says that it does not.
    """

    def __init__(self, options: ConnectOptions, ended: asyncio.Future[str]) -> None:
        super().__init__()
        self._wanted, self._told_ended = options, ended
        self._direct: WeakKeyDictionary[_Callback, Callable[[Received], None]] = WeakKeyDictionary()

    def _connect_command(self) -> bytes:
        if self._wanted.wants_tls and self._transport._io_writer.get_extra_info("ssl_object") is None:  # type: ignore[union-attr]
            raise nats.errors.SecureConnRequiredError
        if self._wanted.server_id not in (None, self._server_info.get("server_id")):
            raise OtherServer
        return super()._connect_command()

    async def subscribe_directly(self, pattern: str, hear: Callable[[Received], None]) -> Subscription:
        """Have ``hear`` called as messages come off the socket: in order, with no queue and no task in between."""
        callback = _hearing(hear)  # only asked for by the library: see ``_process_msg``
        self._direct[callback] = hear
        return await self.subscribe(pattern, cb=callback)

    async def subscribe_queued(self, pattern: str, hear: Callable[[Received], None]) -> Subscription:
        """Have ``hear`` called with each message by the library's own task, in order."""
        return await self.subscribe(pattern, cb=_hearing(hear))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        # By itself it takes each header apart, a character at a time: half of the time that reading a stream takes.
        subscription = self._subs.get(sid)
        hear = self._direct.get(subscription._cb) if subscription is not None and subscription._cb else None
        if hear is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        hear(Received(subject.decode(), reply.decode(), HeaderBlock(headers) if headers else {}, data))

    async def send_bytes(self, command: bytes) -> None:
        """Send commands as they are, behind all that was sent before; returns when the socket takes more."""
        await self._send_command(command)
        await self._flush_pending(force_flush=True)

    async def _process_pong(self) -> None:
        # By itself it fails on the answer to a flush that nobody waits for any more, and the connection with it.
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pongs_received += 1
            self._pings_outstanding = 0
        else:
            await super()._process_pong()

    async def _process_op_err(self, e: Exception) -> None:
        # By itself it would first write what is left, to a peer that may never read again, and tell us after that.
        if not self._told_ended.done() and not self.is_connecting:
            self._told_ended.set_result(short(e))
        self.abort()
        await super()._process_op_err(e)

    def abort(self) -> None:
        """Drop the socket without a goodbye, and what was to be written. Idempotent."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        # With something left to write, closing would raise half way, and leave tasks behind.
        self._pending.clear()
        self._pending_data_size = 0

    def facts(self) -> ServerFacts:
        info = self._server_info
        return ServerFacts(str(info.get("server_id", "")), str(info.get("version", "")), int(self.max_payload))

    async def discard(self) -> None:
        """Close it, and end what closing may leave. Takes ``CLOSE_SECONDS`` at most; never fails."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.close()
        except (OSError, nats.errors.Error, AttributeError, TimeoutError) as error:
            # The library closes what it has not opened yet, and waits for a peer that may never say goodbye.
            log.debug("closing a connection failed: %s", short(error))
        finally:
            self.abort()
            for subscription in list(self._subs.values()):
                subscription._stop_processing()


def _hearing(hear: Callable[[Received], None]) -> _Callback:
    async def callback(message: Msg) -> None:
        hear(Received(message.subject, message.reply, message.headers or {}, message.data))

    return callback
