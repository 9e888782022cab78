"""The interface between links and the sidecar: ``Handler``, which the sidecar implements, and the connection of each
role: ``ShimConnection`` and ``ControlConnection``.

``server.py`` and ``connection.py`` handle sockets, and no websocket error can appear in this module.

A shim's link runs three tasks: a reader, a writer, and a worker that awaits the
handler's ``hooks``. Reader and worker are separate so that a handler may await
a ``call`` on the link whose hooks it is handling.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from bridge.opencode.link.frames import HookItem, Hooks, Lossy, Request, Result, ShimIdentity, Tool
from bridge.opencode.link.protocol import (
    CallError,
    Closed,
    LocalProtocolError,
    Refused,
    RemoteError,
    RequestError,
    State,
)
from sidecar.components import Tasks
from sidecar.link.connection import Connection

MAX_QUEUED_BYTES: Final = 8 * 1024 * 1024
"""How many bytes of hooks may wait for a link's handler before the sidecar stops reading the link's socket."""

MAX_REMEMBERED: Final = 4096
"""For how many shim instances the acked seq is remembered across reconnects."""

MAX_REQUESTS: Final = 32
"""Maximum number of requests from one control connection that run at the same time."""

INTERNAL_ERROR: Final = 1011
"""Close code of a link whose handler failed."""


class Handler(Protocol):
    """The sidecar's reactions to its links. An exception from any of these methods closes only that link."""

    async def opened(self, link: ShimConnection) -> None:
        """Called when a shim has authenticated; the welcome goes out when this returns.

        May increase ``link.acked_seq`` and call ``link.push_context``. Must not await ``link.call``,
        because the shim answers calls only after the welcome.
        """

    async def hooks(self, link: ShimConnection, first_seq: int, items: list[HookItem]) -> None:
        """Handle new items with consecutive seqs from ``first_seq``; for each link, this is called in order, one call
        at a time.

        While a call is running, further items queue up; beyond a limit the shim is slowed down. Pass each seq to
        ``link.finish``, now or later and in any order, once the item is durable or known to produce no event.
        """

    async def ready(self, link: ShimConnection) -> None:
        """Called once, in the background, after a shim was welcomed. From then on, the shim answers calls."""

    async def tool(self, link: ShimConnection, name: str, args: dict[str, Any], context: dict[str, Any]) -> Any:
        """Answer a tool call with a JSON value; other frames are handled at the same time.

        Raises:
            CallError: the error is sent to the plugin, which shows it to the model.
        """

    def lossy(self, link: ShimConnection, items: list[HookItem]) -> None:
        """Take items that may be lost and get no ack."""

    async def closed(self, link: ShimConnection) -> None:
        """Called when the link has ended. ``hooks`` will not be called again; ``link.reason`` may give the reason.

        Called once for each ``opened`` that returned, after the last ``hooks``.
        """

    def refused(self, peer: Refused) -> None:
        """Called when a peer that holds the token was refused because of its protocol version."""

    async def request(self, method: str, args: dict[str, Any]) -> Any:
        """Answer a request from the command line with a JSON value. The call is cancelled when the client disconnects.

        This method must not await ``LinkServer.drain``, because ``drain`` waits for this method.

        Raises:
            RequestError: the error is sent to the caller with its code and message.
        """


class AckMemory:
    """The acked seq of each instance, kept across its links while this sidecar runs."""

    def __init__(self) -> None:
        self._acked: OrderedDict[tuple[str, str], int] = OrderedDict()

    def get(self, key: tuple[str, str]) -> int:
        return self._acked.get(key, 0)

    def note(self, key: tuple[str, str], acked: int) -> None:
        """Remember that everything up to ``acked`` is durable. The remembered value never decreases."""
        self._acked[key] = max(acked, self.get(key))
        self._acked.move_to_end(key)
        if len(self._acked) > MAX_REMEMBERED:
            self._acked.popitem(last=False)


