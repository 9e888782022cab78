"""The environments of the user's OpenCode 1 processes, in which background work runs. They are kept only in
memory.

OpenCode takes rules, secrets and the place of its configuration from its environment. So work runs only in the
environment of the OpenCode that asked for it. An environment is named by a keyed digest, from which nobody can learn
anything without the home's token. The names of environments are recorded, so that work that lost its environment with a
sidecar continues when an OpenCode with the same environment is open again.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.background.hosts.host import HostAbsent
from sidecar.components import until

LINK_SECONDS: Final = 30.0

KEPT: Final = 16
"""How many environments, and processes, are remembered."""

OURS: Final = frozenset({"OPENCODE_SERVER_PASSWORD", "DURABLE_STREAM_HEADLESS"})
"""What the sidecar adds to the environment of a headless OpenCode, and nobody else gets."""

NOISE: Final = re.compile(
    r"_|PWD|OLDPWD|SHLVL|LINES|COLUMNS|TERM|TERM_.*|COLORTERM|COLORFGBG|WINDOWID|WINDOW|STY|GPG_TTY|SSH_.*|DISPLAY|"
    r"WAYLAND_DISPLAY|XDG_SESSION_.*|XDG_VTNR|XDG_SEAT|TMUX.*|ZELLIJ.*|VTE_.*|KONSOLE_.*|KITTY_.*|WEZTERM_.*|"
    r"ALACRITTY_.*|GHOSTTY_.*|ITERM_.*|LC_TERMINAL.*|WT_.*|INVOCATION_ID|JOURNAL_STREAM|OPENCODE_PID|OPENCODE_RUN_ID|"
    r"OPENCODE_SERVER_USERNAME|DURABLE_STREAM_HOME"
)
"""The variables that differ from terminal to terminal, or that a headless OpenCode has of its own."""


class OpenCodeProcess(NamedTuple):
    """An OpenCode process: its program (``None`` if it cannot be read) and its environment (empty if it cannot be
    read)."""

    executable: Path | None
    environment: dict[str, str]


class Environments:
    """What is known of the processes that linked. ``key`` returns the secret for the digests."""

    def __init__(self, key: Callable[[], str]) -> None:
        self._key = key
        self._of: dict[int, str] = {}
        self._known: dict[str, OpenCodeProcess] = {}

    def know(self, pid: int) -> str:
        """Remember an OpenCode 1 that linked, because its process may have ended when its background work begins.
        Returns the name of its environment; empty if it cannot be read, as on macOS."""
        found = read_process(pid)
        if not found.environment:
            return self._of.get(pid, "")
        name = self.name(found.environment)
        mine = {key: value for key, value in found.environment.items() if key not in OURS}
        self._of.pop(pid, None)
        self._of[pid] = name
        self._known.pop(name, None)
        self._known[name] = found._replace(environment=mine)
        while len(self._of) > KEPT:
            del self._of[next(iter(self._of))]
        while len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return name

    def of(self, pid: int | None) -> str:
        return self._of.get(pid, "") if pid is not None else ""

    def get(self, name: str) -> OpenCodeProcess | None:
        return self._known.get(name)

    def of_work(self, name: str) -> OpenCodeProcess | None:
        """The process that has the environment of some work; ``None`` if the work has none.

        Raises:
            HostAbsent: nothing is known of the environment until an OpenCode that has it is open.
        """
        if name and name not in self._known:
            raise HostAbsent("no OpenCode is open with the environment of the one that asked for this work")
        return self._known.get(name)

    def variables(self, name: str) -> dict[str, str]:
        found = self.of_work(name)
        return dict(found.environment if found is not None else os.environ)

    @property
    def names(self) -> list[str]:
        return list(self._known)

    def name(self, environment: Mapping[str, str]) -> str:
        kept = sorted(f"{k}={v}" for k, v in environment.items() if k not in OURS and not NOISE.fullmatch(k))
        text = "\0".join(kept).encode("utf-8", "surrogateescape")
        return f"env_{hmac.new(self._key().encode(), text, 'sha256').hexdigest()[:24]}"


def linked(links: Iterable[Any], pid: int, directory: str) -> Any:
    """The open link of a process for a directory, or ``None``."""
    return next((link for link in links if link.is_open and link.pid == pid and link.directory == directory), None)


async def until_linked(links: Callable[[], Iterable[Any]], pid: int, directory: str) -> Any:
    """That link, once it is there; ``None`` if it did not come in time."""
    await until(lambda: linked(links(), pid, directory), LINK_SECONDS)
    return linked(links(), pid, directory)


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
