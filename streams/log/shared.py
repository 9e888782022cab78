"""A log to which many processes append: ``StreamStore`` over another database, which orders the appends.

The database decides what ``stores/plan.py`` decides for a log of one process, because only the database knows what the
others have just appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from zlib import crc32

from streams.errors import OffsetConflict, StoreClosed, StoreUnavailable
from streams.event import StreamEvent
from streams.hashing import Encoded
from streams.log.elsewhere import Asked, DatabaseElsewhere
from streams.retention import Removal
from streams.store import NOTHING, OnKnown, Record, Snapshot, Wanted, every_event
from streams.stores.key_digest import key_digest
from streams.stores.live import LiveTail
from streams.stores.plan import encode_batch, equals, refuse_conflicts
from streams.stores.sqlite.cursors_and_snapshots import CURSOR, SNAPSHOT, Kind, checked_name
from streams.stores.sqlite.rows import record_of
from streams.system.retry import Retry

Answer = TypeVar("Answer")

AGAIN: Final = Retry(0.1, 5.0, jitter=0.2)
"""How a subscription that cannot read the log tries again."""

_HEAD: Final = "SELECT position, hash, (SELECT hash FROM records WHERE position = ?) FROM head"
"""The last record, and the hash at another position. Until the first append, it has no row."""

_HINT: Final = (
    "SELECT version, hints.position, state FROM hints, head WHERE kind = ? AND name = ?"
    " AND hints.position <= head.position"
)


class Written(NamedTuple):
    """What the database did with a batch, by the numbers of its events.

    ``new``: position, offset and hash of each record that was written. ``known``: the row of each record that was there
    under an event's key. ``moved``: a stream that is not at its expected offset, and where it is; then nothing was
    written.
    """

    new: Mapping[int, tuple[int, int, bytes]]
    known: Mapping[int, Sequence[Any]]
    moved: tuple[str, int] | None = None


class Batch:
    """The events of an append. ``columns`` are those of ``records`` that the database does not decide, and ``shapes``,
    which the hash chain covers; one row for each key.

    Raises:
        ValueError, InvalidEvent, IdempotencyConflict: see ``StreamStore.append``.
    """

    def __init__(self, events: Sequence[StreamEvent], expected: Mapping[str, int], on_known: OnKnown) -> None:
        self._batch, self.expected, self.keeps_first = encode_batch(events), expected, on_known == "keep_first"
        if not self.keeps_first:
            refuse_conflicts(self._batch, [None] * len(self._batch))
        self._first: dict[str, int] = {}
        sent: list[Encoded] = []
        for encoded in self._batch:
            if self._first.setdefault(encoded.event.idempotency_key, len(sent)) == len(sent):
                sent.append(encoded)
        self.columns = [*zip(*map(_columns, sent), strict=True)]
        self.differences = 0

    def answers(self, written: Written, *, again: bool = False) -> list[Record]:
        """One record for each event. ``again``: the batch was sent before, and perhaps written then.

        Raises:
            IdempotencyConflict, OffsetConflict: see ``StreamStore.append``.
        """
        known = {number: record_of(row, "the log") for number, row in written.known.items()}
        of_each = [self._first[encoded.event.idempotency_key] for encoded in self._batch]
        if known and not self.keeps_first:
            refuse_conflicts(self._batch, [known.get(number) for number in of_each])
        if written.moved is not None:
            raise OffsetConflict(written.moved[0], self.expected[written.moved[0]], written.moved[1])
        answers: list[Record] = []
        seen: set[int] = set()
        for number, encoded in zip(of_each, self._batch, strict=True):
            earlier = known.get(number)
            is_ours = earlier is None or (again and earlier.event.id == encoded.event.id)
            if earlier is None:
                position, offset, hash_ = written.new[number]
                earlier = Record(encoded.event, offset, position, hash_.hex())
            if number in seen or not is_ours:
                first = next(record for record in (*answers, earlier) if record.position == earlier.position)
                self.differences += not equals(first, encoded)
                earlier = first._replace(duplicate=True)
            seen.add(number)
            answers.append(earlier)
        return answers


def _columns(encoded: Encoded) -> tuple[Any, ...]:
    event = encoded.event
    key, whole = key_digest(event.idempotency_key), encoded.canonical
    texts = (event.type, event.actor, event.correlation_id, event.causation_id, event.id)
    return (event.stream_id, event.ts, *texts, key, encoded.digest_form, crc32(whole), whole)


class Shared(Protocol):
    """The database: the rows of one log, as ``Asked``, and what changes them. Waiting does not block the event loop.

    Raises:
        StoreUnavailable: the database cannot be reached, or does not answer. What was to be written may be written.
    """

    def reading(self, work: Callable[[Asked], Answer]) -> Awaitable[Answer]:
        """Call ``work`` with the database, on another thread."""
        ...

    def find(self, keys: Sequence[bytes]) -> Awaitable[list[Any]]:
        """For each of these keys that is there: the key, and the row of its record, in the form of ``rows.COLUMNS``."""
        ...

    def append(self, batch: Batch, fence: Any = None) -> Awaitable[tuple[Written, bool]]:
        """Write all of a batch or nothing, durably; nothing if what the ``fence`` names is lost.

        The result says, too, whether the batch was sent twice, because it is not known whether the first one was
        written.
        """
        ...

    def keep(self, kind: str, name: str, hint: Snapshot) -> Awaitable[None]:
        """Keep a cursor or a snapshot."""
        ...

    def close(self) -> Awaitable[None]:
        """Let what is being written come to its end, for a while, then close. Idempotent."""
        ...


class SharedLog(DatabaseElsewhere):
    """``StreamStore``. Bound to one event loop. ``head`` is the last position that this process knows of; ``look`` asks
    for a newer one every ``look_seconds``. Nothing is ever removed.

    Raises:
        StoreUnavailable: the database cannot be used now. Subscriptions wait until it can.
    """

    def __init__(self, database: Shared, name: str, look_seconds: float) -> None:
        super().__init__(None, name)
        self._shared, self._look_seconds = database, look_seconds
        self._known, self._known_hash = NOTHING, b""
        self._lost = ""
        """Why this log is not the one any more that was opened; empty while it is."""
        self._closed = False
        self._looking: asyncio.Task[None] | None = None
        self._live = LiveTail(self._replayed)
        self.problem = ""
        """Why the head could not be read when it was last tried; empty if it could."""
        self.differences = 0

    async def open(self) -> None:
        """Read the head once, and then look for news in the background."""
        await self.head_now()
        self._looking = asyncio.create_task(self._look())

    # --- the head ---

    @property
    def head(self) -> int:
        return self._known

    async def head_now(self) -> int:
        known, hash_ = self._known, self._known_hash
        row = await self._shared.reading(lambda asked: asked.execute(_HEAD, [known]).fetchone())
        head, head_hash, at_known = row or (NOTHING, b"", None)
        if known != NOTHING and (at_known is None or bytes(at_known) != hash_):
            self._lost = f"the log lost record {known}: it was put back from a backup, or emptied"
            self._live.notify()
            self._check_open()
        self._moved(head, bytes(head_hash))
        return self._known

    def _moved(self, head: int, hash_: bytes) -> None:
        if head > self._known:
            self._known, self._known_hash = head, hash_
            self._live.notify()

    async def _look(self) -> None:
        failures = 0
        while True:
            try:
                await self.head_now()
                failures, self.problem = 0, ""
            except StoreUnavailable as error:
                failures, self.problem = failures + 1, str(error)
                if self._lost:
                    return
            await asyncio.sleep(AGAIN.pause(failures) if failures else self._look_seconds)

    # --- writing ---

    async def append(
        self,
        events: Sequence[StreamEvent],
        *,
        expected: Mapping[str, int] | None = None,
        on_known: OnKnown = "conflict",
        fence: Any = None,
    ) -> list[Record]:
        """See ``StreamStore.append``; for ``fence``, see ``Shared``."""
        self._check_open()
        batch = Batch(events, expected or {}, on_known)
        written, again = await self._shared.append(batch, fence)
        answers = batch.answers(written, again=again)
        self.differences += batch.differences
        if written.new:
            position, _, hash_ = max(written.new.values())
            self._moved(position, hash_)
        return answers

    def _check_open(self) -> None:
        if self._lost:
            raise StoreUnavailable(self._lost, "open it again")
        if self._closed:
            raise StoreClosed("the log is closed", "open it again")

    # --- reading ---

    async def find(self, idempotency_key: str) -> Record | None:
        return (await self.find_each([idempotency_key]))[0]

    async def find_each(self, idempotency_keys: Sequence[str]) -> list[Record | None]:
        if not idempotency_keys:
            return []
        digests = [key_digest(key) for key in idempotency_keys]
        rows = await self._shared.find(digests)
        found = {bytes(key): record_of(row, str(self._path)) for key, *row in rows}
        return [found.get(digest) for digest in digests]

    async def removal(self) -> Removal:
        return Removal()

    def subscribe(self, *, after: int = NOTHING, wanted: Wanted = every_event) -> AsyncIterator[Record]:
        return self._live.follow(after, wanted)

    async def _replayed(self, after: int) -> AsyncIterator[Record]:
        """Yield the records up to the known head, however long the database is away."""
        failures = 0
        while not self._closed:
            if self._lost:
                self._check_open()
            if after >= self._known:
                return
            try:
                async for record in self._matching("", [], after, until=self._known):
                    yield record
                    after, failures = record.position, 0
            except StoreUnavailable:
                failures += 1
                await asyncio.sleep(AGAIN.pause(failures))

    async def _ask(self, ask: Callable[[Any], Answer], without: Answer) -> Answer:
        return await self._shared.reading(ask)

    async def _fetch_to_damage(self, query: str, values: list[Any]) -> tuple[list[Any], None]:
        return await self._shared.reading(lambda asked: asked.execute(query, values).fetchall()), None

    # --- hints ---

    async def cursor(self, name: str) -> int:
        found = await self._hint(CURSOR, name)
        return NOTHING if found is None else found.position

    async def advance(self, name: str, position: int) -> None:
        await self._shared.keep(CURSOR, checked_name(name), Snapshot(1, position, b""))

    async def snapshot(self, name: str, version: int) -> Snapshot | None:
        found = await self._hint(SNAPSHOT, name)
        return found if found is not None and found.version == version else None

    async def put_snapshot(self, name: str, snapshot: Snapshot) -> None:
        await self._shared.keep(SNAPSHOT, checked_name(name), snapshot)

    async def write_hints(self) -> None:
        self._check_open()

    async def _hint(self, kind: Kind, name: str) -> Snapshot | None:
        given = [kind, checked_name(name)]
        row = await self._shared.reading(lambda asked: asked.execute(_HINT, given).fetchone())
        return None if row is None else Snapshot(row[0], row[1], bytes(row[2]))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._shared.close()
        self._live.close()
