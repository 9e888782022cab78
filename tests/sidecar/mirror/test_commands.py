"""Commands: handled once, whatever is repeated; poison becomes dead letters.

Where the server matters, they come from a plain NATS client, else from a bus in memory. Kills between two steps are in
``test_command_crashes.py``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import nats
import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NotFound
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS, DEAD
from sidecar.agents.runtime import Runtime
from sidecar.mirror.commands import LONGEST_BODY, CommandConsumers
from streams.bus.contract import EventBus
from streams.errors import StoreUnavailable
from streams.store import Record, Snapshot, StreamStore
from streams.system.retry import Retry
from streams.trace import parse_traceparent
from tests.memory import MemoryStore
from tests.memory_bus import MemoryEventBus
from tests.mirrors import read_independently
from tests.nats_servers import TOKEN, RealServer, all_streams, until
from tests.sidecar.agents.agents import Counter, Other
from tests.sidecar.agents.support import records, running, state

QUICK = PullSettings(fetch_timeout_s=1.0, heartbeat_s=0.2, ack_wait_s=2.0, retry=Retry(0.01, 1.0, attempts=5))
ADD = "cmd.default.demo.counter.add"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Client:
    """A program that knows NATS, and nothing of ours."""

    def __init__(self, server: RealServer) -> None:
        self._server = server

    async def send(self, subject: str, body: Any, headers: dict[str, str] | None = None, *, times: int = 1) -> None:
        client = await nats.connect(f"nats://127.0.0.1:{self._server.port}", token=TOKEN)
        try:
            context = client.jetstream()
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            for _ in range(times):
                await context.publish(subject, data, headers=headers)
        finally:
            await client.close()

    @asynccontextmanager
    async def hearing(self, subject: str) -> AsyncIterator[Any]:
        """What is published on a subject from now on, as a subscription of the client library."""
        client = await nats.connect(f"nats://127.0.0.1:{self._server.port}", token=TOKEN)
        try:
            heard = await client.subscribe(subject)
            await client.flush()
            yield heard
        finally:
            await client.close()


@pytest.fixture
def bus() -> MemoryEventBus:
    return MemoryEventBus()


async def send(bus: MemoryEventBus, subject: str, body: Any, headers: dict[str, str] | None = None) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    await bus.publish(subject, headers or {}, data)


@pytest.fixture
def client(server: RealServer) -> Client:
    return Client(server)


@asynccontextmanager
async def consuming(
    runtime: Runtime, bus: EventBus | Sessions, settings: PullSettings = QUICK, **more: Any
) -> AsyncIterator[CommandConsumers]:
    """Commands from this bus, or from the one on the server of these sessions."""
    consumers = CommandConsumers(
        runtime, JetStreamEventBus(bus, settings, **more) if isinstance(bus, Sessions) else bus
    )
    consumers.start()
    try:
        yield consumers
    finally:
        await consumers.close()


async def empty(sessions: Sessions, stream: str = COMMANDS) -> None:
    """Wait until the work queue holds nothing."""
    session = await sessions.get()
    async with asyncio.timeout(20):
        while (await keeping.facts(session, stream)).messages:
            await asyncio.sleep(0.01)


async def consumers_of(session: JetStream, stream: str = COMMANDS) -> dict[str, dict[str, Any]]:
    """The settings of a stream's consumers, by name; empty while there is no such stream."""
    try:
        found = (await session.api(f"CONSUMER.LIST.{stream}"))["consumers"] or []
    except NotFound:
        return {}
    return {each["name"]: each["config"] for each in found}


async def forget_ids_soon(sessions: Sessions) -> None:
    """Once the consumer runs, let the stream of dead letters forget message ids before the next delivery."""
    session = await sessions.get()
    async with asyncio.timeout(20):
        while "counter_consumer" not in await consumers_of(session):
            await asyncio.sleep(0.01)
    config = (await keeping.facts(session, DEAD)).config
    await session.api(f"STREAM.UPDATE.{DEAD}", {**config, "duplicate_window": 100_000_000})


