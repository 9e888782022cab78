"""Copies a home's log and its story to the team's Postgres.

Nothing is folded twice: rows are copied by position, and rows of the story by their keys. Each step is one transaction.
Its first statement moves the home's row from the place that this process knows to the next one, so only one process can
do a step, and only once. After an error, nothing in memory counts: the place is read again. So it does not matter
whether a commit whose answer was lost took place.

A step never copies records while a removal is under way at home, and follows a removal before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier

from sidecar.notify_config import TeamConfig
from sidecar.read.story import copying
from sidecar.read.story.tables import STORY_VERSION
from sidecar.team.connection import connect, cut, translated
from sidecar.team.errors import TeamRefused
from sidecar.team.schema import RECORDS, prepare, story_types
from streams.log.reader import Copied, LogReader

MOST: Final = 2000
"""How many records one transaction copies at most."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""About how many bytes of records."""

MOST_STREAMS: Final = 20
"""How many streams' removals a step follows: until it has, no other removal ends at home."""

MOST_ROWS: Final = 20_000
"""How many rows of the story."""

Row = tuple[Any, ...]


class Place(NamedTuple):
    """How far a home is copied: its row of ``homes``, and the last key of each table of the story.

    ``head`` and ``head_hash`` are the last record, ``removals`` the last removal that was followed, ``story`` the
    making of the tables, ``changes`` the last of its changes, and ``story_head`` the last record that the story knows.
    """

    home: int
    head: int
    head_hash: bytes
    removals: int
    story: str
    changes: int
    story_head: int
    upto: dict[str, int]


class Step(NamedTuple):
    """The next rows of one home, read before anything is written. ``place`` is the one that they lead to."""

    place: Place
    records: Sequence[Row] = ()
    names: dict[int, str] = {}  # noqa: RUF012 - never changed
    story: tuple[tuple[str, list[Row], list[int]], ...] = ()
    """Tables with their new and changed rows, and the keys of the changed ones."""
    is_new_story: bool = False
    """Whether all of the story that is there goes first."""


