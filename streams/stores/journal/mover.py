"""Move durable records from the journal to the database, on a thread of its own.

Nobody waits for the mover. It works when appends pause, or when the journal holds many records; then it rests between
two transactions, the less the more there is to move, so that a burst of appends runs at the journal's speed and an
endless one does not fill the disk. A record is read back from its file, so a line enters the database only with its
checksum right and its hash chain proven.

Hints are written in the transaction that moves the records they speak of, or soon after in one of their own.

Between two transactions it brings the derived tables up to the records, if these lack some.

A database that is busy, full or damaged does not stop the journal. The mover tries again, and ``fault`` says why the
journal grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Final

from streams.errors import CorruptLog, StreamError
from streams.stores.head import BadLine
from streams.stores.journal.index import Place
from streams.stores.journal.lines import parse_stored, split_lines
from streams.stores.journal.writer import JournalWriter
from streams.stores.sqlite.database import Database
from streams.stores.stored import Stored
from streams.system.files import open_to_read

PAUSE_SECONDS: Final = 0.1
"""How long nothing must have been appended before the mover works."""

MANY: Final = 11_000
"""So many records are moved although appends go on."""

MOST_BYTES: Final = 2 * 1024 * 1024
"""About how many bytes of lines one transaction moves."""

RESTS: Final = 9
"""How long the mover rests after a transaction, in times of that transaction, while the journal holds ``MANY``."""

FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 30.0


class Mover:
    """``tidy`` is called, on the mover's thread, whenever everything is moved and nothing is being appended."""

    def __init__(self, database: Database, writer: JournalWriter, tidy: Callable[[], None], name: str) -> None:
        self._database, self._writer, self._tidy = database, writer, tidy
        self.fault: str | None = None
        """Why the last attempt to move records failed; ``None`` if it did not."""
        self.pause = PAUSE_SECONDS
        self.moved: Callable[[], None] = lambda: None
        """Called after each transaction, on the thread that moved the records."""
        self._turn = Lock()
        self._appended = 0.0
        self._news, self._stop = Event(), Event()
        self._thread = Thread(target=self._run, name=f"log-mover-{name}", daemon=True)
        if self.waiting:
            self._news.set()
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many durable records are not in the database yet."""
        return self._writer.head - self._database.head

    def note(self) -> None:
        """Say that records were appended. Cheap; called after every commit."""
        self._appended = time.monotonic()
        self.wake()

    def wake(self) -> None:
        """Say that there may be something to do."""
        if not self._news.is_set():
            self._news.set()

    def drain(self, until: int) -> None:
        """Move everything up to position ``until`` now, on the calling thread.

        Raises:
            StreamError, OSError: the database cannot take it, or a line in the journal is damaged.
        """
        while self._database.head < until:
            self._move()

    def write_hints(self) -> None:
        """Move everything that is durable now, and write the hints that wait, on the calling thread. Raises the errors
        of ``drain``."""
        self.drain(self._writer.head)
        with self._turn:
            self._database.write_hints()

    def close(self) -> None:
        """End the thread, and then move the rest and write the hints. What cannot be moved stays in the journal."""
        self._stop.set()
        self._news.set()
        self._thread.join()
        with suppress(StreamError, OSError):
            self.write_hints()

    def _run(self) -> None:
        retry = FIRST_RETRY_SECONDS
        while not self._stop.is_set():
            waiting = self.waiting
            if not waiting and self.fault is None and not self._database.has_hints:
                self._news.clear()
                # Appended or noted between the two lines above, or not done yet.
                if self.waiting or self._database.has_hints or self._catch_up():
                    self._news.set()
                    continue
                self._tidy()
                self._news.wait(self._database.derives_in)
                continue
            quiet = time.monotonic() - self._appended
            if waiting < MANY and quiet < self.pause:
                if not self._catch_up():
                    self._stop.wait(self.pause - quiet)
                continue
            begun = time.monotonic()
            try:
                if not waiting:
                    self._stop.wait(self.pause)  # more hints may follow
                self._move()
            except Exception as error:  # noqa: BLE001 - a thread that ended would let the journal grow in silence
                self.fault = str(error) if isinstance(error, StreamError | OSError) else repr(error)
                self._stop.wait(retry)
                retry = min(2 * retry, LAST_RETRY_SECONDS)
                continue
            self.fault, retry = None, FIRST_RETRY_SECONDS
            if quiet < self.pause:
                self._stop.wait((time.monotonic() - begun) * RESTS * max(0.0, 2 - waiting / MANY))

    def _catch_up(self) -> bool:
        """Bring the derived tables a step further, and rest as long as that took. False if there is nothing to do
        now."""
        if self._database.derives_in != 0:
            return False
        begun = time.monotonic()
        with self._turn:
            self._database.derive()
        self._stop.wait(time.monotonic() - begun)
        return True

    def _move(self) -> None:
        """Move the next records, in one transaction, and delete the segments that it empties."""
        with self._turn:
            first = self._database.head + 1
            records, path = self._next_records(first)
            try:
                if records:
                    self._database.move(records)
                else:
                    self._database.write_hints()
            except ValueError as fault:
                raise CorruptLog(path, None, first, str(fault)) from None
            self._writer.drop(self._database.head)
        if records:
            self.moved()

    def _next_records(self, first: int) -> tuple[list[Stored], str]:
        """The next whole batches, all of one segment, and the segment's path."""
        size = MOST_BYTES
        while True:
            place = self._writer.index.run(first, self._writer.head, size)
            if place is None:
                return [], ""
            with open(place.path, "rb", opener=open_to_read) as file:
                file.seek(place.start)
                lines = file.read(place.size)
            records = _parsed(lines, place, first)
            while records and records[-1].batch_index + 1 != records[-1].batch_count:
                records.pop()
            if records:
                return records, str(place.path)
            size *= 4  # one batch is larger


def _parsed(lines: bytes, place: Place, first: int) -> list[Stored]:
    records: list[Stored] = []
    for number, (_, line) in enumerate(split_lines(lines)):
        try:
            records.append(parse_stored(line))
        except BadLine as fault:
            raise CorruptLog(str(place.path), place.line + number, first + number, str(fault)) from None
    return records
