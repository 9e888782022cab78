"""The mirror and the token deltas on real servers: each record once and in order, and deltas joined and redacted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.msg import Msg

from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.mirror.chunks import MAX_WAITING
from bridge.opencode.link.frames import HookItem
from sidecar.mirror.deltas import DeltaStream
from tests.memory import MemoryStore
from tests.mirrors import (
    chain_hashes,
    drained,
    fill,
    mirroring,
    read_independently,
    session_events,
)
from tests.nats_servers import HANG_SECONDS, TOKEN, RealServer, reached, real_server, until


async def test_a_record_over_the_servers_limit_is_a_pointer_and_the_chain_holds(tmp_path: Path) -> None:
    store = MemoryStore()
    await fill(store, session_events(30))
    await fill(store, session_events(3, first=32, text="x" * 70_000))
    with real_server(tmp_path / "nats", "2.15", max_payload=65536) as server:
        async with mirroring(store, server) as task:
            status = await drained(task)
        seen = await read_independently(server)
    assert status["notes"] == {"pointer": 3}
    assert [each.headers["DS-Form"] for each in seen] == ["whole"] * 30 + ["pointer"] * 3
    records = [record async for record in store.read_all()]
    assert chain_hashes(seen) == {record.event.stream_id: record.hash for record in records}


async def test_a_server_that_hangs_keeps_nobody_waiting_and_is_told_in_one_line(own: RealServer) -> None:
    store = MemoryStore()
    own.patience = 1.0
    async with mirroring(store, own) as task:
        await fill(store, session_events(20))
        await drained(task)
        own.hold()
        await fill(store, session_events(2000, first=20))
        await until(lambda: task.status()["problem"], "it is reported")
        status = task.status()
        assert status["lag"] == 2000 and "\n" not in status["problem"]
        # Nothing is queued: it holds at most two runs of waiting records, and none without a connection.
        await task.close()
        assert task.status()["position"] == 19
        own.resume()


async def test_a_mirror_without_any_server_costs_nothing_and_ends_at_once(tmp_path: Path) -> None:
    store = MemoryStore()
    async with mirroring(store, RealServer(tmp_path / "nats", "2.15")) as task:
        await fill(store, session_events(100))
        await until(lambda: task.status()["problem"], "it is reported")
        status = task.status()
        assert (status["state"], status["lag"], status["position"]) == ("waiting", 100, -1)
        async with asyncio.timeout(HANG_SECONDS):
            await task.close()


TURNS = {"ses_a": "msg_1", "ses_b": "msg_2"}


def delta(text: Any, session: Any = "ses_a", part: Any = "prt_1", field: Any = "text") -> HookItem:
    found = {"sessionID": session, "messageID": "msg_9", "partID": part, "field": field, "delta": text}
    return HookItem(hook="event", t=1, input={"event": {"type": "message.part.delta", "properties": found}})


def deltas(sessions: Sessions, hold_s: float = 0.05) -> DeltaStream:
    return DeltaStream(
        sessions,
        "LOG",
        TURNS.get,
        lambda session: "prj",
        lambda value: value.replace("hunter2", "[redacted]"),
        hold_s,
    )


@asynccontextmanager
async def listening(server: RealServer) -> AsyncIterator[list[dict[str, Any]]]:
    heard: list[dict[str, Any]] = []

    async def hear(message: Msg) -> None:
        assert not message.headers
        heard.append({"subject": message.subject, **json.loads(message.data)})

    client = await nats.connect(f"nats://127.0.0.1:{server.port}", token=TOKEN)
    await client.subscribe("cg.v1.*.*.str.>", cb=hear)
    await reached(client)
    yield heard
    await client.close()


async def test_deltas_are_joined_and_arrive_in_their_order(server: RealServer) -> None:
    sessions = Sessions(server.ask_options)
    await sessions.get()
    stream = deltas(sessions)
    async with listening(server) as heard:
        stream.take([delta(f"{n} ") for n in range(100)] + [delta("other", "ses_b")])
        stream.take([delta("my hunter2", part="prt_2")])
        # How many chunks that are is a matter of time: where the loop is held up, what came before it goes alone.
        whole = "".join(f"{n} " for n in range(100)) + "other" + "my [redacted]"
        await until(lambda: sum(len(each["content"]) for each in heard) >= len(whole), "the chunks")
        of_a = [each for each in heard if ".ses_a." in each["subject"]]
        assert "".join(each["content"] for each in of_a) == whole.replace("other", "") and len(heard) < 50
        assert of_a[-1]["content"] == "my [redacted]"
        assert of_a[0]["subject"] == "cg.v1.prj.public.str.agent.ses_a.chunk"
        assert (of_a[0]["agent_turn_id"], of_a[0]["step_id"], of_a[0]["index"]) == ("msg_1", "prt_1", 0)
        assert [each["index"] for each in of_a[:-1]] == list(range(len(of_a) - 1))
        assert stream.counts == {"deltas": 102, "sent": len(heard)}
    await stream.close()
    await sessions.close()


async def test_a_secret_in_two_deltas_does_not_reach_the_server(server: RealServer) -> None:
    sessions = Sessions(server.ask_options)
    await sessions.get()
    stream = deltas(sessions, hold_s=60)
    async with listening(server) as heard:
        stream.take([delta("my hun")])
        await until(lambda: heard, "the first word")
        stream.take([delta("ter2 is safe\n")])
        await until(lambda: "safe" in "".join(each["content"] for each in heard), "the end of the text")
        assert "".join(each["content"] for each in heard) == "my [redacted] is safe\n"
    await stream.close()
    await sessions.close()


async def test_nothing_that_a_shim_sends_does_harm(server: RealServer) -> None:
    sessions = Sessions(server.ask_options)
    await sessions.get()
    stream = deltas(sessions)
    garbage = [None, 1, [], {}, {"event": None}, {"event": {"properties": []}}, {"event": {"type": "x"}}]
    async with listening(server) as heard:
        stream.take([HookItem(hook="event", t=1, input=each) for each in garbage])
        stream.take([delta(1), delta("a", None), delta("a", part=7), delta("a", "ses_unknown"), delta("a", field="")])
        stream.take([delta("x", part="p" * 100_000), delta("ok. > *\r\nPUB a 1", part="p. > *\r\n")])
        await until(lambda: heard, "the chunk")
        assert [each["content"] for each in heard] == ["ok. > *\r\nPUB a 1"]
    assert stream.counts["no_delta"] == len(garbage) + 3 and stream.counts["no_turn"] == 1
    await stream.close()
    await sessions.close()


async def test_without_a_connection_they_are_dropped_and_counted() -> None:
    async def none() -> ConnectOptions:
        raise NatsUnavailable("no server")

    sessions = Sessions(none)
    stream = deltas(sessions)
    for n in range(MAX_WAITING * 3):
        stream.take([delta("x" * 8192, part=f"prt_{n}")])
    assert len(stream._chunks._waiting) <= MAX_WAITING
    await until(lambda: stream.counts["dropped"] == MAX_WAITING * 3, "they are dropped")
    await stream.close()
    await asyncio.sleep(0)
    assert stream.counts.get("sent") is None
