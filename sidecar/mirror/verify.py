"""Compares a mirror with its log for ``mirror verify``: the I/O around ``bridge/nats/mirror/comparing.py``.

The comparison changes neither the mirror nor the log, takes no lock, and reads only the headers of the messages.
Records that come during the comparison are not compared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NotFound
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import DAY_S, EVENTS, L0_EVENTS
from bridge.nats.jetstream.streams import StreamFacts, StreamMessage, facts, last_message, read_back
from bridge.nats.l0.context import ContextProjection
from bridge.nats.mirror.comparing import Comparer, Comparison, Difference
from bridge.nats.mirror.messages import Mirror, mirrored
from bridge.nats.mirror.place import may_have_removed
from bridge.nats.subjects import agent_events_pattern, log_pattern
from streams.log.reader import LogReader
from streams.store import NOTHING

NAMED: Final = 500
"""Maximum number of event ids in one difference."""

L0_AGE_MS: Final = 7 * DAY_S * 1000
_YIELD_RECORDS: Final = 256


class Disturbed(Exception):
    """The log or the stream changed during the comparison, so there is no result; ``what`` says what changed."""

    code: ClassVar[str] = "mirror-verify-disturbed"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} during the comparison; run `durable-stream mirror verify` again"


@dataclass(slots=True)
class Verified:
    """The result of a comparison: how many records the log has, and each stream's result."""

    records: int = 0
    streams: list[Comparison] = field(default_factory=list)

    @property
    def kinds(self) -> Counter[str]:
        """The number of messages that are wrong, by kind of difference."""
        return sum((stream.differences for stream in self.streams), Counter[str]())

    @property
    def differences(self) -> int:
        return self.kinds.total()

    @property
    def waiting(self) -> int:
        """The number of records that are not mirrored yet."""
        return self.streams[0].waiting if self.streams else 0

    def as_json(self) -> dict[str, Any]:
        """The summary in the form that commands print with ``--json``."""
        return {
            "records": self.records,
            "differences": self.differences,
            "waiting": self.waiting,
            "streams": [stream.as_json() for stream in self.streams],
        }


class MirrorCheck:
    """One pass over the log and its mirror. ``run`` yields the differences, and when it is done, ``summary`` has the
    counts.

    ``progress`` is called with the position reached so far. With ``with_ids``, each difference names up to ``NAMED``
    missing records by their event ids; without ``with_ids``, only the first one.
    """

    def __init__(
        self,
        reader: LogReader,
        log_id: str,
        sessions: Sessions,
        *,
        now_ms: Callable[[], int],
        progress: Callable[[int], None] = lambda position: None,
        with_ids: bool = False,
    ) -> None:
        self.summary = Verified()
        self.progress = progress
        self._reader, self._log_id, self._sessions, self._now_ms = reader, log_id, sessions, now_ms
        self._with_ids = with_ids

    @property
    def head(self) -> int:
        """The last position to compare, as far as it is known."""
        return self._reader.head

    async def run(self) -> AsyncIterator[Difference]:
        """Yield every difference. Cancelling is safe.

        Raises:
            NatsError: the server is unreachable, or the connection ended.
            CorruptLog: a record is damaged; the mirror may have an intact copy.
            Disturbed: the log or the stream changed during the comparison.
        """
        session = await self._sessions.get()
        try:
            # Read where the mirror is, then its streams, then the log, so that the log has every record that is found.
            last = await last_message(session, EVENTS, log_pattern(self._log_id))
            mirrored_to = h.read_position(last.headers) if last is not None else None
            events, meanings = [await _facts(session, name) for name in (EVENTS, L0_EVENTS)]
            removed, head = await self._reader.removed(), self._reader.head
            common: dict[str, Any] = {
                "head": head,
                "mirrored_to": NOTHING if mirrored_to is None else mirrored_to,
                "removed": removed,
                "named": NAMED if self._with_ids else 1,
            }
            is_full, old_ms = events is not None and may_have_removed(events), self._now_ms() - L0_AGE_MS
            sides = [
                _Side(
                    Comparer(EVENTS, "records", self._log_id, is_full=is_full, **common),
                    _messages(session, events, log_pattern(self._log_id)),
                ),
                _Side(
                    Comparer(L0_EVENTS, "meanings", self._log_id, old_before_ms=old_ms, **common),
                    _messages(session, meanings, agent_events_pattern()),
                ),
            ]
            self.summary.streams = [side.comparer.result for side in sides]
            async with aclosing(sides[0].messages), aclosing(sides[1].messages):
                async for difference in self._compare(sides, Mirror(self._log_id, session.server.max_payload), head):
                    yield difference
        except NotFound:
            raise Disturbed("a stream of the copy was removed on the server") from None
        if await self._reader.removed() != removed:
            raise Disturbed("the log was pruned or some of its records were forgotten")

    async def _compare(self, sides: list[_Side], mirror: Mirror, head: int) -> AsyncIterator[Difference]:
        contexts = ContextProjection()
        async for record in self._reader.read_all():
            if record.position > head:
                break
            contexts.apply(record)
            l0 = mirrored(record, contexts.of(record.event), mirror).messages[:-1]
            parts = [h.read_message_id(message.headers).part for message in l0]
            for side, wanted in zip(sides, ([""], parts), strict=True):
                side.comparer.begin(record, wanted)
                async for difference in side.taken(side.comparer.is_due):
                    yield difference
                for difference in side.comparer.end():
                    yield difference
            self.summary.records += 1
            if self.summary.records % _YIELD_RECORDS == 0:
                self.progress(record.position)
                await asyncio.sleep(0)
        self.progress(head)
        for side in sides:
            async for difference in side.taken(lambda message: True):
                yield difference
            for difference in side.comparer.finish():
                yield difference


@dataclass(slots=True)
class _Side:
    """One stream: its messages in order, and the one that comes next."""

    comparer: Comparer
    messages: AsyncGenerator[StreamMessage]
    ahead: StreamMessage | None = None

    async def taken(self, is_due: Callable[[StreamMessage], bool]) -> AsyncIterator[Difference]:
        """Take messages as long as they are due, and yield their differences."""
        while True:
            self.ahead = self.ahead or await anext(self.messages, None)
            if self.ahead is None or not is_due(self.ahead):
                return
            found, self.ahead = self.comparer.take(self.ahead), None
            if found is not None:
                yield found


async def _messages(session: JetStream, there: StreamFacts | None, pattern: str) -> AsyncGenerator[StreamMessage]:
    """The headers of a stream's messages, up to the one that is the last now."""
    if there is not None and there.messages:
        async for message in read_back(session, there.name, subject=pattern, headers_only=True):
            if message.sequence > there.last_sequence:
                return
            yield message


async def _facts(session: JetStream, name: str) -> StreamFacts | None:
    """The stream's current state; ``None`` if the stream does not exist, which counts as empty."""
    try:
        return await facts(session, name)
    except NotFound:
        return None
