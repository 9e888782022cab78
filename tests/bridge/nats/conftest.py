"""A server of each supported version for the tests of a file, and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from bridge.nats.jetstream.connection import JetStream
from tests.nats_servers import VERSIONS, RealServer, real_server


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with real_server(tmp_path_factory.mktemp("nats"), request.param) as running:
        yield running


@pytest.fixture
async def session(server: RealServer) -> AsyncIterator[JetStream]:
    opened = await JetStream.connect(server.options)
    yield opened
    await opened.close()
