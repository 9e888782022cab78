"""Connecting to a server: lost connections, impostors, TLS and credentials."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import nkeys
import pytest
import trustme

from bridge.nats.jetstream.client import FLUSH_SECONDS
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import (
    NatsRefused,
    NatsUnavailable,
)
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.sessions import Sessions
from tests.nats_servers import HANG_SECONDS, TOKEN, RealServer, real_server

_number = itertools.count()


# --- connections that end, or never begin ---


async def test_a_held_server_is_noticed(tmp_path: Path) -> None:
    with real_server(tmp_path) as own:
        session = await JetStream.connect(replace(own.options, ping_seconds=0.5, request_seconds=0.3))
        own.hold()
        with pytest.raises(NatsUnavailable):
            while True:  # it may take a moment until the last of its threads is held
                await session.api("INFO")
        await asyncio.wait_for(session.ended(), HANG_SECONDS)
        await session.close()


async def test_senders_that_wait_for_the_socket_learn_of_its_end(tmp_path: Path) -> None:
    """The library's writer forgets the tasks that wait for it when the connection ends."""
    with real_server(tmp_path) as own:
        session = await JetStream.connect(own.options)
        own.hold()
        large = [("x", {}, "", b"x" * 900_000)] * 20  # more than the socket takes while nobody reads
        sending = [asyncio.create_task(session.send_all(large)) for _ in range(5)]
        await asyncio.wait(sending, timeout=0.2)  # all of them wait now
        assert not any(task.done() for task in sending)
        own.kill()
        done, waiting = await asyncio.wait(sending, timeout=FLUSH_SECONDS / 2)
        assert not waiting and len(done) == 5
        await asyncio.gather(*sending, return_exceptions=True)
        await session.close()


async def test_a_wrong_token_is_refused_and_not_shown(server: RealServer) -> None:
    for token in ("wr0ng" * 8, None):
        with pytest.raises(NatsRefused, check=lambda error: error.code == "nats-login-refused") as refused:
            await JetStream.connect(replace(server.options, token=token))
        assert "wr0ng" not in str(refused.value)
    assert TOKEN not in repr(server.options)
    secret = ConnectOptions(("nats://u:geheim@h:1",))
    assert "geheim" not in repr(secret) + secret.shown


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def test_waiting_for_a_connection_can_be_cancelled_at_any_moment() -> None:
    async def options() -> ConnectOptions:
        return ConnectOptions(("nats://127.0.0.1:1",))

    for steps in range(40):
        sessions = Sessions(options)
        waiting = asyncio.create_task(sessions.wait())
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        done, _ = await asyncio.wait((waiting,), timeout=HANG_SECONDS)
        assert done and waiting.cancelled(), steps
        await sessions.close()


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A test program on a port; all its connections end with the block."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await serve(reader, writer)
        except ConnectionError:
            return
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait_for(asyncio.gather(*tasks), HANG_SECONDS)
        await asyncio.sleep(0)


@asynccontextmanager
async def impostor(info: dict[str, object]) -> AsyncIterator[tuple[int, bytearray]]:
    """A program on a port that greets like a server, and everything it received."""
    sent = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while chunk := await reader.read(4096):
            sent.extend(chunk)
            if b"PING" in chunk:
                writer.write(b"PONG\r\n")

    async with listening(serve) as port:
        yield port, sent


GREETING: dict[str, object] = {"server_id": "X", "version": "2.15.1", "max_payload": 1024, "headers": True}


async def test_another_program_on_the_port_does_not_see_the_token() -> None:
    async with impostor(GREETING | {"auth_required": True}) as (port, sent):
        options = ConnectOptions((f"nats://127.0.0.1:{port}",), token=TOKEN, server_id="OURS")
        with pytest.raises(NatsUnavailable, check=lambda error: error.code == "nats-wrong-server"):
            await JetStream.connect(options)
        assert bytes(sent) == b""


