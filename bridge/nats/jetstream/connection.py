"""One connection to a NATS server with JetStream: requests, publishing and subscriptions.

A connection that ends stays closed. If the server dies, stops or no longer answers pings, everything waiting on the
connection fails with ``NatsUnavailable``; ``sessions.py`` opens the next connection.

``client.py`` wraps the client library, and ``client_errors.py`` translates its errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from bridge.nats.jetstream.client import CLOSE_SECONDS, GuardedClient, check_not_cancelled, connected
from bridge.nats.jetstream.client_errors import short, translating
from bridge.nats.jetstream.errors import NatsUnavailable, NoStream, refusal
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.wire import Received, published

log = logging.getLogger("sidecar.mirror")

API: Final = "$JS.API."
_NO_RESPONDERS: Final = "503"

_SENT_AT_ONCE: Final = 256 * 1024
"""How many bytes of message bodies to send before waiting for the socket."""


class JetStream:
    """An open connection, bound to its event loop. Open it with ``connect``, end it with ``close``."""

    def __init__(self, client: GuardedClient, options: ConnectOptions, ended: asyncio.Future[str]) -> None:
        self._client, self._options, self._ended = client, options, ended
        self._inbox = client.new_inbox()
        self._asked = 0
        self._waiting: dict[str, asyncio.Future[Received]] = {}
        self.server = client.facts()
        ended.add_done_callback(self._end_all)

    @classmethod
    async def connect(cls, options: ConnectOptions) -> JetStream:
        """Connect to the first server that accepts the connection.

        Raises:
            NatsRefused: the settings (files, TLS or token) cannot work. No secret was sent.
            NatsUnavailable: no server answered in time.
        """
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        session = cls(await connected(options, ended), options, ended)
        try:
            check_not_cancelled()
            with translating(options):
                await session._client.subscribe_directly(f"{session._inbox}.*", session._answer)
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def is_open(self) -> bool:
        """Whether the connection is usable. A closed connection never opens again."""
        return not self._ended.done()

    async def ended(self) -> str:
        """Wait until the connection has ended and return the reason. Cancelling is safe."""
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Close the connection. Published messages are flushed; pending requests fail. Idempotent."""
        if self._ended.done():
            self._client.abort()
        else:
            self._ended.set_result("it was closed locally")
        await self._client.discard()

    # --- requests ---

    async def begin(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[Received]:
        """Send a request; the returned future yields the answer, without a time limit. Use it with ``answered``.

        Requests reach the server in call order. The future fails with ``NatsUnavailable`` when the connection ends.

        Raises:
            NatsError: sending failed.
        """
        self._check_open()
        self._asked += 1
        token = str(self._asked)
        future: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: self._forget(token, done))
        self._waiting[token] = future
        try:
            await self.send(subject, body, headers, f"{self._inbox}.{token}")
        except BaseException:
            future.cancel()
            raise
        return future

    async def answered(self, what: str, future: asyncio.Future[Received]) -> dict[str, Any]:
        """The JSON of the answer to a request, after at most ``options.request_seconds``. ``what`` names the request.

        Raises:
            ServerRefused: the server refused the request.
            NoStream: nothing answers on the subject.
            NatsUnavailable: no answer came in time, or the connection ended. The request may still have been carried
                out.
        """
        limit = self._options.request_seconds
        try:
            async with asyncio.timeout(limit):
                answer = await future
        except TimeoutError:
            raise NatsUnavailable(f"{what}: the NATS server did not answer within {limit:g} s") from None
        if answer.status == _NO_RESPONDERS:
            raise NoStream(
                f"{what}: nothing answers", "JetStream is off, the stream is missing, or the server is still starting"
            )
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NatsUnavailable(f"{what}: the answer is not from a NATS server")
        if "error" in found:
            raise refusal(what, found["error"])
        return found

    async def api(self, method: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API, for example ``STREAM.INFO.EVENTS``; return the answer's JSON, with times in
        nanoseconds. Raises the same as ``answered``.
        """
        body = b"" if request is None else json.dumps(request).encode()
        return await self.answered(method, await self.begin(API + method, body))

    # --- publishing and subscriptions ---

    async def send_all(self, messages: Sequence[tuple[str, Mapping[str, str], str, bytes]]) -> None:
        """Publish many messages without waiting for answers. Each message is a tuple (subject, headers, more, body).

        ``more`` is the text of further headers: lines of ``Name: value``, each ending in CR LF. ``send_all`` takes a
        sixth of the time of single ``send`` calls, in which the library formats every header again and wakes its writer
        for each message.

        Raises:
            NatsError: sending failed for some of the messages.
        """
        self._check_open()
        with translating(self._options):
            pieces, size = [], 0
            for subject, headers, more, body in messages:
                pieces.append(published(subject, headers, more, body, self.server.max_payload))
                size += len(body)
                if size > _SENT_AT_ONCE:
                    await self._client.send_bytes(b"".join(pieces))
                    pieces, size = [], 0
            await self._client.send_bytes(b"".join(pieces))

    async def send(
        self, subject: str, body: bytes = b"", headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Publish a message without waiting. Without a subscriber, NATS drops it. Answers go to ``reply``.

        Raises:
            NatsError: sending failed.
        """
        self._check_open()
        with translating(self._options):
            await self._client.publish(subject, body, reply=reply, headers=dict(headers) if headers else None)

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    @asynccontextmanager
    async def hearing(self, pattern: str) -> AsyncIterator[Arriving]:
        """Subscribe to ``pattern`` for the duration of the block.

        Messages that the server sent before it saw the unsubscribe still arrive before the block ends.

        Raises:
            NatsError: the server cannot be reached, or ``pattern`` is invalid.
        """
        self._check_open()
        arriving = Arriving(self._end)
        with translating(self._options):
            subscription = await self._client.subscribe_directly(pattern, arriving.add)
        self._ended.add_done_callback(arriving.end)
        try:
            yield arriving
        finally:
            self._ended.remove_done_callback(arriving.end)
            if self.is_open:
                try:
                    # Drain, because the library's ``unsubscribe`` silently loses messages that the server has already
                    # sent.
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await subscription.drain()  # type: ignore[no-untyped-call]
                except Exception as error:  # noqa: BLE001 - the subscription ends with the connection at the latest
                    log.debug("unsubscribing failed: %s", short(error))

    # --- inside ---

    def _check_open(self) -> None:
        if self._ended.done() or self._client.is_closed:
            raise self._end()

    def _end(self) -> NatsUnavailable:
        why = self._ended.result() if self._ended.done() and not self._ended.cancelled() else "it is closing"
        return NatsUnavailable(f"the connection to {self._options.shown} has ended: {why}")

    def _answer(self, message: Received) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    def _forget(self, token: str, done: asyncio.Future[Received]) -> None:
        self._waiting.pop(token, None)
        if not done.cancelled():
            done.exception()  # mark the exception as retrieved, because asyncio would log it for an abandoned request

    def _end_all(self, ended: asyncio.Future[str]) -> None:
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(self._end())


class Arriving:
    """The messages of a subscription, in order. ``why_ended`` makes the error for a connection that has ended."""

    def __init__(self, why_ended: Callable[[], NatsUnavailable]) -> None:
        self._why_ended = why_ended
        self._messages: asyncio.Queue[Received | None] = asyncio.Queue()

    def add(self, message: Received) -> None:
        self._messages.put_nowait(message)

    def end(self, ended: asyncio.Future[str]) -> None:
        self._messages.put_nowait(None)

    def waiting(self) -> list[Received]:
        """Take the messages that are there."""
        found = [self._messages.get_nowait() for _ in range(self._messages.qsize())]
        return [each for each in found if each is not None]

    async def next(self, seconds: float) -> Received:
        """The next message.

        Raises:
            NatsUnavailable: the connection ended, or nothing arrived in ``seconds``.
        """
        if self._messages.empty():
            try:
                async with asyncio.timeout(seconds):
                    message = await self._messages.get()
            except TimeoutError:
                raise NatsUnavailable(f"the NATS server sent nothing for {seconds:g} s") from None
        else:
            message = self._messages.get_nowait()
        if message is None:
            raise self._why_ended()
        return message
