"""The clients of the link: ``ShimClient`` (acts as the plugin, for ``play``) and ``ControlClient`` (the command line).

The errors of the websockets package never leave this module. It is imported only when a link is opened, because the
import takes as long as a short command.
Neither client reconnects: the caller decides what to do about a lost link.

If the sidecar answers with an error, the client raises ``RequestError``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from bridge.opencode.link.frames import (
    BATCH_ITEMS,
    MAX_FRAME_BYTES,
    Ack,
    ByeReason,
    Call,
    HookItem,
    Result,
    ShimIdentity,
    Welcome,
)
from bridge.opencode.link.link import ClientLink
from bridge.opencode.link.protocol import CallError, Closed, Event, LocalProtocolError, RequestError
from sidecar.components import Tasks
from sidecar.home import Home
from sidecar.link.local import connected

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = [
    "CallError",
    "ClientError",
    "ControlClient",
    "ImpostorError",
    "LinkClosed",
    "LinkUnavailable",
    "RequestError",
    "ShimClient",
]

_HOST: Final = "127.0.0.1"

OPEN_SECONDS: Final = 5.0
"""How long connecting may take, from the socket to the welcome."""

CLOSE_SECONDS: Final = 2.0
"""How long the sidecar may take to answer a closing handshake."""


class ClientError(Exception):
    code: ClassVar[str] = "link-error"


class LinkUnavailable(ClientError):
    """No link could be opened: ``reason`` says why, and ``hint`` says what to do."""

    code: ClassVar[str] = "sidecar-unavailable"

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}; {hint}")
        self.reason, self.hint = reason, hint


class ImpostorError(LinkUnavailable):
    """The listener could not prove that it holds the token. The listener received only the client's hello."""

    code: ClassVar[str] = "impostor"


class LinkClosed(ClientError):
    """The link ended: the sidecar's ``bye`` reason, or "lost" if the socket closed without a bye."""

    code: ClassVar[str] = "link-closed"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the link to the sidecar closed ({reason})")
        self.reason = reason


class _Client:
    """An open link, with one reader task. Writes are under a lock, so that frames keep their order."""

    def __init__(self, socket: ClientConnection, link: ClientLink, welcome: Welcome) -> None:
        self.welcome = welcome
        self._socket, self._link = socket, link
        self._writing = asyncio.Lock()
        self._progress = asyncio.Event()
        self._ended: str | None = None
        self._answers = Tasks()
        self._reader: asyncio.Task[None] = asyncio.create_task(self._read())

    @property
    def is_open(self) -> bool:
        return self._ended is None

    async def close(self, reason: ByeReason = "disposed") -> None:
        """Say bye and close. Unacknowledged items may or may not be durable. Idempotent."""
        self._end(reason)
        self._link.bye(reason)
        with contextlib.suppress(LinkClosed):  # the link may have ended already, which is no error
            await self._flush()
        await self._answers.cancel(self._reader)
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _flush(self) -> None:
        from websockets.exceptions import ConnectionClosed

        async with self._writing:
            try:
                for text in self._link.data_to_send():
                    await self._socket.send(text)
            except ConnectionClosed:
                raise LinkClosed(self._ended or "lost") from None

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                for event in self._link.receive(await self._socket.recv(decode=False)):
                    if isinstance(event, Closed):
                        self._end(event.reason)
                        await self._flush()
                        await self._socket.close()
                        return
                    self._take(event)
        except (ConnectionClosed, LinkClosed):
            self._end("lost")

    def _take(self, event: Event) -> None:
        raise NotImplementedError

    def _end(self, reason: str) -> None:
        if self._ended is None:
            self._ended = reason
        self._progress.set()

    def need_open(self) -> None:
        if self._ended is not None:
            raise LinkClosed(self._ended)

    async def _wait_for(self, done: Callable[[], bool]) -> None:
        while not done():
            self.need_open()
            self._progress.clear()
            await self._progress.wait()