class Shipping:
    """One home's way to the team. Blocks; for one thread at a time."""

    def __init__(
        self, config: TeamConfig, reader: LogReader, log_id: str, machine: str, copied: Callable[[str, int], None]
    ) -> None:
        """``copied`` gets the making of the story that the team has, and the number of its last change there."""
        self._config, self._reader, self._log_id, self._machine, self._copied = config, reader, log_id, machine, copied
        self._connection: psycopg.Connection[Any] | None = None
        self.place: Place | None = None
        """Up to where the team has this home; ``None`` if that is not known now."""

    def rest(self) -> None:
        """Close the connection until there is something to copy: a server holds few of them."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def cut(self) -> None:
        """End a step that waits for a server which says nothing. From any thread."""
        cut(self._connection)

    def close(self) -> None:
        """Forget what is known of the place, too."""
        self.place = None
        self.rest()

    def step(self) -> bool:
        """Copy the next rows; false if there are none.

        Raises:
            TeamUnavailable: nothing is known of what was written; the next step finds out.
            TeamRefused: the team's rows of this home are not from this log.
            StreamError, OSError: the log cannot be read.
        """
        try:
            with translated(self._config):
                return self._step()
        except BaseException:
            self.close()
            raise

    def _step(self) -> bool:
        if self._connection is None and self._rests():
            return False
        # A removal at home does not end while somebody reads, so nobody reads while the server is slow to answer.
        connection = self._connection or self._connected()
        place = self.place or self._found(connection)
        copied = self._reader.copied()
        if copied is None:
            return False
        with copied as log:
            if (removals := log.removals) is None:
                return False
            if removals != place.removals:
                self.place = self._follow(connection, log, place, removals)
                return True
            step = _next(log, place)
        if step.place == place:
            return False
        self._write(connection, place, step)
        self.place = step.place
        self._copied(step.place.story, step.place.changes)
        return True

    def _rests(self) -> bool:
        """Whether there is nothing to copy behind the place, as far as that is known."""
        if self.place is None or (copied := self._reader.copied()) is None:
            return False
        with copied as log:
            return log.removals == self.place.removals and _next(log, self.place).place == self.place

    # --- where the team has this home ---

    def _connected(self) -> psycopg.Connection[Any]:
        self.place = None  # another may have copied meanwhile
        self._connection = connect(self._config)
        prepare(self._connection)
        return self._connection

    def _found(self, connection: psycopg.Connection[Any]) -> Place:
        """The place, after a look whether the team's last record is one of this log."""
        own = "SELECT home, head, head_hash, removals, story, changes, story_head, machine FROM homes WHERE log_id = %s"
        if (row := connection.execute(own, [self._log_id]).fetchone()) is None:
            new = "INSERT INTO homes (log_id, machine) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            connection.execute(new, [self._log_id, self._machine])
            row = connection.execute(own, [self._log_id]).fetchone()
        assert row is not None
        home, head, head_hash = row[:3]
        if head >= 0 and self._hash_at(head) != head_hash:
            raise TeamRefused(
                f"the team has a record {head} of this home that is not in its log",
                "a copy of this home was used elsewhere, or it was put back from a backup; see the page on teams",
            )
        if row[-1] != self._machine:
            connection.execute("UPDATE homes SET machine = %s WHERE home = %s", [self._machine, home])
        upto = dict(connection.execute("SELECT name, upto FROM copied WHERE home = %s", [home]).fetchall())
        self.place = Place._make((*row[:7], upto))
        return self.place

    def _hash_at(self, position: int) -> bytes | None:
        copied = self._reader.copied()
        if copied is None:
            return None
        with copied as log:
            return log.hash_at(position)

    @contextmanager
    def _moving(self, connection: psycopg.Connection[Any], old: Place, new: Place) -> Iterator[psycopg.Cursor[Any]]:
        """A transaction that moves the place. Raises ``TeamRefused`` if it is not where it was."""
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute(
                "UPDATE homes SET head = %s, head_hash = %s, removals = %s, story = %s, changes = %s, story_head = %s"
                " WHERE home = %s AND head = %s AND removals = %s AND story = %s AND changes = %s AND story_head = %s",
                [*new[1:7], old.home, old.head, old.removals, old.story, old.changes, old.story_head],
            )
            if cursor.rowcount != 1:
                raise TeamRefused(
                    "another process copies a home with the same id", "run the sidecar of one of them only"
                )
            yield cursor

    # --- new rows ---

    def _write(self, connection: psycopg.Connection[Any], old: Place, step: Step) -> None:
        home = old.home
        with self._moving(connection, old, step.place) as cursor:
            if step.is_new_story:
                _drop_story(cursor, home)
            tails = {row[1]: (home, row[1], _clean(step.names[row[1]]), row[2] + 1, row[10]) for row in step.records}
            if tails:
                cursor.executemany(
                    "INSERT INTO streams VALUES (%s, %s, %s, %s, %s) ON CONFLICT (home, id) DO UPDATE"
                    " SET next_offset = excluded.next_offset, hash = excluded.hash",
                    [*tails.values()],
                )
                _copy(cursor, "records", RECORDS, home, step.records)
            for name, rows, changed in step.story:
                if changed:
                    # Plain DELETE and COPY are much quicker than to change many rows one by one.
                    gone = SQL("DELETE FROM {} WHERE home = %s AND {} = ANY(%s)")
                    cursor.execute(gone.format(Identifier(name), Identifier(copying.key_of(name))), [home, changed])
                _copy(cursor, name, story_types(name), home, rows)
            known = {} if step.is_new_story else old.upto
            upto = [(home, name, n) for name, n in step.place.upto.items() if known.get(name) != n]
            if upto:
                cursor.executemany(
                    "INSERT INTO copied VALUES (%s, %s, %s)"
                    " ON CONFLICT (home, name) DO UPDATE SET upto = excluded.upto",
                    upto,
                )

    # --- removals ---

    def _follow(self, connection: psycopg.Connection[Any], log: Copied, old: Place, removals: int) -> Place:
        """Remove some of what was removed at home since: the next step goes on. The story was dropped there, and is
        copied anew."""
        home = old.home
        bases = _missing(connection, "SELECT stream, place, hash, at_ms FROM bases WHERE home = %s", home, log.bases())
        marks = _missing(connection, "SELECT stream, place, at_ms FROM marks WHERE home = %s", home, log.marks())
        query = "SELECT position, stream, place, at_ms FROM singles WHERE home = %s"
        singles = _missing(connection, query, home, log.singles())
        is_all = max(len(bases), len(marks)) <= MOST_STREAMS and len(singles) <= MOST
        followed = removals if is_all else old.removals
        new = old._replace(removals=followed, story="", changes=0, story_head=-1, upto={})
        with self._moving(connection, old, new) as cursor:
            for row in bases[:MOST_STREAMS]:
                cursor.execute(
                    "DELETE FROM records WHERE home = %s AND place < %s"
                    " AND stream = (SELECT id FROM streams WHERE home = %s AND name = %s)",
                    [home, row[1], home, row[0]],
                )
                cursor.execute("DELETE FROM bases WHERE home = %s AND stream = %s", [home, row[0]])
                cursor.execute("INSERT INTO bases VALUES (%s, %s, %s, %s, %s)", [home, *row])
            for row in marks[:MOST_STREAMS]:
                for some in log.forgotten(row[0], row[1], old.head, MOST):
                    _forget(cursor, home, some)
                cursor.execute("DELETE FROM marks WHERE home = %s AND stream = %s", [home, row[0]])
                cursor.execute("INSERT INTO marks VALUES (%s, %s, %s, %s)", [home, *row])
            some = singles[:MOST]
            _forget(cursor, home, log.events(row[0] for row in some))
            cursor.execute("DELETE FROM singles WHERE home = %s AND position = ANY(%s)", [home, [r[0] for r in some]])
            cursor.executemany("INSERT INTO singles VALUES (%s, %s, %s, %s, %s)", [(home, *row) for row in some])
            _drop_story(cursor, home)
        return new


