"""A command of an agent that another home may own next: done only if the mirror had its results while this home owned
the agent. No server.
"""

from __future__ import annotations

import asyncio

import pytest

from sidecar.mirror import commands
from sidecar.mirror.commands import CommandConsumers
from tests.memory import MemoryStore
from tests.memory_bus import MemoryEventBus
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.support import running, state, until
from tests.sidecar.mirror.test_calling import Leases
from tests.sidecar.mirror.test_commands import ADD, send


@pytest.mark.parametrize("still_owns", [True, False])
async def test_a_command_is_done_if_this_home_still_owns_the_agent_once_its_results_are_mirrored(
    still_owns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0.01)
    bus, leases = MemoryEventBus(), Leases()
    waits, has_all = asyncio.Event(), asyncio.Event()

    async def mirrored() -> None:
        waits.set()
        await has_all.wait()

    async with running(MemoryStore(), Counter) as runtime:
        owned = CommandConsumers(runtime, bus, owning=leases, mirrored=mirrored)  # type: ignore[arg-type]
        owned.start()

        def outcomes() -> dict[str, int]:
            counts = owned.status()[0]["counts"]
            return {name: counts[name] for name in ("again", "done") if counts.get(name)}

        await send(bus, ADD, {"by": 7})
        await asyncio.wait_for(waits.wait(), 20)
        assert state(runtime)["total"] == 7 and not outcomes()
        leases.is_held = still_owns
        has_all.set()
        await until(lambda: bool(outcomes()))
        assert set(outcomes()) == ({"done"} if still_owns else {"again"})
        assert bool(bus.stored(ADD)) is not still_owns  # so the next owner gets it
        leases.is_held = True
        await until(lambda: not bus.stored(ADD))
        assert state(runtime)["total"] == 7
        await owned.close()
