"""One connection to a NATS server with JetStream: requests and their answers, sending and hearing.

A connection ends once and for good: whatever breaks it (the server died, was
stopped, or does not answer pings) ends all that waits on it with
``NatsUnavailable``, and the next one is made anew (``sessions.py``).

The client library is behind ``client.py``; what it raises leaves here as ``client_errors.py`` translates it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from bridge.nats.jetstream.client import CLOSE_SECONDS, GuardedClient, check_not_cancelled, connected
from bridge.nats.jetstream.client_errors import short, told
from bridge.nats.jetstream.errors import NatsUnavailable, NoStream, refusal
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.wire import Received, published

log = logging.getLogger("sidecar.nats")

T = TypeVar("T")

API: Final = "$JS.API."
NO_RESPONDERS: Final = "503"

_SENT_AT_ONCE: Final = 256 * 1024
"""Bytes of bodies after which the socket is waited for."""


class JetStream:
    """A connection that is open. Make one with ``connect``, end it with ``close``; belongs to its event loop."""

    def __init__(self, client: GuardedClient, options: ConnectOptions, ended: asyncio.Future[str]) -> None:
        self._client, self._options, self._ended = client, options, ended
        self._inbox = client.new_inbox()
        self._asked = 0
        self._waiting: dict[str, asyncio.Future[Received]] = {}
        self.server = client.facts()
        ended.add_done_callback(self._end_all)

    @classmethod
    async def connect(cls, options: ConnectOptions) -> JetStream:
        """Connect to the first of the servers that takes us.

        Raises:
            NatsRefused: the settings cannot work: files, TLS, token. Nothing secret was sent.
            NatsUnavailable: no server answered, or not in time.
        """
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        client = await connected(options, ended)
        session = cls(client, options, ended)
        try:
            check_not_cancelled()
            await client.subscribe_queued(f"{session._inbox}.*", session._answered)
        except asyncio.CancelledError:
            await session.close()
            raise
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            await session.close()
            raise told(error, options) from None
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
        await self._client.discard()

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
            raise told(error, self._options) from None
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
                pieces.append(published(subject, headers, more, body, self.server.max_payload))
                size += len(body)
                if size > _SENT_AT_ONCE:
                    await self._client.send_bytes(b"".join(pieces))
                    pieces, size = [], 0
            await self._client.send_bytes(b"".join(pieces))
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            raise told(error, self._options) from None

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
            raise told(error, self._options) from None

    async def flush(self) -> None:
        """Return when the server has taken all that was sent so far.

        Raises:
            NatsUnavailable: it did not in time.
        """
        self._check_open()
        try:
            await self._client.flush(self._options.request_seconds)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - whatever the library raised, it is translated
            raise told(error, self._options) from None

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
            raise told(error, self._options) from None
        try:
            yield
        finally:
            if self.is_open:
                try:
                    # Not ``unsubscribe``: what the server has sent already would be lost, and nobody knew.
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await subscription.drain()  # type: ignore[no-untyped-call]
                except Exception as error:  # noqa: BLE001 - it ends with the connection at the latest
                    log.debug("unsubscribing failed: %s", short(error))

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

    def _answered(self, message: Received) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    def _forget(self, token: str, done: asyncio.Future[Received]) -> None:
        self._waiting.pop(token, None)
        if not done.cancelled():
            done.exception()  # seen: one that nobody awaits any more is no news

    def _end_all(self, ended: asyncio.Future[str]) -> None:
        why = "it was given up" if ended.cancelled() else ended.result()
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(NatsUnavailable(f"the connection to {self._options.shown} ended: {why}"))


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
