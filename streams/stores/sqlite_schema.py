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
    missing, strange = expected.keys() - found.keys(), found.keys() - expected.keys()
    # An entry whose name alone is damaged is one fault, not one entry too few and one too many.
    renamed = {found[entry][1]: entry for entry in strange if found[entry][1] is not None}
    for kind, name in sorted(missing):
        other = renamed.get(expected[kind, name][1])
        if other is None:
            yield f"the {kind} {name} of the schema of version {taken} is missing or damaged"
        else:
            strange = strange - {other}
            yield f"the {kind} {name} of the schema of version {taken} is damaged: its name reads {_ascii(other[1])}"
    for kind, name in sorted(strange):
        yield f"the schema of version {taken} has no {kind} {_ascii(name)}"
    for kind, name in sorted(found.keys() & expected.keys()):
        if found[kind, name] != expected[kind, name]:
            yield f"the {kind} {name} is not the one of the schema of version {taken}"


def _ascii(name: str) -> str:
    return ascii(name)[1:-1][:80]


@lru_cache(maxsize=8)
def _expected(steps: tuple[str, ...]) -> dict[tuple[str, str], tuple[str, str | None]]:
    connection = sqlite3.connect(":memory:")
    try:
        for step in steps:
            connection.executescript(step)
        return {(kind, name): (table, sql) for kind, name, table, sql in connection.execute(_ENTRIES)}
    finally:
        connection.close()
