"""Verify the file of a log's database as a whole, apart from its records.

The checks cover opening, pages and indexes. Each check gives one sentence per fault, and none for a sound file. Damage
never raises an exception: an unreadable file is reported in a sentence, too. All checks block, and ``connection`` must
have been opened with ``damaged`` (see ``connect_to_read``). ``verify.py`` verifies the records themselves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import Final

from streams.errors import BadStore, StoreUnavailable
from streams.stores.sqlite.derived import OF_THE_LOG, quoted, tables_beside
from streams.stores.sqlite.files import (
    STEPS,
    StoreInterrupted,
    connect_to_read,
    shown,
    translated,
)

_QUICK_S = 1.0
"""After so many seconds a quick check of the file ends."""

_MOST_LINES: Final = 2
"""Maximum number of lines to keep from SQLite's report of one fault."""

DAMAGE: Final = (BadStore, StoreUnavailable, OSError)
"""What reading a damaged file raises within ``translated``; see ``damage_text``."""


def opening_damage(path: Path) -> list[str]:
    """Faults that keep a file from being opened or written, even if a reader that ignores damage can read all of it."""
    try:
        connection = connect_to_read(path, len(STEPS))
    except BadStore as error:
        return [f"it cannot be opened: {damage_text(error)}"]
    except (StoreUnavailable, OSError):
        return []  # another process is holding the file, or the file is inaccessible, which is not damage
    if connection is not None:
        connection.close()
    return []


def content_damage(path: Path, connection: sqlite3.Connection, *, quick: bool) -> tuple[list[str], list[str]]:
    """Faults that SQLite finds in pages and indexes: those of the log, and those of the tables beside it.

    ``quick``: only what SQLite checks in about a second.
    """
    log = _checked(path, connection, quick, [None])
    derived: list[str] = []
    if log and (derived := derived_damage(path, connection, quick=quick)):
        log = _checked(path, connection, quick, sorted(OF_THE_LOG))
    log += _looked_at(path, "the schema", lambda: _schema_faults(connection))
    return log, derived


def derived_damage(path: Path, connection: sqlite3.Connection, *, quick: bool) -> list[str]:
    """Faults in the tables beside the log's, also where an index contradicts its table. See ``content_damage``."""
    return _checked(path, connection, quick, tables_beside(connection), "integrity_check")


def _checked(
    path: Path, connection: sqlite3.Connection, quick: bool, tables: Iterable[str | None], look: str = ""
) -> list[str]:
    """What SQLite reports of some tables and their indexes; ``None`` is the whole file."""
    look = look or ("quick_check" if quick else "integrity_check")
    end = Timer(_QUICK_S, connection.interrupt)  # SQLite calls no progress handler while it looks at the pages
    if quick:
        end.start()
    faults: list[str] = []
    try:
        with translated(path, "reading"):
            for table in tables:
                faults += [row[0] for row in connection.execute(f"PRAGMA {look}({quoted(table) if table else 20})")]
    except StoreInterrupted:
        return []  # the quick check used up its time without finding damage
    except DAMAGE as error:
        faults.append(damage_text(error))
    finally:
        # It must not interrupt later reads on the connection.
        end.cancel()
        if quick:
            end.join()
    return [f"SQLite reports: {shown(_first_of(str(fault)))}" for fault in faults if fault != "ok"]


def _schema_faults(connection: sqlite3.Connection) -> Iterator[str]:
    tables = "SELECT name, sql FROM sqlite_master WHERE sql LIKE 'CREATE %' AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
    with closing(sqlite3.connect(":memory:")) as empty:
        found = connection.execute(tables).fetchall()
        if found and connection.execute("PRAGMA user_version").fetchone()[0] < 1:
            yield "its schema version is missing"
        for name, text in found:
            try:
                empty.execute(text)
            except sqlite3.Error as error:
                yield f"the schema of {shown(str(name))} is damaged: {shown(str(error))}"


def _first_of(report: str) -> str:
    lines = [" ".join(line.split()) for line in report.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("***"):  # this line only names the database, which the finding does too
        del lines[0]
    more = f" (and {len(lines) - _MOST_LINES} more)" if len(lines) > _MOST_LINES else ""
    return f"{', '.join(lines[:_MOST_LINES])}{more}"


def damage_text(error: Exception) -> str:
    text = shown(str(error.__cause__ or error))
    return text.split(": ")[-1] if isinstance(error, OSError) else text


def _looked_at(path: Path, what: str, look: Callable[[], Iterable[str]]) -> list[str]:
    try:
        with translated(path, "reading"):
            return list(look())
    except DAMAGE as error:
        return [f"{what} cannot be read: {damage_text(error)}"]
