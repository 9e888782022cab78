"""Asking a running sidecar, and counting what is in the home: shared by ``status`` and ``doctor``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.home import Home, HomeError
from sidecar.version import VERSION

ANSWER_SECONDS = 5.0


class SidecarSilent(Exception):
    """The running sidecar gave no answer; the text says why."""


class NotAsked(SidecarSilent):
    """It was not asked: the fault is in the home on our side, such as a token that is open to others."""


async def ask_sidecar(home: Home, method: str) -> dict[str, Any]:
    """One request over a proved link.

    Raises:
        SidecarSilent: no link, no answer in time, or a refusal.
    """
    from bridge.opencode.link.link import RequestError
    from sidecar.link.client import ClientError, ControlClient
    from streams.identity import system_identity

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            async with await ControlClient.connect(home, version=VERSION, nonce=system_identity().nonce) as client:
                answer = await client.request(method)
    except TimeoutError:
        raise SidecarSilent(f"no answer within {ANSWER_SECONDS:g} s; stop it with `durable-stream stop`") from None
    except HomeError as error:
        raise NotAsked(str(error)) from None
    except (ClientError, RequestError) as error:
        raise SidecarSilent(str(error)) from None
    if not isinstance(answer, dict):
        raise SidecarSilent("its answer is not an object; stop it with `durable-stream stop` and upgrade")
    return answer


def spool_size(home: Home) -> dict[str, int]:
    """Files and bytes that shims wrote and no sidecar has taken yet."""
    files = list(home.spool_path.glob("*.jsonl")) if home.spool_path.is_dir() else []
    return {"files": len(files), "bytes": sum(file.stat().st_size for file in files if file.is_file())}


def torn_files(store: Path) -> list[Path]:
    """Incomplete tails that openings set aside, oldest first; none of a store that may not be looked into."""
    torn = store / "torn"
    try:
        return sorted(torn.glob("*.bin"), key=lambda file: file.stat().st_mtime_ns) if torn.is_dir() else []
    except PermissionError:
        return []  # which is reported where the log is read


def refused_plugin(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a running sidecar says of a plugin that it cannot serve, and what to do; ``None`` when there is none."""
    refused = status.get("refused_plugin")
    if not isinstance(refused, dict):
        return None
    count = (status.get("door") or {}).get("refused_protocol")
    version, pid, protocol = (refused.get(name) for name in ("shim_version", "pid", "protocol"))
    text = (
        f"the plugin ({version}) in OpenCode (pid {pid}) speaks link protocol {protocol}, which this sidecar no longer "
        f"does: refused {count} times; its hooks stay in the spool"
    )
    return text, "run `durable-stream install`, then restart OpenCode: the spool is taken in then"
