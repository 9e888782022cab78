"""A process that runs the team's agent ``counter``, and hands it commands until all have been handled.

``python -m tests.sidecar.team.worker PORT FILE TERM COMMAND…``. A command is its key and, after ``=``, the effect that
it asks for, or nothing. A line is printed for each that is done. Then the process waits until its input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sidecar.agents.effects.policy import EffectPolicy
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.loading import UserAgent, UserEffect
from sidecar.agents.runtime import Runtime
from sidecar.notify_config import TeamConfig
from sidecar.team import claims as team_claims
from sidecar.team import log as team_log
from sidecar.team.agents import TeamAgents
from streams.bus.command import Command
from streams.errors import StreamError
from streams.identity import system_identity
from streams.system.retry import Retry
from tests.sidecar.agents.agents import Counter

ACTING_SECONDS = 0.02


def effects(file: Path) -> dict[str, EffectKind]:
    """Effects that add a line to a file: which cannot be undone, and of which nobody can say whether it was done."""

    def made(name: str) -> EffectKind:
        async def act(args: dict[str, Any], key: str) -> dict[str, Any]:
            await asyncio.sleep(ACTING_SECONDS)
            with file.open("a") as out:
                out.write(f"{args['n']}\n")
            await asyncio.sleep(ACTING_SECONDS)
            return {"n": args["n"]}

        act.effect_class = name  # type: ignore[attr-defined]
        return UserEffect(f"tests:{name}", act)

    return {name: made(name) for name in ("safe", "unsafe")}


async def main(port: str, file: str, term: str, *commands: str) -> None:
    team_claims.TERM_SECONDS = float(term)  # type: ignore[misc]
    team_log.LOOK_SECONDS = 0.02  # type: ignore[misc]
    identity = system_identity()
    config = TeamConfig(database=f"postgresql://boss@127.0.0.1:{port}/postgres")
    agents = [UserAgent("tests:Counter", Counter)]
    policy = EffectPolicy(attempts=50, retry=Retry(0.01, 0.05))

    def make(store: Any, claims: Any) -> Runtime:
        return Runtime(store, identity, agents, kinds=effects(Path(file)), policy=policy, claims=claims)

    async def hand_in(text: str) -> None:
        key, _, kind = text.partition("=")
        command = (
            Command(f"c:{key}", "call", {"kind": kind, "n": key}) if kind else Command(f"c:{key}", "add", {"by": 1})
        )
        while True:
            try:
                await team.command("counter", command)
                break
            except StreamError:
                await asyncio.sleep(0.02)
        print(key, flush=True)

    team = TeamAgents(config, agents, make, identity.ulid)
    async with AsyncExitStack() as stack:
        await team.start(stack)
        for begin in range(0, len(commands), 4):
            await asyncio.gather(*map(hand_in, commands[begin : begin + 4]))
        print("all", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    os._exit(0)
