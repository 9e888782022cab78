"""A real link server and raw peers for tests of the link."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from bridge.opencode.link.frames import HookItem
from bridge.opencode.link.protocol import CallError, Refused, proof
from sidecar.home import Home, SidecarInfo
from sidecar.link.server import LinkServer, RequestError, ShimConnection

TOKEN = "7e" * 32
HANG = 20.0
_nonces = count(1)


def nonce() -> str:
    return f"{next(_nonces):064x}"


class Recorder:
    """A handler that notes what it receives; unless ``auto``, the test finishes items."""

    def __init__(self, auto: bool = True) -> None:
        self.auto = auto
        self.links: asyncio.Queue[ShimConnection] = asyncio.Queue()
        self.batches: asyncio.Queue[tuple[ShimConnection, int, list[HookItem]]] = asyncio.Queue()
        self.lossy_items: asyncio.Queue[list[HookItem]] = asyncio.Queue()
        self.ended: asyncio.Queue[ShimConnection] = asyncio.Queue()
        self.refusals: list[Refused] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.on_open: Callable[[ShimConnection], Awaitable[None]] | None = None
        self.on_hooks: Callable[[ShimConnection, int, list[HookItem]], Awaitable[None]] | None = None

    async def opened(self, link: ShimConnection) -> None:
        if self.on_open is not None:
            await self.on_open(link)
        self.links.put_nowait(link)

    async def hooks(self, link: ShimConnection, first_seq: int, items: list[HookItem]) -> None:
        self.batches.put_nowait((link, first_seq, items))
        if self.on_hooks is not None:
            await self.on_hooks(link, first_seq, items)
        await self.gate.wait()
        if self.auto:
            link.finish(range(first_seq, first_seq + len(items)))

    async def ready(self, link: ShimConnection) -> None:
        return

    async def tool(self, link: ShimConnection, name: str, args: dict[str, Any], context: dict[str, Any]) -> Any:
        raise CallError("unknown_tool", name)

    def lossy(self, link: ShimConnection, items: list[HookItem]) -> None:
        self.lossy_items.put_nowait(items)

    def refused(self, peer: Refused) -> None:
        self.refusals.append(peer)

    async def closed(self, link: ShimConnection) -> None:
        self.ended.put_nowait(link)

    async def request(self, method: str, args: dict[str, Any]) -> Any:
        match method:
            case "echo":
                return args
            case "refuse":
                raise RequestError("busy", "not now")
            case "fail":
                raise KeyError("sk-secret-1")
            case "strange":
                return object()
            case "wait":
                await self.gate.wait()
                return "waited"
        raise RequestError("unknown-request", method)


@asynccontextmanager
async def serving(handler: Recorder | None = None, **options: Any) -> AsyncIterator[LinkServer]:
    handler = handler or Recorder()
    async with asyncio.timeout(HANG):
        server = LinkServer(handler, token=TOKEN, nonce=nonce, boot="boot", version="0.1", **options)
        await server.start()
        try:
            yield server
        finally:
            await server.drain()


class Address(Home):
    """A home without files, whose sidecar listens on a port."""

    def __init__(self, port: int, token: str = TOKEN) -> None:
        super().__init__("/nowhere")
        self._port, self._token = port, token

    def running(self) -> SidecarInfo:
        return SidecarInfo(1, self._port, "boot", "0.1", 1, 0)

    def read_token(self) -> str:
        return self._token


class Peer:
    """A raw websocket that can do the handshake, and anything else."""

    def __init__(self, socket: ClientConnection, port: int) -> None:
        self.socket, self.port = socket, port

    async def say(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def hear(self) -> dict[str, Any]:
        return json.loads(await self.socket.recv())  # type: ignore[no-any-return]

    async def shake(self, role: str = "shim", token: str = TOKEN, instance: str = "cd" * 8) -> dict[str, Any]:
        mine = nonce()
        await self.say(type="hello", role=role, protocol=1, nonce=mine)
        challenge = await self.hear()
        assert challenge["proof"] == proof(TOKEN, "sidecar", self.port, mine, challenge["nonce"])
        right = proof(token, role, self.port, mine, challenge["nonce"])
        shim = {
            "shim_version": "1",
            "boot_id": "ab" * 16,
            "instance": instance,
            "project": "p",
            "directory": "/d",
            "worktree": "/",
            "opencode_version": "1.18",
            "last_seq": 0,
        }
        await self.say(type="identify", proof=right, pid=7, **(shim if role == "shim" else {"client_version": "1"}))
        return await self.hear()

    async def hooks(self, first_seq: int, number: int = 1, text: str = "") -> None:
        items = [{"hook": "event", "t": 1, "input": text, "output": None}] * number
        await self.say(type="hooks", first_seq=first_seq, items=items)

    async def code(self) -> int | None:
        """Wait for the end and return the server's close code."""
        await self.socket.wait_closed()
        return self.socket.close_code


@asynccontextmanager
async def peer(server: LinkServer, **options: Any) -> AsyncIterator[Peer]:
    url = f"ws://127.0.0.1:{server.port}/"
    async with connect(url, compression=None, max_size=None, close_timeout=1, **options) as socket:
        yield Peer(socket, server.port)


async def works(server: LinkServer, instance: str = "ee" * 8) -> None:
    """Check that the server still serves: a new link opens, and an item on it is acknowledged."""
    async with peer(server) as other:
        assert (await other.shake(instance=instance))["type"] == "welcome"
        first = 1 + server.links[-1].acked_seq
        await other.hooks(first)
        assert await other.hear() == {"type": "ack", "seq": first}
