"""The story's tables for a second place, which copies rows by their keys.

A new row has a higher key than those that were copied. ``changed`` notes which older ones changed, and its first row
names this making of the tables: under another name, nothing that was copied before counts. It exists only while a
second place is configured.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

import orjson

from sidecar.read.story import tables

COPIED: Final = tuple(name for name in tables.ROWS if name not in ("input", "reply", "started", "live"))
"""The tables that a reader asks; the others are the rules' own."""

FIRST: Final = 1
"""The number of the change that names the making."""


def key_of(name: str) -> str:
    """The column that is a table's primary key."""
    return tables.columns(name)[0].split()[0]


def follow(db: sqlite3.Connection, making: str) -> None:
    """Note changes from now on, in the caller's transaction."""
    if _is_followed(db):
        return
    db.execute("CREATE TABLE changed (id INTEGER PRIMARY KEY, name TEXT NOT NULL, which INTEGER NOT NULL) STRICT")
    db.execute("INSERT INTO changed VALUES (?, ?, 0)", [FIRST, making])
    for name in COPIED:
        key = key_of(name)
        db.execute(
            f"CREATE TRIGGER changed_{name} BEFORE INSERT ON {name} WHEN EXISTS"  # noqa: S608
            f" (SELECT 1 FROM {name} WHERE {key} = new.{key})"
            f" BEGIN INSERT INTO changed (name, which) VALUES ('{name}', new.{key}); END"
        )


def unfollow(db: sqlite3.Connection) -> None:
    """Note no changes any more, in the caller's transaction."""
    if _is_followed(db):
        db.execute("DROP TABLE changed")
        for name in COPIED:
            db.execute(f"DROP TRIGGER IF EXISTS changed_{name}")


def trim(db: sqlite3.Connection, making: str, copied: int) -> None:
    """Forget the changes of a making before number ``copied``. That one stays, so that no later one gets its number."""
    if making_of(db) == making:
        db.execute("DELETE FROM changed WHERE id > ? AND id < ?", [FIRST, copied])


def _is_followed(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'changed'").fetchone() is not None


def making_of(db: sqlite3.Connection) -> str | None:
    """The name of this making; ``None`` if changes are not noted."""
    if not _is_followed(db):
        return None
    return str(db.execute("SELECT name FROM changed WHERE id = ?", [FIRST]).fetchone()[0])


def has_changes(db: sqlite3.Connection, after: int) -> bool:
    """Whether all changes after number ``after`` are still noted. Not if the place lost what it said it has."""
    first = db.execute("SELECT min(id) FROM changed WHERE id > ?", [FIRST]).fetchone()[0]
    return first is None or first <= max(after, FIRST) + 1


def changes(db: sqlite3.Connection, after: int, most: int) -> list[tuple[int, str, int]]:
    """The next changes after number ``after``, each with its table and the key of its row."""
    query = "SELECT id, name, which FROM changed WHERE id > ? ORDER BY id LIMIT ?"
    return db.execute(query, [max(after, FIRST), most]).fetchall()


def rows_after(db: sqlite3.Connection, name: str, after: int, most: int) -> list[tuple[Any, ...]]:
    """The next rows of a table with a key above ``after``."""
    key = key_of(name)
    return db.execute(f"SELECT * FROM {name} WHERE {key} > ? ORDER BY {key} LIMIT ?", [after, most]).fetchall()  # noqa: S608


def rows_at(db: sqlite3.Connection, name: str, keys: Iterable[int]) -> list[tuple[Any, ...]]:
    """The rows of a table with these keys."""
    query = f"SELECT * FROM {name} WHERE {key_of(name)} IN (SELECT value FROM json_each(?))"  # noqa: S608
    return db.execute(query, [orjson.dumps([*keys]).decode()]).fetchall()
