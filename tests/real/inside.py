"""A whole sidecar in the test's own process and loop, for tests that need its objects and not its commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from sidecar import app
from sidecar.config import Config
from sidecar.home import Home
from tests.real.opencode import RealOpenCode


@asynccontextmanager
async def sidecar_inside(home: Home, config: Config, client: RealOpenCode) -> AsyncIterator[Any]:
    """Run a sidecar and then ``client``, whose plugin links to it. Yields the parts of the sidecar.

    The client ends first, because its plugin would start another sidecar.
    """
    home.create()
    async with AsyncExitStack() as stack:
        identities = app.Identities.of(None)
        running = await app._start(home, config, identities, asyncio.Event(), False, stack)
        try:
            await asyncio.to_thread(client.__enter__)
            yield running.sidecar
        finally:
            await asyncio.to_thread(client.close)
