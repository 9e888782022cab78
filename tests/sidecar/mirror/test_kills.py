"""Everything under kill -9: an embedded server, a publisher and a subscriber."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.sessions import Sessions
from sidecar.config import NatsConfig
from sidecar.mirror.server.life import State
from sidecar.mirror.server.server import EmbeddedServer, Timing
from streams.bus.contract import BusUnavailable, Delivery, Redelivery
from streams.identity import seeded_identity
from tests.nats_servers import HANG_SECONDS, NEWEST, program, until

KILLS = 4


async def test_nothing_confirmed_is_lost_doubled_or_out_of_order(tmp_path: Path) -> None:
    config = NatsConfig(mode="embedded", executable=program(NEWEST), connect_timeout_seconds=2)
    timing = Timing(probe=0.3, first_pause=0.05, longest_pause=0.2)
    server = EmbeddedServer(tmp_path, config, seeded_identity(3).nonce, timing)
    server.start()
    sessions = Sessions(server.options)
    pull = PullSettings(fetch_timeout_s=1, heartbeat_s=0.2, warmup_timeout_s=2)
    bus = JetStreamEventBus(sessions, pull=pull, ack_wait_s=1)
    handled: Counter[bytes] = Counter()
    confirmed: list[bytes] = []
    over = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        handled[delivery.body] += 1

    async def publish() -> None:
        while not over.is_set():
            body = b"%d" % len(confirmed)
            try:
                await bus.publish("evt.a", body, message_id=body.decode())
            except BusUnavailable:
                await asyncio.sleep(0.02)  # the very same again, until it is confirmed
            else:
                confirmed.append(body)

    async def grown() -> None:
        before = len(confirmed)
        await until(lambda: len(confirmed) >= before + 20, "publishing continues")

    await asyncio.wait_for(sessions.wait(), HANG_SECONDS)
    await bus.subscribe("evt.>", handle, durable="one", redelivery=Redelivery(50, (0.05,)))
    publishing = asyncio.create_task(publish())
    chance = random.Random(1)
    for _ in range(KILLS):
        await grown()
        await asyncio.sleep(chance.random() / 5)
        await until(lambda: server.state is State.RUNNING, "the server runs")
        os.kill(server.status()["pid"], signal.SIGKILL)
    await grown()
    over.set()
    await asyncio.wait_for(publishing, HANG_SECONDS)
    session = await asyncio.wait_for(sessions.wait(), HANG_SECONDS)
    assert [found.body async for found in keeping.read_back(session, "MESHFORGE_EVENTS")] == confirmed
    await until(lambda: set(handled) == set(confirmed), "all are handled")
    assert server.restarts >= KILLS - 1
    await bus.close()
    await sessions.close()
    await server.stop()