class ShimClient(_Client):
    """A link that acts as the plugin.

    The caller owns the seqs: the caller numbers the items and, after losing a link, resends everything above ``acked``
    on a new link.
    """

    @classmethod
    async def connect(
        cls,
        home: Home,
        *,
        identity: ShimIdentity,
        nonce: Callable[[], str],
        open_seconds: float = OPEN_SECONDS,
    ) -> Self:
        """Open a link.

        Raises:
            LinkUnavailable, ImpostorError: see these classes.
            HomeError: the token of ``home`` is missing or cannot be trusted.
        """
        return cls(*await _open(home, identity.shim_version, identity.pid, identity, nonce, open_seconds))

    @property
    def acked(self) -> int:
        """Everything up to this seq is durable; starts with the value in the sidecar's welcome."""
        return self._link.acked

    async def send(self, items: Sequence[HookItem], *, first_seq: int | None = None) -> int:
        """Send ``items``; return the last seq. Waits while the window is full, but not for the last acks.

        ``first_seq`` defaults to the seq after the last one sent, or to 1 if none was sent. Items up to ``acked`` are
        skipped. After a cancellation, some of the first items may have been sent.

        Raises:
            LinkClosed: the link ended; items up to ``acked`` need not be sent again.
            LocalProtocolError: ``first_seq`` was already sent.
        """
        seq = self._link.last_sent + 1 if first_seq is None else first_seq
        last = seq + len(items) - 1
        start = min(max(0, self._link.acked + 1 - seq), len(items))
        while start < len(items):
            await self._wait_for(lambda: self._link.room > 0)
            self.need_open()
            part = items[start : start + min(self._link.room, BATCH_ITEMS)]
            self._link.send_hooks(seq + start, part)
            start += len(part)
            await self._flush()
        return last

    async def drained(self) -> None:
        """Wait until everything that was sent is durable.

        Raises:
            LinkClosed: the link ended before everything was durable.
        """
        await self._wait_for(lambda: self._link.in_flight == 0)

    async def called(self, method: str, args: dict[str, Any]) -> Any:
        """The answer to a call of the sidecar. Raises ``CallError``, because this link has no OpenCode."""
        raise CallError("unavailable", "this link has no OpenCode")

    def _take(self, event: Event) -> None:
        if isinstance(event, Ack):
            self._progress.set()
        elif isinstance(event, Call):
            self._answers.spawn(self._answer(event))

    async def _answer(self, event: Call) -> None:
        value: Any = None
        failure: CallError | None = None
        try:
            value = await self.called(event.method, event.args)
        except CallError as error:
            failure = error
        try:
            self._link.result(event.id, value, failure)
            await self._flush()
        except (LinkClosed, LocalProtocolError) as error:
            logging.getLogger("sidecar.link").debug("an answer was not sent: %s", error)


