"""Ingest: items finish only when durable, and only once; after a log failure none finishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.translate import Origin, Translator
from bridge.opencode.link.frames import HookItem
from bridge.opencode.link.protocol import CallError
from sidecar.record.ingest import Ingest
from streams.errors import StoreFailed
from streams.identity import seeded_identity
from tests.bridge.opencode.playing import recording
from tests.memory import MemoryStore
from tests.sidecar.support import FakeLink


class GatedStore(MemoryStore):
    """A store that is slow until the gate opens, or that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None

    async def append(self, *args: Any, **kwargs: Any) -> Any:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return await super().append(*args, **kwargs)


@pytest.fixture
async def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
async def ingest(store: GatedStore) -> AsyncIterator[Ingest]:
    ingest = Ingest(
        store, Translator(seeded_identity(1), hold_s=0.2), seeded_identity(1).now_ms, exclude=[Path("/home/ada/secret")]
    )
    yield ingest
    store.gate.set()
    await ingest.close()


def items(name: str = "chat") -> list[HookItem]:
    return [item for _, item in recording(name)]


def take(ingest: Ingest, link: FakeLink, hooks: list[HookItem], first: int = 1) -> None:
    ingest.take(Origin(link.boot_id, link.instance), first, hooks, link)


async def types(store: MemoryStore) -> list[str]:
    return [record.event.type async for record in store.read_all()]


async def test_items_are_finished_only_when_durable(store: GatedStore, ingest: Ingest) -> None:
    link, hooks = FakeLink(), items()
    store.gate.clear()
    take(ingest, link, hooks)
    for _ in range(20):
        await asyncio.sleep(0)
    assert link.finished == set() and ingest.held == len(hooks)
    store.gate.set()
    await link.until(range(1, len(hooks) + 1))
    assert ingest.held == 0
    assert (await types(store))[-1] == "turn.ended"


async def test_an_item_sent_again_while_it_is_on_its_way_is_taken_once(store: GatedStore, ingest: Ingest) -> None:
    first, second, hooks = FakeLink(), FakeLink(), items()
    store.gate.clear()
    take(ingest, first, hooks)
    take(ingest, second, hooks)
    store.gate.set()
    await first.until(range(1, len(hooks) + 1))
    await second.until(range(1, len(hooks) + 1))
    assert len(await types(store)) == 6 and ingest.duplicates == 0


async def test_an_item_that_the_translator_failed_at_is_taken_when_it_is_sent_again(
    store: GatedStore, ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, hooks = FakeLink(), FakeLink(), items()
    feed, fed = Translator.feed, 0

    def failing(translator: Translator, *arguments: Any) -> None:
        nonlocal fed
        fed += 1
        if fed == 3:
            raise KeyError("a fault of the translator")
        feed(translator, *arguments)

    monkeypatch.setattr(Translator, "feed", failing)
    with pytest.raises(KeyError):
        take(ingest, first, hooks)
    take(ingest, second, hooks)
    await second.until(range(1, len(hooks) + 1))
    assert len(await types(store)) == 6 and ingest.held == 0


async def test_a_log_that_fails_finishes_nothing_more(store: GatedStore, ingest: Ingest) -> None:
    link, hooks = FakeLink(), items()
    store.fault = StoreFailed("the disk is full")
    take(ingest, link, hooks)
    async with asyncio.timeout(10):
        assert await asyncio.shield(ingest.failed) is store.fault
    take(ingest, link, items("reasoning"), first=1000)
    for _ in range(20):
        await asyncio.sleep(0)
    assert link.finished == set()


async def test_an_excluded_project_is_not_recorded(store: GatedStore, ingest: Ingest) -> None:
    link, hooks = FakeLink(directory="/home/ada/secret/below"), items()
    take(ingest, link, hooks)
    assert link.finished == set(range(1, len(hooks) + 1))
    assert await types(store) == [] and ingest.excluded == len(hooks)


async def test_an_excluded_project_is_known_through_a_link_as_well(tmp_path: Path, store: GatedStore) -> None:
    (tmp_path / "secret" / "below").mkdir(parents=True)
    (tmp_path / "way").symlink_to(tmp_path / "secret")
    for excluded, given in (("secret", "way/below"), ("way", "secret"), ("way", "way")):
        ingest = Ingest(store, Translator(seeded_identity(1)), seeded_identity(1).now_ms, exclude=[tmp_path / excluded])
        assert ingest.excludes(str(tmp_path / given)) and not ingest.excludes(str(tmp_path / "secretly"))
        await ingest.close()


async def test_opencode_is_asked_who_an_unknown_session_is(store: GatedStore, ingest: Ingest) -> None:
    link = FakeLink()
    link.answers["session.get"] = lambda args: {"id": args["path"]["id"], "title": "asked"}
    ingest.opened(link)
    hooks = [item for item in items() if item.hook == "chat.message"]
    take(ingest, link, hooks)
    await link.until([1])
    assert await types(store) == ["lifecycle.session.resumed", "human.input"]
    assert link.calls[0][0] == "session.get"


async def test_a_session_that_is_gone_ends_once_a_link_of_its_directory_delivers(
    store: GatedStore, ingest: Ingest
) -> None:
    old, hooks = FakeLink(directory="/home/dev/project"), items()
    ingest.opened(old)
    take(ingest, old, hooks)
    await old.until(range(1, len(hooks) + 1))
    ingest.closed(old)
    new = FakeLink(boot_id="c" * 32, directory="/home/dev/project")
    new.answers["session.list"] = []
    new.answers["session.get"] = CallError("opencode", "not found", 404)
    ingest.opened(new)
    take(ingest, new, items("reasoning")[:3])
    async with asyncio.timeout(10):
        async for record in store.subscribe():
            if record.event.type == "lifecycle.session.ended":
                break
    assert record.event.payload["reason"] == "gone"
    assert record.event.payload["session"] == hooks[0].input["event"]["properties"]["sessionID"]