class ShimConnection(Connection):
    """One open link of one plugin instance, as the handler sees it.

    ``acked_seq`` is sent in the welcome. Set ``acked_seq`` in ``Handler.opened`` if more is known to be durable than
    this server remembers of the instance.
    """

    def __init__(
        self,
        first: Connection,
        identity: ShimIdentity,
        here: int,
        memory: AckMemory,
        failed: Callable[[str, Exception], None],
    ) -> None:
        super().__init__(first.socket, first.link, first.counters)
        self.identity = identity
        self.shim_version = identity.shim_version
        self.boot_id = identity.boot_id
        self.instance = identity.instance
        self.pid, self.here = identity.pid, here
        """``here`` is its pid in the sidecar's pid namespace."""
        self.project = identity.project
        self.directory = identity.directory
        self.worktree = identity.worktree
        self.opencode_version = identity.opencode_version
        self.last_seq = identity.last_seq
        self.acked_seq = memory.get(self.key)
        self._memory, self._failed = memory, failed
        self._context: dict[str, Any] = {}
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._call_count = 0
        self._open = asyncio.Event()  # set when the link is welcomed, or closed before that
        self._closed = False
        self._queue: asyncio.Queue[tuple[Hooks, int] | None] = asyncio.Queue()
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._moved = asyncio.Event()
        self._tasks = Tasks()

    @property
    def key(self) -> tuple[str, str]:
        """(boot_id, instance): each such pair numbers its own seqs."""
        return self.boot_id, self.instance

    @property
    def is_open(self) -> bool:
        """True if the shim was welcomed and neither the shim nor the sidecar has said bye."""
        return not self._closed and self.link.is_open

    async def call(self, method: str, args: Mapping[str, Any], timeout: float = 10.0) -> Any:  # noqa: ASYNC109
        """Have the shim call a method of OpenCode's client; return the response's data.

        ``timeout`` is in seconds and includes waiting for the welcome.
        Cancelling ends the wait but does not stop the method.

        Raises:
            CallError: the shim's own code, or ``timeout``, ``closed``, ``too_large``.
            FrameError: ``args`` contains something that JSON cannot represent.
        """
        self._call_count += 1
        call_id = f"c{self._call_count}"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._open.wait()
                if not self.is_open or self.crowded():
                    raise CallError("closed", "the link is closed")
                self.link.call(call_id, method, args)
                self._calls[call_id] = future
                self.wake()
                return await future
        except LocalProtocolError as error:
            raise CallError("too_large", str(error)) from None
        except TimeoutError:
            raise CallError("timeout", f"no answer to {method} within {timeout:g} s") from None
        finally:
            self._calls.pop(call_id, None)

    def finish(self, seqs: Iterable[int]) -> None:
        """Mark items as durable, or as producing no event. One cumulative ack is sent per tick of the event loop.

        Items may be finished even after the link has closed, so that an instance that reconnects need not resend these
        items.

        Raises:
            ValueError: a seq was never received on this link.
        """
        if self.link.finish(seqs):
            self._memory.note(self.key, self.link.acks.acked)
            self._moved.set()
            self.wake()

    def push_context(self, context: Mapping[str, Any]) -> None:
        """Replace the shim's context. Before the welcome, this sets the context that the welcome carries."""
        self._context = dict(context)
        if self.is_open and not self.crowded():
            self.link.push_context(self._context)
            self.wake()

    async def settled(self) -> None:
        """Wait until everything received is acknowledged, or the link ends. Cancelling is safe."""
        while self.is_open and self.link.acks.unacked:
            self._moved.clear()
            await self._moved.wait()

    async def serve(self, handler: Handler) -> None:
        """Serve the link until it ends. Called by the server, not by the handler."""
        if self.link.state is not State.CLOSED:  # the link may have been drained while being opened
            self.link.welcome(acked_seq=self.acked_seq, context=self._context)
        self._open.set()
        writer = asyncio.create_task(self.write())
        worker = asyncio.create_task(self._work(handler))
        self._tasks.spawn(self._ready(handler))
        try:
            await self._read(handler)
            self.end()
            self.wake()
            self._queue.put_nowait(None)
            # Wait until the items that the shim delivered before it died are written.
            await worker
            await writer
        finally:
            self.end()
            await self._tasks.cancel(worker, writer)

    async def _read(self, handler: Handler) -> None:
        while (got := await self.read()) is not None:
            for event in got[0]:
                match event:
                    case Hooks():
                        self.counters.repaired_values += event.repaired
                        self._queued_bytes += got[1]
                        self._queue.put_nowait((event, got[1]))
                    case Result():
                        self._answer(event)
                    case Lossy():
                        handler.lossy(self, event.items)
                    case Tool():
                        self._tasks.spawn(self._tool(handler, event))
                        await asyncio.sleep(0)  # one chunk of bytes may hold a thousand calls; let each begin in turn
                    case Closed():
                        self.noted(event)
                        return
                    case _:
                        raise AssertionError(type(event).__name__)
            self.wake()  # send a repeated ack or the answer to a tool call
            if self.crowded():
                return
            while self._queued_bytes > MAX_QUEUED_BYTES:
                self._room.clear()
                await self._room.wait()

    async def _tool(self, handler: Handler, event: Tool) -> None:
        value: Any = None
        failed: CallError | None = None
        try:
            value = await handler.tool(self, event.name, event.args, event.context)
        except CallError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - whatever happens in the handler, the model gets an answer
            self._failed("tool", error)
            failed = CallError("internal", "this call failed in the sidecar; the sidecar's log says why")
        if self.is_open:
            self.link.result(event.id, value, failed)
            self.wake()

    async def _ready(self, handler: Handler) -> None:
        try:
            await handler.ready(self)
        except Exception as error:  # noqa: BLE001 - the link itself is fine
            self._failed("ready", error)

    async def _work(self, handler: Handler) -> None:
        while (entry := await self._queue.get()) is not None:
            batch, size = entry
            try:
                await handler.hooks(self, batch.first_seq, batch.items)
            except Exception as error:  # noqa: BLE001 - whatever happens in the handler, other links continue
                self._failed("hooks", error)
                # On this bye, the shim reconnects and resends what was not acknowledged.
                self.bye("draining", INTERNAL_ERROR)
                self._queued_bytes = 0
                self._room.set()
                return
            self._queued_bytes -= size
            self._room.set()

    def _answer(self, event: Result) -> None:
        future = self._calls.pop(str(event.id), None)
        if future is None or future.done():
            return  # the answer is too late, because the call timed out
        if event.error is None:
            future.set_result(event.value)
        else:
            error = event.error
            future.set_exception(CallError(error.code, error.message, error.status))

    def end(self) -> None:
        """Fail the pending calls."""
        self._closed = True
        self._open.set()
        self._moved.set()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(CallError("closed", "the link closed before the answer arrived"))
        self._calls.clear()


