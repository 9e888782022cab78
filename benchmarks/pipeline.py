"""Commands from a work queue through an agent and the mirror, against the same steps over a bare socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from benchmarks.limits import beside
from benchmarks.mirror import serving
from benchmarks.report import Row
from benchmarks.store import IDENTITY, PAYLOAD
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.options import ConnectOptions, PullSettings
from bridge.nats.jetstream.publishing import publish_all
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import wanted
from bridge.nats.jetstream.streams import ensure_streams, purge
from bridge.nats.jetstream.wire import Message
from sidecar.agents.loading import UserAgent
from sidecar.agents.runtime import Runtime
from sidecar.mirror.commands import CommandConsumers
from sidecar.mirror.follower import MirrorTask
from sidecar.mirror.server.server import EmbeddedServer
from streams.hashing import canonical
from streams.log.log import Log

IN_FLIGHT = 256
CHUNK = 2048
"""Commands that wait in the queue when a measurement begins."""

LOOK_SECONDS = 0.002
SETTINGS = PullSettings(max_inflight=IN_FLIGHT)

STREAMS: dict[str, dict[str, Any]] = {
    "BARE-COMMANDS": {"retention": "workqueue"},
    "BARE-QUEUE": {"retention": "workqueue", "max_msgs": 10_000, "discard": "old"},
    "BARE-EVENTS": {"retention": "limits", "allow_atomic": True},
}
"""The bare client's streams."""

Answer = Literal["event", "command"]


class Answering:
    """Answers each command with one output of the same size: an event, or a command for another home."""

    name = "answering"

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the command's payload."""
        output = {"type": "answering.said", "payload": event["payload"]}
        return [output if self._answer == "event" else {**output, "to": "elsewhere"}]


async def _fill(session: Any, subject: str) -> None:
    bodies = [canonical({"type": "say", "payload": PAYLOAD, "idempotency_key": IDENTITY.ulid()}) for _ in range(CHUNK)]
    await publish_all(session, [Message(subject, {}, body) for body in bodies])


class Ours:
    """The product: consumers, runtime, log and mirror; a command counts when its results are published and it is
    acknowledged."""

    def __init__(self, path: Path, server: EmbeddedServer, answer: Answer) -> None:
        self._path, self._server, self._answer = path, server, answer

    async def rate(self, seconds: float) -> float:
        store = await Log.open(self._path, IDENTITY)
        sessions = Sessions(self._server.options)
        runtime = Runtime(store, IDENTITY, [UserAgent("benchmarks:Answering", lambda: Answering(self._answer))])
        await runtime.start()
        mirror = MirrorTask(store, store.manifest.log_id, sessions, IDENTITY.now_ms)
        try:
            session = await sessions.get()
            await ensure_streams(session, wanted())
            mirror.start()
            done, spent = 0, 0.0
            while spent < seconds:
                await purge(session, "MESHFORGE_COMMANDS", subject="cmd.*.*.elsewhere.>")
                await _fill(session, "cmd.p.w.answering.say")
                consumers = CommandConsumers(runtime, JetStreamEventBus(sessions, SETTINGS))
                start, handled = time.perf_counter(), 0
                consumers.start()
                while handled < CHUNK or mirror.status()["lag"]:
                    await asyncio.sleep(LOOK_SECONDS)
                    handled = consumers.status()[0]["counts"].get("done", 0)
                    if not consumers.status()[0]["counts"].get("delivered"):
                        # Start the clock at the first delivered command, because each consumer connects only once.
                        start = time.perf_counter()
                spent += time.perf_counter() - start
                done += CHUNK
                await consumers.close()
            return done / spent
        finally:
            await mirror.close()
            await runtime.close()
            await sessions.close()
            await store.close()


