"""Whether a database's tables and indexes are those that the schema steps make.

SQLite passes over a damaged entry of its schema when it is asked to look at a
damaged file, and then finds nothing wrong with the rest. So the entries are
compared with those of an empty database that took the same steps.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import lru_cache

_ENTRIES = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%'"


def schema_faults(connection: sqlite3.Connection, steps: tuple[str, ...]) -> Iterator[str]:
    """What is missing, different or too much, one sentence each; nothing for a schema as the steps make it.

    ``connection`` must have been told to pass over what it cannot read (``PRAGMA writable_schema``). How many of
    ``steps`` were taken is what the database says. Raises ``sqlite3.Error`` where it cannot be read at all.
    """
    taken: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if not 0 < taken <= len(steps):
        yield f"it says that its schema has version {taken}, which there is not"
        return
    expected = _expected(steps[:taken])
    found = {(str(kind), str(name)): (table, sql) for kind, name, table, sql in connection.execute(_ENTRIES)}
    for kind, name in sorted(expected.keys() - found.keys()):
        yield f"the schema of version {taken} has a {kind} {name}, which is missing or damaged"
    for kind, name in sorted(found.keys() - expected.keys()):
        yield f"the schema of version {taken} has no {kind} {ascii(name)[1:-1][:80]}"
    for kind, name in sorted(found.keys() & expected.keys()):
        if found[kind, name] != expected[kind, name]:
            yield f"the {kind} {name} is not the one of the schema of version {taken}"


@lru_cache(maxsize=8)
def _expected(steps: tuple[str, ...]) -> dict[tuple[str, str], tuple[str, str | None]]:
    connection = sqlite3.connect(":memory:")
    try:
        for step in steps:
            connection.executescript(step)
        return {(kind, name): (table, sql) for kind, name, table, sql in connection.execute(_ENTRIES)}
    finally:
        connection.close()
