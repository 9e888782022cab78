"""One Postgres for all tests of a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.postgres import Postgres
from tests.sidecar.team.homes import CopiedHome


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    found = Postgres(fsync="off").start()
    yield found
    found.close()


@pytest.fixture
def postgres(server: Postgres) -> Postgres:
    """A Postgres without any home."""
    server.empty()
    return server


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[CopiedHome]:
    """A home with an empty log."""
    found = await CopiedHome(tmp_path / "store").open()
    yield found
    await found.log.close()
