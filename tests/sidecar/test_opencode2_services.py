"""Which services are read: those that plugins announce, for as long as one is linked, and only if they are safe."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.state import CaptureState
from bridge.opencode.capture.translate import Translator
from bridge.opencode.capture.v2.rules import Service
from bridge.opencode.capture.v2.translate import HostTranslator
from sidecar.capture.ingest import Ingest
from sidecar.opencode2.services import Services
from streams.identity import seeded_identity
from streams.stores.memory import MemoryStore


class GatedStore(MemoryStore):
    """A store that appends only while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def append(self, *args: Any, **kwargs: Any) -> Any:
        await self.gate.wait()
        return await super().append(*args, **kwargs)


@pytest.fixture
def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
def state() -> CaptureState:
    return CaptureState()


@pytest.fixture
async def ingest(store: GatedStore, state: CaptureState) -> AsyncIterator[Ingest]:
    identity = seeded_identity(1)
    ingest = Ingest(store, Translator(identity, state), identity.now_ms)
    yield ingest
    await ingest.close()


@pytest.fixture
async def services(ingest: Ingest, state: CaptureState) -> AsyncIterator[Services]:
    identity = seeded_identity(2)
    translator = HostTranslator(identity, state)
    services = Services(translator, ingest, identity.ulid(), identity.now_ms, look_seconds=0.01)
    yield services
    await services.close()


def register(path: Path, port: int, mode: int = 0o600) -> Path:
    told = {"id": "i-1", "version": "2.0.0", "url": f"http://127.0.0.1:{port}", "pid": os.getpid(), "password": "p"}
    path.write_text(json.dumps(told))
    path.chmod(mode)
    return path


async def state_of(services: Services, wanted: str) -> None:
    async with asyncio.timeout(10):
        while [found["state"] for found in services.status()] != [wanted]:
            await asyncio.sleep(0.001)


async def test_nothing_is_read_that_no_plugin_announced(services: Services, tmp_path: Path) -> None:
    services.opened("boot", "instance", "", 4321)
    services.opened("boot", "instance", "relative/service.json", 4321)
    assert services.status() == []


async def test_it_waits_for_a_service_and_ends_with_the_last_link(services: Services, tmp_path: Path) -> None:
    path = tmp_path / "service.json"
    for instance in ("one", "two"):
        services.opened("boot", instance, str(path), 4321)
    await state_of(services, "absent")
    assert services.status()[0]["plugins"] == 2
    services.closed("boot", "one")
    assert len(services.status()) == 1
    services.closed("boot", "two")
    assert services.status() == []


async def test_an_unsafe_registration_is_refused_and_read_when_it_is_safe(services: Services, tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        path = register(tmp_path / "service.json", server.sockets[0].getsockname()[1], 0o644)
        services.opened("boot", "instance", str(path), 4321)
        await state_of(services, "refused")
        assert not seen.is_set()
        path.chmod(0o600)
        async with asyncio.timeout(10):
            await seen.wait()
        await state_of(services, "lost")


async def test_with_no_service_there_is_no_history(services: Services) -> None:
    assert await services.import_history() == {"services": 0, "sessions": 0}


async def test_an_append_outlives_the_reader_that_waits_for_it(
    services: Services, ingest: Ingest, store: GatedStore
) -> None:
    services.translator.appear(Service("instance"), {"id": "ses_1", "directory": "/work"}, 1)
    store.gate.clear()
    reader = asyncio.create_task(services.write())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    store.gate.set()
    await ingest.close()
    assert ingest.is_quiet
    assert [record.event.idempotency_key async for record in store.read_all()] == ["lifecycle.session.created:ses_1"]
