"""Connections to the team's Postgres; no error of psycopg leaves this folder.

The password is only a keyword of ``psycopg.connect``. The text of an error is cut to its first line, and never has it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

from sidecar.notify_config import TeamConfig
from sidecar.team.address import place_of, settings
from sidecar.team.errors import TeamRefused, TeamUnavailable
from sidecar.team.functions import SCHEMA

logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # it writes to stderr

_SESSION: Final = (
    f"SET search_path = {SCHEMA}; SET statement_timeout = '60s'; SET lock_timeout = '10s';"
    " SET idle_in_transaction_session_timeout = '30s'; SET client_min_messages = 'error'"
)

_REFUSED: Final = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
)


@contextmanager
def translated(config: TeamConfig) -> Iterator[None]:
    """Translate psycopg's errors.

    Raises:
        TeamUnavailable, TeamRefused
    """
    try:
        yield
    except psycopg.Error as error:
        raise _translate(error, config) from None


def _translate(error: psycopg.Error, config: TeamConfig) -> TeamUnavailable | TeamRefused:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[-1] if isinstance(error, psycopg.OperationalError) else lines[0]
    if config.password is not None and (secret := config.password.get_secret_value()):
        text = text.replace(secret, "…")
    problem = f"the team's Postgres ({place_of(config.database)}): {text.strip()[:300]}"
    if isinstance(error, _REFUSED):
        return TeamRefused(problem, "see the roles in the page on teams")
    return TeamUnavailable(problem)


def connect(config: TeamConfig, *, is_reader: bool = False) -> psycopg.Connection[Any]:
    """A connection in which each statement is a transaction of its own, and names are those of our schema. Blocks.
    ``is_reader``: of the address's hosts, one that is a replica is taken first.

    Raises:
        TeamUnavailable: it cannot be reached.
    """
    password = config.password.get_secret_value() if config.password is not None else None
    with translated(config):
        given = settings(config.database, password, os.environ)
        if is_reader:
            given["target_session_attrs"] = "prefer-standby"
        # A server behind a pooler does not know the statements that another connection prepared.
        connection = psycopg.connect(**given, autocommit=True, prepare_threshold=None)
        try:
            connection.execute(_SESSION)
        except BaseException:
            connection.close()
            raise
    return connection


def cut(connection: psycopg.Connection[Any] | None) -> None:
    """End what another thread waits for on a connection, as if the server had gone away: a server that was stopped in
    the middle of its work says nothing at all."""
    with suppress(OSError, psycopg.Error):
        if connection is not None:
            with socket.socket(fileno=os.dup(connection.pgconn.socket)) as same:
                same.shutdown(socket.SHUT_RDWR)
