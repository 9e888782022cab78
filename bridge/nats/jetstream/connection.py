"""One connection to a NATS server with JetStream: requests, publishing and subscriptions.

A connection that ends stays closed. If the server dies, stops or no longer answers pings, everything waiting on the
connection fails with ``NatsUnavailable``; ``sessions.py`` opens the next connection.

``client.py`` wraps the client library, and ``client_errors.py`` translates its errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from bridge.nats.jetstream.client import CLOSE_SECONDS, GuardedClient, check_not_cancelled, connected
from bridge.nats.jetstream.client_errors import short, translated
from bridge.nats.jetstream.errors import NatsUnavailable, NoStream, refusal
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.wire import Received, published

log = logging.getLogger("sidecar.mirror")

T = TypeVar("T")

API: Final = "$JS.API."
NO_RESPONDERS: Final = "503"

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
        client = await connected(options, ended)
        session = cls(client, options, ended)
        try:
            check_not_cancelled()
            await client.subscribe_directly(f"{session._inbox}.*", session._answered)
        except asyncio.CancelledError:
            await session.close()
            raise
        except Exception as error:  # noqa: BLE001 - every error of the library is translated
            await session.close()
            raise translated(error, options) from None
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

    # --- asking ---

    async def begin(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[Received]:
        """Send a request; the returned future yields the answer, without a time limit.

        Requests reach the server in call order. The
        future fails with ``NatsUnavailable`` when the connection ends.

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
            await self._client.publish(
                subject, body, reply=f"{self._inbox}.{token}", headers=dict(headers) if headers else None
            )
        except Exception as error:  # noqa: BLE001 - every error of the library is translated
            future.cancel()
            raise translated(error, self._options) from None
        return future

    async def ask(self, subject: str, body: bytes = b"") -> Received:
        """Send a request and wait for its answer for at most ``options.request_seconds``.

        Raises:
            NoStream: nothing is listening on the subject.
            NatsUnavailable: no answer came in time, or the connection ended. The request may still have been carried
                out.
        """
        limit = self._options.request_seconds
        future = await self.begin(subject, body)
        try:
            async with asyncio.timeout(limit):
                answer = await future
        except TimeoutError:
            raise NatsUnavailable(f"the NATS server did not answer within {limit:g} s") from None
        if answer.status == NO_RESPONDERS:
            raise NoStream(
                f"nothing is listening on {subject}", "the stream is missing, or the server is still starting"
            )
        return answer

    async def api(self, method: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API, for example ``STREAM.INFO.EVENTS``; return the answer's JSON, with times in
        nanoseconds.

        Raises:
            ServerRefused: the server refused the request.
            NatsUnavailable: no answer came; JetStream may be turned off on the server.
        """
        body = b"" if request is None else json.dumps(request).encode()
        try:
            answer = await self.ask(API + method, body)
        except NoStream:
            raise NatsUnavailable(
                "JetStream does not answer", "enable JetStream on the server, or wait until the server has started"
            ) from None
        return decoded(method, answer)

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
        try:
            pieces, size = [], 0
            for subject, headers, more, body in messages:
                pieces.append(published(subject, headers, more, body, self.server.max_payload))
                size += len(body)
                if size > _SENT_AT_ONCE:
                    await self._client.send_bytes(b"".join(pieces))
                    pieces, size = [], 0
            await self._client.send_bytes(b"".join(pieces))
        except Exception as error:  # noqa: BLE001 - every error of the library is translated
            raise translated(error, self._options) from None

    async def send(
        self, subject: str, body: bytes = b"", headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Publish a message without waiting. Without a subscriber, NATS drops it. Answers go to ``reply``.

        Raises:
            NatsError: sending failed.
        """
        self._check_open()
        try:
            await self._client.publish(subject, body, reply=reply, headers=dict(headers) if headers else None)
        except Exception as error:  # noqa: BLE001 - every error of the library is translated
            raise translated(error, self._options) from None

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    @asynccontextmanager
    async def hearing(self, pattern: str, on_message: Callable[[Received], None]) -> AsyncIterator[None]:
        """Subscribe to ``pattern`` for the duration of the block; ``on_message`` gets each message in order and must
        not block.

        Messages that the server sent before it saw the unsubscribe are still delivered before the block ends.

        Raises:
            NatsError: the server cannot be reached, or ``pattern`` is invalid.
        """
        self._check_open()

        try:
            subscription = await self._client.subscribe_directly(pattern, on_message)
        except Exception as error:  # noqa: BLE001 - every error of the library is translated
            raise translated(error, self._options) from None
        try:
            yield
        finally:
            if self.is_open:
                try:
                    # Drain, because the library's ``unsubscribe`` silently loses messages that the server has already
                    # sent.
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await subscription.drain()  # type: ignore[no-untyped-call]
                except Exception as error:  # noqa: BLE001 - the subscription ends with the connection at the latest
                    log.debug("unsubscribing failed: %s", short(error))

    async def while_open(self, awaited: Coroutine[Any, Any, T]) -> T:
        """The result of ``awaited``, unless the connection ends first.

        Raises:
            NatsUnavailable: the connection ended.
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

    def _answered(self, message: Received) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    def _forget(self, token: str, done: asyncio.Future[Received]) -> None:
        self._waiting.pop(token, None)
        if not done.cancelled():
            done.exception()  # mark the exception as retrieved, because asyncio would log it for an abandoned request

    def _end_all(self, ended: asyncio.Future[str]) -> None:
        why = "it was cancelled" if ended.cancelled() else ended.result()
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(NatsUnavailable(f"the connection to {self._options.shown} ended: {why}"))


def decoded(what: str, answer: Received) -> dict[str, Any]:
    """The JSON of an answer.

    Raises:
        ServerRefused: the answer is an error.
        NatsUnavailable: the answer is not a JSON object.
    """
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NatsUnavailable(f"{what}: the answer is not from a NATS server")
    if "error" in found:
        raise refusal(what, found["error"])
    return found


async def waited(future: Awaitable[Received], seconds: float) -> Received:
    """Wait at most ``seconds`` for the answer to a request that ``begin`` sent.

    Raises:
        NatsUnavailable: no answer in time, or the connection ended.
    """
    try:
        async with asyncio.timeout(seconds):
            return await future
    except TimeoutError:
        raise NatsUnavailable(f"the NATS server did not answer within {seconds:g} s") from None
