"""A server for the tests of a file, one for a test that harms it, and connections to an empty one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import wanted
from tests.mirrors import unsynced
from tests.nats_servers import NEWEST, RealServer, all_streams, real_server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server that the tests of a file share; ``on_both`` gives one test another version."""
    directory = tmp_path_factory.mktemp("nats")
    with real_server(directory, getattr(request, "param", NEWEST), jetstream=unsynced(directory)) as running:
        yield running


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server that a test may kill, wipe or leave as it likes."""
    directory = tmp_path_factory.mktemp("own")
    with real_server(directory, getattr(request, "param", NEWEST), jetstream=unsynced(directory)) as running:
        yield running


@pytest.fixture
async def sessions(server: RealServer) -> AsyncIterator[Sessions]:
    """Connections to a server whose streams are empty."""
    one = Sessions(server.ask_options)
    session = await one.get()
    for name in await all_streams(session):
        await session.api(f"STREAM.DELETE.{name}")
    await keeping.ensure_streams(session, wanted())
    yield one
    await one.close()
