"""An agent and effects of the user, for a team."""

from __future__ import annotations

from pathlib import Path
from typing import Any


async def note(args: dict[str, Any], key: str) -> dict[str, Any]:
    """Add the key to a file."""
    with Path(args["file"]).open("a") as file:
        file.write(f"{key}\n")
    return {"key": key}


async def doubtful(args: dict[str, Any], key: str) -> dict[str, Any]:
    """As ``note``, but nobody knows whether it happened until the file ``there`` exists."""
    if not Path(args["there"]).exists():
        raise TimeoutError
    return await note(args, key)


class Listener:
    """Hears what ``counter`` adds, and fails at 13."""

    name = "listener"
    events = ("counter.added",)

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["payload"]["by"] == 13:
            raise ValueError("thirteen")
        return [{"type": "listener.heard", "payload": {"by": event["payload"]["by"]}}]