def _next(log: Copied, place: Place) -> Step:
    """What to copy next."""
    records = log.records(place.head, MOST, MOST_BYTES)
    names = log.names({row[1] for row in records})
    if len(records) == MOST or sum(len(row[-1]) for row in records) >= MOST_BYTES:
        # Who reads the story reads records that it names, so it is never ahead of them.
        return Step(place._replace(head=records[-1][0], head_hash=records[-1][10]), records, names)
    head, head_hash = log.head
    place = place._replace(head=head, head_hash=head_hash)
    story_head, making = log.derived(STORY_VERSION), copying.making_of(log.db)
    if story_head is None or making is None:
        return Step(place, records, names)
    is_new = making != place.story or not copying.has_changes(log.db, place.changes)
    if is_new:
        place = place._replace(story=making, changes=0, story_head=-1, upto={})
    story, place = _story(log, place, story_head)
    return Step(place, records, names, story, is_new)


def _story(log: Copied, place: Place, story_head: int) -> tuple[tuple[tuple[str, list[Row], list[int]], ...], Place]:
    """The next rows of the story, and the place after them. A row that was changed by a later
    record does no harm, but the story of a record is complete only with all rows up to it."""
    left, upto = MOST_ROWS, dict(place.upto)
    found: dict[str, tuple[list[Row], list[int]]] = {}
    some = copying.changes(log.db, place.changes, left)
    for name, each in groupby(sorted(some, key=itemgetter(1)), key=itemgetter(1)):
        keys = sorted({key for _, _, key in each if key <= upto.get(name, -1)})
        if keys:
            found[name] = (copying.rows_at(log.db, name, keys), keys)
    left -= len(some)
    for name in copying.COPIED:
        rows = copying.rows_after(log.db, name, upto.get(name, -1), left)
        if rows:
            upto[name], left = rows[-1][0], left - len(rows)
            changed, keys = found.get(name, ([], []))
            found[name] = ([*changed, *rows], keys)
    is_all = left > 0
    changes = some[-1][0] if some else place.changes
    place = place._replace(changes=changes, upto=upto, story_head=story_head if is_all else place.story_head)
    return tuple((name, *rows) for name, rows in found.items()), place


def _missing(connection: psycopg.Connection[Any], query: str, home: int, wanted: set[Row]) -> list[Row]:
    """Those of the home's rows that the team does not have."""
    return sorted(wanted - set(connection.execute(query.encode(), [home])))


def _forget(cursor: psycopg.Cursor[Any], home: int, rows: Iterable[Row]) -> None:
    """Put what is left of forgotten records in their place."""
    positions, events, crcs = [], [], []
    for position, event, crc, _ in rows:
        positions.append(position)
        events.append(event)
        crcs.append(crc)
    cursor.execute(
        "UPDATE records SET event = new.event, crc = new.crc"
        " FROM unnest(%s::int8[], %s::bytea[], %s::int8[]) AS new (position, event, crc)"
        " WHERE records.home = %s AND records.position = new.position",
        [positions, events, crcs, home],
    )


def _drop_story(cursor: psycopg.Cursor[Any], home: int) -> None:
    for name in (*copying.COPIED, "copied"):
        cursor.execute(SQL("DELETE FROM {} WHERE home = %s").format(Identifier(name)), [home])


def _copy(cursor: psycopg.Cursor[Any], table: str, types: Sequence[str], home: int, rows: Iterable[Row]) -> None:
    texts = [number for number, kind in enumerate(types[1:]) if kind == "text"]
    with cursor.copy(SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(Identifier(table))) as copy:
        copy.set_types(types)
        for row in rows:
            for number in texts:
                if row[number] and "\0" in row[number]:
                    row = tuple(map(_clean, row))
                    break
            copy.write_row((home, *row))


def _clean(value: Any) -> Any:
    """A value that Postgres takes: its texts have no NUL."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value
