"""``kill -9`` at every step between a command on a real server and its last effect.

A process takes commands from the work queue, answers them with events, effects and commands for another home, and
buries what cannot be handled. It is killed at a named point; the next one goes on, until the queue is empty and the
mirror has caught up. ``TORTURE_COMMAND_KILLS`` sets how often at each point.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.publishing import publish_all
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS, DEAD, L0_COMMANDS, wanted
from bridge.nats.jetstream.streams import read_back
from bridge.nats.jetstream.wire import Message
from sidecar.agents.inputs import agent_stream, effects_stream
from streams.hashing import canonical
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.store import Record
from tests.mirrors import queued
from tests.nats_servers import RealServer
from tests.sidecar.mirror import killed_process
from tests.sidecar.mirror.killed_process import AGENT, CONSUMER, PLACES, Clerk, Place, lines
from tests.sidecar.mirror.test_commands import consumers_of
from tests.streams.opened import collect
from tests.streams.sizes import size
from tests.torture.figures import note, seeded

KILLS = size("COMMAND_KILLS", 1)
KILLS_A_HOME = min(KILLS, 2)
"""How often one home is killed at each point before it is checked."""

TYPES = ("plain", "honest", "unsafe", "poison", "garbage")
TO = "elsewhere"

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.sidecar.mirror.killed_process"])


@dataclass
class Given:
    """What was sent: keys of commands that can be handled, and ids of messages that become dead letters."""

    keys: list[str] = field(default_factory=list)
    poison: list[str] = field(default_factory=list)


async def test_killed_at_any_point_commands_and_letters_are_handled_once(tmp_path: Path, server: RealServer) -> None:
    random = seeded("commands")
    total: Counter[str] = Counter()
    for number in range(max(KILLS // KILLS_A_HOME, 1)):
        path = tmp_path / str(number)
        path.mkdir()
        sessions = Sessions(server.ask_options)
        try:
            await anew(sessions)
            given, status = await live_and_die(path, server, sessions, random)
            total += await check(path, sessions, given, status)
        finally:
            await sessions.close()
        total["kills"] += KILLS_A_HOME * len(PLACES)
    note("commands", lost=0, doubled=0, **total)


async def anew(sessions: Sessions) -> None:
    """Empty the server's streams, and remove the consumer of the home before."""
    session = await sessions.get()
    await keeping.ensure_streams(session, wanted())
    if CONSUMER in await consumers_of(session):
        await session.api(f"CONSUMER.DELETE.{COMMANDS}.{CONSUMER}")
    await keeping.purge(session, COMMANDS, subject="cmd.>")
    await keeping.purge(session, L0_COMMANDS, subject="cg.>")
    await keeping.purge(session, DEAD, subject="dlq.>")
    assert CONSUMER not in await consumers_of(session)


async def live_and_die(
    path: Path, server: RealServer, sessions: Sessions, random: Random
) -> tuple[Given, dict[str, Any]]:
    """Kill the home at each point, each time after new commands, in any order; then let it end."""
    given = Given()
    places = list(PLACES) * KILLS_A_HOME
    random.shuffle(places)
    for place in places:
        for trial in range(10):
            await send(sessions, path.name, given, random, place)
            if await asyncio.to_thread(live, path, server, place, 1 if trial else random.randint(1, 3)) is None:
                break
        else:
            pytest.fail(f"{place} was not passed")
    status = await asyncio.to_thread(live, path, server, None, 0)
    assert status is not None
    return given, status


async def send(sessions: Sessions, home: str, given: Given, random: Random, place: Place) -> None:
    """Send one command of each type in any order; some twice, with ids that the server does not know."""
    messages = []
    for type_ in random.sample(TYPES, len(TYPES)):
        number = len(given.keys) + len(given.poison)
        key, id_ = f"{home}-k{number}", f"{home}-m{number}-{random.getrandbits(64)}"
        body = canonical({"type": type_, "payload": {"n": number}, "idempotency_key": key})
        if type_ == "garbage":
            body = body[:-1]
        (given.poison if type_ in ("poison", "garbage") else given.keys).append(key)
        messages.append(Message(f"cmd.p.w.{AGENT}.{type_}", {"Nats-Msg-Id": id_}, body))
        if type_ not in ("poison", "garbage") and random.random() < 0.3:
            messages.append(Message(f"cmd.p.w.{AGENT}.{type_}", {"Nats-Msg-Id": f"{id_}-again"}, body))
    await publish_all(await sessions.get(), messages)


