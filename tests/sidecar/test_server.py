"""The listening end over real sockets, with peers that behave and peers that do not.

Most tests speak raw websocket or raw TCP, so that a fault in our own client cannot hide one here.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bridge.opencode.frames import HookItem
from bridge.opencode.link import proof
from sidecar import server as server_module
from sidecar.links import MAX_QUEUED_BYTES
from sidecar.server import CallError, LinkServer, RequestError, ShimConnection

TOKEN = "7e" * 32
HANG = 20.0
_nonces = count(1)


def nonce() -> str:
    return f"{next(_nonces):064x}"


class Recorder:
    """A handler that notes what it gets; finishing is up to the test unless ``auto``."""

    def __init__(self, auto: bool = True) -> None:
        self.auto = auto
        self.links: asyncio.Queue[ShimConnection] = asyncio.Queue()
        self.batches: asyncio.Queue[tuple[ShimConnection, int, list[HookItem]]] = asyncio.Queue()
        self.lossy_items: asyncio.Queue[list[HookItem]] = asyncio.Queue()
        self.ended: asyncio.Queue[ShimConnection] = asyncio.Queue()
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

    def lossy(self, link: ShimConnection, items: list[HookItem]) -> None:
        self.lossy_items.put_nowait(items)

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
        raise RequestError("unknown_method", method)


@asynccontextmanager
async def serving(handler: Recorder | None = None, **options: Any) -> AsyncIterator[LinkServer]:
    handler = handler or Recorder()
    async with asyncio.timeout(HANG):
        async with LinkServer(handler, token=TOKEN, nonce=nonce, boot="boot", version="0.1", **options) as server:
            yield server


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
        """Wait for the end; the close code the server gave."""
        await self.socket.wait_closed()
        return self.socket.close_code


@asynccontextmanager
async def peer(server: LinkServer, **options: Any) -> AsyncIterator[Peer]:
    url = f"ws://127.0.0.1:{server.port}/"
    async with connect(url, compression=None, max_size=None, close_timeout=1, **options) as socket:
        yield Peer(socket, server.port)


async def works(server: LinkServer, instance: str = "ee" * 8) -> None:
    """The server still serves: a fresh link opens, and an item on it is acknowledged."""
    async with peer(server) as other:
        assert (await other.shake(instance=instance))["type"] == "welcome"
        first = 1 + server.links[-1].acked_seq
        await other.hooks(first)
        assert await other.hear() == {"type": "ack", "seq": first}


# --- the door ---


async def test_a_right_proof_is_welcomed_and_known_to_the_handler() -> None:
    handler = Recorder()
    async with serving(handler) as server, peer(server) as shim:
        welcome = await shim.shake()
        assert (welcome["type"], welcome["sidecar_boot"], welcome["acked_seq"], welcome["window"]) == (
            "welcome",
            "boot",
            0,
            512,
        )
        link = await handler.links.get()
        assert (link.key, link.pid, link.directory, link.opencode_version) == (("ab" * 16, "cd" * 8), 7, "/d", "1.18")
        assert server.links == (link,)
        await shim.say(type="bye", reason="disposed")
        assert await shim.code() == 1000
        assert await handler.ended.get() is link
        assert link.reason == "disposed"
        assert server.links == ()


async def test_a_wrong_proof_is_refused_and_counted() -> None:
    handler = Recorder()
    async with serving(handler) as server:
        async with peer(server) as shim:
            assert await shim.shake(token="00" * 32) == {"type": "bye", "reason": "auth"}
            assert await shim.code() == 1008
        assert server.counters.failed_proofs == 1
        assert handler.links.empty()
        await works(server)


async def test_many_wrong_proofs_get_no_answer_but_lock_nobody_out() -> None:
    async with serving(handshake_seconds=0.5) as server:
        for _ in range(server_module.FAILED_PROOFS):
            async with peer(server) as shim:
                await shim.shake(token="00" * 32)
        async with peer(server) as shim:
            with pytest.raises(ConnectionClosed):
                await shim.shake(token="00" * 32)
        await works(server)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1"])
async def test_a_browser_is_refused(origin: str) -> None:
    async with serving() as server:
        with pytest.raises(InvalidStatus) as refused:
            async with peer(server, additional_headers={"Origin": origin}):
                raise AssertionError("opened")
        assert refused.value.response.status_code == 403
        assert "Access-Control-Allow-Origin" not in refused.value.response.headers
        assert server.counters.refused_origin == 1


async def http(server: LinkServer, *headers: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = [
        "GET / HTTP/1.1",
        *headers,
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode())
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST"])
async def test_the_own_host_names_are_taken(host: str) -> None:
    async with serving() as server:
        assert b" 101 " in await http(server, f"Host: {host}:{server.port}")


@pytest.mark.parametrize(
    "headers",
    [
        ["Host: evil.example:{port}"],
        ["Host: 127.0.0.1"],
        ["Host: 127.0.0.1:1"],
        ["Host: 127.0.0.1.evil.example:{port}"],
        ["Host: 127.0.0.1:{port}", "Host: evil.example"],
        [],
    ],
)
async def test_another_host_is_refused(headers: list[str]) -> None:
    async with serving() as server:
        answer = await http(server, *(header.format(port=server.port) for header in headers))
        assert b" 403 " in answer
        assert server.counters.refused_host == 1


async def test_too_many_links_are_refused_and_room_is_given_back() -> None:
    handler = Recorder()
    async with serving(handler, max_connections=2) as server:
        async with peer(server) as one, peer(server) as two:
            await one.shake(instance="01" * 8)
            await two.shake(instance="02" * 8)
            with pytest.raises(InvalidStatus) as refused:
                async with peer(server):
                    raise AssertionError("opened")
            assert refused.value.response.status_code == 503
            assert server.counters.refused_busy == 1
        await handler.ended.get()
        await handler.ended.get()
        await works(server)


async def test_sockets_that_say_nothing_are_bounded_before_any_request() -> None:
    async with serving(max_connections=3) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert server.counters.refused_busy == 1
        for _, other in [*idle, (reader, writer)]:
            other.close()


async def test_a_slow_request_is_cut() -> None:
    async with serving(handshake_seconds=0.2) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127")  # and never the rest
        assert await reader.read() == b""
        writer.close()
        await works(server)


@pytest.mark.parametrize("hello", [False, True])
async def test_a_slow_proof_is_cut(hello: bool) -> None:
    async with serving(handshake_seconds=0.2) as server:
        async with peer(server) as shim:
            if hello:
                await shim.say(type="hello", role="shim", protocol=1, nonce=nonce())
                await shim.hear()
            await shim.code()
        assert server.counters.handshake_timeouts == 1


async def test_an_unproved_peer_may_send_only_small_frames() -> None:
    async with serving() as server:
        async with peer(server) as shim:
            await shim.socket.send("x" * (server_module.MAX_UNPROVED_BYTES + 1))
            assert await shim.code() == 1009
        await server.drain()  # the peer may know before the server's task does
        assert server.counters.oversized_frames == 1


async def test_an_oversized_frame_closes_its_link_only() -> None:
    handler = Recorder()
    async with serving(handler, max_frame_bytes=200_000) as server, peer(server) as good:
        await good.shake(instance="11" * 8)
        async with peer(server) as shim:
            await shim.shake()
            await shim.hooks(1, text="x" * 150_000)  # more than the unproved may send
            assert await shim.hear() == {"type": "ack", "seq": 1}
            await shim.hooks(2, text="x" * 250_000)
            assert await shim.code() == 1009
        await good.hooks(1)
        assert await good.hear() == {"type": "ack", "seq": 1}


# --- hooks and acks ---


async def test_acks_come_only_after_finish_and_are_cumulative() -> None:
    handler = Recorder(auto=False)
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.hooks(1, 3)
        link, first, items = await handler.batches.get()
        assert (first, len(items)) == (1, 3)
        link.finish([2])
        # A call's answer shows that everything before it was delivered, so no ack was sent.
        asking = asyncio.create_task(link.call("session.get", {}))
        call = await shim.hear()
        assert call["type"] == "call"
        link.finish([1])
        link.finish([3])
        assert await shim.hear() == {"type": "ack", "seq": 3}
        await shim.say(type="result", id=call["id"], value=1)
        assert await asking == 1


async def test_a_reconnecting_instance_is_told_what_is_durable_even_if_finished_late() -> None:
    handler = Recorder(auto=False)
    async with serving(handler) as server:
        async with peer(server) as shim:
            await shim.shake()
            await shim.hooks(1, 4)
            link, _, _ = await handler.batches.get()
            link.finish([1, 2])
            assert await shim.hear() == {"type": "ack", "seq": 2}
        await handler.ended.get()
        link.finish([3])
        async with peer(server) as shim:
            assert (await shim.shake())["acked_seq"] == 3
            await shim.hooks(3, 2)
            _, first, items = await handler.batches.get()
            assert (first, len(items)) == (4, 1)
        async with peer(server) as shim:
            assert (await shim.shake(instance="99" * 8))["acked_seq"] == 0


async def test_opened_decides_what_the_welcome_says() -> None:
    handler = Recorder()

    async def on_open(link: ShimConnection) -> None:
        link.acked_seq = 41
        link.push_context({"compaction": "x"})

    handler.on_open = on_open
    async with serving(handler) as server, peer(server) as shim:
        welcome = await shim.shake()
        assert (welcome["acked_seq"], welcome["context"]) == (41, {"compaction": "x"})
        (await handler.links.get()).push_context({"later": True})
        assert await shim.hear() == {"type": "context", "context": {"later": True}}


async def test_what_a_killed_shim_handed_over_is_still_handled() -> None:
    handler = Recorder(auto=False)
    handler.gate.clear()
    async with serving(handler) as server:
        async with peer(server) as shim:
            await shim.shake()
            for seq in range(1, 6):
                await shim.hooks(seq)
            await handler.batches.get()
            # The pong shows that the server has read all five.
            await (await shim.socket.ping())
            shim.socket.transport.abort()
        while server.links[0].is_open:
            await asyncio.sleep(0)  # until the server knows: a condition inside it, without an event
        handler.gate.set()
        await handler.ended.get()
        assert handler.batches.qsize() == 4


async def test_a_handler_that_is_behind_slows_the_shim_down() -> None:
    handler = Recorder()
    handler.gate.clear()
    async with serving(handler) as server, peer(server, write_limit=1024) as shim:
        await shim.shake()
        size = 1024 * 1024
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for seq in range(1, 101):
                await shim.hooks(seq, text="x" * size)
                sent += 1

        flooding = asyncio.create_task(flood())
        link, _, _ = await handler.batches.get()
        while link._queued_bytes <= MAX_QUEUED_BYTES:
            await asyncio.sleep(0)  # a condition inside the server, which has no event to wait for
        async with peer(server) as cli:  # gives the server ample turns to read on, if it would
            await cli.shake("control")
            for number in range(100):
                await cli.say(type="request", id=number, method="echo", args={})
                await cli.hear()
        assert sent < 100
        assert link._queued_bytes < MAX_QUEUED_BYTES + 2 * size
        handler.gate.set()
        await flooding
        seq = 0
        while seq < 100:
            seq = (await shim.hear())["seq"]


async def test_lossy_items_reach_the_handler() -> None:
    handler = Recorder()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.say(type="lossy", items=[{"hook": "event", "t": 5, "input": "delta"}])
        assert await handler.lossy_items.get() == [HookItem("event", 5, "delta", None)]


async def test_a_tool_is_unknown() -> None:
    async with serving() as server, peer(server) as shim:
        await shim.shake()
        await shim.say(type="tool", id=3, name="agent_spawn", args={}, context={})
        answer = await shim.hear()
        assert (answer["id"], answer["error"]["code"]) == (3, "unknown_tool")


async def test_the_window_is_enforced() -> None:
    handler = Recorder(auto=False)
    async with serving(handler, window=4) as server:
        async with peer(server) as shim:
            await shim.shake()
            await shim.hooks(1, 9)
            assert await shim.hear() == {"type": "bye", "reason": "window"}
            assert await shim.code() == 1008
        assert server.counters.window_overruns == 1


# --- calls ---


async def test_a_handler_may_call_the_link_whose_hooks_it_handles() -> None:
    handler = Recorder()
    answers: list[Any] = []

    async def on_hooks(link: ShimConnection, first_seq: int, items: list[HookItem]) -> None:
        if first_seq == 1:
            answers.append(await link.call("session.get", {"path": {"id": first_seq}}))

    handler.on_hooks = on_hooks
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.hooks(1)
        call = await shim.hear()
        assert (call["method"], call["args"]) == ("session.get", {"path": {"id": 1}})
        await shim.hooks(2)  # more hooks before the answer must not block it
        await shim.say(type="result", id=call["id"], value={"title": "t"})
        assert (await shim.hear())["type"] == "ack"
        assert answers == [{"title": "t"}]


async def test_calls_fail_with_the_shims_error_a_timeout_or_the_links_end() -> None:
    handler = Recorder()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        link = await handler.links.get()
        asking = asyncio.create_task(link.call("a", {}))
        call = await shim.hear()
        await shim.say(type="result", id=call["id"], error={"code": "opencode", "message": "gone", "status": 404})
        with pytest.raises(CallError) as failed:
            await asking
        assert (failed.value.code, failed.value.message, failed.value.status) == ("opencode", "gone", 404)

        with pytest.raises(CallError) as late:
            await link.call("b", {}, timeout=0.05)
        assert late.value.code == "timeout"
        unanswered = await shim.hear()
        await shim.say(type="result", id=unanswered["id"], value="too late")  # and nothing happens

        asking = asyncio.create_task(link.call("c", {}))
        assert (await shim.hear())["method"] == "c"
        await shim.socket.close()
        with pytest.raises(CallError) as ended:
            await asking
        assert ended.value.code == "closed"
        with pytest.raises(CallError):
            await link.call("d", {})


async def test_a_peer_that_never_reads_is_dropped_and_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_PENDING_FRAMES", 8)
    handler = Recorder()
    async with serving(handler) as server:
        async with peer(server, max_queue=1) as shim:
            await shim.shake()
            link = await handler.links.get()
            shim.socket.transport.pause_reading()
            while link.is_open and not server.counters.slow_readers:
                link.push_context({"x": "y" * 1_000_000})
                await asyncio.sleep(0)
            assert await handler.ended.get() is link
            shim.socket.transport.abort()
        assert server.counters.slow_readers == 1
        await works(server)


# --- the command line ---


async def test_requests_are_answered_and_errors_told() -> None:
    async with serving() as server, peer(server) as cli:
        assert (await cli.shake("control"))["type"] == "welcome"
        asked = {"echo": {"x": [1]}, "refuse": {}, "fail": {}, "strange": {}, "none": {}}
        for number, (method, args) in enumerate(asked.items()):
            await cli.say(type="request", id=number, method=method, args=args)
        answers = {answer["id"]: answer for answer in [await cli.hear() for _ in asked]}
        assert answers[0] == {"type": "result", "id": 0, "value": {"x": [1]}}
        assert answers[1]["error"] == {"code": "busy", "message": "not now"}
        assert answers[2]["error"]["code"] == "internal"
        assert "sk-secret" not in json.dumps(answers)
        assert answers[3]["error"]["code"] == "bad_answer"
        assert answers[4]["error"]["code"] == "unknown_method"


async def test_a_slow_request_does_not_hold_up_another() -> None:
    handler = Recorder()
    handler.gate.clear()
    async with serving(handler) as server, peer(server) as cli:
        await cli.shake("control")
        await cli.say(type="request", id="slow", method="wait", args={})
        await cli.say(type="request", id="quick", method="echo", args={})
        assert (await cli.hear())["id"] == "quick"
        handler.gate.set()
        assert (await cli.hear())["value"] == "waited"


async def test_control_may_not_send_hooks() -> None:
    async with serving() as server, peer(server) as cli:
        await cli.shake("control")
        await cli.hooks(1)
        assert await cli.hear() == {"type": "bye", "reason": "protocol"}
        assert await cli.code() == 1002


# --- the end ---


async def test_drain_says_bye_to_all_and_waits_for_handlers() -> None:
    handler = Recorder()
    async with serving(handler, handshake_seconds=300) as server, peer(server) as shim, peer(server) as cli:
        silent = await asyncio.open_connection("127.0.0.1", server.port)
        await shim.shake()
        await cli.shake("control")
        await server.drain()
        for other in (shim, cli):
            assert await other.hear() == {"type": "bye", "reason": "draining"}
            assert await other.code() == 1012
        assert handler.ended.qsize() == 1
        assert await silent[0].read() == b""
        silent[1].close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port)
        await server.drain()


async def test_drain_does_not_wait_for_ever() -> None:
    handler = Recorder()
    handler.gate.clear()
    async with serving(handler) as server, peer(server) as shim:
        await shim.shake()
        await shim.hooks(1)
        await handler.batches.get()
        await server.drain(grace_seconds=0.05)
        assert handler.ended.qsize() == 1


@pytest.mark.parametrize("where", ["opened", "hooks"])
async def test_a_failing_handler_costs_one_link_and_no_ack(where: str, caplog: pytest.LogCaptureFixture) -> None:
    handler = Recorder()

    async def fail(*_: Any) -> None:
        raise RuntimeError("sk-secret-1")

    if where == "opened":
        handler.on_open = fail
    else:
        handler.on_hooks = fail
    async with serving(handler) as server:
        async with peer(server) as shim:
            with pytest.raises(ConnectionClosed):
                await shim.shake()
                await shim.hooks(1)
                while (await shim.hear())["type"] != "ack":
                    continue
                raise AssertionError("acknowledged")
            assert await shim.code() == 1011
        handler.on_open = handler.on_hooks = None
        assert server.counters.handler_errors == 1
        await works(server)
    assert "sk-secret" not in caplog.text


# --- garbage ---

GARBAGE: list[str | bytes] = [
    "",
    "{",
    "[]",
    "null",
    b"\xff\xfe",
    b'{"type":"\xff"}',
    '{"type":7}',
    '{"type":"hooks"}',
    '{"type":"later"}',
    '{"type":"ack","seq":1}',
    '{"type":"hello","role":"shim"}',
    '{"type":"hooks","first_seq":1,"items":[{"hook":[],"t":{}}]}',
    '{"type":"result","id":{},"value":1}',
    "[" * 60_000,
    '{"a":' * 10_000,
    "[" * 30_000 + "]" * 30_000,
    '"' + '\\"' * 30_000,
]


@pytest.mark.parametrize("proved", [False, True])
async def test_garbage_closes_its_link_and_no_other(proved: bool) -> None:
    async with serving() as server, peer(server) as good:
        await good.shake(instance="11" * 8)
        for seq, message in enumerate(GARBAGE, 1):
            async with peer(server) as bad:
                if proved:
                    await bad.shake()
                await bad.socket.send(message)
                assert await bad.hear() == {"type": "bye", "reason": "protocol"}
                assert await bad.code() == 1002
            await good.hooks(seq)
            assert await good.hear() == {"type": "ack", "seq": seq}
        assert server.counters.protocol_errors == len(GARBAGE)


async def test_bytes_that_are_no_websocket_harm_nobody() -> None:
    rng = random.Random(7)
    async with serving(handshake_seconds=0.3) as server:
        for prefix in (b"", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(prefix + rng.randbytes(2000) + b"\r\n\r\n")
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        for number in range(40):
            async with peer(server) as bad:
                await bad.shake()
                # Straight to the socket: reserved bits, unmasked frames, 64-bit lengths, endless fragments.
                bad.socket.transport.write(rng.randbytes(rng.randrange(2, 400)))
                bad.socket.transport.write(bytes([number * 6 % 256, 0x7F]) + b"\xff" * 8)
                bad.socket.transport.write_eof()
                await bad.code()
        await works(server)
        assert server.counters.handler_errors == 0