class ControlClient(_Client):
    """A link that acts as the command line."""

    def __init__(self, socket: ClientConnection, link: ClientLink, welcome: Welcome) -> None:
        self._requests: dict[str, asyncio.Future[Any]] = {}
        self._count = 0
        super().__init__(socket, link, welcome)

    @classmethod
    async def connect(
        cls,
        home: Home,
        *,
        version: str,
        nonce: Callable[[], str],
        open_seconds: float = OPEN_SECONDS,
    ) -> Self:
        """Open a link.

        Raises:
            LinkUnavailable, ImpostorError: see these classes.
            HomeError: the token of ``home`` is missing or cannot be trusted.
        """
        return cls(*await _open(home, version, os.getpid(), None, nonce, open_seconds))

    async def request(self, method: str, args: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the answer's value. Waits as long as the sidecar is working on the request.

        Cancelling ends the wait; closing the link afterwards also cancels the work.

        Raises:
            RequestError: the sidecar's answer is an error.
            LinkClosed: the link ended before the answer came; the work may or may not be done.
        """
        self.need_open()
        self._count += 1
        request_id = f"r{self._count}"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._link.request(request_id, method, args or {})
        self._requests[request_id] = future
        try:
            await self._flush()
            return await future
        finally:
            self._requests.pop(request_id, None)

    def _take(self, event: Event) -> None:
        if not isinstance(event, Result):
            return
        future = self._requests.pop(str(event.id), None)
        if future is None or future.done():
            return  # the caller cancelled the request
        if event.error is None:
            future.set_result(event.value)
        else:
            error = event.error
            future.set_exception(RequestError(error.code, error.message, error.status))

    def _end(self, reason: str) -> None:
        super()._end(reason)
        for future in self._requests.values():
            if not future.done():
                future.set_exception(LinkClosed(reason))


async def _open(
    home: Home,
    version: str,
    pid: int,
    identity: ShimIdentity | None,
    nonce: Callable[[], str],
    open_seconds: float,
) -> tuple[ClientConnection, ClientLink, Welcome]:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus, WebSocketException

    info = home.running()
    if info is None:
        raise LinkUnavailable(f"no sidecar is running for {home.path}", "start it with `durable-stream serve`")
    token, where = home.read_token(), f"{_HOST}:{info.port}"
    again = "try again, or run `durable-stream status`"
    socket: ClientConnection | None = None
    try:
        async with asyncio.timeout(open_seconds):
            # Named again, so that no answer can lead the client elsewhere.
            to: dict[str, Any] = {"host": _HOST, "port": info.port}
            if identity is None and (own := connected(home.path)) is not None:
                to = {"sock": own}  # over it, the sidecar knows which process asks
            socket = await connect(
                f"ws://{where}",
                **to,
                proxy=None,
                compression=None,
                user_agent_header=None,
                max_size=MAX_FRAME_BYTES,
                open_timeout=None,
                close_timeout=CLOSE_SECONDS,
                ping_interval=None,
            )
            link = ClientLink(token=token, port=info.port, nonce=nonce(), version=version, pid=pid, shim=identity)
            return socket, link, await _welcome(socket, link)
    except TimeoutError:
        reason = f"the sidecar at {where} did not answer within {open_seconds:g} s"
        failure = LinkUnavailable(reason, again)
    except InvalidStatus as error:
        reason = f"the sidecar at {where} refused the connection (HTTP {error.response.status_code})"
        failure = LinkUnavailable(reason, again)
    except (WebSocketException, ValueError):
        reason = f"the program listening at {where} does not behave like a sidecar"
        failure = LinkUnavailable(reason, "run `durable-stream status`")
    except OSError as error:
        reason = f"nothing answers at {where} ({error.strerror or type(error).__name__})"
        failure = LinkUnavailable(reason, "start the sidecar with `durable-stream serve`")
    except LinkUnavailable as error:
        failure = error
    except asyncio.CancelledError:
        if socket is not None:
            socket.transport.abort()
        raise
    if socket is not None:
        socket.transport.abort()
    raise failure from None


async def _welcome(socket: ClientConnection, link: ClientLink) -> Welcome:
    """Run the handshake from hello to welcome. An impostor sees only the client's hello and a closed socket."""
    while True:
        for text in link.data_to_send():
            await socket.send(text)
        for event in link.receive(await socket.recv(decode=False)):
            if isinstance(event, Welcome):
                return event
            if isinstance(event, Closed):
                raise _refusal(event)


def _refusal(event: Closed) -> LinkUnavailable:
    match event.reason:
        case "impostor":
            hint = "stop that program, then start the sidecar with `durable-stream serve`"
            return ImpostorError("the program listening on the sidecar's port does not have this home's token", hint)
        case "unsupported":
            hint = (
                "use the same version of durable-stream for this command and the sidecar, or run `durable-stream stop` "
                "and try again"
            )
            return LinkUnavailable(event.detail or "the running sidecar speaks another link protocol", hint)
        case "draining" | "upgrade":
            return LinkUnavailable("the sidecar is stopping", "try again in a moment")
        case _:
            return LinkUnavailable(f"the sidecar ended the handshake ({event.reason})", "try again")
