"""One connection to a NATS server with JetStream: the only file that imports the client library.

A connection ends once and for good: whatever breaks it (the server died, was
stopped, or does not answer pings) ends all that waits on it with
``NatsUnavailable``, and the next one is made anew (``sessions.py``). The
library's own reconnecting is off: its pull subscriptions may stay dead after it
(nats.py issue 504), and what it resends may come after what was sent later.

Errors of the library are translated in ``_told``, and nowhere else.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bridge.nats.errors import NatsError, NatsRefused, NatsUnavailable, NoStream, refusal
from bridge.nats.headers import are_lines, header_lines
from bridge.nats.options import ConnectOptions, check_credentials, tls_context
from bridge.nats.wire import HeaderBlock
from streams.subjects import SubjectError, check_subject

log = logging.getLogger("sidecar.nats")


def _is_of_use(record: logging.LogRecord) -> bool:
    """asyncio warns of each TLS connection that a stream reader ends; there is nothing that anybody could do."""
    return "eof_received()" not in record.getMessage()


logging.getLogger("asyncio").addFilter(_is_of_use)

T = TypeVar("T")
_Callback = Callable[[Msg], Awaitable[None]]

API: Final = "$JS.API."
NO_RESPONDERS: Final = "503"
CLOSE_SECONDS: Final = 2.0
"""How long what was sent last may take on its way out when a connection is closed."""

_SENT_AT_ONCE: Final = 256 * 1024
"""Bytes of bodies after which the socket is waited for."""

_CONNECTS: Final = 2
"""How often the library tries each server before it says that none is there."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server said of itself. ``max_payload`` is in bytes, headers included."""

    id: str
    version: str
    max_payload: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it came. ``status`` is set on the server's own notices, such as ``408``, and empty on messages."""

    subject: str
    reply: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def status(self) -> str:
        if isinstance(self.headers, HeaderBlock) and not self.headers.has_status:
            return ""
        return self.headers.get("Status", "")

    @property
    def description(self) -> str:
        """The words that come with a status."""
        return self.headers.get("Description", "")


