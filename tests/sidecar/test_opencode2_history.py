"""Sessions of OpenCode 2 are compared with the service's messages: what lacks is recorded once, as history."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bridge.opencode.capture.emitter import Origin
from bridge.opencode.capture.state import CaptureState
from bridge.opencode.capture.v2.translate import HostTranslator
from sidecar.record.opencode2.history import History, Scope
from sidecar.record.opencode2.http import ServiceError
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.bridge.opencode.playing2 import Recording
from tests.memory import MemoryStore

ORIGIN = Origin("b" * 32, "1" * 16, 4321, "a1b2c3d4")
SCOPE = Scope(ORIGIN, since_ms=0, pid=4321)


class FakeService:
    """A stand-in for the service's API, with the messages of recordings; it can refuse what a real one does not.

    Like the real one, it gives messages by pages, newest first, and refuses a cursor together with an order.
    """

    def __init__(self, *names: str, page: int = 3) -> None:
        self.told = {session: told for name in names for session, told in Recording(name).told.items()}
        self.page, self.active, self.refused = page, set[str](), dict[str, int]()
        self.asked: list[str] = []
        self.forms: dict[str, list[Any]] = {}

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        url = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match url.path.split("/")[3:]:
            case []:
                infos = [told["info"] for told in self.told.values() if told["info"]]
                return self._page(sorted(infos, key=lambda info: -info["time"]["updated"]), query)
            case ["active"]:
                return {"data": {session: {} for session in self.active}}
            case [session, *what]:
                if session in self.refused:
                    raise ServiceError(self.refused[session])
                told = self.told.get(session)
                if told is None or told["info"] is None:
                    raise ServiceError(404)
                if what == ["message"]:
                    return self._page(told["messages"][::-1], query)
                if what == ["form"]:
                    return {"data": self.forms.get(session, [])}
                return {"data": told["info"] if not what else told["inbox"] if what == ["inbox"] else []}
        raise AssertionError(path)

    def _page(self, rows: list[Any], query: dict[str, str]) -> Any:
        if "cursor" in query and "order" in query:
            raise ServiceError(400)
        begin = int(base64.b64decode(query["cursor"])) if "cursor" in query else 0
        found = rows[begin : begin + self.page]
        following = base64.b64encode(str(begin + self.page).encode()).decode() if found else None
        return {"data": found, "cursor": {"next": following}}


class World:
    """A log, and a translator over it."""

    def __init__(self, service: FakeService) -> None:
        self.identity, self.store, self.service = seeded_identity(3), MemoryStore(), service
        self.translator = HostTranslator(self.identity, CaptureState())

    async def compare(self, session: str, *, scope: Scope = SCOPE, is_import: bool = False) -> int:
        history = History(self.service, self.translator, self.store)
        count = await history.compare(session, scope, is_import=is_import)
        await self.write()
        return count

    async def write(self) -> None:
        if events := self.translator.drain().events:
            await self.store.append(events, on_known="keep_first")

    async def log(self) -> list[StreamEvent]:
        return [record.event async for record in self.store.read_all()]


def only(name: str) -> tuple[FakeService, World, str]:
    service = FakeService(name)
    return service, World(service), next(iter(service.told))


@pytest.mark.parametrize("page", [1, 2, 100])
async def test_a_session_is_read_by_pages_and_a_second_look_adds_nothing(page: int) -> None:
    service, world, session = only("tools")
    service.page = page
    assert await world.compare(session) > 20
    assert await world.compare(session) == 0
    assert await world.compare(session, is_import=True) == 0
    types = [event.type for event in await world.log()]
    assert types.count("human.input") == types.count("turn.ended") == 6


async def test_a_refused_session_concerns_only_itself() -> None:
    service = FakeService("chat", "tools")
    world, (chat, tools) = World(service), list(service.told)
    for status in (400, 403, 500):
        service.refused[chat] = status
        with pytest.raises(ServiceError):
            await world.compare(chat)
    assert await world.compare(tools) > 0
    service.refused.clear()
    assert await world.compare(chat) > 0


async def test_a_session_that_began_before_the_log_is_recorded_from_now_on_and_whole_by_an_import() -> None:
    _, world, session = only("chat")
    later = Scope(ORIGIN, since_ms=2**50)
    assert await world.compare(session, scope=later) == 0
    assert [event.type for event in await world.log()] == ["lifecycle.session.resumed"]
    assert await world.compare(session, scope=later, is_import=True) > 5


async def test_a_session_that_is_gone_ends_once() -> None:
    service, world, session = only("chat")
    await world.compare(session)
    service.told[session]["info"] = None
    for _ in range(2):
        await world.compare(session)
    ended = [event.payload["reason"] for event in await world.log() if event.type == "lifecycle.session.ended"]
    assert ended == ["gone"]


async def test_an_open_turn_ends_as_the_service_says_and_not_while_another_process_runs_it() -> None:
    service, world, session = only("chat")
    messages = service.told[session]["messages"]
    service.told[session]["messages"] = messages[:1]  # a prompt, and nothing after it
    begun = messages[0]["time"]["created"]
    elsewhere = replace(SCOPE, started_ms=begun - 1)  # this service's process would have recorded an end
    await world.compare(session, scope=elsewhere)
    assert "turn.ended" not in [event.type for event in await world.log()]
    await world.compare(session, scope=replace(SCOPE, started_ms=begun + 1))
    service.told[session]["messages"] = messages
    await world.compare(session)
    ended = [event.payload["outcome"] for event in await world.log() if event.type == "turn.ended"]
    assert ended == ["interrupted", "completed"]
