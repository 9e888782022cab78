"""Peers that behave badly without sending anything wrong: many, slow, deaf, restless, too loud.

Each meets a real sidecar that also has a neighbour, a well-behaved link. The neighbour continues; ``make torture``
prints how much longer its acks take. ``TORTURE_IDLE``, ``TORTURE_LORIS``, ``TORTURE_DEAF`` and
``TORTURE_RECONNECTS`` set the sizes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.streams.sizes import size
from tests.torture.figures import MAX_GROWTH_MIB, note, seeded
from tests.torture.sidecars import HANG_S, Neighbour, p99, shim, shim_link, sidecar, status, text_hook, unlinked
from tests.torture.wire import Closed, RawLink, frame, upgrade

IDLE = size("IDLE", 20)
LORIS = size("LORIS", 20)
BURST = size("BURST", 150)
DEAF = size("DEAF", 2)
DEAF_BYTES = size("DEAF_BYTES", 2**18)
RECONNECTS = size("RECONNECTS", 80)
HOOKS = size("NEIGHBOUR_HOOKS", 15)

ME = 9999


async def test_idle_connections_cost_their_neighbours_little(tmp_path: Path) -> None:
    with sidecar(tmp_path / "home") as one, ExitStack() as stack:
        async with shim_link(one, shim(ME)) as client:
            neighbour = Neighbour(client, "ses_n")
            alone = await neighbour.measure(HOOKS)
            start_mib = one.rss()

            def crowd() -> None:
                for number in range(IDLE):
                    link = stack.enter_context(RawLink(one.port, one.token))
                    link.open()
                    link.prove(shim(number))

            await asyncio.to_thread(crowd)
            assert len((await status(one))["links"]) == IDLE + 1
            crowded = await neighbour.measure(HOOKS)
            crowded_mib = one.rss()
        stack.close()
        await unlinked(one)
        note(
            "idle connections",
            inputs=IDLE,
            rss_start=start_mib,
            rss_crowded=crowded_mib,
            rss_end=one.rss(),
            p99_alone_ms=p99(alone),
            p99_ms=p99(crowded),
        )
        # Each has its buffers and three tasks: some ten KiB, given back when it goes.
        assert crowded_mib - start_mib < MAX_GROWTH_MIB + IDLE * 0.1


BEGINNINGS = (b"", b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\r\n", b"\x00")


async def test_slow_handshakes_end_and_keep_nobody_out(tmp_path: Path) -> None:
    with sidecar(tmp_path / "home") as one:
        async with shim_link(one, shim(ME)) as client:
            neighbour = Neighbour(client, "ses_n")
            alone = await neighbour.measure(HOOKS)
            lorises = [asyncio.create_task(_loris(one.port, number)) for number in range(LORIS)]
            beside = await neighbour.measure(HOOKS)
            async with asyncio.timeout(HANG_S), shim_link(one, shim(ME + 1)) as other:
                await Neighbour(other, "ses_m").measure(1)
            lived = await asyncio.gather(*lorises)
        note("slow handshakes", inputs=LORIS, longest_s=max(lived), p99_alone_ms=p99(alone), p99_ms=p99(beside))


async def test_a_burst_while_nobody_accepts_is_answered_to_the_last(tmp_path: Path) -> None:
    with sidecar(tmp_path / "home") as one:
        os.kill(one.pid, signal.SIGSTOP)
        try:
            # They send nothing: what the system has no room for would be forgotten on the other side alone.
            sockets = [socket.create_connection(("127.0.0.1", one.port), timeout=HANG_S) for _ in range(BURST)]
        finally:
            os.kill(one.pid, signal.SIGCONT)
        for link in sockets:
            with link:
                assert b"101" not in link.recv(1000)


async def _loris(port: int, number: int) -> float:
    """Send the handshake byte by byte without an end; return how long the sidecar waited, in seconds."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANG_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = loop.time()
        kind = number % (len(BEGINNINGS) + 2)
        if kind == len(BEGINNINGS):
            writer.write(upgrade(port))  # a whole request, and then no hello
        elif kind == len(BEGINNINGS) + 1:
            hello = {"type": "hello", "role": "shim", "protocol": 1, "nonce": "5a" * 32}
            writer.write(upgrade(port) + frame(json.dumps(hello).encode()))
        else:
            writer.write(BEGINNINGS[kind])
        drip = asyncio.create_task(_drip(writer)) if kind in (1, 2, 3) else None
        try:
            while await reader.read(65536):
                pass
        except ConnectionResetError:
            return loop.time() - began
        finally:
            if drip is not None:
                drip.cancel()
            writer.transport.abort()
        return loop.time() - began


async def _drip(writer: asyncio.StreamWriter) -> None:
    while True:
        await asyncio.sleep(0.05)
        writer.write(b"x")


