"""Homes that are copied to a Postgres, and what differs between a home and its copy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, overload

from sidecar.notify_config import TeamConfig
from sidecar.read.story import copying
from sidecar.read.story.writing import StoryTables
from sidecar.team.errors import TeamUnavailable
from sidecar.team.shipping import Shipping
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from tests.postgres import Postgres
from tests.sidecar.read.story.playing import RECORDINGS, recorded
from tests.streams.derivers import caught_up


class _Played(Sequence[StreamEvent]):
    """Read at first use, because each process of a run imports this, and few use it."""

    @cached_property
    def _all(self) -> list[StreamEvent]:
        found = [record.event for records in zip_longest(*map(recorded, RECORDINGS)) for record in records if record]
        return [*{event.idempotency_key: event for event in found}.values()]

    @overload
    def __getitem__(self, at: int) -> StreamEvent: ...
    @overload
    def __getitem__(self, at: slice) -> list[StreamEvent]: ...
    def __getitem__(self, at: int | slice) -> StreamEvent | list[StreamEvent]:
        return self._all[at]

    def __len__(self) -> int:
        return len(self._all)


EVENTS: Final = _Played()
"""The events of all recordings in turns, about 1,200."""

TRIES = 400


class CopiedHome:
    """A log whose changes of the story are noted, and its way to the team."""

    def __init__(self, store: Path, seed: int = 1) -> None:
        self.store, self.seed = store, seed
        self.story = StoryTables(seeded_identity(100 + seed).nonce)
        self.log: Log

    async def open(self) -> CopiedHome:
        self.log = await Log.open(self.store, seeded_identity(self.seed), derived=self.story)
        return self

    async def append(self, events: list[StreamEvent]) -> None:
        """Append them, and wait until they are in the database with their story."""
        for begin in range(0, len(events), 50):
            await self.log.append(events[begin : begin + 50], on_known="keep_first")
        await self.level()

    async def level(self) -> None:
        await caught_up(self.log)

    @property
    def log_id(self) -> str:
        return self.log.manifest.log_id

    def shipping(self, config: TeamConfig) -> Shipping:
        def copied(making: str, change: int) -> None:
            self.story.copied = making, change

        return Shipping(config, LogReader(self.store), self.log_id, config.machine or "one", copied)

    def ship(self, config: TeamConfig) -> int:
        """Copy everything; returns how many steps that took."""
        shipping = self.shipping(config)
        steps = 0
        while shipping.step():
            steps += 1
        shipping.close()
        return steps


def patiently(shipping: Shipping) -> int:
    """Copy everything, in spite of failures; returns how many steps failed."""
    failed = 0
    while True:
        try:
            if not shipping.step():
                shipping.close()
                return failed
        except TeamUnavailable:
            failed += 1
            assert failed < TRIES


_LOG = {
    "records": "SELECT * FROM records ORDER BY 1",
    "streams": "SELECT * FROM streams ORDER BY 1",
    "bases": "SELECT * FROM bases ORDER BY 1",
    "marks": "SELECT * FROM marks ORDER BY 1",
    "singles": "SELECT * FROM singles ORDER BY 1",
}


def differences(postgres: Postgres, store: Path, log_id: str) -> Iterator[tuple[str, Any, Any]]:
    """Every row that only one of the two has, each with the name of its table."""
    with closing(sqlite3.connect(store / "log.db")) as db, postgres.connect() as team:
        row = team.execute("SELECT home, head, head_hash, removals, story_head FROM homes WHERE log_id = %s", [log_id])
        home, *place = row.fetchone() or [0]
        own = "SELECT head.position, head.hash, removals.version, derived.position FROM head, removals, derived"
        if tuple(place) != (mine := db.execute(own).fetchone()):
            yield "homes", mine, place
        for name in (*_LOG, *copying.COPIED):
            query = _LOG.get(name) or f"SELECT * FROM {name} ORDER BY {copying.key_of(name)}"
            if name == "streams":  # a stream that was pruned before it was copied is not there
                query = "SELECT * FROM streams WHERE id IN (SELECT stream FROM records) ORDER BY 1"
            mine = [tuple(map(_clean, each)) for each in db.execute(query)]
            theirs = [each[1:] for each in team.execute(_there(name).encode(), [home])]
            for here, there in zip(mine, theirs, strict=False):
                if here != there:
                    yield name, here, there
            if len(mine) != len(theirs):
                yield name, len(mine), len(theirs)


def _there(name: str) -> str:
    only = " AND id IN (SELECT stream FROM records WHERE home = streams.home)" if name == "streams" else ""
    order = {"records": "position", "streams": "id", "bases": "stream", "marks": "stream", "singles": "position"}
    key = order.get(name) or copying.key_of(name)
    return f"SELECT * FROM {name} WHERE home = %s{only} ORDER BY {key}"


def _clean(value: Any) -> Any:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
