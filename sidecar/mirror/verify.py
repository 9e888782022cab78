"""Compares a mirror with its log for ``mirror verify``: the I/O around ``bridge/nats/mirror/comparing.py``.

The comparison changes neither the mirror nor the log, and takes no lock. Records appended during the comparison are not
compared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsUnavailable, NotFound
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
from bridge.nats.jetstream.streams import StreamFacts, StreamMessage, count_messages, facts, read_back
from bridge.nats.l0.context import ContextProjection
from bridge.nats.mirror.comparing import Comparer, Comparison, Difference, Family, Limits
from bridge.nats.mirror.messages import Mirror, mirrored
from bridge.nats.mirror.resuming import MIRROR, MIRROR_VERSION
from bridge.nats.subjects import agent_events_pattern, log_pattern
from streams.log.reader import LogReader
from streams.store import NOTHING

TRIES: Final = 3
"""Maximum number of attempts in a row that are interrupted before any message arrives."""

NAMED: Final = 500
"""Maximum number of event ids in one difference."""

SILENCE_SECONDS: Final = 5.0
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
    """The result of a comparison: how many records the log has, and each stream's result.

    ``is_forgetting``: the mirror is erasing forgotten payloads, so messages that still have one are no fault.
    """

    records: int = 0
    streams: list[Comparison] = field(default_factory=list)
    is_forgetting: bool = False

    @property
    def kinds(self) -> Counter[str]:
        """The number of messages that are wrong, by kind of difference."""
        found = sum((stream.differences for stream in self.streams), Counter[str]())
        if self.is_forgetting:
            del found["unforgotten"]
        return found

    @property
    def differences(self) -> int:
        return self.kinds.total()

    @property
    def forgetting(self) -> int:
        """The number of messages with forgotten payloads that the mirror is about to erase."""
        return sum(stream.differences["unforgotten"] for stream in self.streams) if self.is_forgetting else 0

    @property
    def waiting(self) -> int:
        """The number of records that were never mirrored."""
        return self.streams[0].waiting if self.streams else 0

    def as_json(self) -> dict[str, Any]:
        """The summary in the form that commands print with ``--json``."""
        return {
            "records": self.records,
            "differences": self.differences,
            "waiting": self.waiting,
            "forgetting": self.forgetting,
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
            NatsError: the server is unreachable, or becomes unreachable and stays so.
            CorruptLog: a record is damaged; the mirror may have an intact copy.
            Disturbed: the log or the stream changed during the comparison.
        """
        # Read the mirror's position before reading the streams and the log, so that both contain everything up to it.
        mirrored_to = await self._mirrored_to()
        session = await self._sessions.get()
        streams: list[tuple[str, Family, str]] = [
            (EVENTS, "records", log_pattern(self._log_id)),
            (L0_EVENTS, "meanings", agent_events_pattern()),
        ]
        there = [await _facts(session, name) for name, _, _ in streams]
        removed = await self._reader.removed()
        head = self._reader.head
        mirror, now_ms = Mirror(self._log_id, session.server.max_payload), self._now_ms()
        sides = []
        for (name, family, pattern), found in zip(streams, there, strict=True):
            limits = Limits() if found is None else Limits.of(found.config, found.state, mirror.max_payload)
            comparer = Comparer(name, family, mirror, head=head, removed=removed, limits=limits, now_ms=now_ms)
            sides.append(_Side(self._sessions, name, pattern, found, comparer))
        self.summary.streams = [side.comparer.result for side in sides]
        try:
            async for difference in self._compare(sides, mirror, head):
                yield difference
            for side in sides:
                missing = side.comparer.finish(min(mirrored_to, head), front_is_whole=await side.front_is_whole())
                async for difference in self._named(side.comparer, list(missing)):
                    yield difference
        except NotFound:
            raise Disturbed("a stream of the copy was removed on the server") from None
        finally:
            for side in sides:
                await side.close()
        if await self._reader.removed() != removed:
            raise Disturbed("the log was pruned or some of its records were forgotten")

    async def _compare(self, sides: list[_Side], mirror: Mirror, head: int) -> AsyncIterator[Difference]:
        contexts = ContextProjection()
        async for record in self._reader.read_all():
            if record.position > head:
                break
            contexts.apply(record)
            context = contexts.of(record.event)
            messages = mirrored(record, context, mirror).messages
            for side in sides:
                side.comparer.expect(record, context, messages)
                while (message := await side.next()) is not None and side.comparer.is_due(message):
                    side.ahead = None
                    if found := side.comparer.take(message):
                        yield found
            self.summary.records += 1
            if self.summary.records % _YIELD_RECORDS == 0:
                self.progress(record.position)
                await asyncio.sleep(0)
        self.progress(head)
        for side in sides:
            while (message := await side.next()) is not None:
                side.ahead = None
                if found := side.comparer.take(message):
                    yield found

    async def _named(self, comparer: Comparer, missing: list[Difference]) -> AsyncIterator[Difference]:
        """Yield the runs of missing messages with the ids of their events, in one more pass over the log."""
        records = self._reader.read_all(after=missing[0].position - 1) if missing else None
        for run in missing:
            first, ids = run.position, list[str]()
            while records is not None and (record := await anext(records, None)) is not None:
                if comparer.is_missing(record.position) and (self._with_ids or not ids):
                    ids.append(record.event.id)
                if record.position >= run.last:
                    break
                if len(ids) == NAMED:
                    yield run._replace(position=first, last=record.position, events=tuple(ids))
                    first, ids = record.position + 1, []
            yield run._replace(position=first, events=tuple(ids))

    async def _mirrored_to(self) -> int:
        cursor = await asyncio.to_thread(self._reader.cursor, MIRROR)
        if cursor != NOTHING:
            return cursor
        snapshot = await self._reader.snapshot(MIRROR, MIRROR_VERSION)
        return snapshot.position if snapshot is not None else NOTHING


