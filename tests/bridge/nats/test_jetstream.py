"""Streams, publishing and reading, and their failures."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import (
    BatchRefused,
    NatsRefused,
    NatsUnavailable,
    NoStream,
    NotFound,
    StreamRefused,
    WrongExpectation,
)
from bridge.nats.jetstream.publishing import (
    EXPECTED_REVISION,
    publish,
    publish_all,
    publish_batch,
)
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import StreamDefinition, wanted
from bridge.nats.jetstream.wire import Message
from tests.nats_servers import HANG_SECONDS, RealServer, all_streams, on_both, real_server

_number = itertools.count()


def definition(**more: object) -> StreamDefinition:
    """A stream on subjects of its own."""
    name = f"T{next(_number)}"
    return replace(StreamDefinition(name, (f"{name}.>",), "limits", "A test's", atomic=True), **more)  # type: ignore[arg-type]


def messages(name: str, count: int, *, size: int = 20, first: int = 0) -> list[Message]:
    return [
        Message(f"{name}.a{n % 3}", {"Nats-Msg-Id": f"{name}-{n}", "DS-Position": str(n)}, b"%d " % n + b"x" * size)
        for n in range(first, first + count)
    ]


async def made(session: JetStream) -> StreamDefinition:
    stream = definition()
    await keeping.ensure_streams(session, [stream])
    return stream


async def read(session: JetStream, name: str, **more: object) -> list[keeping.StreamMessage]:
    return [found async for found in keeping.read_back(session, name, **more)]  # type: ignore[arg-type]


# --- streams ---


@on_both
async def test_all_streams_are_made_as_they_must_be_and_once(tmp_path: Path, server: RealServer) -> None:
    with real_server(tmp_path, server.version) as own:
        session = await JetStream.connect(own.options)
        made = await keeping.ensure_streams(session, wanted())
        assert list(made) == [each.name for each in wanted()]
        assert made["MESHFORGE_COMMANDS"].config["retention"] == "workqueue"
        assert {each.config["storage"] for each in made.values()} == {"file"}
        assert made["MESHFORGE_EVENTS"].config["allow_atomic"], "as it reads back, not as it was asked"
        again = await keeping.ensure_streams(session, wanted())
        assert {name: each.config for name, each in again.items()} == {name: each.config for name, each in made.items()}
        assert sorted(await all_streams(session)) == sorted(made)
        await session.close()


async def test_a_stream_that_differs_is_changed_and_keeps_its_messages(session: JetStream) -> None:
    first = definition(max_age_s=600)
    await keeping.ensure_streams(session, [first])
    await publish_all(session, messages(first.name, 3))
    changed = (await keeping.ensure_streams(session, [replace(first, max_age_s=3600)]))[first.name]
    assert (changed.config["max_age"], changed.messages) == (3600 * 10**9, 3)


async def test_a_server_that_is_too_old_is_refused(session: JetStream) -> None:
    session.server = replace(session.server, version="2.11.9")
    with pytest.raises(NatsRefused):
        await keeping.ensure_streams(session, [definition()])


HOPELESS: dict[str, dict[str, object]] = {
    "storage": {"storage": "memory"},
    "retention": {"retention": "workqueue"},
    "deny_purge": {"deny_purge": True},
    "deny_delete": {"deny_delete": True},
    "counter": {"allow_msg_counter": True},
}


@on_both
@pytest.mark.parametrize("setting", HOPELESS)
async def test_a_stream_that_cannot_become_what_it_must_be_is_refused(
    session: JetStream, server: RealServer, setting: str
) -> None:
    there = definition(atomic=False)
    config = {"name": there.name, "subjects": list(there.subjects), "storage": "file", **HOPELESS[setting]}
    await session.api(f"STREAM.CREATE.{there.name}", config)
    with pytest.raises(StreamRefused, match=there.name):
        await keeping.ensure_streams(session, [there])


@on_both
async def test_what_a_stream_does_with_its_messages_is_undone(session: JetStream, server: RealServer) -> None:
    there = definition()
    config = {"name": there.name, "subjects": list(there.subjects), "storage": "file", "max_msgs": 5, "num_replicas": 1}
    transform = {"src": f"{there.name}.>", "dest": "x.>"}
    more = {"subject_transform": transform, "sources": [{"name": "Y"}], "metadata": {"theirs": "stays"}}
    await session.api(f"STREAM.CREATE.{there.name}", {**config, **more})
    found = (await keeping.ensure_streams(session, [there]))[there.name].config
    assert found["metadata"]["theirs"] == "stays" and not {"subject_transform", "sources"} & set(found)


async def test_another_stream_with_our_subjects_is_in_the_way(session: JetStream) -> None:
    there = definition()
    await session.api("STREAM.CREATE.THEIRS", {"name": "THEIRS", "subjects": [f"{there.name}.a.b"]})
    with pytest.raises(StreamRefused):
        await keeping.ensure_streams(session, [there])
    await session.api("STREAM.DELETE.THEIRS")
    await keeping.ensure_streams(session, [there])


# --- publishing ---


async def test_a_message_that_expects_another_last_message_on_its_subject_is_not_stored(session: JetStream) -> None:
    stream = definition()
    await keeping.ensure_streams(session, [stream])

    async def swap(revision: int) -> int:
        sent = Message(f"{stream.name}.key", {EXPECTED_REVISION: str(revision)}, b"")
        return (await publish(session, sent)).sequence

    assert await swap(0) == 1
    await publish(session, Message(f"{stream.name}.other", {}, b""))
    for wrong in (0, 2, 7):
        with pytest.raises(WrongExpectation):
            await swap(wrong)
    assert await swap(1) == 3


async def test_a_window_stops_at_its_first_failure(session: JetStream) -> None:
    stream = await made(session)
    sent = messages(stream.name, 40)
    sent[20] = Message("nobody.hears", {}, b"")
    with pytest.raises(NoStream):
        await publish_all(session, sent, window=4)
    stored = (await keeping.facts(session, stream.name)).messages
    assert 20 <= stored <= 23, "of those after it, at most the window's"


@on_both
async def test_a_batch_is_stored_whole_where_the_server_can(session: JetStream, server: RealServer) -> None:
    stream = definition()
    await keeping.ensure_streams(session, [stream])
    sent = messages(stream.name, 50)
    last = await publish_batch(session, sent)
    assert last.sequence == 50
    assert [found.headers["Nats-Msg-Id"] for found in await read(session, stream.name)] == [
        each.headers["Nats-Msg-Id"] for each in sent
    ]
    (single,) = messages(stream.name, 1, first=50)
    assert (await publish_batch(session, [single])).sequence == 51
    with pytest.raises(BatchRefused, check=lambda error: error.code == "nats-batch-refused"):
        await publish_batch(session, messages(stream.name, 10, first=48))
    assert (await keeping.facts(session, stream.name)).last_sequence == 51, "nothing of a refused batch is stored"
    closed = definition(atomic=False)
    await keeping.ensure_streams(session, [closed])
    with pytest.raises(BatchRefused):
        await publish_batch(session, messages(closed.name, 3))


# --- reading ---


async def test_reading_back_whole_in_part_and_nothing(session: JetStream) -> None:
    stream = await made(session)
    assert await read(session, stream.name) == []
    sent = messages(stream.name, 603)
    await publish_all(session, sent)
    whole = await read(session, stream.name)
    assert [(each.sequence, each.subject, each.body) for each in whole] == [
        (place, each.subject, each.body) for place, each in enumerate(sent, 1)
    ]
    assert whole[7].headers["DS-Position"] == "7"
    part = await read(session, stream.name, subject=f"{stream.name}.a1")
    assert [each.sequence for each in part] == [n + 1 for n in range(603) if n % 3 == 1]
    assert await read(session, stream.name, subject=f"{stream.name}.none") == []
    with pytest.raises(NotFound):
        await read(session, "NOT_THERE")


# --- a server that ends, or cannot ---


async def test_a_killed_server_ends_what_waits_and_the_next_connection_finds_all(tmp_path: Path) -> None:
    with real_server(tmp_path) as own:
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
        with pytest.raises(NatsUnavailable):
            await asyncio.wait_for(publishing_all, HANG_SECONDS)
        await asyncio.wait_for(session.ended(), HANG_SECONDS)
        assert waiting.done() and not session.is_open
        with pytest.raises(NatsUnavailable):
            await session.api("INFO")
        with pytest.raises(NatsUnavailable):
            await sessions.get()
        own.start()
        session = await asyncio.wait_for(sessions.wait(), HANG_SECONDS)
        kept = [found.body for found in await read(session, stream.name)]
        assert len(kept) >= 100 and kept == [each.body for each in sent[: len(kept)]], (
            "what was stored survived kill -9"
        )
        await publish_all(session, sent)
        assert [found.body for found in await read(session, stream.name)] == [each.body for each in sent]
        await sessions.close()
        with pytest.raises(NatsUnavailable):
            await sessions.wait()


async def test_a_stream_that_cannot_be_made_just_now_can_be_later(tmp_path: Path) -> None:
    """A server may still be removing a deleted stream's directory; here a file blocks the new one."""
    with real_server(tmp_path) as own:
        session = await JetStream.connect(own.options)
        before, stream = definition(), definition()
        await keeping.ensure_streams(session, [before])
        (in_the_way,) = [path.with_name(stream.name) for path in tmp_path.rglob(before.name)]
        in_the_way.write_bytes(b"")
        with pytest.raises(NatsUnavailable, check=lambda error: error.code == "nats-busy"):
            await keeping.ensure_streams(session, [stream])
        in_the_way.unlink(missing_ok=True)
        assert stream.name in await keeping.ensure_streams(session, [stream])
        await session.close()


async def test_many_messages_are_sent_as_they_would_be_one_by_one(session: JetStream) -> None:
    streams = await made(session)
    sent = messages(streams.name, 400, size=3000)
    await session.send_all([(m.subject, m.headers, "X-More: 1\r\n", m.body) for m in sent])
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
    with pytest.raises(NatsRefused, check=lambda error: error.code == "nats-message-too-large"):
        await session.send_all([("a", {}, "", b"x" * (session.server.max_payload + 1))])
    assert session.is_open
