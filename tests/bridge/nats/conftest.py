"""A server for the tests of a file, and connections to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.sessions import Sessions
from tests.nats_servers import NEWEST, RealServer, all_streams, real_server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with real_server(tmp_path_factory.mktemp("nats"), getattr(request, "param", NEWEST)) as running:
        yield running


@pytest.fixture
async def session(server: RealServer) -> AsyncIterator[JetStream]:
    opened = await JetStream.connect(server.options)
    yield opened
    await opened.close()


@pytest.fixture
async def sessions(server: RealServer) -> AsyncIterator[Sessions]:
    """Connections to an empty server."""
    one = Sessions(server.ask_options)
    session = await one.get()
    for name in await all_streams(session):
        await session.api(f"STREAM.DELETE.{name}")
    yield one
    await one.close()
