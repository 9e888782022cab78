"""Joins token deltas into chunks: a few messages a second instead of hundreds. Pure: the caller supplies the clock.

The deltas of one step and kind form one text. Deltas are joined until ``max_wait_s`` has passed since the first one, or
until ``max_bytes`` are reached. A session's chunks keep the order of its deltas, so a delta of another step or kind
sends the waiting text first. This module drops only deltas that ``Coalescer`` counts, but the transport to and from
this module is lossy (``str``).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bridge.nats.l0.payloads import MAX_CONTENT, MAX_ID, Chunk

MAX_WAIT_S: Final = 0.05
MAX_BYTES: Final = 8 * 1024
MAX_OPEN: Final = 1024
"""Maximum number of sessions with unsent text; beyond that, the oldest text is sent."""

MAX_STEPS: Final = 4096
"""Maximum number of steps whose chunk numbers are remembered; the numbers of a forgotten step start at 0 again."""


class Delta(NamedTuple):
    """A piece of text; ``turn`` is the turn's user message, ``kind`` the field or part that has the text."""

    session: str
    turn: str | None
    step: str
    kind: str
    text: str


class Ready(NamedTuple):
    session: str
    chunk: Chunk


@dataclass(slots=True)
class _Open:
    turn: str
    step: str
    kind: str
    deadline: float
    texts: list[str] = field(default_factory=list)
    size: int = 0


class Coalescer:
    """Joins deltas. ``now`` is the time in seconds from any clock that does not go back.

    ``counts`` counts the dropped deltas: ``no_turn`` (the turn is unknown) and
    ``bad_id`` (an id is empty or too long for a payload).
    """

    def __init__(self, max_wait_s: float = MAX_WAIT_S, max_bytes: int = MAX_BYTES) -> None:
        if not 4 <= max_bytes <= MAX_CONTENT:
            raise ValueError(f"max_bytes must be 4 to {MAX_CONTENT}, not {max_bytes}")
        self.max_wait_s, self.max_bytes = max_wait_s, max_bytes
        self.counts: Counter[str] = Counter()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._numbers: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    @property
    def deadline(self) -> float | None:
        """The time at which the next chunk is due; ``None`` if no text is waiting."""
        return next(iter(self._open.values())).deadline if self._open else None

    def add(self, delta: Delta, now: float) -> list[Ready]:
        """Add a delta; return the chunks that are now due, in order."""
        if not delta.text:
            return []
        if delta.turn is None:
            self.counts["no_turn"] += 1
            return []
        if not all(0 < len(name) <= MAX_ID for name in (delta.turn, delta.step, delta.kind)):
            self.counts["bad_id"] += 1
            return []
        ready: list[Ready] = []
        current = self._open.get(delta.session)
        if current is not None and (current.turn, current.step, current.kind) != (delta.turn, delta.step, delta.kind):
            ready += self._send(delta.session)
            current = None
        if current is None:
            if len(self._open) >= MAX_OPEN:
                ready += self._send(next(iter(self._open)))
            current = _Open(delta.turn, delta.step, delta.kind, now + self.max_wait_s)
            self._open[delta.session] = current
        # A delta may end in the middle of a surrogate pair; ``_pieces`` joins the two halves.
        current.texts.append(delta.text)
        current.size += len(delta.text.encode("utf-8", "surrogatepass"))
        if current.size >= self.max_bytes:
            ready += self._send(delta.session)
        return ready

    def due(self, now: float) -> list[Ready]:
        """Return the chunks whose deadline has passed, oldest first."""
        ready: list[Ready] = []
        while self._open:
            session, first = next(iter(self._open.items()))
            if first.deadline > now:
                break
            ready += self._send(session)
        return ready

    def flush(self) -> list[Ready]:
        return [ready for session in list(self._open) for ready in self._send(session)]

    def _send(self, session: str) -> list[Ready]:
        current = self._open.pop(session)
        key = (session, current.step, current.kind)
        ready = []
        for content in _pieces("".join(current.texts), self.max_bytes):
            number = self._numbers.pop(key, 0)
            # Re-insert the key at the end, because the oldest key, at the front, is dropped first.
            self._numbers[key] = number + 1
            chunk = Chunk(
                agent_turn_id=current.turn,
                step_id=current.step,
                chunk_type=current.kind,
                content=content,
                index=number,
            )
            ready.append(Ready(session, chunk))
        if len(self._numbers) > MAX_STEPS:
            self._numbers.popitem(last=False)
        return ready


def _pieces(text: str, limit: int) -> list[str]:
    """Split ``text`` into pieces of at most ``limit`` bytes of UTF-8, never within a character."""
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    raw = text.encode()
    pieces, at = [], 0
    while at < len(raw):
        end = min(at + limit, len(raw))
        while end < len(raw) and raw[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(raw[at:end].decode())
        at = end
    return pieces
