"""Effects for agents of a team."""

from __future__ import annotations

from pathlib import Path
from typing import Any


async def note(args: dict[str, Any], key: str) -> dict[str, Any]:
    """Add the key to a file."""
    with Path(args["file"]).open("a") as file:
        file.write(f"{key}\n")
    return {"key": key}
