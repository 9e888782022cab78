"""The whole way in a real sidecar: a NATS message reaches a configured agent, and a person sees what is wrong."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.wire import Message
from sidecar.config import NatsConfig
from sidecar.home import Home
from sidecar.link.launch import ensure_running
from sidecar.mirror.reaching import sessions_of
from streams.identity import system_identity
from tests.nats_servers import HANG_SECONDS
from tests.sidecar.cli.helpers import run
from tests.sidecar.mirror.test_commands import consumers_of


@pytest.fixture
def nats_home(counter_home: Home) -> Path:
    with counter_home.config_path.open("a") as config:
        config.write('ui_allowed = ["signal"]\ninternal_allowed = ["signal"]\n')
        config.write('[nats]\nmode = "embedded"\n[nats.pull]\nack_wait_seconds = 3\nnew = 1\n')
    return counter_home.path


async def _send(home: Path, *messages: Message) -> None:
    """Publish as soon as the sidecar's consumer is there."""
    sessions = sessions_of(Home(home), NatsConfig(mode="embedded"), system_identity().nonce)
    try:
        session = await sessions.wait()
        async with asyncio.timeout(HANG_SECONDS):
            while not await consumers_of(session):
                await asyncio.sleep(0.02)
        for message in messages:
            await publish(session, message)
    finally:
        await sessions.close()


async def _ack_wait(home: Path) -> int:
    """What the sidecar asked the server for, in nanoseconds."""
    sessions = sessions_of(Home(home), NatsConfig(mode="embedded"), system_identity().nonce)
    try:
        return int((await consumers_of(await sessions.wait()))["counter_consumer"]["ack_wait"])
    finally:
        await sessions.close()


def _status(home: Path) -> dict[str, Any]:
    return run(home, "status", "--json").objects()[0]


def test_a_message_reaches_an_agent_and_a_person_sees_what_is_wrong(nats_home: Path) -> None:
    asyncio.run(ensure_running(Home(nats_home)))
    by = json.dumps({"by": 3}).encode()
    reserved = json.dumps({"by": 4, "CG-Sender": "x"}).encode()
    messages = [
        Message("cmd.default.demo.counter.add", {"Nats-Msg-Id": "1"}, by),
        Message("cmd.default.demo.counter.add", {"Nats-Msg-Id": "2"}, reserved),
        Message("cmd.default.demo.counter.add", {}, b"{"),
        Message("cmd.default.demo.intents.intent.register", {}, b"{}"),
        Message("cg.v1.default.public.cmd.sys.ui.action", {}, b"\xff"),
        Message("cg.v1.default.public.cmd.sys.pmo.internal.signal", {}, b"\xff"),
        Message("cg.v1.default.public.cmd.agent.counter.wakeup", {}, b"\xff"),
    ]
    asyncio.run(_send(nats_home, *messages))
    end = time.monotonic() + HANG_SECONDS
    while True:  # the messages are handled side by side, so any of them can be the last
        found = _status(nats_home)
        (consumer,) = found["nats"]["commands"]
        if found["worker"] and all(consumer["counts"].get(name, 0) >= n for name, n in (("done", 2), ("poison", 1))):
            break
        assert time.monotonic() < end, found["nats"]
    assert (consumer["consumer"], consumer["subjects"]) == ("counter_consumer", ["cmd.*.*.counter.>"])
    assert consumer["counts"]["handled"] == 2
    while len(letters := run(nats_home, "dlq", "list", "--json").objects()) < 4:
        assert time.monotonic() < end, letters
    assert {(each["subject"].partition(".cmd.")[2], each["code"]) for each in letters} == {
        ("", "undecodable"),
        ("sys.ui.action", "undecodable"),
        ("sys.pmo.internal.signal", "undecodable"),
        ("agent.counter.wakeup", "undecodable"),
    }
    assert {each["agent"] for each in letters} == {"counter", "ui_worker", "cmd.sys.pmo.internal.signal"}
    others = [each["id"] for each in letters if each["agent"] != "counter"]
    assert "[undecodable]" in run(nats_home, "dlq", "redrive", others[0]).err
    assert run(nats_home, "dlq", "drop", *others).code == 0
    assert {each["agent"] for each in run(nats_home, "dlq", "list", "--json").objects()} == {"counter"}
    while True:  # the mirror follows the log in its own time
        found = _status(nats_home)
        notes, lag = "\n".join(found["notes"]), found["nats"]["mirror"]["lag"]
        if "dlq list" in notes and not lag:
            break
        assert time.monotonic() < end, (notes, lag)
    assert "CG-*" in notes
    checks = {(each["name"], each["level"]) for each in run(nats_home, "doctor", "--json").objects()}
    assert {("agents", "note"), ("config", "note"), ("mirror", "note")} <= checks
    assert asyncio.run(_ack_wait(nats_home)) == 3 * 10**9
    added = run(nats_home, "query", "--type", "counter.added", "--json").objects()
    assert [each["event"]["payload"]["by"] for each in added] == [3, 4]
    trace = added[0]["event"]["traceparent"]
    chain = run(nats_home, "query", "--trace", trace, "--json").objects()
    assert [each["event"]["type"] for each in chain] == ["add", "counter.added"]
    assert chain == run(nats_home, "query", "--trace", trace[3:35], "--json").objects()
    assert run(nats_home, "query", "--trace", "nonsense").code == 2
