"""The stores that the tests of the runtime run on, and a bench over each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streams.store import StreamStore
from tests.sidecar.agents.bench import Bench
from tests.sidecar.agents.support import opener


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return opener(request.param, tmp_path)


@pytest.fixture
async def store(open_store: Any) -> AsyncIterator[StreamStore]:
    store = await open_store()
    yield store
    await store.close()


@pytest.fixture
def bench(store: StreamStore) -> Bench:
    return Bench(store)