def live(path: Path, server: RealServer, place: Place | None, passing: int) -> dict[str, Any] | None:
    """One process: its report, or ``None`` if it was killed."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    arguments = (path, server.options, place, passing, theirs)
    process = CONTEXT.Process(target=killed_process.run, args=arguments)
    process.start()
    theirs.close()
    report: dict[str, Any] | None = None
    with suppress(EOFError):
        report = ours.recv()
    process.join(60)
    # 255: starting another process, in another thread, may read the code first.
    assert process.exitcode in ((-SIGKILL, 255) if report is None else (0, 255))
    return report


async def check(path: Path, sessions: Sessions, given: Given, status: dict[str, Any]) -> Counter[str]:
    """Compare the log, the server and the outside with what must be; returns counts."""
    assert [str(finding) async for finding in Verification(path / "store").run()] == []
    reader = LogReader(path / "store")
    try:
        own = await collect(reader.read(agent_stream(AGENT)))
        ledger = await collect(reader.read(effects_stream(AGENT)))
    finally:
        await reader.close()
    count = check_commands(own, ledger, given.keys)

    # Nothing is left for the agent. Each command for the other home, and its wakeup, was sent once, in the log's order.
    left = await queued(sessions)
    outgoing = [r.event for r in own if r.event.metadata.get("route") == "bus"]
    assert len(outgoing) == count
    assert [(message.subject, message.body) for message in left] == [
        (f"cmd.p.w.{TO}.tell", canonical(event.fields())) for event in outgoing
    ]

    wakeups = [json.loads(message.body) for message in await queued(sessions, L0_COMMANDS)]
    assert [wakeup["inbox_id"] for wakeup in wakeups] == [event.id for event in outgoing]

    await _check_letters(sessions, own, given, status)
    return Counter(inputs=count, dead=len(given.poison)) + check_effects(path, own, ledger, status["in_doubt"])


async def _check_letters(sessions: Sessions, own: list[Record], given: Given, status: dict[str, Any]) -> None:
    """What cannot be handled is one dead letter in the log and one on the server."""
    letters = [record.event for record in own if record.event.metadata["role"] == "dead"]
    copies = [message async for message in read_back(await sessions.get(), DEAD)]
    assert status["dead"] == len(letters) == len(given.poison)
    assert Counter(copy.headers["DS-Dead-Letter"] for copy in copies) == Counter(event.id for event in letters)
    assert sorted(json.loads(_whole(copy.body))["idempotency_key"] for copy in copies) == sorted(given.poison)


def _whole(body: bytes) -> bytes:
    """A command's body, also of one that was cut."""
    return body if body.count(b"{") == body.count(b"}") else body + b"}"


def check_commands(own: list[Record], ledger: list[Record], given: list[str]) -> int:
    """Every command of these keys once, and its outputs with it, as if nothing had happened. Returns how many."""
    inputs = [r.event for r in own if r.event.metadata["role"] == "input"]
    commands = {event.metadata["key"]: event for event in inputs if "key" in event.metadata}
    assert Counter(event.metadata["key"] for event in inputs if "key" in event.metadata) == Counter(given)
    clean = Clerk()
    own, at = [record for record in own if record.event.metadata["role"] != "dead"], 1
    while at < len(own):
        event = own[at].event
        type_, payload = event.type, event.payload
        if type_ == "agent.received":
            type_ = payload["type"]
            payload = next(r.event.payload for r in ledger if r.event.id == event.payload["event"])
        at += 1
        for output in clean.receive({"type": type_, "payload": payload}):
            recorded = own[at].event
            assert recorded.causation_id == event.id
            if "effect" in output:
                assert (recorded.payload["kind"], recorded.payload["args"]) == (output["effect"], output["payload"])
            else:
                assert (recorded.type, recorded.payload) == (output["type"], output["payload"])
                clean.apply(output)
            at += 1
    assert clean.count == len(commands)

    return clean.count


def check_effects(path: Path, own: list[Record], ledger: list[Record], in_doubt: int) -> Counter[str]:
    """Every effect: done once where the key is honoured; else once, or shown as in doubt."""
    inputs = [r.event for r in own if r.event.metadata["role"] == "input"]
    requests = {r.event.id: r.event.payload for r in own if r.event.metadata["role"] == "effect"}
    ends = Counter(r.event.payload["request"] for r in ledger if r.event.payload.get("final"))
    doubts = {r.event.payload["request"] for r in ledger if r.event.type == "effect.in_doubt"}
    received = Counter(event.payload["event"] for event in inputs if "event" in event.payload)
    assert set(received.values()) <= {1}
    assert set(received) == {
        r.event.id for r in ledger if r.event.payload.get("final") or r.event.type == "effect.in_doubt"
    }
    honest, unsafe = Counter(lines(path / "honest")), Counter(lines(path / "unsafe"))
    for id_, request in requests.items():
        assert ends[id_] == (id_ not in doubts)
        if request["kind"] == "honest":
            assert id_ not in doubts
            assert honest[request["key"]] == 1
        else:
            assert unsafe[request["key"]] <= 1 if id_ in doubts else unsafe[request["key"]] == 1
    assert set(honest) | set(unsafe) == {
        request["key"] for id_, request in requests.items() if id_ not in doubts or unsafe[request["key"]]
    }
    assert in_doubt == len(doubts)
    return Counter(effects=len(requests), in_doubt=len(doubts))
