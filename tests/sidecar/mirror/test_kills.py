"""Everything under kill -9: an embedded server, a publisher and a subscriber."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.sessions import Sessions
from sidecar.config import NatsConfig
from sidecar.mirror.server.life import State
from sidecar.mirror.server.server import EmbeddedServer, Timing
from streams.bus.contract import BusError, Delivery, Done, Outcome
from streams.identity import seeded_identity
from streams.system.retry import Retry
from tests.nats_servers import HANG_SECONDS, NEWEST, program, until

KILLS = 4


async def test_nothing_confirmed_is_lost_doubled_or_out_of_order(tmp_path: Path) -> None:
    config = NatsConfig(mode="embedded", executable=program(NEWEST), connect_timeout_seconds=2)
    timing = Timing(probe=0.3, restart=Retry(0.05, 0.2))
    server = EmbeddedServer(tmp_path, config, seeded_identity(3).nonce, timing)
    server.start()
    sessions = Sessions(server.options)
    pull = PullSettings(fetch_timeout_s=1, heartbeat_s=0.2, warmup_timeout_s=2, ack_wait_s=1)
    bus = JetStreamEventBus(sessions, pull)
    handled: dict[int, bytes] = {}
    confirmed: list[int] = []
    """The numbers of the messages on the server, in the order in which they were published."""
    over = asyncio.Event()

    async def handle(delivery: Delivery) -> Outcome:
        handled[delivery.sequence] = delivery.body
        return Done()

    async def publish() -> None:
        while not over.is_set():
            body = b"%d" % (len(confirmed) + 1)
            try:
                confirmed.append(await bus.publish("cmd.p.w.a.run", {"Nats-Msg-Id": body.decode()}, body))
            except BusError:
                await asyncio.sleep(0.02)  # the very same again, until it is confirmed

    async def grown() -> None:
        before = len(confirmed)
        await until(lambda: len(confirmed) >= before + 20, "publishing continues")

    await asyncio.wait_for(sessions.wait(), HANG_SECONDS)
    taking = asyncio.create_task(bus.subscribe("one", ["cmd.>"], handle).run())
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
    assert confirmed == list(range(1, len(confirmed) + 1))
    await until(lambda: handled == {number: b"%d" % number for number in confirmed}, "all are handled")
    assert server.restarts >= KILLS - 1
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    await sessions.close()
    await server.stop()
