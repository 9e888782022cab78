"""``mirror verify`` reports a damaged copy and ``mirror rebuild`` fixes it, whatever happens to the copy.

RELIABILITY test 9.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NotFound
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
from bridge.nats.jetstream.streams import StreamMessage
from bridge.nats.jetstream.wire import Message
from bridge.nats.mirror.messages import is_forgotten
from sidecar.mirror.verify import Disturbed, MirrorCheck
from streams.identity import system_identity
from streams.log.reader import LogReader
from tests.bridge.nats import vectors
from tests.bridge.nats.records import event
from tests.nats_servers import RealServer
from tests.sidecar.mirror.copies import Copy, shown, store_files


@pytest.fixture
def copy(tmp_path: Path, server: RealServer) -> Copy:
    made = Copy(tmp_path / "home", server).make().publish()
    code, found, summary = made.verify()
    assert (code, found) == (0, []), shown(found)
    assert summary["records"] == summary["streams"][0]["compared"] > 40 and summary["streams"][1]["compared"] > 10
    return made


def mine(copy: Copy, stream: str = EVENTS) -> list[StreamMessage]:
    return [m for m in copy.messages(stream) if m.headers.get(h.LOG) == copy.log_id]


def again(found: StreamMessage) -> dict[str, str]:
    """Headers to publish a message a second time."""
    kept = {name: value for name, value in found.headers.items() if not name.startswith("Nats-")}
    return {**kept, h.MESSAGE_ID: f"{found.headers[h.MESSAGE_ID]}:77"}


def mended(copy: Copy) -> None:
    """Check that a rebuild restores every message, and only this log's."""
    others = [m for m in copy.messages() if f".{copy.log_id}." not in m.subject]
    done = copy.rebuild()
    assert done.code == 0, done
    code, found, summary = copy.verify()
    assert (code, found) == (0, []), shown(found)
    assert summary["waiting"] == 0 and summary["streams"][0]["compared"] == summary["records"]
    left = [m for m in copy.messages() if f".{copy.log_id}." not in m.subject]
    assert [(m.subject, m.sequence) for m in left] == [(m.subject, m.sequence) for m in others]


def test_records_of_every_kind_and_size_equal_themselves(tmp_path: Path, server: RealServer) -> None:
    """Odd names, bad traces, payloads that become pointers; this server's 8 MiB limit excludes nothing else."""
    odd = "x \r\n\x1b[2J\ud800 修 %_ 👩\u200d💻 .*>"
    step = {"session": odd, "part": odd, "turn": odd, "kind": odd, "tool": odd, "status": "error", "tokens": {odd: 1}}
    more: list[dict[str, Any]] = [
        {"actor": odd, "source": {"agent": odd, "adapter": odd}, "traceparent": odd, "metadata": {"tracestate": odd}},
        {"traceparent": None, "metadata": {"tracestate": "a=b", odd: odd}, "correlation_id": None},
    ]
    made = [event(500 + n, "execution.step", step, **each) for n, each in enumerate(more)]
    made += [event(600 + n, "note", {"session": "ses_a", "CG-Sender": odd, "text": "y" * n}) for n in (1, 9_000_000)]
    pinned = [each for each in vectors.events().values() if not is_forgotten(each)]  # no log takes that
    copy = Copy(tmp_path / "home", server).make("chat").add([*pinned, *made]).publish()
    code, found, summary = copy.verify()
    assert (code, found) == (0, []), shown(found)
    assert "pointer" in {m.headers[h.FORM] for m in mine(copy)} and summary["records"] == len(mine(copy))
    mended(copy)


def test_half_lost(copy: Copy) -> None:
    lost, told = mine(copy)[::2], mine(copy, L0_EVENTS)[1::3]
    copy.delete(EVENTS, *(m.sequence for m in lost))
    copy.delete(L0_EVENTS, *(m.sequence for m in told))
    code, found, summary = copy.verify()
    assert code == 1
    named = [event for each in found if each["stream"] == EVENTS for event in each["events"]]
    assert named == [m.headers[h.MESSAGE_ID].partition(":")[0] for m in lost]
    assert summary["streams"][1]["differences"] == {"missing": len(told)}
    mended(copy)


def test_extra_doubled_and_changed(copy: Copy) -> None:
    some, told = mine(copy)[5], mine(copy, L0_EVENTS)[2]

    async def work(session: JetStream) -> None:
        double = again(some)
        foreign = {**double, h.MESSAGE_ID: "foreign", h.POSITION: "100000"}
        for message in (
            Message(some.subject, double, some.body),
            Message(some.subject, foreign, some.body),
            Message(some.subject, {h.MESSAGE_ID: "bare"}, b"not ours"),
            Message(told.subject, again(told), b"{}"),
        ):
            await publish(session, message)

    copy.on_server(work)
    code, found, _ = copy.verify()
    assert code == 1 and [each["kind"] for each in found] == ["extra"] * 4, shown(found)
    assert sorted(each["position"] for each in found if each["stream"] == EVENTS) == [-1, 5, 100000]
    # Without the first of the two the second one is the record's, at the wrong place.
    copy.delete(EVENTS, some.sequence)
    assert sorted(each["kind"] for each in copy.verify()[1]) == ["extra", "extra", "extra", "order"]
    mended(copy)


class Removing(Sessions):
    """Removes a stream at the second request for a connection, when the comparison has begun."""

    async def get(self) -> JetStream:
        again, session = self.opened > 0, await super().get()
        if again:
            with suppress(NotFound):
                await session.api(f"STREAM.DELETE.{EVENTS}")
        return session


async def test_a_stream_that_is_removed_while_it_is_compared_is_told(tmp_path: Path, own: RealServer) -> None:
    copy = await asyncio.to_thread(lambda: Copy(tmp_path / "home", own).make("chat").publish())
    sessions = Removing(own.ask_options)
    check = MirrorCheck(LogReader(copy.home.store_path), copy.log_id, sessions, now_ms=system_identity().now_ms)
    with pytest.raises(Disturbed):
        [found async for found in check.run()]
    await sessions.close()
    assert (await asyncio.to_thread(copy.rebuild)).code == 0


@pytest.mark.parametrize("harm", ["wiped", "a bit"])
def test_the_servers_files(tmp_path: Path, own: RealServer, harm: str) -> None:
    copy = Copy(tmp_path / "home", own).make().publish()
    own.kill()
    if harm == "wiped":
        own.wipe()
    for block in store_files(own, ".blk") if harm == "a bit" else []:
        if EVENTS in str(block):
            data = bytearray(block.read_bytes())
            data[len(data) // 2] ^= 4
            block.write_bytes(data)
    own.start()
    code, _, summary = copy.verify()
    assert code == 1 and summary["differences"] > 0
    if harm == "wiped":
        assert summary["streams"][0]["differences"] == {"missing": summary["records"]}
    mended(copy)