class _Side:
    """One stream: its messages in order, across interruptions, up to the message that was the last one at the start."""

    def __init__(
        self, sessions: Sessions, name: str, pattern: str, there: StreamFacts | None, comparer: Comparer
    ) -> None:
        self._sessions, self._name, self._pattern = sessions, name, pattern
        self._there, self.comparer = there, comparer
        self._messages = self._read()
        self.ahead: StreamMessage | None = None
        """The message that ``next`` returns again until somebody takes it by setting this to ``None``."""

    async def next(self) -> StreamMessage | None:
        """Return the next message; ``None`` after the last one."""
        if self.ahead is None:
            self.ahead = await anext(self._messages, None)
        return self.ahead

    async def front_is_whole(self) -> bool:
        """See ``Comparer.finish``. If limits removed messages, a result of false may be wrong; a result of true is
        always right."""
        there, first = self._there, self.comparer.result.first_sequence
        if there is None:
            return False
        if not int(there.state.get("num_deleted") or 0):
            return True
        end = there.last_sequence + 1 if first is None else first
        session = await self._sessions.get()
        now = await facts(session, self._name)
        begun, ended = [
            await count_messages(session, self._name, from_sequence=sequence) for sequence in (now.first_sequence, end)
        ]
        return begun - ended == max(end - now.first_sequence, 0)

    async def close(self) -> None:
        await self._messages.aclose()

    async def _read(self) -> Any:
        if self._there is None or not self._there.messages:
            return
        following, tries = self._there.first_sequence, TRIES
        while True:
            try:
                session = await self._sessions.get()
                reading = read_back(
                    session,
                    self._name,
                    subject=self._pattern,
                    from_sequence=following,
                    silence_seconds=SILENCE_SECONDS,
                )
                async for message in reading:
                    if message.sequence > self._there.last_sequence:
                        return
                    following, tries = message.sequence + 1, TRIES
                    yield message
                return
            except NatsUnavailable:
                tries -= 1
                if not tries:
                    raise
                await asyncio.sleep(0.5)


async def _facts(session: JetStream, name: str) -> StreamFacts | None:
    """The stream's current state; ``None`` if the stream does not exist, which counts as empty."""
    try:
        return await facts(session, name)
    except NotFound:
        return None
