"""The team's own log: the streams of its agents, to which every home appends. It is kept as home 0 of the team."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import psycopg

from sidecar.agents.effects.claims import ClaimLost
from sidecar.notify_config import TeamConfig
from sidecar.team.dialect import for_postgres
from sidecar.team.functions import SCHEMA
from sidecar.team.line import Line
from sidecar.team.packing import Bytes, Numbers, Texts
from sidecar.team.reading import Number
from sidecar.team.schema import HOME, ONE, prepare
from streams.log.elsewhere import Asked
from streams.log.shared import Batch, SharedLog, Written
from streams.store import Snapshot

Answer = TypeVar("Answer")

LOOK_SECONDS: Final = 0.2
"""How often a home looks for what others appended; its own records it knows at once."""

CLOSE_SECONDS: Final = 5.0
"""How long a running append may take to end before the log is closed."""

_SESSION: Final = (
    # An append must see what was committed before it got its turn, and is durable once it returns.
    "SET default_transaction_isolation = 'read committed'; SET statement_timeout = '12s'; SET lock_timeout = '8s';"
    " SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
_READS: Final = f"{_SESSION}; SET search_path = {HOME}, {SCHEMA}; SELECT set_config('{ONE}', '0', false)"
_APPEND: Final = f"SELECT * FROM append({', '.join(['%b'] * 16)})".encode()  # noqa: S608 - a constant
_ROWS: Final = f"position, place, hash, crc, event FROM {SCHEMA}.records WHERE home = 0"
_FIND: Final = f"SELECT key, {_ROWS} AND key = ANY (%b)".encode()
_AT: Final = f"SELECT {_ROWS} AND position = ANY (%b)".encode()
_ARRAYS: Final = (Texts, Numbers, *[Texts] * 5, Bytes, Bytes, Numbers, Bytes)
"""What each column of a batch is."""


class Fence(NamedTuple):
    """An append under a claim is refused when the claim is somebody else's."""

    effect: bytes
    token: str


class _Rows:
    """Answers the queries of SQLite's reader, each as of its own moment."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, text: str, given: Any = (), /) -> psycopg.Cursor[Any]:
        return self._connection.execute(for_postgres(text).encode(), given)


class TeamDatabase:
    """The team's log in its Postgres, as ``Shared``. Reading never waits for an append."""

    def __init__(self, config: TeamConfig) -> None:
        self._reads, self._writes = Line(config, _READS), Line(config, _SESSION)

    async def prepare(self) -> None:
        """Create the team's tables if there are none. Raises ``TeamRefused`` as ``schema.prepare``."""
        await self._writes.ask(lambda connection, _: prepare(connection))

    async def reading(self, work: Callable[[Asked], Answer]) -> Answer:
        def read(connection: psycopg.Connection[Any], _: bool) -> Answer:
            connection.adapters.register_loader("numeric", Number)
            return work(_Rows(connection))

        return await self._reads.ask(read)

    async def find(self, keys: Sequence[bytes]) -> list[Any]:
        return await self._reads.ask(lambda connection, _: connection.execute(_FIND, [Bytes(keys)]).fetchall())

    async def append(self, batch: Batch, fence: Fence | None = None) -> tuple[Written, bool]:
        """See ``Shared``.

        Raises:
            ClaimLost: the claim of the fence is not held any more.
        """
        columns = [pack(column) for pack, column in zip(_ARRAYS, batch.columns, strict=True)]
        expected = Texts([*batch.expected]), Numbers([*batch.expected.values()])
        given = [*columns, *expected, batch.keeps_first, *(fence or (None, None))]

        def write(connection: psycopg.Connection[Any], again: bool) -> tuple[Any, bool]:
            return connection.execute(_APPEND, given, binary=True).fetchone(), again

        row, again = await self._writes.ask(write)
        positions, places, hashes, known, known_at, moved, moved_to, is_lost = row
        if is_lost:
            raise ClaimLost
        new = zip(positions or (), places or (), hashes or (), strict=True)
        stored = {}
        if known:
            rows = await self._reads.ask(lambda connection, _: connection.execute(_AT, [Numbers(known_at)]).fetchall())
            at = dict(zip(known_at, known, strict=True))
            stored = {at[found[0]] - 1: found for found in rows}
        return (
            Written(
                {number: each for number, each in enumerate(new) if each[0] is not None},
                stored,
                None if moved is None else (moved, moved_to),
            ),
            again,
        )

    async def keep(self, kind: str, name: str, hint: Snapshot) -> None:
        await self._call("SELECT keep_hint(%s, %s, %s, %s, %s)", kind, name, *hint)

    # --- claims of effects ---

    async def claim(self, wanted: Sequence[Fence], seconds: float) -> set[str]:
        """Take what nobody has, or has renewed in time; returns the tokens of what was taken."""
        return await self._tokens("SELECT claim(%b, %b, %s)", wanted, seconds)

    async def renew(self, held: Sequence[Fence], seconds: float) -> set[str]:
        """Hold some claims for so much longer; returns the tokens of those that were not taken by others."""
        return await self._tokens("SELECT renew(%b, %b, %s)", held, seconds)

    async def release(self, held: Fence) -> None:
        """Let others take a claim."""
        await self._call("SELECT release(%s, %s)", *held)

    async def _tokens(self, query: str, fences: Sequence[Fence], seconds: float) -> set[str]:
        effects, tokens = Bytes([each.effect for each in fences]), Texts([each.token for each in fences])
        return {token for (token,) in await self._call(query, effects, tokens, seconds)}

    async def _call(self, query: str, *given: Any) -> list[Any]:
        return await self._writes.ask(lambda connection, _: connection.execute(query.encode(), given).fetchall())

    async def close(self) -> None:
        await self._writes.close(CLOSE_SECONDS)
        await self._reads.close(CLOSE_SECONDS)


class TeamLog(SharedLog):
    """Open it with ``open_log``."""

    def __init__(self, database: TeamDatabase, look_seconds: float) -> None:
        super().__init__(database, "the team's log", look_seconds)
        self.database = database


async def open_log(config: TeamConfig, look_seconds: float | None = None) -> TeamLog:
    """The team's log; it needs not be there yet.

    Raises:
        TeamUnavailable, TeamRefused: it cannot be read.
    """
    database = TeamDatabase(config)
    log = TeamLog(database, look_seconds or LOOK_SECONDS)
    try:
        await database.prepare()
        await log.open()
    except BaseException:
        await database.close()
        raise
    return log