def counts(consumers: CommandConsumers, agent: str = "counter") -> dict[str, int]:
    (found,) = [each for each in consumers.status() if each["agent"] == agent]
    return dict(found["counts"])


async def letters(store: StreamStore, agent: str = "counter") -> list[Record]:
    return [r for r in await records(store, f"agent/{agent}") if r.event.type == "agent.dead_letter"]


async def inputs(store: StreamStore, agent: str = "counter") -> list[Record]:
    return [r for r in await records(store, f"agent/{agent}") if r.event.metadata.get("role") == "input"]


class TestHandling:
    async def test_a_plain_command_is_handled_and_gone(
        self, sessions: Sessions, store: MemoryStore, client: Client
    ) -> None:
        async with running(store, Counter, Other) as runtime, consuming(runtime, sessions) as consumers:
            await client.send(ADD, {"by": 3})
            await client.send("cmd.p.w.other.anything", {"type": "add", "payload": {"by": 4}, "actor": "nightly"})
            await client.send("cmd.p.w.counter.idle", b"")
            await empty(sessions)
            assert state(runtime)["total"] == 3 and state(runtime, "other")["total"] == 4
            assert counts(consumers)["handled"] == 2
            assert all(not each["problem"] for each in consumers.status())
        (first, last) = await inputs(store)
        assert (first.event.type, first.event.payload, first.event.metadata["depth"]) == ("add", {"by": 3}, 0)
        assert first.event.metadata["subject"] == ADD and last.event.payload == {}
        assert (await inputs(store, "other"))[0].event.actor == "nightly"

    async def test_ten_duplicates_and_one_after_the_servers_window_are_handled_once(
        self, sessions: Sessions, store: MemoryStore, client: Client
    ) -> None:
        async with running(store, Counter) as runtime, consuming(runtime, sessions) as consumers:
            body = {"type": "add", "payload": {"by": 5}, "idempotency_key": "order:17"}
            await client.send(ADD, body, times=10)
            await empty(sessions)
            # As after the window: the server does not recognise the message any more.
            await client.send(ADD, body, {"Nats-Msg-Id": "another"})
            await empty(sessions)
            assert state(runtime)["total"] == 5
            assert (counts(consumers)["handled"], counts(consumers)["duplicate"]) == (1, 10)

    async def test_the_key_is_the_message_id_or_else_the_place_in_the_stream(
        self, sessions: Sessions, store: MemoryStore, client: Client
    ) -> None:
        async with running(store, Counter) as runtime, consuming(runtime, sessions):
            await client.send(ADD, {"by": 1}, {"Nats-Msg-Id": "m1"})
            await client.send(ADD, {"by": 1})
            await client.send(ADD, {"by": 1})
            await empty(sessions)
            assert state(runtime)["total"] == 3
        keys = [record.event.metadata["key"] for record in await inputs(store)]
        assert keys == ["m1", f"{COMMANDS}:2", f"{COMMANDS}:3"]

    async def test_the_order_of_an_agents_commands_is_kept(self, bus: MemoryEventBus, store: MemoryStore) -> None:
        for n in range(100):
            await send(bus, ADD, {"by": n})
        async with running(store, Counter) as runtime, consuming(runtime, bus):
            await bus.until_stored("cmd.>", 0)
            assert state(runtime)["total"] == sum(range(100))
        assert [record.event.payload["by"] for record in await inputs(store)] == list(range(100))

    async def test_commands_wait_while_the_log_cannot_be_written(
        self, bus: MemoryEventBus, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sidecar.mirror.commands.PAUSE_SECONDS", 0.01)
        monkeypatch.setattr("sidecar.agents.engine.PAUSE_SECONDS", 0.01)
        async with running(store, Counter) as runtime, consuming(runtime, bus) as consumers:
            tried = 0
            append = store.append

            async def full(*args: Any, **more: Any) -> Any:
                nonlocal tried
                tried += 1
                raise StoreUnavailable("the disk is full")

            monkeypatch.setattr(store, "append", full)
            await send(bus, ADD, {"by": 3})
            await until(lambda: tried > 7, "it is tried")
            monkeypatch.setattr(store, "append", append)
            await bus.until_stored("cmd.>", 0)
            assert state(runtime)["total"] == 3
            assert counts(consumers)["delivered"] == 1 and not await letters(store)


class TestRestarts:
    async def test_a_server_that_restarts_and_a_consumer_that_is_gone(
        self, server: RealServer, sessions: Sessions, store: MemoryStore, client: Client
    ) -> None:
        async with running(store, Counter) as runtime, consuming(runtime, sessions):
            await client.send(ADD, {"by": 1})
            await until(lambda: state(runtime)["total"] == 1, "the first")
            server.kill()
            server.start()
            await client.send(ADD, {"by": 1})
            await until(lambda: state(runtime)["total"] == 2, "after the restart")
            await (await sessions.get()).api(f"CONSUMER.DELETE.{COMMANDS}.counter_consumer")
            await client.send(ADD, {"by": 1})
            await until(lambda: state(runtime)["total"] == 3, "after the consumer was removed")
            await empty(sessions)


class TestDeadLetters:
    async def test_what_always_fails_dies_at_the_fifth_delivery_and_blocks_nobody(
        self, server: RealServer, sessions: Sessions, store: MemoryStore, client: Client
    ) -> None:
        async with (
            running(store, Counter) as runtime,
            consuming(runtime, sessions) as consumers,
            client.hearing("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>") as terminated,
        ):
            await client.send("cmd.p.w.counter.fail", {"n": 1}, {"Nats-Msg-Id": "bad"})
            await client.send(ADD, {"by": 3})
            await empty(sessions)
            advisory = json.loads((await terminated.next_msg(timeout=20)).data)
            assert (advisory["stream_seq"], advisory["deliveries"]) == (1, 5), "it was not acknowledged as handled"
            assert state(runtime)["total"] == 3
            assert (counts(consumers)["dead"], counts(consumers)["again"]) == (1, 4)
            await until(lambda: runtime.view.dead, "it is shown")
            (letter,) = runtime.view.dead.values()
        (record,) = await letters(store)
        assert record.event.payload["payload"] == {"n": 1} and record.event.payload["code"] == "agent-failed"
        assert (letter.agent, letter.type) == ("counter", "fail")
        (copy,) = await read_independently(server, "dlq.>", DEAD)
        assert (copy.subject, copy.body) == ("dlq.counter_consumer.cmd.p.w.counter.fail", b'{"n": 1}')
        assert copy.headers["DS-Dead-Letter"] == record.event.id

    @pytest.mark.parametrize(
        ("subject", "body", "code"),
        [
            (ADD, b"{", "undecodable"),
            (ADD, b"\xff" * (LONGEST_BODY + 5), "undecodable"),
            (ADD, {"id": "1", "stream_id": "x", "payload": {}}, "undecodable"),
            (ADD, {"type": 3, "payload": {}}, "undecodable"),
            ("cmd.p.w.counter.%41", {"by": 1}, "undecodable"),
            ("cmd.p.w.counter.1", {"by": 1}, "invalid-command"),
        ],
    )
    async def test_what_is_no_command_dies_at_once_with_its_text(
        self, bus: MemoryEventBus, store: MemoryStore, subject: str, body: Any, code: str
    ) -> None:
        def clean(value: Any) -> Any:
            return json.loads(json.dumps(value).replace("hunter2", "***"))

        async with running(store, Counter, clean=clean) as runtime, consuming(runtime, bus) as consumers:
            await send(bus, subject, body, {"Token": "hunter2"})
            await bus.until_stored("cmd.>", 0)
            assert counts(consumers)["delivered"] == 1
            (record,) = await letters(store)
            assert record.event.payload["code"] == code
            assert record.event.payload["headers"]["Token"] == "***"
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            assert record.event.payload["size"] == len(data)
            await until(lambda: runtime.view.dead, "it is shown")
            with pytest.raises(Exception, match="could not be read as a command"):
                await runtime.redrive(record.event.id)
            await runtime.drop(record.event.id)
            assert not runtime.view.dead

    async def test_a_command_cannot_pass_for_a_record_of_the_runtime(
        self, bus: MemoryEventBus, store: MemoryStore
    ) -> None:
        async with running(store, Counter) as runtime, consuming(runtime, bus):
            await send(bus, "cmd.p.w.counter.fail", {"n": 1})
            await until(lambda: runtime.view.dead, "a dead letter")
            (letter,) = runtime.view.dead
            await send(bus, "cmd.p.w.counter.dlq.dropped", {"letter": letter})
            await send(bus, "cmd.p.w.counter.agent.dead_letter", {})
            await bus.until_stored("cmd.>", 0)
            await until(lambda: len(runtime.view.dead) == 3, "both are dead letters")
        codes = [record.event.payload["code"] for record in await letters(store)]
        assert codes == ["agent-failed", "reserved-type", "reserved-type"]

    async def test_the_same_key_with_another_body_dies(self, bus: MemoryEventBus, store: MemoryStore) -> None:
        async with running(store, Counter) as runtime, consuming(runtime, bus):
            for by in (1, 2, 3):
                await send(bus, ADD, {"payload": {"by": by}, "idempotency_key": "a:b"})
            await bus.until_stored("cmd.>", 0)
            assert state(runtime)["total"] == 1
        found = [record.event.payload for record in await letters(store)]
        assert [(each["code"], each["payload"]["by"]) for each in found] == [("key-conflict", 2), ("key-conflict", 3)]

    async def test_a_kill_after_a_burial_repeats_nothing_when_the_server_knows_its_id_no_more(
        self, server: RealServer, sessions: Sessions, store: MemoryStore, client: Client
    ) -> None:
        seen: list[str] = []

        def kill(at: str) -> None:
            seen.append(at)
            if at == "before-ack" and seen.count(at) == 1:
                raise asyncio.CancelledError  # ends the handler without any answer

        async with running(store, Counter) as runtime:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            quick = replace(QUICK, ack_wait_s=0.3)
            async with consuming(runtime, sessions, quick, stop=kill):
                await forget_ids_soon(sessions)
                await client.send(ADD, b"{")
                await empty(sessions)
            asyncio.get_running_loop().set_exception_handler(None)
        assert len(await letters(store)) == 1
        assert len(await read_independently(server, "dlq.>", DEAD)) == 1


class TestProtocol:
    async def test_the_trace_is_continued_or_made_and_counted(self, bus: MemoryEventBus, store: MemoryStore) -> None:
        async with running(store, Counter) as runtime, consuming(runtime, bus) as consumers:
            await send(bus, ADD, {"by": 1}, {"traceparent": PARENT, "tracestate": "a=1", "CG-Sender": "ci%20bot"})
            await send(bus, ADD, {"by": 1}, {"CG-Timestamp": "1700000000000"})
            await send(bus, ADD, {"by": 1, "CG-Sender": "x"}, {"traceparent": "nonsense"})
            await bus.until_stored("cmd.>", 0)
            found = counts(consumers)
            assert (found["trace_made"], found["trace_invalid"], found["reserved_keys"]) == (1, 1, 1)
        stream = [record.event for record in await records(store, "agent/counter")]
        first, output, second = stream[1:4]
        assert first.traceparent == PARENT and first.metadata["tracestate"] == "a=1"
        assert (first.source.agent, first.actor) == ("ci bot", "ci bot")
        trace, child = parse_traceparent(PARENT), parse_traceparent(output.traceparent or "")
        assert trace and child and trace.trace_id == child.trace_id and trace.span_id != child.span_id
        assert second.ts == 1700000000000 and second.metadata["trace_generated"] is True
        assert "trace_generated" not in first.metadata

    @pytest.mark.parametrize(
        ("headers", "body", "code", "depth"),
        [
            ({"CG-Recursion-Depth": "20"}, {"by": 1}, "recursion_depth_exceeded", 20),
            ({"CG-Recursion-Depth": "-1"}, {"by": 1}, "protocol_violation", None),
            ({}, {"payload": {"by": 1}, "causation_id": "01"}, "protocol_violation", None),
            ({"CG-Recursion-Depth": "7"}, {"payload": {"by": 1}, "correlation_id": "chain"}, "protocol_violation", 3),
            ({"CG-Mode": "transfer"}, {"by": 1}, "protocol_violation", None),
            ({}, {"payload": {"by": 1}, "mode": "notify"}, "protocol_violation", None),
        ],
    )
    async def test_what_breaks_the_rules_of_depth_or_is_no_call_ends_its_chain(
        self,
        bus: MemoryEventBus,
        store: MemoryStore,
        headers: dict[str, str],
        body: Any,
        code: str,
        depth: int | None,
    ) -> None:
        async with running(store, Counter) as runtime, consuming(runtime, bus) as consumers:
            begun = {"payload": {"by": 5}, "correlation_id": "chain", "mode": "call"}
            await send(bus, ADD, begun, {"CG-Recursion-Depth": "3", "cg-mode": "call"})
            await until(lambda: "chain" in runtime.view.chains, "its depth is recorded")
            await send(bus, ADD, body, headers)
            await bus.until_stored("cmd.>", 0)
            assert (counts(consumers)["refused"], state(runtime)["total"]) == (1, 5)
            await until(lambda: runtime.view.position == store.head, "the log was read")
            assert runtime.view.chains["chain"].depth == 3
        refused = [r.event for r in await records(store, "agent/counter") if r.event.type == "agent.refused"]
        assert [(event.payload["error_code"], event.metadata.get("depth")) for event in refused] == [(code, depth)]
        assert refused[0].metadata["project"] == "default"
        assert not await letters(store)

    @pytest.mark.parametrize("is_whole", [False, True])
    async def test_a_depth_is_judged_by_the_whole_log_also_right_after_a_start(
        self, bus: MemoryEventBus, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, is_whole: bool
    ) -> None:
        begun = {"payload": {"by": 5}, "correlation_id": "chain"}
        async with running(store, Counter) as runtime, consuming(runtime, bus):
            await send(bus, ADD, begun, {"CG-Recursion-Depth": "3"})
            await bus.until_stored("cmd.>", 0)
        if not is_whole:
            await store.put_snapshot("runtime", Snapshot(0, 0, b""))  # as after a kill: there is no hint
        release, read_all = asyncio.Event(), store.read_all

        async def slowly(*args: Any, **more: Any) -> AsyncIterator[Record]:
            await release.wait()
            async for record in read_all(*args, **more):
                yield record

        monkeypatch.setattr(store, "read_all", slowly)
        async with running(store, Counter) as runtime, consuming(runtime, bus) as consumers:
            await send(bus, ADD, {"payload": {"by": 1}, "correlation_id": "chain"}, {"CG-Recursion-Depth": "7"})
            await send(bus, ADD, {"payload": {"by": 1}, "correlation_id": "chain"}, {"CG-Recursion-Depth": "3"})
            await until(lambda: consumers.status()[0]["waiting"] == 2, "they wait")
            assert consumers.status()[0]["in_flight"] == 0
            release.set()
            await bus.until_stored("cmd.>", 0)
            assert state(runtime)["total"] == 6
            assert (counts(consumers)["refused"], counts(consumers)["handled"]) == (1, 1)

    async def test_commands_that_wait_for_a_log_that_cannot_be_read_are_told(
        self, bus: MemoryEventBus, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(*args: Any, **more: Any) -> AsyncIterator[Record]:
            raise StoreUnavailable("the disk is gone")
            yield

        monkeypatch.setattr(store, "read_all", broken)
        monkeypatch.setattr("sidecar.mirror.commands.CLOSE_SECONDS", 0.01)
        async with running(store, Counter) as runtime, consuming(runtime, bus) as consumers:
            await send(bus, ADD, {"by": 1})
            await until(lambda: consumers.status()[0]["waiting"] == 1, "it waits")
            assert "the disk is gone" in consumers.status()[0]["problem"]

    async def test_a_depth_is_judged_by_a_command_that_is_still_being_handled(
        self, bus: MemoryEventBus, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        release, append = asyncio.Event(), store.append

        async def held(*args: Any, **more: Any) -> Any:
            await release.wait()
            return await append(*args, **more)

        async with running(store, Counter) as runtime, consuming(runtime, bus) as consumers:
            await runtime.until_known()
            monkeypatch.setattr(store, "append", held)
            await send(bus, ADD, {"payload": {"by": 1}, "correlation_id": "chain"}, {"CG-Recursion-Depth": "3"})
            await send(bus, ADD, {"payload": {"by": 1}, "correlation_id": "chain"}, {"CG-Recursion-Depth": "7"})
            await until(lambda: counts(consumers).get("delivered") == 2, "both arrive")
            release.set()
            await bus.until_stored("cmd.>", 0)
            assert (counts(consumers)["refused"], state(runtime)["total"]) == (1, 1)

    async def test_commands_of_one_chain_share_a_trace_that_nobody_sends(
        self, bus: MemoryEventBus, store: MemoryStore
    ) -> None:
        bodies = [{"payload": {"by": 1}, "correlation_id": each} for each in ("made", "made", "made", "came")]
        async with running(store, Counter) as runtime, consuming(runtime, bus) as consumers:
            for body in bodies:
                await send(bus, ADD, body, {"traceparent": PARENT} if body["correlation_id"] == "came" else {})
            await send(bus, ADD, bodies[-1])
            await bus.until_stored("cmd.>", 0)
            assert counts(consumers)["trace_made"] == 1
        spans = [parse_traceparent(record.event.traceparent or "") for record in await inputs(store)]
        assert all(spans)
        traces = [span.trace_id for span in spans if span is not None]
        assert len(set(traces[:3])) == 1 and traces[3] == traces[4] == PARENT[3:35]
        assert len({span.span_id for span in spans if span is not None}) == 5


class TestSettings:
    async def test_a_foreign_consumer_of_the_same_commands_is_named_as_the_problem(
        self, server: RealServer, sessions: Sessions, store: MemoryStore, client: Client
    ) -> None:
        session = await sessions.get()
        config = {"durable_name": "greedy", "ack_policy": "explicit", "filter_subject": "cmd.>"}
        made = await session.api(
            f"CONSUMER.DURABLE.CREATE.{COMMANDS}.greedy", {"stream_name": COMMANDS, "config": config}
        )
        assert made["name"] == "greedy"
        async with running(store, Counter) as runtime, consuming(runtime, sessions) as consumers:
            problem = await until(lambda: consumers.status()[0]["problem"], "the problem")
            assert "counter_consumer" in problem
            await session.api(f"CONSUMER.DELETE.{COMMANDS}.greedy")
            await client.send(ADD, {"by": 1})
            await empty(sessions)
            assert consumers.status()[0]["problem"] == ""

    async def test_missing_streams_are_created(self, sessions: Sessions, store: MemoryStore, client: Client) -> None:
        session = await sessions.get()
        await session.api(f"STREAM.DELETE.{COMMANDS}")
        with pytest.raises(NotFound):
            await keeping.facts(session, COMMANDS)
        async with running(store, Counter) as runtime, consuming(runtime, sessions):
            async with asyncio.timeout(20):
                while COMMANDS not in await all_streams(session):
                    await asyncio.sleep(0.01)
            await client.send(ADD, {"by": 1})
            await until(lambda: state(runtime)["total"] == 1, "it is handled")
