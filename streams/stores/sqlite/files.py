"""Files, schema and errors of the database: how to open SQLite, and how to translate its errors.

::

    store/  store.json  format and log id                lock  held by the writer
            log.db      records                          log.db-wal, log.db-shm  SQLite's own
            journal/    records that are not in log.db yet   head  the last durable record
            search.db   full-text index; derived, may be deleted
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final

from streams.errors import NOT_OURS, ForeignStore, StoreLocked, StoreUnavailable, StreamError
from streams.stores.directory import is_being_written, read_manifest
from streams.system.files import check_file, open_or_create, refuse_link, sync_directory

LOG_FILE: Final = "log.db"
SEARCH_FILE: Final = "search.db"

APPLICATION_ID: Final = 0x44535452
"""``DSTR``. SQLite keeps this number in the file's header, so that Durable Stream and the command ``file`` recognise a
log."""

_IOERR_SHMSIZE: Final = 10 | 19 << 8

BUSY_MS: Final = 5000
"""How long to wait for SQLite's brief locks."""

WAL_BYTES: Final = 64 * 1024 * 1024
"""The size to which a larger WAL is cut, once it is in the file."""

SCHEMA: Final = """
    CREATE TABLE streams (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, next_offset INTEGER NOT NULL, hash BLOB NOT NULL
    ) STRICT;
    CREATE TABLE records (
        position INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL REFERENCES streams (id),
        offset INTEGER NOT NULL,
        ts INTEGER NOT NULL,
        type TEXT NOT NULL,
        actor TEXT NOT NULL,
        correlation_id TEXT,
        causation_id TEXT,
        event_id TEXT NOT NULL,
        key BLOB NOT NULL,
        hash BLOB NOT NULL,
        crc INTEGER NOT NULL,
        batch_index INTEGER NOT NULL,
        batch_count INTEGER NOT NULL,
        event BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX records_by_key ON records (key);
    CREATE UNIQUE INDEX records_by_stream ON records (stream, offset);
    CREATE INDEX records_by_event_id ON records (event_id);
    CREATE INDEX records_by_type ON records (type);
    CREATE INDEX records_by_ts ON records (ts);
    CREATE INDEX records_by_causation ON records (causation_id) WHERE causation_id IS NOT NULL;
    CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), position INTEGER NOT NULL, hash BLOB NOT NULL) STRICT;
    INSERT INTO head VALUES (1, -1, x'');
    CREATE TABLE removed (
        key BLOB PRIMARY KEY, body BLOB NOT NULL, position INTEGER NOT NULL, offset INTEGER NOT NULL, hash BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE removed_ranges (first INTEGER PRIMARY KEY, end INTEGER NOT NULL) STRICT;
    CREATE TABLE bases (
        stream TEXT PRIMARY KEY, offset INTEGER NOT NULL, hash BLOB NOT NULL, at_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE marks (stream TEXT PRIMARY KEY, offset INTEGER NOT NULL, at_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE singles (
        position INTEGER PRIMARY KEY, stream TEXT NOT NULL, offset INTEGER NOT NULL, at_ms INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE pending (
        what TEXT NOT NULL, stream TEXT NOT NULL, offset INTEGER NOT NULL, at_ms INTEGER NOT NULL,
        PRIMARY KEY (what, stream)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE removals (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL) STRICT;
    INSERT INTO removals VALUES (1, 0);
    CREATE TABLE hints (
        kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, position INTEGER NOT NULL,
        state BLOB NOT NULL, PRIMARY KEY (kind, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE derived (
        id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, position INTEGER NOT NULL
    ) STRICT;
    """

STEPS: Final[tuple[str, ...]] = (SCHEMA,)
"""Numbered schema steps, which only go forward. ``PRAGMA user_version`` counts the completed steps."""

SEARCH_STEPS: Final[tuple[str, ...]] = (
    """
    CREATE VIRTUAL TABLE payloads USING fts5 (
        text, tokenize = 'trigram case_sensitive 1', content = '', detail = none
    );
    CREATE TABLE progress (id INTEGER PRIMARY KEY CHECK (id = 1), position INTEGER NOT NULL) STRICT;
    INSERT INTO progress VALUES (1, -1);
    """,
)


class StoreInterrupted(StoreUnavailable):
    """The caller interrupted a query."""

    code: ClassVar[str] = "interrupted"


