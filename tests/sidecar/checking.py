"""A home in which `doctor` finds nothing to say, and what it says of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.care.checks.check import Check
from sidecar.care.checks.table import diagnose
from sidecar.cli.shared.state import gather_status
from sidecar.home import Home
from sidecar.install.plugin import Target, install, shim_path
from streams.identity import seeded_identity, system_identity
from tests.sidecar.cli.helpers import append, run
from tests.streams.builders import events

LINKED = "2026-11-22 01:53:48,183 INFO sidecar: link opened: pid 7, instance 12ab, OpenCode 1.18.33\n"
PROGRAM = "#!/bin/sh\necho {}\n"


def make_healthy(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the home a log, an OpenCode of a known version and an installed plugin."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, says in (("opencode", "1.18.33"), ("durable-stream", "durable-stream 0.1.0")):
        (programs / name).write_text(PROGRAM.format(says))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name in ("OPENCODE_CONFIG_DIR", "OPENCODE_PURE", "OPENCODE_DISABLE_PROJECT_CONFIG", "DURABLE_STREAM"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    home.ensure_token(seeded_identity(1).nonce)
    home.log_path.write_text(LINKED)
    asyncio.run(append(home.store_path, [events(3), events(2, prefix="x", stream="ses_b")]))
    set_up(home, Target.everywhere(), programs)


def set_up(home: Home, target: Target, programs: Path) -> None:
    install(target, shim=shim_path(), command=[str(programs / "durable-stream")], home=home.path)


def programs(home: Home) -> Path:
    return home.path.parent / "bin"


def look(home: Home) -> dict[str, Check]:
    async def collect() -> dict[str, Check]:
        command = [str(programs(home) / "durable-stream")]
        return {check.name: check async for check in diagnose(home, command, system_identity())}

    return asyncio.run(collect())


def doctor(home: Home, *arguments: str) -> list[dict[str, Any]]:
    """The JSON that the command prints."""
    return run(home.path, "doctor", "--json", *arguments).objects()


def levels(home: Home) -> dict[str, str]:
    """The levels of the findings that are not ``ok``."""
    return {name: check.level for name, check in look(home).items() if check.level != "ok"}


def status(home: Home) -> dict[str, object]:
    return asyncio.run(gather_status(home))
