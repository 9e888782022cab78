"""Reads the homes of a team: each as if its database were here, by the queries of the story and of the log."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import psycopg
from psycopg.adapt import Buffer, Loader

from sidecar.notify_config import TeamConfig
from sidecar.team.connection import connect, translated
from sidecar.team.dialect import for_postgres
from sidecar.team.functions import SCHEMA
from sidecar.team.schema import HOME, ONE
from streams.log.elsewhere import ReaderElsewhere

_TRANSACTIONS: Final = frozenset({"BEGIN", "ROLLBACK"})

_MOMENT: Final = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    f" SET LOCAL search_path = {HOME}, {SCHEMA}; SET LOCAL idle_in_transaction_session_timeout = '1h';"
    " SET LOCAL statement_timeout = '5min'"
)
"""Nothing of it outlives the transaction, because a pooler may give the next one another connection."""

_HOMES: Final = """SELECT home, log_id, machine, head, head - least(story_head, head),
        ARRAY[head, story_head, removals, changes]
    FROM homes WHERE coalesce(%s, machine) = machine ORDER BY machine, log_id"""


class TeamHome(NamedTuple):
    """A home that is copied to the team. ``behind``: how many of its records are not in its story yet. ``state``: other
    numbers after every change of the copy."""

    home: int
    log_id: str
    machine: str
    head: int
    behind: int
    state: list[int]


class Number(Loader):
    """Sums of whole numbers are whole numbers, as in SQLite."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        return int(text) if text.lstrip("-").isdigit() else float(text)


class Reading:
    """A connection that reads one home at a time, as ``Asked``: the one that it was turned to last, as of then. A lost
    connection is made again for the next home. Blocks.

    Raises:
        TeamUnavailable, TeamRefused: the team cannot be read.
    """

    def __init__(self, config: TeamConfig) -> None:
        self._config = config
        self._connection: psycopg.Connection[Any] | None = None

    def homes(self, machine: str | None = None) -> list[TeamHome]:
        """The homes of a machine, or of all, by the names of the machines."""
        with translated(self._config):
            return [TeamHome(*row) for row in self._between().execute(_HOMES.encode(), [machine])]

    def turn_to(self, home: TeamHome) -> None:
        with translated(self._config):
            connection = self._between()
            connection.execute(_MOMENT.encode())
            connection.execute("SELECT set_config(%s, %s, true)", [ONE, str(home.home)])

    def reader(self, home: TeamHome) -> ReaderElsewhere:
        """A reader of a home, for whenever this is turned to it."""
        return ReaderElsewhere(self, f"the team's copy of {home.machine}")

    def let_go(self) -> None:
        """End the moment that is read, for which Postgres keeps what was deleted since."""
        with translated(self._config):
            self._between()

    def execute(self, text: str, given: Any = (), /) -> psycopg.Cursor[Any]:
        with translated(self._config):
            assert self._connection is not None
            if text in _TRANSACTIONS:  # one is open until the end, so that all answers are about one moment
                return self._connection.cursor()
            return self._connection.execute(for_postgres(text).encode(), given)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _between(self) -> psycopg.Connection[Any]:
        """A connection without a transaction."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._config, is_reader=True)
            self._connection.adapters.register_loader("numeric", Number)
        self._connection.execute("ROLLBACK")
        return self._connection
