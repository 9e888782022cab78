"""Sessions of OpenCode 2 are compared with the service's messages: what lacks is recorded once, as history."""

from __future__ import annotations

import base64
import json
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


async def test_only_what_is_newer_than_the_last_recorded_turn_is_read() -> None:
    service, world, session = only("tools")
    await world.compare(session)
    service.asked.clear()
    service.page = 2
    await world.compare(session)
    assert len([path for path in service.asked if "/message" in path]) <= 3


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


async def test_children_come_before_what_followed_them() -> None:
    service = FakeService("subagents")
    world = World(service)
    root = next(session for session, told in service.told.items() if "parentID" not in told["info"])
    await world.compare(root)
    events = await world.log()
    assert {event.stream_id for event in events} == {root}
    assert len([event for event in events if event.type == "agent.spawned"]) == 2
    ends = {event.payload["session"]: event.id for event in events if event.type == "turn.ended"}
    steps = [event for event in events if event.payload.get("child")]
    assert {step.causation_id for step in steps if step.type == "execution.step"} == {
        ends[session] for session in service.told if session != root
    }


async def test_a_session_that_began_before_the_log_is_recorded_from_now_on_and_whole_by_an_import() -> None:
    _, world, session = only("chat")
    later = Scope(ORIGIN, since_ms=2**50)
    assert await world.compare(session, scope=later) == 0
    assert [event.type for event in await world.log()] == ["lifecycle.session.resumed"]
    assert await world.compare(session, scope=later, is_import=True) > 5


async def test_an_active_session_is_left_to_its_next_event() -> None:
    service, world, session = only("chat")
    service.active.add(session)
    assert await world.compare(session) == 0
    service.active.clear()
    assert await world.compare(session) > 0


async def test_what_an_active_session_asks_is_recorded_in_its_turn() -> None:
    service, world, session = only("question")
    service.active.add(session)
    messages = service.told[session]["messages"]
    service.told[session]["messages"] = messages[:2]  # a prompt, and the answer whose call waits
    service.forms[session] = [{"id": "frm_1", "sessionID": session, "title": "Questions", "fields": []}]
    await world.compare(session)
    events = {event.type: event for event in await world.log()}
    assert events["workflow.checkpoint"].payload["turn"] == events["turn.started"].payload["message"]


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


async def test_a_text_that_another_process_still_writes_is_no_gap() -> None:
    service, world, session = only("chat")
    answer = next(each for each in service.told[session]["messages"] if each.get("type") == "assistant")
    for name in ("finish", "rawFinish"):
        answer.pop(name, None)
    answer["time"] = {"created": answer["time"]["created"]}
    answer["content"] = [{"type": "text", "text": ""}]
    service.told[session]["messages"] = service.told[session]["messages"][:2]
    await world.compare(session, scope=replace(SCOPE, started_ms=1))
    assert "capture.gap" not in [event.type for event in await world.log()]
    await world.compare(session)
    assert "capture.gap" in [event.type for event in await world.log()]


async def test_a_plugin_in_a_project_records_only_its_sessions() -> None:
    service, world, session = only("chat")
    place = service.told[session]["info"]["location"]["directory"]
    info = service.told[session]["info"]
    for directory, is_recorded in ((place, True), (f"{place}/below", False), (f"{place}x", False), ("/", True)):
        history = History(service, world.translator, world.store)
        assert history.differs(info, replace(SCOPE, directories=(directory,))) == is_recorded


async def test_what_opencode_1_recorded_of_a_session_is_not_recorded_again() -> None:
    service, world, session = only("tools")
    times = [message["time"]["created"] for message in service.told[session]["messages"]]
    moved = times[len(times) // 2]
    created = world.identity.stamp(
        {
            "ts": moved,
            "type": "lifecycle.session.created",
            "stream_id": session,
            "idempotency_key": f"lifecycle.session.created:{session}",
            "actor": "opencode",
            "source": {"agent": "opencode", "adapter": "opencode"},
            "payload": {"session": session, "lineage": "root"},
            "metadata": {"boot": "c" * 32},
        }
    )
    await world.store.append([created])
    world.translator.state.apply(created)
    for is_import in (False, True):
        await world.compare(session, is_import=is_import)
    inputs = [event.ts for event in await world.log() if event.type == "human.input"]
    assert inputs and min(inputs) > moved - 100


async def test_steps_that_an_older_version_recorded_under_other_keys_are_not_doubled() -> None:
    service, world, session = only("tools")
    await world.compare(session)
    old = []
    for event in await world.log():
        key = event.idempotency_key
        if event.type in ("execution.step", "execution.output"):
            key = f"{event.type}:{session}:evt_{len(old)}"
        old.append(world.identity.stamp({**event.fields(), "idempotency_key": key}))
    again = World(service)
    await again.store.append(old)
    for event in old:
        again.translator.state.apply(event)
    assert await again.compare(session, is_import=True) == 0


async def test_the_listing_says_which_sessions_may_differ() -> None:
    service, world, session = only("chat")
    history = History(service, world.translator, world.store)
    (info,) = await history.sessions()
    assert history.differs(info, SCOPE)
    await world.compare(session)
    assert not history.differs(info, SCOPE)
    for changed in ({"title": "another"}, {"time": {**info["time"], "idle": info["time"]["idle"] + 1}}):
        assert history.differs({**info, **changed}, SCOPE), json.dumps(changed)
