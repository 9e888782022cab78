"""Reads the environment of a process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

OURS: Final = frozenset({"OPENCODE_SERVER_PASSWORD", "DURABLE_STREAM_HEADLESS"})
"""What a headless OpenCode has of us, and its shells do not get."""


def read_environment(pid: int) -> dict[str, str]:
    """The environment with which a process was started; empty if the system does not tell it, as on macOS."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, equals, value in pairs if equals}