class JetStream:
    """A connection that is open. Make one with ``connect``, end it with ``close``; belongs to its event loop."""

    def __init__(
        self, client: _Guarded, options: ConnectOptions, ended: asyncio.Future[str], facts: ServerFacts
    ) -> None:
        self._client, self._options, self._ended = client, options, ended
        self._inbox = client.new_inbox()
        self._asked = 0
        self._waiting: dict[str, asyncio.Future[Received]] = {}
        self.server = facts
        ended.add_done_callback(self._end_all)

    @classmethod
    async def connect(cls, options: ConnectOptions) -> JetStream:
        """Connect to the first of the servers that takes us.

        Raises:
            NatsRefused: the settings cannot work: files, TLS, token. Nothing secret was sent.
            NatsUnavailable: no server answered, or not in time.
        """
        if not options.servers:
            raise NatsRefused("no NATS server is named", "set servers in [nats]")
        context = tls_context(options)
        if options.credentials is not None:
            check_credentials(options.credentials)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        problems: list[Exception] = []

        async def note(error: Exception) -> None:
            problems.append(error)
            del problems[:-8]

        async def closed() -> None:
            if not ended.done():
                ended.set_result(_short(problems[-1]) if problems else "it was closed")

        client = _Guarded(options, ended)
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
            _check_not_cancelled()
            raise _not_connected(options, error, problems) from None
        facts = client.facts()
        session = cls(client, options, ended, facts)
        try:
            _check_not_cancelled()
            await client.subscribe(f"{session._inbox}.*", cb=session._answered)
        except asyncio.CancelledError:
            await session.close()
            raise
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            await session.close()
            raise _told(error, options) from None
        return session

    @property
    def is_open(self) -> bool:
        """Whether it can still be used. One that is not never becomes open again."""
        return not self._ended.done()

    async def ended(self) -> str:
        """Wait until the connection has ended; why. Cancelling is safe."""
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """End it: what was published before is flushed, what waits fails. Idempotent."""
        if self._ended.done():
            self._client.abort()
        else:
            self._ended.set_result("it was closed here")
        await _discard(self._client)

    # --- asking ---

    async def begin(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[Received]:
        """Send a request; its answer comes as the future's result, within no time limit.

        Requests reach the server in the order in which this is called. The
        future fails with ``NatsUnavailable`` when the connection ends.

        Raises:
            NatsError: it could not be sent.
        """
        self._check_open()
        self._asked += 1
        token = str(self._asked)
        future: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: self._forget(token, done))
        self._waiting[token] = future
        try:
            await self._client.publish(
                subject, body, reply=f"{self._inbox}.{token}", headers=dict(headers) if headers else None
            )
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            future.cancel()
            raise _told(error, self._options) from None
        return future

    async def ask(
        self, subject: str, body: bytes = b"", headers: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> Received:
        """Send a request and wait for its answer, ``seconds`` at most (else the options' ``request_seconds``).

        Raises:
            NoStream: nobody listens on the subject.
            NatsUnavailable: no answer in time, or the connection ended. It may have been carried out all the same.
        """
        limit = self._options.request_seconds if seconds is None else seconds
        future = await self.begin(subject, body, headers)
        try:
            async with asyncio.timeout(limit):
                answer = await future
        except TimeoutError:
            raise NatsUnavailable(f"the NATS server did not answer within {limit:g} s") from None
        if answer.status == NO_RESPONDERS:
            raise NoStream(f"nothing listens on {subject}", "the stream is missing, or the server is still starting")
        return answer

    async def api(self, method: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask the server's JetStream API: ``STREAM.INFO.EVENTS`` and the like; its JSON, times in nanoseconds.

        Raises:
            ServerRefused: the server said no.
            NatsUnavailable: no answer; JetStream may be off.
        """
        body = b"" if request is None else json.dumps(request).encode()
        try:
            answer = await self.ask(API + method, body)
        except NoStream:
            raise NatsUnavailable("JetStream does not answer", "it is off, or the server is still starting") from None
        return decoded(method, answer)

    # --- sending and hearing ---

    async def send_all(self, messages: Sequence[tuple[str, Mapping[str, str], str, bytes]]) -> None:
        """Publish many messages without waiting for answers; each is subject, headers, more headers as text, and body.

        ``more`` is lines of ``Name: value`` with CR LF at their ends. As ``send`` one by one, in a sixth of the time:
        the library's own way writes each header anew and wakes its writer each time.

        Raises:
            NatsError: not all could be sent.
        """
        self._check_open()
        try:
            pieces, size = [], 0
            for subject, headers, more, body in messages:
                pieces.append(_published(subject, headers, more, body, self.server.max_payload))
                size += len(body)
                if size > _SENT_AT_ONCE:
                    await self._client.send_bytes(b"".join(pieces))
                    pieces, size = [], 0
            await self._client.send_bytes(b"".join(pieces))
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            raise _told(error, self._options) from None

    async def send(
        self, subject: str, body: bytes = b"", headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Publish without waiting: what nobody hears is lost. Answers, if any, go to ``reply``.

        Raises:
            NatsError: it could not be sent.
        """
        self._check_open()
        try:
            await self._client.publish(subject, body, reply=reply, headers=dict(headers) if headers else None)
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            raise _told(error, self._options) from None

    async def flush(self) -> None:
        """Return when the server has taken all that was sent so far.

        Raises:
            NatsUnavailable: it did not in time.
        """
        self._check_open()
        try:
            await self._client.flush(self._options.request_seconds)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            raise _told(error, self._options) from None

    def new_inbox(self) -> str:
        """A subject that is nobody else's."""
        return self._client.new_inbox()

    @asynccontextmanager
    async def hearing(self, pattern: str, hear: Callable[[Received], None]) -> AsyncIterator[None]:
        """Hear what is published on ``pattern`` while the block lasts; ``hear`` is called in order and must not wait.

        What the server has sent when it hears of the end is still heard before the block is left.

        Raises:
            NatsError: the server cannot be reached, or ``pattern`` is none.
        """
        self._check_open()

        try:
            subscription = await self._client.subscribe_directly(pattern, hear)
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            raise _told(error, self._options) from None
        try:
            yield
        finally:
            if self.is_open:
                try:
                    # Not ``unsubscribe``: what the server has sent already would be lost, and nobody knew.
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await subscription.drain()  # type: ignore[no-untyped-call]
                except Exception as error:  # noqa: BLE001 - it ends with the connection at the latest
                    log.debug("unsubscribing failed: %s", _short(error))

    async def while_open(self, awaited: Coroutine[Any, Any, T]) -> T:
        """What ``awaited`` gives, unless the connection ends first.

        Raises:
            NatsUnavailable: it ended.
        """
        task = asyncio.ensure_future(awaited)
        try:
            await asyncio.wait((task, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._check_open()
            return await task
        finally:
            task.cancel()

    # --- inside ---

    def _check_open(self) -> None:
        if self._ended.done():
            raise NatsUnavailable(f"the connection to {self._options.shown} has ended: {self._ended.result()}")
        if self._client.is_closed:
            raise NatsUnavailable(f"the connection to {self._options.shown} is ending")

    async def _answered(self, message: Msg) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(_received(message))

    def _forget(self, token: str, done: asyncio.Future[Received]) -> None:
        self._waiting.pop(token, None)
        if not done.cancelled():
            done.exception()  # seen: one that nobody awaits any more is no news

    def _end_all(self, ended: asyncio.Future[str]) -> None:
        why = "it was given up" if ended.cancelled() else ended.result()
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(NatsUnavailable(f"the connection to {self._options.shown} ended: {why}"))


class _Guarded(Client):
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
            raise _OtherServer
        return super()._connect_command()

    async def subscribe_directly(self, pattern: str, hear: Callable[[Received], None]) -> Subscription:
        """Have ``hear`` called as messages come off the socket: in order, with no queue and no task in between."""

        async def callback(message: Msg) -> None:  # only asked for by the library: see ``_process_msg``
            hear(_received(message))

        self._direct[callback] = hear
        return await self.subscribe(pattern, cb=callback)

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
            self._told_ended.set_result(_short(e))
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

    def stop_hearing(self) -> None:
        """End the tasks of subscriptions that closing may have left. Idempotent."""
        for subscription in list(self._subs.values()):
            subscription._stop_processing()

    def facts(self) -> ServerFacts:
        info = self._server_info
        return ServerFacts(str(info.get("server_id", "")), str(info.get("version", "")), int(self.max_payload))


class _OtherServer(nats.errors.Error):
    """Another program than ours answered on our server's port."""


def _check_not_cancelled() -> None:
    """Python 3.11's ``wait_for``, which the library uses, may swallow a cancellation; it is made good here."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def decoded(what: str, answer: Received) -> dict[str, Any]:
    """The JSON of an answer.

    Raises:
        ServerRefused: it holds an error.
        NatsUnavailable: it is no JSON object.
    """
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NatsUnavailable(f"{what}: the answer is not what a NATS server says")
    if "error" in found:
        raise refusal(what, found["error"])
    return found


def _published(subject: str, headers: Mapping[str, str], more: str, body: bytes, max_payload: int) -> bytes:
    """The command that publishes a message with headers.

    Raises:
        NatsRefused: something of it is no subject or no header, or it is too large.
    """
    lines = header_lines(headers)
    # Whoever made it has checked it; a line too many would be somebody else's header, or a command of its own.
    if not are_lines(lines, len(headers)) or not _is_subject(subject):
        raise NatsRefused("a message has a header or a subject that cannot be sent", "escape what it is made of")
    head = f"NATS/1.0\r\n{lines}{more}\r\n".encode("ascii")
    total = len(head) + len(body)
    if total > max_payload:
        raise nats.errors.MaxPayloadError
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject.encode("ascii"), len(head), total, head, body)


@lru_cache(maxsize=4096)
def _is_subject(subject: str) -> bool:
    try:
        return check_subject(subject).isascii()
    except SubjectError:
        return False


def _received(message: Msg) -> Received:
    return Received(message.subject, message.reply, message.headers or {}, message.data)


async def _discard(client: _Guarded) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    except (OSError, nats.errors.Error, AttributeError, TimeoutError) as error:
        # The library closes what it has not opened yet, and waits for a peer that may never say goodbye.
        log.debug("closing a connection failed: %s", _short(error))
    finally:
        client.abort()
        client.stop_hearing()


def _not_connected(options: ConnectOptions, error: Exception, problems: list[Exception]) -> NatsError:
    """Why ``connect`` failed: of several problems the last that says more than "no server"."""
    causes = [error, *reversed(problems)]
    cause = next((each for each in causes if not isinstance(each, nats.errors.NoServersError | TimeoutError)), error)
    return _told(cause, options)


def _told(error: Exception, options: ConnectOptions) -> NatsError:
    """The one place where errors of the library become ours."""
    where = options.shown
    text = _short(error)
    match error:
        case NatsError():
            return error
        case _OtherServer():
            return NatsUnavailable(f"another program than our server answers on {where}", "nothing was sent to it")
        case nats.errors.SecureConnRequiredError() | nats.errors.SecureConnWantedError():
            return NatsRefused(f"{where} offers no TLS, and a plain connection is not wanted", "turn TLS on there")
        case nats.errors.MaxPayloadError():
            return NatsRefused("a message is larger than the server takes", "raise its max_payload")
        case nats.errors.BadSubjectError():
            return NatsRefused("the subject is not one", "escape what it is made of")
        case nats.errors.AuthorizationError() | nats.errors.InvalidUserCredentialsError():
            return _no_entry(where)
    if any(word in text.lower() for word in ("authorization", "authentication", "user jwt")):
        return _no_entry(where)
    if "certificate" in text.lower() or "ssl" in type(error).__name__.lower():
        return NatsRefused(f"TLS with {where} failed: {text}", "check cert_dir in [nats] and the server's certificate")
    if isinstance(error, OSError | nats.errors.Error | TimeoutError | asyncio.TimeoutError):
        # Of an embedded server the port is in no configuration: it comes back by itself, or its own problem is told.
        hint = "" if options.token else "start it, or correct servers in [nats]"
        return NatsUnavailable(f"NATS at {where} cannot be reached: {_why(error)}", hint)
    return NatsUnavailable(f"NATS at {where}: {text}")


def _no_entry(where: str) -> NatsRefused:
    return NatsRefused(f"the NATS server at {where} does not let us in", "check the token or the credentials file")


def _why(error: Exception) -> str:
    """Why there was no connection, in words without numbers and addresses."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "it does not answer"
    if isinstance(error, socket.gaierror):
        return "that name is not known here"
    # Of several addresses of one host asyncio tells in the text alone.
    told = re.search(r"\[Errno (\d+)\]", str(error))
    number = getattr(error, "errno", None) or (int(told[1]) if told else 0)
    if number == errno.ECONNREFUSED:
        return "nothing listens there"
    return os.strerror(number).lower() if number > 0 else _short(error)


def _short(error: Exception) -> str:
    text = str(error).removeprefix("nats: ").strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]


async def waited(future: Awaitable[Received], seconds: float) -> Received:
    """The answer to a request that was begun.

    Raises:
        NatsUnavailable: none in time, or the connection ended.
    """
    try:
        async with asyncio.timeout(seconds):
            return await future
    except TimeoutError:
        raise NatsUnavailable(f"the NATS server did not answer within {seconds:g} s") from None
