"""Hostile messages against the pure parts: frames, both ends of the link, spool lines, translator.

Functions raise only their documented errors, nothing takes long, and no memory leaks.
``TORTURE_MESSAGES`` and ``TORTURE_HOOKS`` set how many are tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import thread_time
from typing import Any
from zlib import crc32

import pytest

from bridge.opencode.capture.emitter import Means
from bridge.opencode.capture.translate import Origin, Token, Translator
from bridge.opencode.link.frames import HookItem, Hooks, ShimIdentity, decode, encode
from bridge.opencode.link.lenient import FrameError
from bridge.opencode.link.link import ClientLink, SidecarLink
from bridge.opencode.link.protocol import State
from bridge.opencode.link.spool import parse_header, parse_line
from bridge.opencode.redact import Redactor
from streams.identity import seeded_identity
from tests.memory import MemoryStore
from tests.streams.sizes import size
from tests.torture.figures import MAX_GROWTH_MIB, held_mib, note, seeded
from tests.torture.hostile import N64, hooks_corpus, hostile_message, mutate

MESSAGES = size("MESSAGES", 1500)
HOOKS = size("HOOKS", 1000)
BIG_BYTES = size("BIG_BYTES", 100_000)

HANG_S = 1.0
"""Most processor time one input may cost: the sidecar's loop serves nobody meanwhile."""

LARGE_HANG_S = 3.0
"""The same for a message of 16 MiB, which only an authenticated peer may send."""

TOKEN = "7e" * 32
SHIM = ShimIdentity("0.1", "ab" * 16, "cd" * 8, 42, "prj", "/dir", "/tree", "1.18", 0)


class Watch:
    """Counts inputs, and notes the slowest one and the memory that stays."""

    def __init__(self, part: str, inputs: int) -> None:
        self.part, self.expected = part, inputs
        self.inputs = self.hangs = 0
        self.slowest_s = 0.0
        self.slowest = b""
        self._start_mib = 0.0

    def take(self, message: bytes, use: Callable[[bytes], None]) -> None:
        """Use a message. One that took long is used twice more: a slow machine is not a slow message."""
        if self.inputs == self.expected // 10:  # caches are filled and the heap has its size
            self._start_mib = held_mib()
        spent = self._time(message, use)
        if spent > HANG_S:
            spent = min(self._time(message, use) for _ in range(2))
        self.inputs += 1
        self.hangs += spent > HANG_S
        if spent > self.slowest_s:
            self.slowest_s, self.slowest = spent, message

    def _time(self, message: bytes, use: Callable[[bytes], None]) -> float:
        began = thread_time()
        use(message)
        return thread_time() - began

    def close(self) -> None:
        end_mib = held_mib()
        counts = {"inputs": self.inputs, "hangs": self.hangs, "slowest_ms": self.slowest_s * 1000}
        note(self.part, **counts, rss_start=self._start_mib, rss_end=end_mib)
        assert self.hangs == 0, f"{self.slowest_s:.1f} s for {self.slowest[:200]!r} ({len(self.slowest)} bytes)"
        assert end_mib - self._start_mib < MAX_GROWTH_MIB


def sidecar_link(state: State) -> SidecarLink:
    link = SidecarLink(token=TOKEN, port=1, nonce=N64, boot="boot", version="1", window=64)
    link.state = state
    link.role = "control" if state is State.OPEN_CONTROL else "shim"
    return link


def client_link(state: State) -> ClientLink:
    link = ClientLink(token=TOKEN, port=1, nonce=N64, version="1", pid=1, shim=SHIM)
    link.state = state
    return link


SIDECAR_STATES = [State.OPEN_SHIM] * 4 + [State.AWAIT_HELLO, State.AWAIT_IDENTIFY, State.OPEN_CONTROL]
CLIENT_STATES = [State.OPEN_SHIM] * 2 + [State.AWAIT_CHALLENGE, State.AWAIT_WELCOME, State.OPEN_CONTROL]