class Bare:
    """The same steps over one blocking socket: fetch 256, write and sync a line of each, publish as many,
    acknowledge. Events go out in an atomic batch, which a work queue does not accept."""

    def __init__(self, directory: Path, options: ConnectOptions) -> None:
        self.answer: Answer = "event"
        self._file = directory / "bare-commands"
        self._body = canonical(PAYLOAD)
        place = urlsplit(options.servers[0])
        self._socket = socket.create_connection((place.hostname or "127.0.0.1", place.port or 4222))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arriving = self._socket.makefile("rb", 1 << 20)
        self._line()
        self._send(
            f"CONNECT {json.dumps({'auth_token': options.token, 'verbose': False, 'headers': True})}\r\n".encode()
        )
        self._send(b"SUB in 1\r\nSUB acks 2\r\nSUB api 3\r\nPING\r\n")
        while self._line() != b"PONG":
            pass

    def request(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the server's API."""
        data = json.dumps(body).encode()
        self._send(b"PUB %s api %d\r\n%s\r\n" % (f"$JS.API.{subject}".encode(), len(data), data))
        found: dict[str, Any] = json.loads(self._message()[1])
        return found

    def rate(self, seconds: float) -> float:
        """Commands per second, with a queue that was filled beforehand."""
        fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        done, spent = 0, 0.0
        try:
            while spent < seconds:
                self._fill()
                start = time.perf_counter()
                for _ in range(CHUNK // IN_FLIGHT):
                    self._batch(fd)
                spent += time.perf_counter() - start
                done += CHUNK
            return done / spent
        finally:
            os.close(fd)

    def close(self) -> None:
        """End the connection."""
        self._arriving.close()
        self._socket.close()

    def _batch(self, fd: int) -> None:
        ask = json.dumps({"batch": IN_FLIGHT, "expires": 5_000_000_000}).encode()
        self._send(b"PUB $JS.API.CONSUMER.MSG.NEXT.BARE-COMMANDS.bare in %d\r\n%s\r\n" % (len(ask), ask))
        taken = [self._message() for _ in range(IN_FLIGHT)]
        os.write(fd, b"".join(body + b"\n" for _, body in taken))
        os.fdatasync(fd)
        bodies = [body for _, body in taken]
        if self.answer == "event":
            self._publish_batch(bodies)
        else:
            self._publish(b"BARE-QUEUE.a", bodies)
        self._send(b"".join(b"PUB %s 4\r\n+ACK\r\n" % reply for reply, _ in taken))

    def _publish_batch(self, bodies: list[bytes]) -> None:
        """One atomic batch, which the server syncs once."""
        batch, sent = IDENTITY.ulid(), []
        for number, body in enumerate(bodies, 1):
            head = f"NATS/1.0\r\nNats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {number}\r\n"
            head += "Nats-Batch-Commit: 1\r\n\r\n" if number == len(bodies) else "\r\n"
            reply = " acks" if number == len(bodies) else ""
            line = f"HPUB BARE-EVENTS.a{reply} {len(head)} {len(head) + len(body)}\r\n{head}"
            sent.append(line.encode() + body + b"\r\n")
        self._send(b"".join(sent))
        answer = self._message()[1]
        assert b'"count"' in answer, answer

    def _publish(self, subject: bytes, bodies: list[bytes]) -> None:
        self._send(b"".join(b"PUB %s acks %d\r\n%s\r\n" % (subject, len(body), body) for body in bodies))
        for _ in bodies:
            self._message()

    def _fill(self) -> None:
        for _ in range(CHUNK // IN_FLIGHT):
            self._publish(b"BARE-COMMANDS.a", [self._body] * IN_FLIGHT)

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _line(self) -> bytes:
        return self._arriving.readline().rstrip(b"\r\n")

    def _message(self) -> tuple[bytes, bytes]:
        """The reply subject and the body of the next message."""
        while True:
            line = self._line()
            if line.startswith(b"MSG"):
                break
            assert not line.startswith((b"-ERR", b"HMSG")), line
            if line == b"PING":
                self._send(b"PONG\r\n")
        parts = line.split()
        body = self._arriving.read(int(parts[-1]) + 2)[:-2]
        return (parts[3] if len(parts) == 5 else b""), body


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure commands from the queue to the published answer; the floor holds for an answer that is an event."""
    async with serving(directory / "pipeline-nats") as server:
        bare = Bare(directory, await server.options())
        try:
            _make_streams(bare)
            rows = []
            answers: tuple[Answer, ...] = ("event", "command")
            for answer in answers:
                ours = Ours(directory / f"pipeline-{answer}", server, answer)
                bare.answer = answer
                rate, limit = await beside(lambda s: asyncio.to_thread(bare.rate, s), ours.rate, seconds)
                label = f"commands: pull, batch, publish {answer}s, ack; 256 in flight"
                rows.append(Row(label, rate, limit, "a raw socket", *((0.3, 0.7) if answer == "event" else ())))
            return rows
        finally:
            bare.close()


def _make_streams(bare: Bare) -> None:
    for name, more in STREAMS.items():
        config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", **more}
        assert "error" not in bare.request(f"STREAM.CREATE.{name}", config)
    durable = {"durable_name": "bare", "ack_policy": "explicit", "max_ack_pending": 1024}
    request = {"stream_name": "BARE-COMMANDS", "config": durable}
    assert "error" not in bare.request("CONSUMER.DURABLE.CREATE.BARE-COMMANDS.bare", request)
