"""Redacts token deltas, and joins them into chunks: a few messages a second instead of hundreds. Pure: the caller
supplies the clock, and calls ``due`` every ``WAIT_S``.

The deltas of one step and kind form one text. A session's chunks keep the order of its deltas, so a delta of another
step or kind ends the text. Only complete words leave (``streamed_redaction.py``); if no delta comes for ``hold_s``, the
last word leaves, too, perhaps incomplete. The transport to and from this module is lossy (``str``).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bridge.nats.l0.payloads import MAX_ID, Chunk
from bridge.nats.mirror.streamed_redaction import PiecedText

WAIT_S: Final = 0.05
HOLD_S: Final = 3.0
"""How long the last word of a text waits for more text, because no event marks the end of a text."""

MAX_BYTES: Final = 8 * 1024
MAX_OPEN: Final = 1024
"""Maximum number of sessions whose last text is remembered; beyond that, the text of the session that was quiet longest
ends."""

MAX_STEPS: Final = 4096
"""Maximum number of steps whose chunk numbers are remembered; the numbers of a forgotten step start at 0 again."""

MAX_WAITING: Final = 256
"""Maximum number of chunks that wait to be taken: what several agents produce in a few seconds. The oldest goes."""


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
class _Text:
    """The text that a session is producing; ``ready`` may leave now, and the waiting word at ``quiet_at``."""

    first: Delta
    words: PiecedText
    ready: str = ""
    quiet_at: float | None = None


class Chunks:
    """``clean`` redacts a text. ``now`` is the time in seconds from any clock that does not go back.

    ``counts`` counts what was dropped: ``no_turn`` (the turn is unknown) and ``bad_id`` (an id is empty or too long for
    a payload) deltas, and ``dropped`` chunks.
    """

    def __init__(self, clean: Callable[[Any], Any], hold_s: float = HOLD_S, max_bytes: int = MAX_BYTES) -> None:
        self._clean, self._hold_s, self._max_bytes = clean, hold_s, max_bytes
        self.counts: Counter[str] = Counter()
        self._texts: OrderedDict[str, _Text] = OrderedDict()
        self._numbers: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._waiting: deque[Ready] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether a later ``due`` may return something, without another delta."""
        return bool(self._waiting) or any(each.quiet_at is not None for each in self._texts.values())

    def add(self, delta: Delta, now: float) -> None:
        if delta.turn is None:
            self.counts["no_turn"] += 1
            return
        if not all(0 < len(name) <= MAX_ID for name in (delta.turn, delta.step, delta.kind)):
            self.counts["bad_id"] += 1
            return
        text = self._texts.pop(delta.session, None)
        if text is not None and text.first[1:4] != delta[1:4]:
            self._end(text)
            text = None
        if text is None:
            if len(self._texts) >= MAX_OPEN:
                self._end(self._texts.popitem(last=False)[1])
            text = _Text(delta, PiecedText(self._clean))
        # Insert the session again at the end, so that the session that was idle longest comes first.
        self._texts[delta.session] = text
        text.ready += text.words.add(delta.text)
        text.quiet_at = now + self._hold_s

    def due(self, now: float) -> list[Ready]:
        """Take the chunks that may leave now, each session's in order."""
        for text in self._texts.values():
            if text.quiet_at is not None and text.quiet_at <= now:
                self._end(text)  # later text of the step is still redacted in the context of this one
            elif text.ready:
                self._cut(text)
        found = list(self._waiting)
        self._waiting.clear()
        return found

    def _end(self, text: _Text) -> None:
        text.ready += text.words.end()
        text.quiet_at = None
        self._cut(text)

    def _cut(self, text: _Text) -> None:
        session, turn, step, kind, _ = text.first
        assert turn is not None
        for content in _pieces(text.ready, self._max_bytes):
            number = self._numbers.pop((session, step, kind), 0)
            # Insert the key again at the end, because the oldest key, at the front, is dropped first.
            self._numbers[session, step, kind] = number + 1
            chunk = Chunk(agent_turn_id=turn, step_id=step, chunk_type=kind, content=content, index=number)
            self._waiting.append(Ready(session, chunk))
        text.ready = ""
        if len(self._numbers) > MAX_STEPS:
            self._numbers.popitem(last=False)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.counts["dropped"] += 1


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