class Ends:
    """Both ends of a link, replaced when hostile input closed them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sidecar, self._client = sidecar_link(State.OPEN_SHIM), client_link(State.OPEN_SHIM)

    def take(self, message: bytes) -> None:
        if self._sidecar.state is State.CLOSED:
            self._sidecar = sidecar_link(self._random.choice(SIDECAR_STATES))
        if self._client.state is State.CLOSED:
            self._client = client_link(self._random.choice(CLIENT_STATES))
        for event in self._sidecar.receive(message):
            if isinstance(event, Hooks):
                self._sidecar.finish(range(event.first_seq, event.first_seq + len(event.items)))
        self._client.receive(message)
        for text in self._sidecar.data_to_send() + self._client.data_to_send():
            decode(text)


def read_everywhere(message: bytes) -> None:
    """Check that what can be read can be written and read again, and that the rest fails with its own error."""
    with suppress(FrameError):
        text = encode(decode(message))
        assert encode(decode(text)) == text
    summed = b'{"seq":1,"sum":"%08x","item":%s}' % (crc32(b"1," + message), message)
    for parse, line in ((parse_line, message), (parse_line, summed), (parse_header, message)):
        with suppress(FrameError):
            parse(line)


def test_mutated_messages_cost_a_link_at_most() -> None:
    random, watch = seeded("messages"), Watch("messages", MESSAGES)
    ends = Ends(random)

    def use(message: bytes) -> None:
        read_everywhere(message)
        ends.take(message)

    for _ in range(MESSAGES):
        watch.take(hostile_message(random), use)
    watch.close()


# --- as far as the log ---


class Capture:
    """A translator with a log behind it; everything it is fed must be finished, once."""

    def __init__(self, seed: int) -> None:
        self._translator = Translator(seeded_identity(seed), means=Means(Redactor().cleaned))
        self._store = MemoryStore()
        self._now = 0.0
        self._seq = 0
        self._open: set[Token] = set()

    def feed(self, items: list[HookItem]) -> None:
        for item in items:
            self._seq += 1
            self._now += 0.001
            token = Token(Origin(SHIM.boot_id, SHIM.instance), self._seq)
            self._open.add(token)
            self._translator.feed(token, item, self._now)
            self._drain()

    def close(self) -> None:
        for _ in range(5):  # what waited for one thing may then wait for another, but not for ever
            self._now += 10
            self._translator.tick(self._now)
            self._drain()
        assert self._open == set(), "these items would never be acknowledged"

    def _drain(self) -> None:
        drained = self._translator.drain()
        if drained.events:
            asyncio.run(self._append(drained.events))
        for token in drained.done:
            self._open.remove(token)  # KeyError: finished twice

    async def _append(self, events: list[Any]) -> None:
        await self._store.append(events, on_known="keep_first")


HOOKS_A_CAPTURE = 300


def test_mutated_hooks_are_recorded_or_counted() -> None:
    random, watch = seeded("hooks"), Watch("hooks", HOOKS)
    corpus = hooks_corpus()
    capture = Capture(0)

    def use(message: bytes) -> None:
        with suppress(FrameError):
            frame = decode(message)
            if isinstance(frame, Hooks):
                capture.feed(frame.items)

    while watch.inputs < HOOKS:
        if watch.inputs % HOOKS_A_CAPTURE == 0:
            capture.close()
            capture = Capture(watch.inputs)
        # Neighbours in the corpus are neighbours in a recording, so sessions and turns come about.
        message = corpus[watch.inputs % len(corpus)]
        if random.random() < 0.8:
            message = mutate(random, message, json_share=0.95)
        watch.take(message, use)
    capture.close()
    watch.close()


# --- as large as the link lets through ---

HEAD, TAIL = b'{"type":"hooks","first_seq":1,"items":[{"hook":"event","t":1,"input":', b"}]}"
BIG: dict[str, tuple[bytes, bytes, bytes]] = {
    "open lists": (b"", b"[", b""),
    "open objects": (b"", b'{"a":', b""),
    "an open string": (b"", b'"\\"', b""),
    "escapes": (b'"', b"\\n", b'"'),
    "lone surrogates": (b'"', b"\\ud800", b'"'),
    "strings of a lone surrogate": (b"[", b'"\\ud800",', b"1]"),
    "pairs and a lone surrogate": (b'["\\ud800","', b"\\ud83d\\ude00", b'"]'),
    "strings and a lone surrogate": (b'["\\ud800",', b'"a",', b"1]"),
    "objects and a lone surrogate": (b'["\\ud800",', b"{},", b"1]"),
    "lists and a lone surrogate": (b'["\\ud800",', b"[],", b"1]"),
    "numbers and a lone surrogate": (b'["\\ud800",', b"1.5,", b"1]"),
    "not numbers": (b"[", b"NaN,", b"1]"),
    "numbers too large": (b"[", b"1e999,", b"1]"),
    "objects and a NaN": (b"[NaN,", b"{},", b"1]"),
    "fractions and a NaN": (b"[NaN,", b"1.5,", b"1]"),
    "integers and a NaN": (b"[NaN,", b"1,", b"1]"),
    "keys and a NaN": (b'{"x":NaN', b',"k":{}', b"}"),
    "one integer": (b"", b"9", b""),
    "integers beyond 64 bits": (b"[", b"9" * 25 + b",", b"1]"),
    "integers of thousands of digits": (b"[", b"9" * 4000 + b",", b"1]"),
    "lists": (b"[", b"[],", b"1]"),
    "deep lists next to strings": (b"[" * 2000, b'"a",', b"1" + b"]" * 2000),
    "items": (b"1}", b',{"hook":"event","t":1}', b',{"hook":"event","t":1'),
}


@pytest.mark.parametrize("shape", BIG)
def test_a_large_message_does_not_hold_the_loop(shape: str) -> None:
    before, filling, after = BIG[shape]
    room = BIG_BYTES - len(HEAD + before + after + TAIL)
    message = HEAD + before + filling * (room // len(filling)) + after + TAIL
    watch = Watch("large messages", 0)

    def use(message: bytes) -> None:
        with suppress(FrameError):
            decode(message)

    watch.take(message, use)
    hangs = watch.slowest_s > LARGE_HANG_S
    note("large messages", inputs=1, hangs=hangs, slowest_large_ms=watch.slowest_s * 1000)
    assert not hangs, f"{watch.slowest_s:.1f} s"
