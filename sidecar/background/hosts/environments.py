"""Reads the environment of a process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class OpenCodeProcess(NamedTuple):
    executable: Path | None
    environment: dict[str, str]


def read_process(pid: int) -> OpenCodeProcess:
    """Read the program and environment of a process. Only Linux provides them."""
    try:
        executable = Path(f"/proc/{pid}/exe").readlink()
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return OpenCodeProcess(None, {})
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in raw.split(b"\0") if entry)
    environment = {name: value for name, equals, value in pairs if equals}
    return OpenCodeProcess(executable if executable.name.startswith("opencode") else None, environment)


OURS = frozenset({"OPENCODE_SERVER_PASSWORD", "DURABLE_STREAM_HEADLESS"})
