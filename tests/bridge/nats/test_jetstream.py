"""Connecting, publishing and reading, on the oldest and the newest server; and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import nkeys
import pytest
import trustme

from bridge.nats import keeping, publishing
from bridge.nats.errors import (
    BatchDuplicate,
    BatchRefused,
    NatsRefused,
    NatsUnavailable,
    NoStream,
    NotFound,
    StreamRefused,
    WrongExpectation,
)
from bridge.nats.jetstream import JetStream
from bridge.nats.messages import Message
from bridge.nats.options import ConnectOptions
from bridge.nats.publishing import Expect, PublishStopped, publish, publish_all, publish_batch
from bridge.nats.sessions import Sessions
from bridge.nats.stream_plan import StreamDefinition, wanted
from tests.nats_servers import HANG_SECONDS, TOKEN, VERSIONS, RealServer, real_server

_number = itertools.count()


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with real_server(tmp_path_factory.mktemp("nats"), request.param) as running:
        yield running


@pytest.fixture
async def session(server: RealServer) -> AsyncIterator[JetStream]:
    opened = await JetStream.connect(server.options)
    yield opened
    await opened.close()


def definition(**more: object) -> StreamDefinition:
    """A stream on subjects of its own."""
    name = f"T{next(_number)}"
    return replace(StreamDefinition(name, (f"{name}.>",), "limits", "A test's", atomic=True), **more)  # type: ignore[arg-type]


def messages(name: str, count: int, *, size: int = 20, first: int = 0) -> list[Message]:
    return [
        Message(f"{name}.a{n % 3}", {"Nats-Msg-Id": f"{name}-{n}", "DS-Position": str(n)}, b"%d " % n + b"x" * size)
        for n in range(first, first + count)
    ]


async def read(session: JetStream, name: str, **more: object) -> list[keeping.Found]:
    return [found async for found in keeping.read_back(session, name, **more)]  # type: ignore[arg-type]


# --- streams ---


async def test_what_a_server_says_of_itself(session: JetStream, server: RealServer) -> None:
    assert session.server.version.startswith(f"{server.version}.")
    assert session.server.max_payload == 8 * 1024 * 1024 and session.server.id
    assert (await session.api("INFO"))["streams"] >= 0


async def test_all_streams_are_made_as_they_must_be_and_once(tmp_path: Path, server: RealServer) -> None:
    with real_server(tmp_path, server.version) as own:
        session = await JetStream.connect(own.options)
        made = await keeping.ensure_streams(session, wanted())
        assert list(made) == [each.name for each in wanted()]
        assert made["MESHFORGE_COMMANDS"].config["retention"] == "workqueue"
        assert {each.config["storage"] for each in made.values()} == {"file"}
        assert made["MESHFORGE_EVENTS"].atomic == (server.version == "2.15"), "as it reads back, not as it was asked"
        again = await keeping.ensure_streams(session, wanted())
        assert {name: each.config for name, each in again.items()} == {name: each.config for name, each in made.items()}
        assert [each.name for each in await keeping.all_facts(session)] == sorted(made)
        await session.close()


async def test_a_stream_that_differs_is_changed_and_keeps_its_messages(session: JetStream) -> None:
    first = definition(max_age_s=600)
    await keeping.ensure_streams(session, [first])
    await publish_all(session, messages(first.name, 3))
    changed = (await keeping.ensure_streams(session, [replace(first, max_age_s=3600)]))[first.name]
    assert (changed.config["max_age"], changed.messages) == (3600 * 10**9, 3)


async def test_a_stream_in_the_way_is_told_and_nothing_is_made(session: JetStream) -> None:
    there, other = definition(), definition()
    await session.api(
        f"STREAM.CREATE.{there.name}", {"name": there.name, "subjects": list(there.subjects), "storage": "memory"}
    )
    with pytest.raises(StreamRefused, match=f"stream {there.name}.*memory.*remove the stream"):
        await keeping.ensure_streams(session, [other, there])
    with pytest.raises(NotFound):
        await keeping.facts(session, other.name)


# --- publishing ---


async def test_an_id_makes_a_message_once(session: JetStream) -> None:
    stream = definition()
    await keeping.ensure_streams(session, [stream])
    (message,) = messages(stream.name, 1)
    first = await publish(session, message)
    again = await publish(session, message)
    assert (first.stream, first.sequence, first.duplicate) == (stream.name, 1, False)
    assert (again.sequence, again.duplicate) == (1, True)


async def test_expectations(session: JetStream) -> None:
    stream, other = definition(), definition()
    await keeping.ensure_streams(session, [stream, other])
    one, two, three, four = messages(stream.name, 4)
    await publish(session, one, Expect(stream=stream.name, sequence=0, subject_sequence=0))
    await publish(session, two, Expect(sequence=1, id=one.headers["Nats-Msg-Id"]))
    for wrong in (Expect(stream=other.name), Expect(sequence=1), Expect(subject_sequence=7), Expect(id="another")):
        with pytest.raises(WrongExpectation):
            await publish(session, three, wrong)
    assert (await publish(session, three, Expect(sequence=2))).sequence == 3
    assert (await publish(session, four, Expect(subject_sequence=1))).sequence == 4


async def test_a_message_that_no_stream_takes_is_an_error(session: JetStream) -> None:
    with pytest.raises(NoStream, match=r"no stream takes in nobody\.hears"):
        await publish(session, Message("nobody.hears", {}, b""))


async def test_many_keep_their_order(session: JetStream) -> None:
    stream = definition()
    await keeping.ensure_streams(session, [stream])
    sent = messages(stream.name, 300)
    stored = await publish_all(session, sent, window=64)
    assert [each.sequence for each in stored] == list(range(1, 301))
    assert [found.body for found in await read(session, stream.name)] == [each.body for each in sent]
    assert all(each.duplicate for each in await publish_all(session, sent[-5:]))


async def test_a_window_stops_at_its_first_failure(session: JetStream) -> None:
    stream = definition()
    await keeping.ensure_streams(session, [stream])
    sent = messages(stream.name, 40)
    sent[20] = Message("nobody.hears", {}, b"")
    with pytest.raises(PublishStopped) as stopped:
        await publish_all(session, sent, window=4)
    assert [each.sequence for each in stopped.value.stored] == list(range(1, 21))
    assert isinstance(stopped.value.error, NoStream)
    assert (await keeping.facts(session, stream.name)).messages <= 24, "of those after it, at most the window's"


async def test_a_batch_is_stored_whole_where_the_server_can(session: JetStream, server: RealServer) -> None:
    stream = definition()
    facts = (await keeping.ensure_streams(session, [stream]))[stream.name]
    sent = messages(stream.name, 50)
    if server.version == "2.10":
        assert not facts.atomic
        with pytest.raises(BatchRefused, match="one by one"):
            await publish_batch(session, sent, batch_id="b0")
        return
    assert facts.atomic
    last = await publish_batch(session, sent, batch_id="b0", expect=Expect(sequence=0))
    assert last.sequence == 50
    assert [found.headers["Nats-Msg-Id"] for found in await read(session, stream.name)] == [
        each.headers["Nats-Msg-Id"] for each in sent
    ]
    (single,) = messages(stream.name, 1, first=50)
    assert (await publish_batch(session, [single], batch_id="b1")).sequence == 51
    with pytest.raises(BatchDuplicate):
        await publish_batch(session, messages(stream.name, 10, first=48), batch_id="b2")
    with pytest.raises(WrongExpectation):
        await publish_batch(session, messages(stream.name, 3, first=60), batch_id="b3", expect=Expect(sequence=7))
    assert (await keeping.facts(session, stream.name)).last_sequence == 51, "nothing of a refused batch is stored"
    closed = definition(atomic=False)
    await keeping.ensure_streams(session, [closed])
    with pytest.raises(BatchRefused):
        await publish_batch(session, messages(closed.name, 3), batch_id="b4")


async def test_a_batch_has_a_size(session: JetStream) -> None:
    for count in (0, publishing.MAX_BATCH + 1):
        with pytest.raises(ValueError, match="1 to 1000"):
            await publish_batch(session, messages("none", count), batch_id="b")


# --- reading ---


async def test_reading_back_whole_in_part_and_nothing(session: JetStream) -> None:
    stream = definition()
    await keeping.ensure_streams(session, [stream])
    assert await read(session, stream.name) == []
    sent = messages(stream.name, 603)
    await publish_all(session, sent)
    whole = await read(session, stream.name)
    assert [(each.sequence, each.subject, each.body) for each in whole] == [
        (place, each.subject, each.body) for place, each in enumerate(sent, 1)
    ]
    assert whole[7].headers["DS-Position"] == "7"
    part = await read(session, stream.name, subject=f"{stream.name}.a1", from_sequence=300)
    assert [each.sequence for each in part] == [n + 1 for n in range(299, 603) if n % 3 == 1]
    assert await read(session, stream.name, subject=f"{stream.name}.none") == []
    assert await read(session, stream.name, from_sequence=2000) == []
    with pytest.raises(NotFound):
        await read(session, "NOT_THERE")


async def test_single_messages_and_purging(session: JetStream) -> None:
    stream = definition()
    await keeping.ensure_streams(session, [stream])
    await publish_all(session, messages(stream.name, 9))
    found = await keeping.message_at(session, stream.name, 2)
    assert (found.subject, found.headers["DS-Position"], found.body[:2]) == (f"{stream.name}.a1", "1", b"1 ")
    last = await keeping.last_message(session, stream.name, f"{stream.name}.a1")
    assert last is not None and last.sequence == 8
    assert await keeping.purge(session, stream.name, subject=f"{stream.name}.a1") == 3
    assert await keeping.last_message(session, stream.name, f"{stream.name}.a1") is None
    with pytest.raises(NotFound):
        await keeping.message_at(session, stream.name, 2)
    assert (await keeping.facts(session, stream.name)).messages == 6


# --- connections that end, or never begin ---


async def test_a_killed_server_ends_what_waits_and_the_next_connection_finds_all(
    tmp_path: Path, server: RealServer
) -> None:
    with real_server(tmp_path, server.version) as own:
        sessions = Sessions(own.ask_options)
        session = await sessions.get()
        stream = definition()
        await keeping.ensure_streams(session, [stream])
        sent = messages(stream.name, 1000)
        publishing_all = asyncio.create_task(publish_all(session, sent))
        waiting = await session.begin("nobody.answers.but.silence", b"")
        while (await keeping.facts(session, stream.name)).messages < 100:
            await asyncio.sleep(0)
        own.kill()
        with pytest.raises(PublishStopped) as stopped:
            await asyncio.wait_for(publishing_all, HANG_SECONDS)
        assert isinstance(stopped.value.error, NatsUnavailable)
        await asyncio.wait_for(session.ended(), HANG_SECONDS)
        assert waiting.done() and not session.is_open
        with pytest.raises(NatsUnavailable, match="ended"):
            await session.api("INFO")
        with pytest.raises(NatsUnavailable):
            await sessions.get()
        own.start()
        session = await asyncio.wait_for(sessions.wait(), HANG_SECONDS)
        acknowledged = len(stopped.value.stored)
        kept = [found.body for found in await read(session, stream.name)]
        assert kept[:acknowledged] == [each.body for each in sent[:acknowledged]], "what was confirmed survived kill -9"
        await publish_all(session, sent[acknowledged:])
        assert [found.body for found in await read(session, stream.name)] == [each.body for each in sent]
        assert sessions.opened == 2
        await sessions.close()
        with pytest.raises(NatsUnavailable, match="closed"):
            await sessions.wait()


async def test_a_held_server_is_noticed(tmp_path: Path, server: RealServer) -> None:
    with real_server(tmp_path, server.version) as own:
        session = await JetStream.connect(replace(own.options, ping_seconds=0.5, request_seconds=0.3))
        own.hold()
        with pytest.raises(NatsUnavailable, match=r"did not answer within 0\.3 s|ended"):
            while True:  # it may take a moment until the last of its threads is held
                await session.api("INFO")
        await asyncio.wait_for(session.ended(), HANG_SECONDS)
        await session.close()


async def test_a_flush_that_is_given_up_does_not_harm_the_connection(session: JetStream) -> None:
    for _ in range(3):
        flushing = asyncio.create_task(session.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
    await session.flush()
    await session.api("INFO")
    assert session.is_open


async def test_a_wrong_token_is_refused_and_not_shown(server: RealServer) -> None:
    for token in ("wr0ng" * 8, None):
        with pytest.raises(NatsRefused, match="does not let us in") as refused:
            await JetStream.connect(replace(server.options, token=token))
        assert "wr0ng" not in str(refused.value)
    assert TOKEN not in repr(server.options)
    secret = ConnectOptions(("nats://u:geheim@h:1",))
    assert "geheim" not in repr(secret) + secret.shown


async def test_nobody_there() -> None:
    began = time.monotonic()
    with pytest.raises(NatsUnavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
        await JetStream.connect(ConnectOptions(("nats://127.0.0.1:1",)))
    with pytest.raises(NatsRefused, match="no NATS server is named"):
        await JetStream.connect(ConnectOptions(()))
    assert time.monotonic() - began < HANG_SECONDS


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
    """A program of ours on a port; all its connections end with the block."""
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
    """A program on a port that greets like a server, and all that it was sent."""
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
        with pytest.raises(NatsUnavailable, match="another program"):
            await JetStream.connect(options)
        assert bytes(sent) == b""


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_a_server_without_tls_gets_nothing_when_tls_is_wanted(scheme: str) -> None:
    async with impostor(GREETING | {"auth_required": True}) as (port, sent):
        options = ConnectOptions((f"{scheme}://127.0.0.1:{port}",), token=TOKEN, tls=scheme == "nats")
        with pytest.raises(NatsRefused, match="offers no TLS"):
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
    """``ca.pem``, and certificates of a server and a client; ``other`` is another authority's."""
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


