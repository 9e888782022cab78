"""Ask a running sidecar, and count files in the home: shared by ``status`` and ``doctor``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sidecar.home import Home
from sidecar.install.plugin import RESTART
from sidecar.private_files import HomeError
from sidecar.version import VERSION

ANSWER_SECONDS = 5.0

CONFIG_CHANGED = (
    "config.toml changed after the sidecar started",
    "run `durable-stream stop`; OpenCode then starts a sidecar with the new settings",
)
"""The note and the hint for a sidecar whose status says ``config_changed``."""


class SidecarSilent(Exception):
    """The running sidecar did not answer; the text says why."""


class NotAsked(SidecarSilent):
    """The sidecar was not asked, because this command cannot use the home: other users may know the home's token."""


async def ask_sidecar(home: Home, method: str, nonce: Callable[[], str]) -> dict[str, Any]:
    """Send one request to the running sidecar and return its answer. ``nonce`` is an identity's method of that name.

    Raises:
        SidecarSilent: the link failed, no answer came in time, or the sidecar refused.
    """
    from bridge.opencode.link.protocol import RequestError
    from sidecar.link.client import ClientError, ControlClient

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            async with await ControlClient.connect(home, version=VERSION, nonce=nonce) as client:
                answer = await client.request(method)
    except TimeoutError:
        raise SidecarSilent(
            f"it did not answer within {ANSWER_SECONDS:g} s; stop the sidecar with `durable-stream stop`"
        ) from None
    except HomeError as error:
        raise NotAsked(str(error)) from None
    except (ClientError, RequestError) as error:
        raise SidecarSilent(str(error)) from None
    if not isinstance(answer, dict):
        raise SidecarSilent(
            "it answered with something other than a JSON object, so it probably has another version than this "
            "command; stop the sidecar with `durable-stream stop`"
        )
    return answer


async def heard(home: Home, nonce: Callable[[], str]) -> tuple[Mapping[str, Any] | None, str]:
    """The running sidecar's status, or ``None`` and why it did not answer. Both are empty if no sidecar runs, and if
    this command may not use the home: then the check of the home or of the token says why."""
    if home.running() is None:
        return None, ""
    try:
        return await ask_sidecar(home, "status", nonce), ""
    except NotAsked:
        return None, ""
    except SidecarSilent as error:
        return None, str(error)


def torn_files(store: Path) -> list[Path]:
    """The incomplete tails that were set aside, oldest first; empty if the store is not readable."""
    torn = store / "torn"
    try:
        return sorted(torn.glob("*.bin"), key=lambda file: file.stat().st_mtime_ns) if torn.is_dir() else []
    except PermissionError:
        return []  # the check that reads the log reports this error


def refused_plugin(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """The problem and the hint for a plugin that the running sidecar cannot serve; ``None`` if there is none."""
    refused = status.get("refused_plugin")
    if not isinstance(refused, dict):
        return None
    count = (status.get("door") or {}).get("refused_protocol")
    version, pid, protocol = (refused.get(name) for name in ("shim_version", "pid", "protocol"))
    text = (
        f"the plugin ({version}) in OpenCode (pid {pid}) speaks link protocol {protocol}, which this sidecar no "
        f"longer supports. It was refused {count} times; its hooks are waiting in the spool"
    )
    return text, f"run `durable-stream install`, then {RESTART}; the sidecar then records the spool"