@contextmanager
def translated(path: Path, doing: str) -> Iterator[None]:
    """Translate SQLite's errors into the store's errors, so that no error of ``sqlite3`` leaves this folder.

    Raises:
        ForeignStore: the file is damaged or not a database.
        StoreLocked: another program holds it.
        StoreUnavailable: the file cannot be opened.
        OSError: the disk is full, read-only or failing.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path, doing) from error
    except UnicodeDecodeError as error:
        # SQLite's message may quote damaged bytes, which Python cannot decode.
        raise _damaged(path, "it contains text that is not UTF-8") from error


_NO_TEXT: Final = "Could not decode to UTF-8"


VERIFY: Final = "run `durable-stream verify`, then "

RESTORE: Final = "restore it from a backup, or save what can be read with `durable-stream export`"


def _damaged(path: Path, how: str) -> ForeignStore:
    return ForeignStore(str(path), f"it is damaged ({shown(how)}): {VERIFY}{RESTORE}")


def shown(text: str) -> str:
    """Escape control characters: SQLite quotes damaged bytes, which may reach a terminal."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def translate(error: sqlite3.Error, path: Path, doing: str) -> Exception:
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF  # the low byte is SQLite's primary error code
    # The shared memory of the WAL is also a file, and on a full disk it is the first file that cannot grow.
    if code == sqlite3.SQLITE_FULL or extended == _IOERR_SHMSIZE:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if code == sqlite3.SQLITE_READONLY:
        return OSError(errno.EROFS, "it is read-only", str(path))
    if code == sqlite3.SQLITE_IOERR:
        return OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    if code == sqlite3.SQLITE_INTERRUPT:
        return StoreInterrupted(f"{doing} {path} was interrupted")
    # Opening always runs the same statements, so an error in one of them is a fault of the file.
    is_in_its_header = code == sqlite3.SQLITE_ERROR and doing == "opening"
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT) or is_in_its_header:
        return _damaged(path, str(error))
    if str(error).startswith(_NO_TEXT):
        return _damaged(path, "it contains text that is not UTF-8")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLocked(f"{path} is held by another program", "close that program, then try again")
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailable(
            f"{path} cannot be opened", "check that it exists, that you own it and that it is not a symbolic link"
        )
    return StoreUnavailable(f"{doing} {path} failed ({error})", "run `durable-stream doctor`")


def connect_to_write(path: Path, steps: tuple[str, ...]) -> sqlite3.Connection:
    """Open a file's one writing connection; create the file and upgrade its schema.

    Sets WAL mode and ``synchronous=FULL``, and reads both settings back. Raises the errors of ``translated``, and:

        ForeignStore: a newer version or another program wrote the file.
    """
    _check_files(path)
    if not path.exists():
        os.close(open_or_create(path))
    try:
        return _connect_to_write(path, steps)
    except BaseException:
        # Delete an empty file, which this or an earlier attempt made: it would look like a store without its records.
        if path.exists() and not path.stat().st_size:
            path.unlink()
        raise


def _connect_to_write(path: Path, steps: tuple[str, ...]) -> sqlite3.Connection:
    with translated(path, "opening"):
        connection = sqlite3.connect(
            _uri(path, "rw"), timeout=BUSY_MS / 1000, uri=True, check_same_thread=False, isolation_level=None
        )
        try:
            if _check_owner(connection, path, len(steps)) == 0:
                # Only a file without tables accepts this setting, which gives pruned space back to the system.
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            # Overwrite deleted content with zeros, so that forgotten payloads are gone from the file.
            connection.execute("PRAGMA secure_delete = ON")
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            connection.execute("PRAGMA synchronous = FULL")
            synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
            if (mode, synchronous) != ("wal", 2):
                raise StoreUnavailable(
                    f"{path}: SQLite reports journal mode {mode} and synchronous {synchronous}; expected wal and 2 "
                    "(FULL)",
                    "move the home to a local file system: data written here could be lost",
                )
            connection.execute("PRAGMA foreign_keys = ON")
            # Keep SQLite from checkpointing within a commit, because ``Database`` checkpoints between two transactions.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            # A dropped table is written to the WAL as zeros, and the WAL would keep its size.
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}").fetchone()
            _upgrade(connection, steps)
            # SQLite syncs the directory for the WAL only in the connection that created the WAL, which may be a reader.
            sync_directory(path.parent)
        except BaseException:
            connection.close()
            raise
    return connection


