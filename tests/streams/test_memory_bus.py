"""The in-memory bus."""

from __future__ import annotations

import pytest

from streams.bus.contract import EventBus
from tests.memory_bus import MemoryEventBus
from tests.streams.bus_contract import BusContract


class TestMemoryEventBus(BusContract):
    @pytest.fixture
    def bus(self) -> EventBus:
        return MemoryEventBus()
