"""The contract of ``Host`` on the real OpenCode 2: the user's own service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.background.hosts.host import HostError
from sidecar.config import Config
from sidecar.home import Home
from tests.real.durable import PLUGIN, DurableStream
from tests.real.host_contract import HostContract, asking, until
from tests.real.inside import sidecar_inside
from tests.real.model_server import ModelServer
from tests.real.opencode2 import RealOpenCode2
from tools.install_opencode import VERSION_2, binary_path

pytestmark = [pytest.mark.real_opencode, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(
    model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Any, RealOpenCode2]]:
    """A sidecar, and the service whose plugin is linked."""
    home = Home(tmp_path_factory.mktemp("host") / "home")
    client = RealOpenCode2(
        binary_path(VERSION_2),
        model.port,
        config=asking("bash"),
        plugins={PLUGIN: DurableStream(home.path).plugin()},
        plugin_scope="global",
    )
    async with sidecar_inside(home, Config(), client) as running:
        # As a terminal would: it loads the plugin.
        await asyncio.to_thread(client.api, "GET", f"/api/model?location[directory]={client.project}")

        async def is_linked() -> bool:
            return bool(running.parts.durable.hosts.two.is_there)

        await until(is_linked)
        yield running, client


class TestV2Host(HostContract):
    shell = "shell"

    @pytest.fixture(autouse=True)
    def _host(self, both: tuple[Any, RealOpenCode2], model: ModelServer) -> None:
        running, self.client = both
        self.host = running.parts.durable.hosts.two
        self.directory, self.model, self.phantoms = str(self.client.project), model, set()

    async def own(self) -> str:
        return await asyncio.to_thread(self.client.new_session)

    async def asked(self, session: str, kind: str) -> list[str]:
        path = f"/api/session/{session}/{'permission' if kind == 'permission' else 'form'}"
        return [each["id"] for each in (await asyncio.to_thread(self.client.api, "GET", path))["data"]]

    async def children(self, session: str) -> list[str]:
        listed = await asyncio.to_thread(self.client.api, "GET", f"/api/session?parentID={session}")
        return [each["id"] for each in listed["data"]]

    async def test_a_form_takes_the_label_of_a_choice_and_leaves_other_fields_to_the_terminal(self) -> None:
        session = await self.users()
        path = f"/api/session/{session}/form"

        async def ask(**field: Any) -> str:
            form = await asyncio.to_thread(
                self.client.api, "POST", path, {"title": "t", "fields": [{"key": "k", **field}]}
            )
            return str(form["data"]["id"])

        form = await ask(type="multiselect", options=[{"value": "b", "label": "Blue"}])
        assert await self.answer(session, form, "question", ["Blue"]) == "answered"
        settled = await asyncio.to_thread(self.client.api, "GET", f"{path}/{form}")
        assert settled["data"]["state"] == {"status": "answered", "answer": {"k": ["b"]}}
        with pytest.raises(HostError) as refused:
            await self.answer(session, await ask(type="boolean"), "question", ["true"])
        assert refused.value.permanent
        short = await ask(type="string", maxLength=1)
        with pytest.raises(HostError) as refused:
            await self.answer(session, short, "question", ["too long"])
        assert refused.value.permanent
        assert short in await self.asked(session, "question"), "it stays open"
