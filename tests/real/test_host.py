"""The contract of ``Host`` on the real OpenCode 1: the user's own, and the headless one that the host starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.background.hosts.v1 import V1Host
from sidecar.config import Config
from sidecar.home import Home
from tests.real.durable import PLUGIN, DurableStream
from tests.real.host_contract import HostContract, asking, until
from tests.real.inside import sidecar_inside
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode

pytestmark = [pytest.mark.real_opencode, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(
    opencode_binary: Path, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Any, RealOpenCode]]:
    """A sidecar, and the OpenCode that the user opened."""
    home = Home(tmp_path_factory.mktemp("host") / "home")
    plugins = {PLUGIN: DurableStream(home.path).plugin()}
    client = RealOpenCode(opencode_binary, model.port, config=asking("bash"), plugins=plugins, plugin_scope="global")
    async with sidecar_inside(home, Config(), client) as running:
        await asyncio.to_thread(client.sessions)  # loads the plugin; the headless one gets this one's environment

        async def is_known() -> bool:
            return any(running.parts.durable.headless.identity_of(link) for link in running.server.links)

        await until(is_known)
        yield running, client


class TestV1Host(HostContract):
    shell = "bash"

    @pytest.fixture(autouse=True)
    def _host(self, both: tuple[Any, RealOpenCode], model: ModelServer) -> None:
        running, self.client = both
        self.directory, self.model = str(self.client.project), model
        self.phantoms, own = set[str](), running.parts.durable.headless
        self.host = V1Host(
            lambda: running.server.links,
            running.parts.ingest.delivers,
            running.parts.durable._state,
            running.parts.durable.headless,
            self.phantoms.__contains__,
            running.parts.durable._identity.now_ms,
            lambda _: own.identity_of(next(link for link in running.server.links if not link.identity.headless)),
        )

    async def own(self) -> str:
        return await asyncio.to_thread(self.client.create_session)

    async def asked(self, session: str, kind: str) -> list[str]:
        listed = self.client.permissions if kind == "permission" else self.client.questions
        return [each["id"] for each in await asyncio.to_thread(listed) if each["sessionID"] == session]

    async def children(self, session: str) -> list[str]:
        return [each["id"] for each in await asyncio.to_thread(self.client.children, session)]