async def test_tls_is_checked_and_fails_closed(tmp_path: Path, certificates: Path, server: RealServer) -> None:
    with real_server(tmp_path / "nats", server.version, **tls(certificates)) as own:
        good = replace(
            own.options, servers=(f"tls://localhost:{own.port}",), tls=True, cert_dir=certificates, connect_seconds=5
        )
        session = await JetStream.connect(good)
        await session.api("INFO")
        await session.close()
        for wrong, why in (
            (replace(good, cert_dir=certificates / "other"), "certificate verify failed"),
            (replace(good, cert_dir=None), "certificate verify failed"),
            (replace(good, tls_hostname="nats.example.org"), "ostname mismatch"),
            (replace(good, cert_dir=certificates / "nowhere"), "ca.pem is missing"),
        ):
            with pytest.raises(NatsRefused, match=why):
                await JetStream.connect(wrong)


async def test_a_server_may_want_to_know_us(tmp_path: Path, certificates: Path, server: RealServer) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "ca.pem").write_bytes((certificates / "ca.pem").read_bytes())
    with real_server(tmp_path / "nats", server.version, **tls(certificates, verify=True)) as own:
        options = replace(own.options, servers=(f"tls://localhost:{own.port}",), cert_dir=mine)
        with pytest.raises((NatsRefused, NatsUnavailable)):
            await JetStream.connect(options)
        (mine / "cert.pem").write_bytes((certificates / "client.pem").read_bytes())
        with pytest.raises(NatsRefused, match=r"key .*key\.pem is missing"):
            await JetStream.connect(options)
        (mine / "key.pem").write_bytes((certificates / "server-key.pem").read_bytes())
        with pytest.raises(NatsRefused, match="cannot be used"):
            await JetStream.connect(options)
        (mine / "key.pem").write_bytes((certificates / "client-key.pem").read_bytes())
        session = await JetStream.connect(options)
        await session.close()


