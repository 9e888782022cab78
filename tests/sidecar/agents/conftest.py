"""The stores that the tests of the runtime run on: it uses nothing in which two stores differ.

``test_oracle.py`` and ``tests/sidecar/mirror/test_command_crashes.py`` run on each store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streams.store import StreamStore
from tests.memory import MemoryStore
from tests.sidecar.agents.bench import Bench
from tests.sidecar.agents.support import opener


@pytest.fixture
def open_store(tmp_path: Path) -> Any:
    """Opens the same log each time."""
    return opener("disk", tmp_path)


@pytest.fixture
async def store() -> AsyncIterator[StreamStore]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture
def bench(store: StreamStore) -> Bench:
    return Bench(store)
