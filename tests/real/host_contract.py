"""What every ``Host`` must do, on a real OpenCode. A subclass gives the host, a directory and the scripted model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sidecar.orchestrator.host import Host, Part
from tests.real.model_server import HANG_LIMIT_S, MODEL_ID, ModelServer

MODEL = f"mock/{MODEL_ID}"


class HostContract:
    """``host``, ``directory`` and ``model`` are set by the subclass before each test."""

    host: Host
    directory: str
    model: ModelServer

    async def new(self, intent: str) -> str:
        about: dict[str, Any] = {"directory": self.directory, "parent": None, "pid": None}
        assert await self.host.find(intent, **about) is None
        session = await self.host.create(intent, title="t", **about)
        assert await self.host.find(intent, **about) == session
        return session

    async def say(self, session: str, text: str, key: str) -> None:
        await self.host.prompt(session, [Part(text, key)], directory=self.directory, model=MODEL)

    async def looks(self, session: str) -> str:
        return (await self.host.look(session, directory=self.directory, most=100)).state

    async def test_one_intent_has_one_session_however_often_it_is_created(self) -> None:
        session = await self.new("int_once")
        again = await self.host.create("int_once", title="t", directory=self.directory, parent=None, pid=None)
        assert again == session

    async def test_a_message_with_a_key_is_there_once(self) -> None:
        session = await self.new("int_message")
        assert not await self.host.holds(session, "k1", directory=self.directory)
        for _ in range(2):
            await self.say(session, "SAY:once", "k1")
        await until(lambda: self.host.holds(session, "k1", directory=self.directory))
        await until(lambda: self.is_state(session, "answered"))
        found = await self.host.look(session, directory=self.directory, most=100)
        assert (found.state, found.text) == ("answered", "once")
        assert sum(r.has_tools for r in self.model.of(session)) == 1, "one call of the model"

    async def test_a_session_at_work_is_busy_until_it_is_stopped(self) -> None:
        session = await self.new("int_stopped")
        assert await self.host.status(session) == "idle"
        await self.say(session, "HOLD:contract SAY:never", "k2")
        await until(lambda: self.is_busy(session))
        assert await self.looks(session) == "busy"
        await self.host.abort(session, directory=self.directory)
        await until(lambda: self.is_idle(session))
        self.model.release("contract")
        await self.host.abort(session, directory=self.directory)  # nothing runs: no error

    async def test_several_parts_wake_the_model_once(self) -> None:
        session = await self.new("int_parts")
        parts = [Part("SAY:first", "k3"), Part("SAY:second", "k4")]
        await self.host.prompt(session, parts, directory=self.directory, model=MODEL)
        await until(lambda: self.is_state(session, "answered"))
        for key in ("k3", "k4"):
            assert await self.host.holds(session, key, directory=self.directory)
        assert (await self.host.look(session, directory=self.directory, most=100)).text == "second"
        assert sum(r.has_tools for r in self.model.of(session)) == 1, "one call of the model"

    async def test_a_session_that_is_gone_is_told_apart(self) -> None:
        assert await self.looks("ses_ds2nowhere") == "gone"

    async def is_state(self, session: str, state: str) -> bool:
        return await self.looks(session) == state

    async def is_busy(self, session: str) -> bool:
        return await self.host.status(session) == "busy"

    async def is_idle(self, session: str) -> bool:
        return await self.host.status(session) == "idle"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds; what it asks is another process."""
    import asyncio

    async with asyncio.timeout(HANG_LIMIT_S):
        while not await condition():
            await asyncio.sleep(0.05)