async def test_bad_files_are_named_before_anything_is_connected(tmp_path: Path) -> None:
    options = ConnectOptions(("tls://127.0.0.1:1",), cert_dir=tmp_path)
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(NatsRefused, match=r"ca\.pem holds no certificate"):
        await JetStream.connect(options)
    (tmp_path / "ca.pem").unlink()
    (tmp_path / "ca.pem").mkdir()
    with pytest.raises(NatsRefused, match=r"ca\.pem cannot be read \(Is a directory\)"):
        await JetStream.connect(options)
    plain = ConnectOptions(("nats://127.0.0.1:1",), credentials=tmp_path / "ada.creds")
    with pytest.raises(NatsRefused, match=r"credentials file .*ada\.creds is missing"):
        await JetStream.connect(plain)
    (tmp_path / "ada.creds").write_text("-----BEGIN NATS USER JWT-----\n")
    with pytest.raises(NatsRefused, match="is no credentials file"):
        await JetStream.connect(plain)


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


async def test_many_messages_are_sent_as_they_would_be_one_by_one(session: JetStream) -> None:
    streams = definition()
    await keeping.ensure_streams(session, [streams])
    sent = messages(streams.name, 400, size=3000)
    await session.send_all([(m.subject, m.headers, "X-More: 1\r\n", m.body) for m in sent])
    await session.flush()
    while (await keeping.facts(session, streams.name)).messages < len(sent):
        await asyncio.sleep(0.01)  # a stream takes in what the server has taken
    found = await read(session, streams.name)
    assert [(f.subject, f.body) for f in found] == [(m.subject, m.body) for m in sent]
    assert [f.headers for f in found] == [{**m.headers, "X-More": "1"} for m in sent]


@pytest.mark.parametrize(
    ("subject", "headers"),
    [
        ("a b", {}),
        ("a\r\nPUB x 0\r\n", {}),
        ("", {}),
        ("a.é", {}),
        ("a", {"A": "1\r\nB: 2"}),
        ("a", {"A": "1\n"}),
        ("a", {"A\r\nB": "1"}),
        ("a", {"A": "1\rB"}),
    ],
)
async def test_nothing_that_a_record_holds_adds_a_header_or_a_command(
    session: JetStream, subject: str, headers: dict[str, str]
) -> None:
    with pytest.raises(NatsRefused):
        await session.send_all([("a", {}, "", b"before"), (subject, headers, "", b"")])
    with pytest.raises(NatsRefused, match="larger than the server takes"):
        await session.send_all([("a", {}, "", b"x" * (session.server.max_payload + 1))])
    assert session.is_open
