"""Hostile bytes over real sockets into a real sidecar.

After each input the sidecar answers a ping or has closed the connection. ``TORTURE_SOCKETS`` sets the number.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from tests.streams.opened import faults
from tests.streams.sizes import size
from tests.torture.figures import MAX_GROWTH_MIB, note, seeded
from tests.torture.hostile import corpus, hooks_corpus, hostile_message, mutate
from tests.torture.sidecars import Neighbour, RunningSidecar, p99, shim, shim_link, sidecar, unlinked
from tests.torture.wire import Closed, RawLink, frame, hostile_bytes, hostile_request, unmasked

SOCKETS = size("SOCKETS", 400)

EXCLUDED = Path("/excluded")
"""Most links are of this directory: their hooks are taken and make no event, so the log stays small."""


class Attacker:
    """Sends one hostile input after the other, and reconnects when the sidecar closes the connection."""

    def __init__(self, one: RunningSidecar, random: Random) -> None:
        self._one, self._random = one, random
        self._link: RawLink | None = None
        self.slowest_s = 0.0
        self.closed = self.survived = 0

    def strike(self) -> None:
        random = self._random
        began = time.perf_counter()
        try:
            kind = random.random()
            if kind < 0.04:
                with RawLink(self._one.port, self._one.token) as link:
                    link.send(hostile_request(random, self._one.port))
                    link.ends()
            elif kind < 0.12:
                with RawLink(self._one.port, self._one.token) as link:  # not authenticated yet
                    link.open()
                    link.send(frame(hostile_message(random)) if random.random() < 0.5 else hostile_bytes(random))
                    if random.random() < 0.7:  # else gone, in the middle of it
                        link.ends()
            else:
                self._on_a_link(random)
            self.survived += 1
        except Closed:
            self.closed += 1
            self._end()
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)

    def _on_a_link(self, random: Random) -> None:
        if self._link is None:
            self._link = RawLink(self._one.port, self._one.token)
            self._link.open()
            where = "/d" if random.random() < 0.02 else str(EXCLUDED)
            self._link.prove(None if random.random() < 0.1 else shim(random.randrange(50), where))
        kind = random.random()
        if kind < 0.15:
            self._link.send(hostile_bytes(random))
            self._link.ends()
        text = random.choice(hooks_corpus() if kind < 0.85 else corpus())
        # What changes in an item's values is what a link survives, so that several follow one another.
        at = text.find(b'"input"') + 1
        self._link.send(frame(text[:at] + mutate(random, text[at:], json_share=0.99)))
        self._link.answers()

    def _end(self) -> None:
        if self._link is not None:
            self._link.socket.close()
            self._link = None

    def close(self) -> None:
        self._end()


async def test_hostile_bytes_close_their_own_connection_at_most(tmp_path: Path) -> None:
    with sidecar(tmp_path / "home", capture={"exclude": EXCLUDED}) as one:
        async with shim_link(one, shim(9999)) as client:
            neighbour = Neighbour(client, "ses_neighbour")
            alone = await neighbour.measure(40)
        attacker = Attacker(one, seeded("sockets"))
        start_mib, descriptors = 0.0, one.descriptors()
        between: list[float] = []
        for number in range(SOCKETS):
            if number == SOCKETS // 10:
                start_mib = one.rss()
            attacker.strike()
            if number % 500 == 499:
                async with shim_link(one, shim(10_000 + number)) as client:
                    between += await Neighbour(client, f"ses_{number}").measure(5)
        attacker.close()
        end_mib = one.rss()
        await unlinked(one)
        left = one.descriptors() - descriptors
        note(
            "sockets",
            inputs=SOCKETS,
            connections_closed=attacker.closed,
            slowest_ms=attacker.slowest_s * 1000,
            rss_start=start_mib,
            rss_end=end_mib,
            descriptors_left=left,
            p99_alone_ms=p99(alone),
            p99_ms=p99(between),
        )
        assert attacker.closed and attacker.survived
        assert end_mib - start_mib < MAX_GROWTH_MIB
        assert left <= 5
    findings = await faults(one.home.store_path)
    assert findings == []


CLOSED: dict[str, tuple[bytes, int]] = {
    "16 MiB and one byte": (frame(b"", length=16 * 2**20 + 1), 1009),
    "a length of 63 bits": (frame(b"", length=2**63 - 1), 1009),
    "fragments of 18 MiB": (frame(b"x" * 2**20, fin=False) + frame(b"x" * 2**20, 0, fin=False) * 17, 1009),
    "empty fragments without end": (frame(b"", fin=False) + frame(b"", 0, fin=False) * 5000, 1009),
    "a reserved bit": (frame(b"{}", reserved=4), 1002),
    "an unknown opcode": (frame(b"{}", 3), 1002),
    "an unmasked frame": (unmasked(b"{}"), 1002),
    "bad UTF-8": (frame(b'{"type":"\xff"}'), 1002),
}


def test_a_proved_peer_is_told_why_it_is_closed(tmp_path: Path) -> None:
    with sidecar(tmp_path / "home") as one:
        for what, (data, code) in CLOSED.items():
            with RawLink(one.port, one.token) as link:
                link.open()
                link.prove(shim(1))
                try:
                    link.send(data)
                except Closed:
                    told: int | None = link.until_closed()  # it closed while we were sending
                else:
                    told = link.until_closed()
                assert told == code, what