def _shout(link: RawLink, data: bytes, bytes_at_most: int) -> int:
    """Send ``data`` repeatedly and read nothing until the sidecar stops reading or closes; return how often."""
    link.socket.settimeout(2.0)  # so long nothing is taken: we are being held back
    sent = 0
    try:
        while sent * len(data) < bytes_at_most:
            link.socket.sendall(data)
            sent += 1
    except (TimeoutError, ConnectionError):
        return sent
    return sent


async def test_peers_that_never_read_cost_a_bounded_amount(tmp_path: Path) -> None:
    """Acks, answers to requests and to tools pile up; then the peers are throttled or closed."""
    tool = frame(json.dumps({"type": "tool", "id": 1, "name": "x" * 90, "args": {}, "context": {}}).encode())
    request = frame(json.dumps({"type": "request", "id": 1, "method": "status", "args": {}}).encode())
    with sidecar(tmp_path / "home", capture={"exclude": Path("/excluded")}) as one, ExitStack() as stack:
        async with shim_link(one, shim(ME)) as client:
            neighbour = Neighbour(client, "ses_n")
            alone = await neighbour.measure(HOOKS)
            start_mib = one.rss()
            shouting = []
            for number in range(DEAF):
                for what in ("hooks", "tool", "request"):
                    link = stack.enter_context(RawLink(one.port, one.token, deaf=True))
                    link.open()
                    link.prove(None if what == "request" else shim(number, "/excluded"))
                    if what == "hooks":
                        shouting.append(asyncio.to_thread(_hooks_without_end, link, DEAF_BYTES // 120))
                    else:
                        shouting.append(
                            asyncio.to_thread(_shout, link, tool if what == "tool" else request, DEAF_BYTES)
                        )
            beside, *sent = await asyncio.gather(neighbour.measure(HOOKS), *shouting)
            after = await neighbour.measure(HOOKS)
            end_mib = one.rss()
        note(
            "peers that never read",
            inputs=sum(sent),
            rss_start=start_mib,
            rss_end=end_mib,
            p99_alone_ms=p99(alone),
            p99_ms=p99(beside),
            p99_after_ms=p99(after),
        )
        assert end_mib - start_mib < MAX_GROWTH_MIB


def _hooks_without_end(link: RawLink, count: int) -> int:
    """Hooks that are acknowledged one by one; the peer never reads an ack."""
    item = {"hook": "event", "t": 1, "input": {"event": {"type": "never.heard", "properties": {}}}, "output": None}
    link.socket.settimeout(2.0)
    for seq in range(1, count + 1):
        try:
            link.socket.sendall(frame(json.dumps({"type": "hooks", "first_seq": seq, "items": [item]}).encode()))
        except (TimeoutError, ConnectionError):
            return seq
    return count


async def test_a_storm_of_reconnects_leaves_nothing_behind(tmp_path: Path) -> None:
    """The same few shims reconnect again and again, mostly without a bye, and continue where they were."""
    random = seeded("storm")
    with sidecar(tmp_path / "home") as one:
        async with shim_link(one, shim(ME)) as client:
            neighbour = Neighbour(client, "ses_n")
            alone = await neighbour.measure(HOOKS)
            before = one.descriptors()
            start_mib = 0.0
            beside: list[float] = []
            told = [0] * 8

            def reconnect(count: int) -> None:
                for _ in range(count):
                    number = random.randrange(len(told))
                    with RawLink(one.port, one.token) as link:
                        try:
                            link.open()
                            if random.random() < 0.1:
                                continue
                            link.prove(shim(number))
                            item = text_hook(f"ses_{number}", told[number] + 1)
                            fields = {"hook": item.hook, "t": item.t, "input": item.input, "output": None}
                            link.say(type="hooks", first_seq=told[number] + 1, items=[fields])
                            if random.random() < 0.5:
                                continue  # unacknowledged, so it is sent again
                            while json.loads(link.hear()).get("type") != "ack":
                                pass
                            told[number] += 1
                        except Closed as closed:
                            raise AssertionError(f"closed with {closed.code}") from None

            for part in range(10):
                await asyncio.gather(
                    asyncio.to_thread(reconnect, RECONNECTS // 10), _measure(neighbour, HOOKS // 5, beside)
                )
                if part == 0:
                    start_mib = one.rss()
            end_mib = one.rss()
        counts = await unlinked(one)
        note(
            "reconnects",
            inputs=RECONNECTS,
            rss_start=start_mib,
            rss_end=end_mib,
            descriptors_left=one.descriptors() - before,
            p99_alone_ms=p99(alone),
            p99_ms=p99(beside),
        )
        # Every hook is in the log once: those that were acknowledged, and at most one more of each shim.
        records = counts["log"]["head"] + 1 - neighbour.sent
        assert sum(told) <= records <= sum(told) + len(told)
        assert end_mib - start_mib < MAX_GROWTH_MIB
        assert one.descriptors() - before <= 5


async def _measure(neighbour: Neighbour, count: int, into: list[float]) -> None:
    into += await neighbour.measure(count)
