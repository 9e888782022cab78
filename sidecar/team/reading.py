"""Reads the homes of a team: each as if its database were here, by the queries of the story and of the log."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import psycopg
from psycopg.adapt import Buffer, Loader

from sidecar.notify_config import TeamConfig
from sidecar.team.connection import connect, translated
from sidecar.team.dialect import for_postgres
from sidecar.team.schema import HOME, ONE, SCHEMA
from streams.log.elsewhere import ReaderElsewhere

_TRANSACTIONS: Final = frozenset({"BEGIN", "ROLLBACK"})

_BEGIN: Final = (
    f"SET search_path = {HOME}, {SCHEMA}; SET idle_in_transaction_session_timeout = '1h';"
    " SET statement_timeout = '5min'; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
)


class TeamHome(NamedTuple):
    """A home that is copied to the team. ``behind``: how many of its records are not in its story yet."""

    home: int
    log_id: str
    machine: str
    behind: int


class _Number(Loader):
    """Sums of whole numbers are whole numbers, as in SQLite."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        return int(text) if text.lstrip("-").isdigit() else float(text)


class _OneHome:
    """One home's tables as of one moment: see ``Asked``."""

    def __init__(self, config: TeamConfig, home: int) -> None:
        self._config = config
        self._connection = connect(config)
        with translated(config):
            self._connection.adapters.register_loader("numeric", _Number)
            self._connection.execute("SELECT set_config(%s, %s, false)", [ONE, str(home)])
            self._connection.execute(_BEGIN.encode())

    def execute(self, text: str, given: Any = (), /) -> psycopg.Cursor[Any]:
        with translated(self._config):
            # A transaction is open until the end, so that all answers are about one moment.
            known = text not in _TRANSACTIONS
            return self._connection.execute(for_postgres(text).encode() if known else b"SELECT", given if known else ())

    def close(self) -> None:
        self._connection.close()


def homes(config: TeamConfig, machine: str | None = None) -> list[TeamHome]:
    """The homes of a machine, or of all, by the names of the machines. Blocks.

    Raises:
        TeamUnavailable, TeamRefused: they cannot be read.
    """
    query = "SELECT home, log_id, machine, head - least(told, head) FROM homes WHERE coalesce(%s, machine) = machine"
    with translated(config), connect(config) as connection:
        return [TeamHome(*row) for row in connection.execute(f"{query} ORDER BY machine, log_id".encode(), [machine])]


def open_home(config: TeamConfig, home: TeamHome) -> ReaderElsewhere:
    """A reader of a home, as of now. Blocks. Raises the errors of ``homes``."""
    return ReaderElsewhere(_OneHome(config, home.home), f"the team's copy of {home.machine}")
