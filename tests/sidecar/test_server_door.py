"""Who may connect, and how a peer that has not proved itself is bounded."""

import asyncio
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sidecar import server as server_module
from sidecar.server import LinkServer
from tests.sidecar.peers import Recorder, nonce, peer, serving, works


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