def connect_to_read(path: Path, newest: int, *, damaged: bool = False) -> sqlite3.Connection | None:
    """Open a connection that cannot write, for any thread or process; ``None`` if there is no file. Raises the same
    errors as ``connect_to_write``.

    ``damaged``: accept a damaged file, as far as SQLite can read it. If SQLite cannot create its shared memory file, as
    on a read-only file system or a full disk, nobody else can write either. Then a log with an empty WAL is read as it
    is.
    """
    _check_files(path)
    if not path.exists():
        return None
    try:
        connection = _connect_to_read(path, "ro", damaged)
    except StoreLocked:
        raise
    except (OSError, StoreUnavailable) as error:
        if _is_half_made(error.__cause__):
            return None
        if is_being_written(path.parent):
            raise
        if wal_bytes(path):
            raise StoreUnavailable(
                f"{path} cannot be read in place, because part of its data is still in {path.name}-wal",
                "make the directory writable and free some space, or copy the home elsewhere and read the copy",
            ) from error
        connection = _connect_to_read(path, "ro&immutable=1", damaged)
    with translated(path, "opening"):
        try:
            if _check_owner(connection, path, newest) == 0:
                connection.close()
                return None
        except sqlite3.OperationalError as error:
            connection.close()
            if _is_half_made(error):
                return None
            raise
        except BaseException:
            connection.close()
            raise
    return connection


def _is_half_made(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_ROLLBACK


def _connect_to_read(path: Path, mode: str, damaged: bool) -> sqlite3.Connection:
    with translated(path, "opening"):
        connection = sqlite3.connect(_uri(path, mode), uri=True, check_same_thread=False, isolation_level=None)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            connection.execute("PRAGMA query_only = ON")
            if damaged:
                # ``writable_schema`` makes SQLite accept a file shorter than its header says; the connection is still
                # read-only.
                connection.execute("PRAGMA writable_schema = ON")
                connection.text_factory = lambda text: text.decode("utf-8", "replace")
            connection.execute("PRAGMA user_version").fetchone()
        except BaseException:
            connection.close()
            raise
    return connection


def place_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file that ``path`` now names; ``None`` if there is none."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def wal_bytes(path: Path) -> int:
    """The size of a database's write-ahead file; 0 if there is none."""
    wal = path.with_name(f"{path.name}-wal")
    return wal.stat().st_size if wal.exists() else 0


def holds_log(path: Path, *, records: bool = False) -> bool:
    """True if the file holds a log or, with ``records``, at least one record. An unreadable file counts as holding
    both.

    Raises:
        ForeignStore: the file is a symbolic link.
        StoreLocked: another program holds it.
    """
    _check_files(path)
    if not path.exists():
        return False
    try:
        connection = connect_to_read(path, len(STEPS))
    except StoreLocked:
        raise
    except StreamError:
        return True
    if connection is None:
        return False
    try:
        return not records or connection.execute("SELECT 1 FROM records LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return True
    finally:
        connection.close()


def _check_files(path: Path) -> None:
    """Refuse links, which SQLite would follow, and unsafe file modes, which SQLite would copy to its other files."""
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        refuse_link(file)
        with suppress(FileNotFoundError):
            check_file(file, file.stat())


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def _check_owner(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if tables == 0 and owner in (0, APPLICATION_ID):
        return 0
    if owner != APPLICATION_ID:
        raise ForeignStore(str(path), _FOREIGN if _is_named(path) else NOT_OURS)
    if version > newest:
        raise ForeignStore(
            str(path),
            f"it has schema {version}, but this version only reads schemas up to {newest}: upgrade durable-stream",
        )
    return version


_FOREIGN: Final = f"another program wrote it, or its header is damaged: {VERIFY}{RESTORE}"


def _is_named(path: Path) -> bool:
    """True if ``store.json`` names the file as our log, so that the advice to choose another home would be wrong."""
    if path.name != LOG_FILE:
        return False
    try:
        manifest = read_manifest(path.parent)
    except StreamError:
        return False
    return manifest is not None


def _upgrade(connection: sqlite3.Connection, steps: tuple[str, ...]) -> None:
    taken = connection.execute("PRAGMA user_version").fetchone()[0]
    for number, step in enumerate(steps[taken:], taken + 1):
        connection.executescript(
            f"BEGIN IMMEDIATE; {step}; PRAGMA user_version = {number}; PRAGMA application_id = {APPLICATION_ID}; COMMIT"
        )
