"""Load for a sidecar that is killed: several shims send recorded runs repeatedly, and the log must have them all.

The expected events are those that an undisturbed translator makes from the same hooks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from random import Random

from bridge.opencode.capture.emitter import Means
from bridge.opencode.capture.translate import Origin, Token, Translator
from bridge.opencode.link.frames import HookItem
from bridge.opencode.redact import Redactor
from sidecar.link.client import LinkClosed, LinkUnavailable, ShimClient
from streams.identity import seeded_identity, system_identity
from streams.lineage import FORKED
from tests.bridge.opencode.playing import Content, content, names, recording
from tests.torture.sidecars import HANG_S, RunningSidecar, shim


def _undisturbed(items: Iterable[HookItem], origin: Origin, first_seq: int) -> tuple[list[list[Content]], bool]:
    """What each hook adds to the log, and whether no item still waited after the last hook."""
    translator = Translator(seeded_identity(1), means=Means(Redactor().cleaned))
    made: list[list[Content]] = []
    done = asked = 0
    for seq, item in enumerate(items, first_seq):
        translator.feed(Token(origin, seq), item, 0.0)
        drained = translator.drain()
        made.append([content(event) for event in drained.events])
        done += len(drained.done)
        asked += len(drained.asks)
    return made, done == len(made) and not asked and translator.next_deadline() is None


@cache
def stories() -> tuple[str, ...]:
    """The recordings that need no answer and no timeout, and have no fork: its origin is known by the times of its
    prompts, which all copies of a recording share."""
    told = {name: _undisturbed([i for _, i in recording(name)], Origin("0" * 32, "0" * 16), 1) for name in names()}
    forks = {name for name, (made, _) in told.items() if any(one[1] == FORKED for each in made for one in each)}
    return tuple(name for name, (_, is_whole) in told.items() if is_whole and name not in forks)


@dataclass
class Lane:
    """One shim: sends one story after the other, resends unacknowledged hooks, and journals the acks."""

    number: int
    random: Random
    acked: int = 0
    resent: int = 0
    links: int = 0
    items: list[HookItem] = field(default_factory=list)
    expected: list[list[Content]] = field(default_factory=list)
    """What each item adds to the log, by seq - 1."""

    ending: bool = False
    _checked: int = 0

    def missing(self, log: Counter[Content]) -> int:
        """How many of the hooks acknowledged since the last call are not in the log."""
        made, self._checked = self.expected[self._checked : self.acked], max(self._checked, self.acked)
        return sum(1 for contents in made for one in contents if one not in log)

    def _tell(self) -> None:
        """Choose the next story."""
        story = self.random.choice(stories())
        items = [item for _, item in recording(story, f"L{self.number}n{len(self.items)}")]
        identity = shim(self.number)
        made, _ = _undisturbed(items, Origin(identity.boot_id, identity.instance), len(self.items) + 1)
        self.items += items
        self.expected += made

    async def run(self, one: RunningSidecar) -> None:
        """Send until stopped, over as many sidecars as needed; return when everything is acknowledged."""
        while not self.ending or self.acked < len(self.items):
            try:
                client = await ShimClient.connect(
                    one.home, identity=shim(self.number), nonce=system_identity().nonce, open_seconds=HANG_S
                )
            except LinkUnavailable:
                await asyncio.sleep(0.01)
                continue
            self.links += 1
            try:
                await self._send(client)
            except LinkClosed:
                continue
            finally:
                self.acked = max(self.acked, client.acked)
                await client.close()

    async def _send(self, client: ShimClient) -> None:
        # A shim sends again what was not acknowledged; now and then more than that, which must do no harm.
        back = self.random.choice((0, 0, 0, 1, 5, 60))
        seq = max(1, self.acked + 1 - back, client.acked + 1)
        self.resent += max(0, len(self.items) - seq + 1)
        while True:
            while seq <= len(self.items):
                part = self.items[seq - 1 : seq - 1 + self.random.choice((1, 1, 3, 20))]
                await client.send(part, first_seq=seq)
                seq += len(part)
                self.acked = max(self.acked, client.acked)
            if self.ending:
                await client.drained()
                return
            self._tell()


def expected(lanes: Iterable[Lane]) -> Counter[Content]:
    """Everything that must be in the log when all that the lanes sent is acknowledged."""
    return Counter(one for lane in lanes for made in lane.expected for one in made)
