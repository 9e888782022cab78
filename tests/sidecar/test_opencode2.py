"""OpenCode 2's service: which registrations are believed, its client, and what its messages add to the log."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.capture.emitter import Origin, Token
from bridge.opencode.capture.state import CaptureState
from bridge.opencode.capture.translate import Translator
from bridge.opencode.capture.v2.translate import HostTranslator
from bridge.opencode.link.frames import HookItem
from sidecar.record.ingest import Ingest
from sidecar.record.opencode2 import http, services
from sidecar.record.opencode2.history import History, Scope
from sidecar.record.opencode2.http import ServiceClient, ServiceError, ServiceGone
from sidecar.record.opencode2.registration import (
    Registration,
    UnsafeService,
    check_listener,
    read_registration,
    registration_paths,
)
from sidecar.record.opencode2.services import Services, began_ms
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.bridge.opencode.playing import Log
from tests.bridge.opencode.playing2 import KEPT, Recording, play2
from tests.memory import MemoryStore
from tests.sidecar.support import FakeLink

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


# --- a sidecar that is killed again and again, while the service answers late ---


class Killed:
    """A sidecar over a recording: killed anywhere, and each comparison answered late, in any order, except that a dead
    process comes before a later one. Meanwhile the time passes. The service knows what it knew at that time."""

    def __init__(self, name: str, seed: int) -> None:
        self.recording, self.random = Recording(name), Random(seed)
        self.service = FakeService()
        self.log, self.now, self.at_ms = Log(), 0.0, 0
        self.left = list(self.recording.items)
        self.fed: list[tuple[Token, HookItem]] = []
        self.finished: set[Token] = set()
        self.start()

    def start(self) -> None:
        """Begin a sidecar: all that it knows is the log, and the plugin sends again what nobody acknowledged."""
        self.asks: list[tuple[str, Origin]] = []
        self.store = MemoryStore()
        self.translator = HostTranslator(seeded_identity(self.random.randrange(10**6)), self.log.state())
        self.left = [item for item in self.fed if item[0] not in self.finished] + self.left
        self.fed = []

    async def run(self) -> None:
        while self.left or self.asks or self.translator.next_deadline() is not None:
            match self.random.randrange(20):
                case 0 if self.left:
                    self.start()
                case 1 | 2:
                    self.pass_by(self.random.choice((0.1, 3.0, 60.0)))
                case 3 | 4 | 5 if self.asks:
                    session, _ = self.random.choice(self.asks)
                    first = next(ask for ask in self.asks if ask[0] == session)
                    self.asks.remove(first)
                    await self.answer(first)
                case _ if self.left:
                    self.feed(self.left.pop(0))
                case _:
                    self.pass_by(1.0)
            await self.drain()

    def feed(self, item: tuple[Token, HookItem]) -> None:
        self.fed.append(item)
        name = str(item[1].input.get("type"))
        if name.startswith("session.execution."):
            session = item[1].input["data"]["sessionID"]
            self.service.active.add(session) if name.endswith("started") else self.service.active.discard(session)
        self.at_ms = max(self.at_ms, item[1].input.get("created") or 0)
        self.translator.feed(*item, self.now)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.translator.tick(self.now)

    async def answer(self, ask: tuple[str, Origin]) -> None:
        self.service.told = {session: as_of(told, self.at_ms) for session, told in self.recording.told.items()}
        await History(self.service, self.translator, self.store).compare(ask[0], replace(SCOPE, origin=ask[1]))
        self.translator.open(*ask, self.now)

    async def drain(self) -> None:
        drained = self.translator.drain()
        self.log.append(drained.events)
        if drained.events:
            await self.store.append(drained.events, on_known="keep_first")
        self.finished.update(drained.done)
        self.asks += drained.asks


def as_of(told: dict[str, Any], at_ms: int) -> dict[str, Any]:
    """What the service said of a session at a time."""
    messages = []
    for message in told["messages"]:
        times = {name: at for name, at in message["time"].items() if at <= at_ms}
        if "created" not in times:
            continue
        now = {**message, "time": times}
        if message["type"] == "assistant" and "completed" not in times and "completed" in message["time"]:
            now = {name: now[name] for name in now if name not in ("finish", "rawFinish", "cost", "tokens", "error")}
            parts = [part_of(part, at_ms) for part in message["content"]]
            now["content"] = [part for part in parts if part and (part["type"] == "tool" or "streamed" in times)]
        messages.append(now)
    info = told["info"] if told["info"] and told["info"]["time"]["created"] <= at_ms else None
    return {**told, "info": info, "messages": messages, "inbox": []}


def part_of(part: dict[str, Any], at_ms: int) -> dict[str, Any] | None:
    times = {name: at for name, at in part.get("time", {}).items() if at <= at_ms}
    if part["type"] != "tool" or "completed" in times:
        return part
    state = {"status": "running", "input": part["state"].get("input")} if "ran" in times else {"status": "streaming"}
    return {**part, "time": times, "state": state} if "created" in times else None


@settings(max_examples=60)
@given(name=st.sampled_from([name for name in KEPT if name != "shell"]), seed=st.integers(0, 10**6))
def test_no_step_lacks_its_name_and_input_however_often_the_sidecar_is_killed(name: str, seed: int) -> None:
    whole, killed = play2(name), Killed(name, seed)
    asyncio.run(killed.run())
    steps = {event.idempotency_key: event.payload for event in whole.of("execution.step")}
    found = {key: event.payload for key, event in killed.log.events.items() if event.type == "execution.step"}
    about = ("tool", "call", "input", "status", "output", "error", "finish", "tokens", "model")
    assert {key: [each.get(part) for part in about] for key, each in found.items()} == {
        key: [each.get(part) for part in about] for key, each in steps.items()
    }
    assert in_order(killed.log) == in_order(whole.log), "no input comes after the end of its turn"


def in_order(log: Log) -> dict[str, list[str]]:
    """The inputs, and the beginnings and ends of turns, of each session."""
    found: dict[str, list[str]] = {}
    for key, event in log.events.items():
        if event.type in ("human.input", "agent.input", "turn.started", "turn.ended"):
            found.setdefault(event.payload["session"], []).append(key)
    return found


@pytest.mark.parametrize("fault", [ServiceGone("gone"), ServiceError(500), KeyError("a fault of ours"), None])
async def test_events_whose_session_cannot_be_compared_go_on_with_what_the_log_knows(fault: Exception | None) -> None:
    recording, store, identity = Recording("tools"), MemoryStore(), seeded_identity(3)
    names = [item.input.get("type") for _, item in recording.items]
    called = names.index("session.tool.called") + 1
    for items in (recording.items[:called], recording.items[called:]):
        state = CaptureState()
        async for record in store.read_all():
            state.apply(record.event)
        found: list[Services] = []
        compare = lambda session, origin, found=found: found[0].compare(session, origin)  # noqa: E731
        ingest = Ingest(store, Translator(identity, state), identity.now_ms, compare=compare)
        made = Services(ingest.host, ingest, store, "")
        found.append(made)
        place = made.announce("/nowhere/service.json")
        if items is not recording.items[:called] and fault is not None:

            async def refused(origin: Origin) -> Any:
                raise fault

            made._read = refused  # type: ignore[method-assign]
        for token, item in items:
            ingest.take(replace(token.origin, service=place), token.seq, [item], None)
        assert await ingest.at_most(0, replace(recording.items[0][0].origin, service=place))
        not_compared = made.not_compared
        await ingest.close()
    steps = [record.event async for record in store.read_all() if record.event.type == "execution.step"]
    calls = [step.payload for step in steps if step.payload["kind"] == "tool"]
    assert not_compared == 1 and len(calls) == len(play2("tools").of("execution.step.started"))
    if not isinstance(fault, KeyError):
        assert calls[0]["tool"] == "write" and calls[0]["input"] == {"path": "a.txt", "content": "one\ntwo\n"}


async def test_a_service_that_does_not_answer_at_first_is_compared_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "RETRY_SECONDS", 0.0)
    store, identity, fake = MemoryStore(), seeded_identity(3), FakeService("chat")
    ingest, link = Ingest(store, Translator(identity), identity.now_ms), FakeLink(ORIGIN.boot_id, ORIGIN.instance)
    found = Services(ingest.host, ingest, store, "")
    origin = replace(ORIGIN, service=found.announce("/nowhere/service.json"))
    attempts = iter([ServiceGone("busy"), ServiceError(503)])

    async def read(of: Origin) -> tuple[History, Scope]:
        if (fault := next(attempts, None)) is not None:
            raise fault
        return History(fake, ingest.host, store), replace(SCOPE, origin=of)

    monkeypatch.setattr(found, "_read", read)
    monkeypatch.setattr(services, "START_SECONDS", 0.0)
    ingest.opened(link)
    found.opened(origin, "/nowhere/service.json", (), 0)
    async with asyncio.timeout(60):
        await asyncio.gather(*found._tasks)
    await ingest.close()
    assert "turn.ended" in [record.event.type async for record in store.read_all()]


GOOD = {"id": "i-1", "version": "2.0.0", "url": "http://127.0.0.1:4096", "pid": os.getpid(), "password": "secret-pw"}


def write(path: Path, mode: int = 0o600, **changes: Any) -> Path:
    path.write_text(json.dumps({**GOOD, **changes}))
    path.chmod(mode)
    return path


def test_registrations_lie_where_the_plugin_says_that_they_do(tmp_path: Path) -> None:
    for state in (tmp_path / "x", tmp_path / ".local" / "state"):
        (state / "opencode").mkdir(parents=True)
        for name in ("service.json", "service-dev.json", "other.json"):
            (state / "opencode" / name).touch()
        environ = {"HOME": str(tmp_path)} | ({"XDG_STATE_HOME": str(state)} if state.name == "x" else {})
        names = [state / "opencode" / name for name in ("service-dev.json", "service.json")]
        assert registration_paths(environ) == names
    assert registration_paths({"HOME": "/nowhere"}) == []


def test_a_private_registration_on_loopback_is_believed(tmp_path: Path) -> None:
    found = read_registration(write(tmp_path / "service.json"))
    assert found is not None
    assert (found.id, found.host, found.port, found.password) == ("i-1", "127.0.0.1", 4096, "secret-pw")
    assert "secret-pw" not in repr(found)


@pytest.mark.parametrize("url", ["http://localhost:1", "http://[::1]:1", "http://127.0.0.9:1"])
def test_every_loopback_address_is_one(tmp_path: Path, url: str) -> None:
    assert read_registration(write(tmp_path / "service.json", url=url)) is not None


@pytest.mark.parametrize(
    "url",
    ["http://0.0.0.0:1", "http://10.0.0.1:1", "https://127.0.0.1:1", "http://localhost.example:1", "http://127.0.0.1"],
)
def test_no_password_leaves_the_machine(tmp_path: Path, url: str) -> None:
    with pytest.raises(UnsafeService):
        read_registration(write(tmp_path / "service.json", url=url))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UnsafeService):
        read_registration(write(tmp_path / "service.json", mode))


def test_a_link_and_a_directory_are_refused(tmp_path: Path) -> None:
    real = write(tmp_path / "real.json")
    (tmp_path / "link.json").symlink_to(real)
    (tmp_path / "directory.json").mkdir()
    for name in ("link.json", "directory.json"):
        with pytest.raises(UnsafeService):
            read_registration(tmp_path / name)


@pytest.mark.parametrize(
    "changes", [{"pid": 2**22 + 7}, {"pid": 0}, {"pid": "1"}, {"id": None}, {"password": 5}, {"id": "a\nb"}]
)
def test_a_dead_or_odd_service_is_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_registration(write(tmp_path / "service.json", **changes)) is None


def test_no_file_and_half_a_file_are_none(tmp_path: Path) -> None:
    assert read_registration(tmp_path / "service.json") is None
    half = write(tmp_path / "half.json")
    half.write_text('{"id": "i-')
    assert read_registration(half) is None


def test_a_port_of_another_user_is_refused(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: 0100007F:1000 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 1\n"
    table = tmp_path / "tcp"
    for state, uid, safe in (("0A", os.geteuid(), True), ("0A", 54321, False), ("01", 54321, True)):
        table.write_text(head + line.format(state=state, uid=uid))
        if safe:
            check_listener(0x1000, (table,))
        else:
            with pytest.raises(UnsafeService):
                check_listener(0x1000, (table,))
    check_listener(0x1000, (tmp_path / "missing",))


def test_when_a_log_began_is_in_its_id() -> None:
    assert began_ms(seeded_identity(1, start_ms=1_700_000_000_000).ulid()) == 1_700_000_000_000
    assert began_ms("not a ulid") == began_ms("") == 0


async def test_an_answer_that_drips_for_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WHOLE_SECONDS", 1.0)

    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            writer.transport.abort()
        ended.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = ServiceClient(Registration("id", "", "127.0.0.1", port, 1, "secret", 0))
        async with asyncio.timeout(10):
            with pytest.raises(ServiceGone):
                await client.get("/x")
            await ended.wait()
