"""Logs whose records are all in the database, for tests: written, read and changed without the store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from streams.findings import Finding
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.verify import Verification
from tests.streams.builders import event


async def written(store: Path) -> None:
    log = await Log.open(store, seeded_identity(1))
    for number in range(20):
        await log.append([event(f"k{number}-{n}", stream=f"ses_{n}") for n in range(3)])
    await log.close()


async def findings(store: Path) -> list[Finding]:
    return [finding async for finding in Verification(store).run()]


def ask(store: Path, query: str) -> int:
    connection = sqlite3.connect(store / "log.db")
    try:
        found: int = connection.execute(query).fetchone()[0]
        return found
    finally:
        connection.close()


def change(store: Path, statement: str) -> None:
    connection = sqlite3.connect(store / "log.db")
    with connection:
        connection.execute(statement)
    connection.close()


def garble(store: Path, table: str) -> None:
    """Overwrite the first page of a table or an index of a log at rest."""
    connection = sqlite3.connect(store / "log.db")
    (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", [table]).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with (store / "log.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
