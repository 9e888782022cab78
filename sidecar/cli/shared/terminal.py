"""Background work of a terminal: it may do what the terminal may do, so the terminal starts the OpenCode that runs it,
unless one that may do the same is there.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.cli.shared.command import note
from sidecar.failure import Failure

if TYPE_CHECKING:
    from sidecar.home import Home
    from sidecar.link.client import ControlClient


async def terminal(home: Home, client: ControlClient, directory: Path) -> dict[str, Any]:
    """What the sidecar must know of this terminal to run work of it; see ``Terminal``.

    Raises:
        Failure: no OpenCode can run it.
    """
    from sidecar.background.hosts.starter import own_keys
    from sidecar.processes import seen

    kernel, environment = await asyncio.to_thread(own_keys, home.read_token())
    info = home.running()
    sees = seen(info.pid) if info is not None else ""
    facts = {"directory": str(directory), "kernel": kernel, "environment": environment, "sees": sees}
    answer = await client.request("terminal", facts)
    if not answer["hosted"]:
        facts["headless"] = await _start(home, directory, may_wait=answer["stays"])
    return facts


async def _start(home: Home, directory: Path, *, may_wait: bool) -> str:
    """Start a headless OpenCode as a child of this command, which it outlives. Returns its id; empty if there is no
    OpenCode, and the work may wait for one."""
    from sidecar.background.hosts.host import HostError
    from sidecar.background.hosts.starter import Started, find_program
    from sidecar.cli.shared.identity import own_identity
    from sidecar.install.plugin import is_installed

    if not await asyncio.to_thread(is_installed, directory, os.environ):
        why = "the plugin is not installed, so no OpenCode could do this work; run `durable-stream install`"
        raise Failure("not-installed", why)
    program = find_program()
    if program is None and may_wait:
        note("The work waits: no OpenCode is open that could do it, and `opencode` is not on the PATH.")
        return ""
    if program is None:
        raise Failure("no-opencode", "no OpenCode is open that could do this work, and `opencode` is not on the PATH")
    nonce = own_identity().nonce
    note("Starting OpenCode for background work.")
    try:
        name = nonce()[:16]
        started = await asyncio.to_thread(Started, program, name, home.path, nonce())
        await started.open(str(directory))
    except HostError as error:
        raise Failure("opencode-failed", f"{error}; run `opencode` to see why") from None
    started.process.returncode = 0  # it outlives this command
    return name
