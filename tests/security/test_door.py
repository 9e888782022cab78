"""The door: who may connect, what is sent before the proof, and the limits of a peer without one."""

import asyncio
import base64
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bridge.opencode.link.frames import HookItem, ShimIdentity
from bridge.opencode.link.protocol import proof
from sidecar.link import server as server_module
from sidecar.link.client import ControlClient, ShimClient
from sidecar.link.server import LinkServer
from tests.sidecar.peers import TOKEN, Address, Recorder, nonce, peer, serving, works


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


async def http(server: LinkServer, *headers: str, behind: bytes = b"") -> bytes:
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
    writer.write("\r\n".join(lines).encode() + behind)
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


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "evil.example"])
async def test_an_invalid_frame_right_behind_the_request_ends_the_connection(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        assert await http(server, f"Host: {host.format(port=server.port)}", behind=b"\xff" * 20) == b""
        await works(server)
    assert caplog.records == []


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
    async with serving(max_connections=3, handshake_seconds=300) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(4)]
        with suppress(ConnectionResetError):
            assert await idle[0][0].read() == b"", "the oldest makes room"
        assert server.counters.unproved_closed == 1
        for _, writer in idle:
            writer.close()


async def test_silent_connections_shut_out_neither_a_plugin_nor_the_command_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(handshake_seconds=300) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(300)]
        await works(server)
        async with peer(server) as cli:
            assert (await cli.shake("control"))["type"] == "welcome"
        assert server.counters.unproved_closed >= 300 - 256
        assert len([record for record in caplog.records if record.name == "sidecar.link"]) == 1, "said once a minute"
        for _, writer in silent:
            writer.close()


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


# --- only from this machine ---


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
async def test_it_listens_on_one_loopback_address_only(address: str) -> None:
    """A server on all addresses would also answer here."""
    async with serving() as server:
        with pytest.raises(OSError):
            await asyncio.open_connection(address, server.port)
        await works(server)


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST", "PUT"])
async def test_no_answer_lets_a_web_page_in(method: str) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        page = "Origin: http://evil.example\r\nAccess-Control-Request-Method: GET\r\n"
        writer.write(f"{method} / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{page}\r\n".encode())
        answer = (await reader.read()).lower()
        writer.close()
        await writer.wait_closed()
        assert b"access-control-" not in answer
        assert b" 101 " not in answer and b" 200 " not in answer


# --- the token ---


async def test_the_token_is_proved_and_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str | bytes] = []
    recv, send = ServerConnection.recv, ServerConnection.send

    async def heard(self: ServerConnection, *given: Any, **named: Any) -> Any:
        said.append(await recv(self, *given, **named))
        request = self.request
        assert request is not None
        said.append(f"{request.path} {request.headers}")
        return said[-2]

    async def spoke(self: ServerConnection, message: Any, *given: Any, **named: Any) -> None:
        said.append(message)
        await send(self, message, *given, **named)

    monkeypatch.setattr(ServerConnection, "recv", heard)
    monkeypatch.setattr(ServerConnection, "send", spoke)
    async with serving() as server:
        shim = ShimIdentity("0.1", "ab" * 16, "cd" * 8, 7, "p", "/d", "/", "1.18", 0)
        async with await ShimClient.connect(Address(server.port, TOKEN), identity=shim, nonce=nonce) as client:
            await client.send([HookItem("event", 1, "x", None)])
            await client.drained()
        async with await ControlClient.connect(Address(server.port, TOKEN), version="0.1", nonce=nonce) as control:
            assert await control.request("echo", {"a": 1}) == {"a": 1}
    raw = bytes.fromhex(TOKEN)
    forms = [TOKEN.encode(), TOKEN.upper().encode(), raw, base64.b64encode(raw), base64.urlsafe_b64encode(raw)]
    wire = b"\n".join(part.encode() if isinstance(part, str) else part for part in said)
    assert b'"hello"' in wire and b'"identify"' in wire and b'"hooks"' in wire and b'"result"' in wire
    assert not [form for form in forms if form in wire]
    assert TOKEN not in repr(server)


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "hooks", "first_seq": 1, "items": [{"hook": "event", "t": 1, "input": {}, "output": None}]},
        {"type": "lossy", "items": [{"hook": "event", "t": 1, "input": {}, "output": None}]},
        {"type": "request", "id": 1, "method": "stop", "args": {}},
        {"type": "result", "id": 1, "value": {}},
        {"type": "identify", "proof": "0" * 64, "pid": 1},
    ],
    ids=lambda frame: frame["type"],
)
@pytest.mark.parametrize("after_hello", [False, True])
async def test_nothing_is_taken_before_the_proof(frame: dict[str, Any], after_hello: bool) -> None:
    handler = Recorder()
    async with serving(handler) as server:
        async with peer(server) as shim:
            if after_hello:
                await shim.say(type="hello", role="shim", protocol=1, nonce=nonce())
                assert (await shim.hear())["type"] == "challenge"
            await shim.say(**frame)
            assert await shim.code() in (1002, 1008)
        assert handler.links.empty() and handler.batches.empty() and handler.lossy_items.empty()
        assert server.links == () and server.connections == 0
        await works(server)


async def test_a_proof_overheard_is_worth_nothing() -> None:
    """Another connection has another nonce, so the same frames fail there."""
    async with serving() as server:
        mine = nonce()
        async with peer(server) as first:
            await first.say(type="hello", role="control", protocol=1, nonce=mine)
            challenge = await first.hear()
            right = proof(TOKEN, "control", server.port, mine, challenge["nonce"])
        async with peer(server) as second:
            await second.say(type="hello", role="control", protocol=1, nonce=mine)
            await second.hear()
            await second.say(type="identify", proof=right, pid=7, client_version="1")
            assert await second.hear() == {"type": "bye", "reason": "auth"}