class ControlConnection(Connection):
    """The link of one command of the command line."""

    def __init__(self, first: Connection, failed: Callable[[str, Exception], None]) -> None:
        super().__init__(first.socket, first.link, first.counters)
        self._failed = failed

    async def serve(self, handler: Handler) -> None:
        """Answer requests until the link ends."""
        self.link.welcome()
        writer, requests = asyncio.create_task(self.write()), Tasks()
        try:
            while (got := await self.read()) is not None:
                for event in got[0]:
                    if isinstance(event, Closed):
                        self.noted(event)
                        await writer
                        return
                    if isinstance(event, Request):
                        requests.spawn(self._answer(handler, event))
                if len(requests) >= MAX_REQUESTS:
                    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
                await self.until_fewer(MAX_REQUESTS)  # a peer that does not read its answers sends no more requests
        finally:
            await requests.cancel(writer)

    async def _answer(self, handler: Handler, event: Request) -> None:
        value: Any = None
        failure: RemoteError | None = None
        try:
            value = await handler.request(event.method, event.args)
        except RemoteError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the caller gets an error, the server continues
            self._failed(f"request {event.method[:40]!r}", error)
            failure = RequestError(
                "unexpected", f"the sidecar failed with {type(error).__name__}; see the sidecar's log"
            )
        try:
            self.link.result(event.id, value, failure)
        except (LocalProtocolError, ValueError) as error:
            self.link.result(event.id, error=RequestError("bad-answer", str(error)))
        self.wake()
