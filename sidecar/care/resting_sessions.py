"""The tables in which sessions rest that capture does not need now: in the log's database, a row for each session.

They are written with the snapshot of the capture state, so they are right at its position after any crash.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Final

from bridge.opencode.capture.stored_map import Changes, Question, Row
from streams.errors import ForeignStore
from streams.log.log import Log

CAPTURE: Final = "capture"
"""The name of the snapshot."""

TABLES: Final = (
    """CREATE TABLE saved_sessions (
        number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,
        stream BLOB NOT NULL, parent BLOB NOT NULL, unknown INTEGER NOT NULL, turn INTEGER NOT NULL,
        ended INTEGER NOT NULL, directory BLOB NOT NULL, host BLOB NOT NULL, body BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX saved_sessions_by_stream ON saved_sessions (stream)",
    "CREATE INDEX saved_sessions_by_parent ON saved_sessions (parent)",
    "CREATE INDEX saved_sessions_unknown ON saved_sessions (unknown) WHERE unknown",
    "CREATE INDEX saved_sessions_turn ON saved_sessions (turn) WHERE turn",
    "CREATE INDEX saved_sessions_by_directory ON saved_sessions (directory, host, ended)",
    "CREATE INDEX saved_sessions_by_host ON saved_sessions (host) WHERE NOT ended",
    "CREATE TABLE saved_boots (value BLOB, session INTEGER, PRIMARY KEY (value, session)) STRICT, WITHOUT ROWID",
    "CREATE INDEX saved_boots_by_session ON saved_boots (session)",
    "CREATE TABLE saved_messages (value BLOB, session INTEGER, PRIMARY KEY (value, session)) STRICT, WITHOUT ROWID",
    "CREATE INDEX saved_messages_by_session ON saved_messages (session)",
)

_ASKED: Final[dict[Question, str]] = {
    "stream": "SELECT id FROM saved_sessions WHERE stream = ?",
    "parent": "SELECT id FROM saved_sessions WHERE parent = ?",
    "unknown": "SELECT id FROM saved_sessions WHERE unknown AND ? = x''",
    "turn": "SELECT id FROM saved_sessions WHERE turn AND ? = x''",
    "directory": "SELECT id FROM saved_sessions WHERE directory = ?",
    "open in": "SELECT id FROM saved_sessions WHERE directory = ? AND host = x'' AND NOT ended",
    "host": "SELECT id FROM saved_sessions WHERE host = ? AND NOT ended",
    "boot": "SELECT id FROM saved_boots JOIN saved_sessions ON number = session WHERE value = ? AND NOT ended",
}

_WITH_MESSAGE: Final = (
    "SELECT DISTINCT id FROM saved_messages JOIN saved_sessions ON number = session WHERE value >= ? AND value < ?"
)

_PUT: Final = """INSERT INTO saved_sessions (id, stream, parent, unknown, turn, ended, directory, host, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    stream = excluded.stream, parent = excluded.parent, unknown = excluded.unknown, turn = excluded.turn,
    ended = excluded.ended, directory = excluded.directory, host = excluded.host, body = excluded.body
    RETURNING number"""


class RestingRows:
    """``Rows`` over the tables of a log, for the thread of the event loop.

    Raises:
        ForeignStore: the tables are damaged. The next start makes them anew.
        StreamError, OSError: they cannot be read.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    def get(self, key: str) -> bytes | None:
        found = self._fetch("SELECT body FROM saved_sessions WHERE id = ?", raw(key))
        return found[0] if found else None

    def keys(self) -> list[str]:
        return _texts(self._fetch("SELECT id FROM saved_sessions ORDER BY number"))

    def having(self, question: Question, value: str) -> list[str]:
        return _texts(self._fetch(_ASKED[question], raw(value)))

    def with_message(self, first: str, end: str) -> list[str]:
        return _texts(self._fetch(_WITH_MESSAGE, raw(first), raw(end)))

    def damaged(self) -> Exception:
        self._log.spoil(CAPTURE)
        reason = "a session of the capture state cannot be read; the next start of the sidecar reads the log again"
        return ForeignStore(str(self._log.store), reason)

    def _fetch(self, query: str, *values: bytes) -> list[bytes]:
        try:
            return [found for (found,) in self._log.fetch_saved(query, *values)]
        except ForeignStore:
            self._log.spoil(CAPTURE)
            raise


def write(db: sqlite3.Connection, changes: Changes, *, is_new: bool) -> None:
    """Write what ``LazyMap.changes`` returned, in the caller's transaction; ``is_new``: create the tables first."""
    for statement in TABLES if is_new else ():
        db.execute(statement)
    for key, row in changes.items():
        if row is not None:
            _put(db, raw(key), row)
    delete(db, [key for key, row in changes.items() if row is None])


def delete(db: sqlite3.Connection, sessions: Collection[str]) -> None:
    """Delete the rows of sessions, in the caller's transaction."""
    for session in sessions:
        found = db.execute("DELETE FROM saved_sessions WHERE id = ? RETURNING number", [raw(session)]).fetchone()
        if found is not None:
            db.execute("DELETE FROM saved_boots WHERE session = ?", found)
            db.execute("DELETE FROM saved_messages WHERE session = ?", found)


def _put(db: sqlite3.Connection, key: bytes, row: Row) -> None:
    found = row.found
    texts = [raw(each) for each in (found.stream, found.parent, found.directory, found.host)]
    stream, parent, directory, host = texts
    values = [key, stream, parent, found.unknown, found.turn, found.ended, directory, host, row.body]
    (number,) = db.execute(_PUT, values).fetchone()
    known = {value for (value,) in db.execute("SELECT value FROM saved_boots WHERE session = ?", [number])}
    wanted = {raw(each) for each in found.boots}
    db.executemany("DELETE FROM saved_boots WHERE value = ? AND session = ?", [(v, number) for v in known - wanted])
    db.executemany("INSERT INTO saved_boots VALUES (?, ?)", [(v, number) for v in wanted - known])
    known = {value for (value,) in db.execute("SELECT value FROM saved_messages WHERE session = ?", [number])}
    wanted = {raw(each) for each in found.messages}
    db.executemany("DELETE FROM saved_messages WHERE value = ? AND session = ?", [(v, number) for v in known - wanted])
    db.executemany("INSERT INTO saved_messages VALUES (?, ?)", [(v, number) for v in wanted - known])


def raw(text: str) -> bytes:
    """An id as it is stored: OpenCode's may be no valid text."""
    return text.encode("utf-8", "surrogatepass")


def _texts(found: list[bytes]) -> list[str]:
    return [each.decode("utf-8", "surrogatepass") for each in found]