async def test_a_server_without_tls_gets_nothing_when_tls_is_wanted() -> None:
    async with impostor(GREETING | {"auth_required": True}) as (port, sent):
        options = ConnectOptions((f"tls://127.0.0.1:{port}",), token=TOKEN)
        with pytest.raises(NatsRefused, check=lambda error: error.code == "nats-tls-failed"):
            await JetStream.connect(options)
        assert bytes(sent) == b""


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"INFO {\r\n", b"\xff" * 200_000])
async def test_what_is_no_nats_server_is_an_error(greeting: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()

    async with listening(serve) as port:
        with pytest.raises(NatsUnavailable):
            await JetStream.connect(ConnectOptions((f"nats://127.0.0.1:{port}",), connect_seconds=1))


# --- TLS and credentials ---


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ca.pem`` and certificates of a server and a client; ``other`` is from another authority."""
    place = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(place / "ca.pem"))
    for who, name in (("server", "localhost"), ("client", "ada@example.org")):
        made = authority.issue_cert(name)
        made.private_key_pem.write_to_path(str(place / f"{who}-key.pem"))
        made.cert_chain_pems[0].write_to_path(str(place / f"{who}.pem"))
    (place / "other").mkdir()
    trustme.CA().cert_pem.write_to_path(str(place / "other" / "ca.pem"))
    return place


def tls(certificates: Path, **more: object) -> dict[str, object]:
    files = {"cert_file": str(certificates / "server.pem"), "key_file": str(certificates / "server-key.pem")}
    return {"tls": {**files, "ca_file": str(certificates / "ca.pem"), "timeout": 5, **more}}


async def test_tls_is_checked_and_fails_closed(tmp_path: Path, certificates: Path) -> None:
    with real_server(tmp_path / "nats", **tls(certificates)) as own:
        good = replace(own.options, servers=(f"tls://localhost:{own.port}",), cert_dir=certificates, connect_seconds=5)
        session = await JetStream.connect(good)
        await session.api("INFO")
        await session.close()
        for wrong, code in (
            (replace(good, cert_dir=certificates / "other"), "nats-tls-failed"),
            (replace(good, cert_dir=None), "nats-tls-failed"),
            (replace(good, tls_hostname="nats.example.org"), "nats-tls-failed"),
            (replace(good, cert_dir=certificates / "nowhere"), "nats-file-refused"),
        ):
            with pytest.raises(NatsRefused) as refused:
                await JetStream.connect(wrong)
            assert refused.value.code == code


async def test_a_server_may_want_to_know_us(tmp_path: Path, certificates: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "ca.pem").write_bytes((certificates / "ca.pem").read_bytes())
    with real_server(tmp_path / "nats", **tls(certificates, verify=True)) as own:
        options = replace(own.options, servers=(f"tls://localhost:{own.port}",), cert_dir=mine)
        with pytest.raises((NatsRefused, NatsUnavailable)):
            await JetStream.connect(options)
        (mine / "cert.pem").write_bytes((certificates / "client.pem").read_bytes())
        with pytest.raises(NatsRefused, check=lambda error: error.code == "nats-file-refused") as refused:
            await JetStream.connect(options)
        assert str(mine / "key.pem") in str(refused.value)
        (mine / "key.pem").write_bytes((certificates / "server-key.pem").read_bytes())
        with pytest.raises(NatsRefused, check=lambda error: error.code == "nats-file-refused"):
            await JetStream.connect(options)
        (mine / "key.pem").write_bytes((certificates / "client-key.pem").read_bytes())
        session = await JetStream.connect(options)
        await session.close()


async def test_credentials_sign_the_servers_nonce(tmp_path: Path) -> None:
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    path = tmp_path / "ada.creds"
    path.write_bytes(
        b"-----BEGIN NATS USER JWT-----\nheader.claims.signature\n------END NATS USER JWT------\n\n"
        b"-----BEGIN USER NKEY SEED-----\n" + seed + b"\n------END USER NKEY SEED------\n"
    )
    async with impostor(GREETING | {"auth_required": True, "nonce": "n0nce"}) as (port, sent):
        session = await JetStream.connect(ConnectOptions((f"nats://127.0.0.1:{port}",), credentials=path))
        await session.close()
    line = next(line for line in sent.split(b"\r\n") if line.startswith(b"CONNECT "))
    told = json.loads(line.removeprefix(b"CONNECT "))
    assert told["jwt"] == "header.claims.signature" and told["sig"]
    assert seed not in sent
