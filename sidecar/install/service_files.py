"""Files that let the system's own service manager run the sidecar: systemd's for a user, or launchd's.

A sidecar under a service manager never exits when idle, and restarts when it fails. This module enables and starts
nothing. The user does that with the command in ``Service.enable``. The files hold absolute paths and the home, but no
secrets.

The launchd form follows Apple's documentation and is **untested**: it was never
run on macOS.
"""

from __future__ import annotations

import os
import plistlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sidecar.failure import Failure
from sidecar.install.npm import DIRECTORY_MODE, write
from sidecar.private_files import make_directories

Manager = Literal["systemd", "launchd"]

UNIT_NAME: Final = "durable-stream.service"
LABEL: Final = "durable-stream.sidecar"

FIRST_LINE: Final = "# Written by `durable-stream install --service`; remove with `durable-stream uninstall --service`."

RESTART_SECONDS: Final = 10
"""Seconds between a failure and the next start; long enough that systemd never gives up."""

STOP_SECONDS: Final = 30
"""How long the sidecar may take to write what it has received before it is killed."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service file: its manager, and the commands that a user runs for it."""

    manager: Manager
    path: Path

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Service:
        """The file for this system.

        Raises:
            Failure: the system has neither service manager.
        """
        home = Path(environ.get("HOME") or Path.home())
        if platform == "darwin":
            return cls("launchd", home / "Library" / "LaunchAgents" / f"{LABEL}.plist")
        if platform == "linux":
            base = environ.get("XDG_CONFIG_HOME")
            config = Path(base) if base and Path(base).is_absolute() else home / ".config"
            return cls("systemd", config / "systemd" / "user" / UNIT_NAME)
        raise Failure(
            "no-service", f"{platform} has neither systemd nor launchd; the plugin starts the sidecar automatically"
        )

    @property
    def enable(self) -> str:
        """The command that starts the service now and at each login."""
        if self.manager == "launchd":
            return f"launchctl bootstrap gui/$(id -u) '{self.path}'"
        return f"systemctl --user daemon-reload && systemctl --user enable --now {UNIT_NAME}"

    @property
    def disable(self) -> str:
        """The command that stops a running service after its file is gone."""
        if self.manager == "launchd":
            return f"launchctl bootout gui/$(id -u)/{LABEL}"
        return f"systemctl --user stop {UNIT_NAME}; systemctl --user daemon-reload"

    def content(self, command: Sequence[str], home: Path) -> bytes:
        """The file's content. ``command`` starts this program and begins with an absolute path.

        Raises:
            Failure: systemd accepts no executable with this path.
        """
        if self.manager == "launchd":
            return plistlib.dumps(launchd_job([*command, "--home", str(home)]))
        return systemd_unit([*command, "--home", str(home)]).encode()

    def is_ours(self) -> bool:
        """True if the file exists and ``install`` wrote it."""
        try:
            content = self.path.read_bytes()
            if self.manager == "systemd":
                return content.startswith(FIRST_LINE.encode())
            return bool(plistlib.loads(content).get("Label") == LABEL)
        except (OSError, ValueError, AttributeError):
            return False

    def install(self, command: Sequence[str], home: Path) -> bool:
        """Write the file; return false if it is already up to date.

        Raises:
            Failure: another file is in the way, or systemd accepts no executable with this path.
            OSError: the file cannot be written.
        """
        if os.path.lexists(self.path) and not self.is_ours():
            raise Failure(
                "no-service", f"{self.path} was not written by durable-stream: move it away, then install again"
            )
        content = self.content(command, home)
        if self.path.is_file() and self.path.read_bytes() == content:
            return False
        make_directories(self.path.parent, DIRECTORY_MODE)
        write(self.path, content, is_ours=True)
        return True

    def uninstall(self) -> bool:
        """Remove the file and systemd's link that enabled it; return false if there is no file that ``install`` wrote.

        Raises:
            OSError: the file or the link cannot be removed.
        """
        if not self.is_ours():
            return False
        wants = self.path.parent / "default.target.wants" / UNIT_NAME
        if self.manager == "systemd" and wants.is_symlink() and wants.resolve() == self.path.resolve():
            wants.unlink()
        self.path.unlink()
        return True


def systemd_unit(command: Sequence[str]) -> str:
    """The unit for ``systemctl --user``. The unit first stops a sidecar that a shim started, and then serves its home.

    Raises:
        Failure: systemd accepts no executable with this path.
    """
    program, *arguments = command
    if any(character in "\"'\\" or not character.isprintable() for character in program):
        raise Failure(
            "no-service", f"systemd cannot run {program!r}; install it at a path without quotes or backslashes"
        )
    # Escape `$` only in the arguments, because systemd expands no variables in the program's name.
    words = " ".join([_quoted(program), *(_quoted(word).replace("$", "$$") for word in arguments)])
    return f"""{FIRST_LINE}
[Unit]
Description=Durable Stream sidecar for OpenCode

[Service]
Type=exec
ExecStartPre=-{words} stop
ExecStart={words} serve
Restart=on-failure
RestartSec={RESTART_SECONDS}
TimeoutStopSec={STOP_SECONDS}
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def launchd_job(command: Sequence[str]) -> dict[str, Any]:
    """The agent for ``launchctl``, which retries while a sidecar that a shim started serves the home."""
    return {
        "Label": LABEL,
        "ProgramArguments": [*command, "serve"],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_SECONDS,
        "ExitTimeOut": STOP_SECONDS,
        "Umask": 0o077,
        "ProcessType": "Background",
    }


def _quoted(word: str) -> str:
    """A word, quoted for a unit, in which systemd expands ``%`` within quotes, too."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
