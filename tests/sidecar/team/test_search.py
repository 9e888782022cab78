"""A text is found in a team's copy as at home, with pg_trgm and without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.team.reading import Reading
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.elsewhere import HOLDS
from streams.log.reader import LogReader
from streams.query import Filter
from tests.postgres import Postgres
from tests.sidecar.team.homes import EVENTS, CopiedHome
from tests.sidecar.team.test_roles import SEARCH

SAID = (
    "Die Straße in ÜBERLINGEN",
    "STRASSE über alles",
    "ﬁx the o\ufb03ce of \u212aelvin",
    'a "quoted" back\\slash\tand a tab',
    "100% of a_b",
    "日本語 text",
    "\x00 and \x7f nul",
    "ǰust ẞ and İstanbul",
)
WANTED = (
    *("strasse", "STRASSE", "straße", "überlingen", "lingen", "fix", "office", "kelvin", "Kelvin", "\u212a", "ﬁ"),
    *('"quoted"', "back\\slash", "tab", "\t", "100%", "a_b", "axb", "日本", "語 t", "\x00", "\x7f nul", "ss", "just"),
    *("istanbul", "bash", "x", "tool", "scripted model", "%", "_", "\ud800", "123", "0.5", "nowhere at all"),
)


def said() -> list[StreamEvent]:
    identity = seeded_identity(5)
    about = {"stream_id": "ses_said", "actor": "user", "source": {"agent": "build", "adapter": "opencode"}}

    def event(text: str) -> StreamEvent:
        payload = {"session": "ses_said", "message": "m", "parts": [{"type": "text", "text": text}], "costs": 0.5}
        return identity.stamp({**about, "type": "human.input", "payload": payload})

    return [event(text) for text in SAID]


@pytest.fixture(scope="module", params=["without", "pg_trgm"])
def copied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Path]]:
    store = tmp_path_factory.mktemp("searched") / "store"
    server = Postgres(fsync="off").start()
    if request.param == "pg_trgm":
        with server.connect() as connection:
            connection.execute("CREATE EXTENSION pg_trgm SCHEMA public")

    async def fill() -> None:
        home = await CopiedHome(store).open()
        await home.append([*EVENTS[:500], *said()])
        home.ship(server.config("ada"))
        await home.log.close()

    asyncio.run(fill())
    yield server, store
    server.close()


async def found(reader: LogReader, wanted: Filter) -> list[int]:
    return [record.position async for record in reader.query(wanted)]


async def test_every_text_is_found_as_at_home(copied: tuple[Postgres, Path]) -> None:
    server, store = copied
    nowhere: set[str] = set()
    with closing(Reading(server.config())) as reading:
        (home,) = reading.homes()
        reading.turn_to(home)
        own, there = LogReader(store), reading.reader(home)
        for text in WANTED:
            for more in ({}, {"types": ("human.*",)}, {"streams": ("ses_said",)}):
                wanted = Filter(text=text, **more)
                assert await found(there, wanted) == await found(own, wanted), (text, more)
            newest = await own.newest(Filter(text=text), 3)
            assert await there.newest(Filter(text=text), 3) == newest
            nowhere |= set() if newest else {text}
        await own.close()
    # The folded form of some letters is one of ASCII with an accent.
    assert nowhere == {"axb", "\ud800", "nowhere at all", "istanbul", "just"}


def test_the_index_is_used_once_it_is_there(copied: tuple[Postgres, Path]) -> None:
    server, _ = copied

    def plan() -> str:
        query = f"EXPLAIN SELECT * FROM records WHERE {HOLDS}".replace("?", "%s")
        return " ".join(row[0] for row in server.ask(query, "%scripted model%"))

    with server.connect() as connection:
        if connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'pg_trgm'").fetchone() is None:
            assert "records_text" not in plan()
            connection.execute(SEARCH.encode())
    assert "records_text" in plan()
