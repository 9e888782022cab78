"""The variables of the commands of background work on OpenCode 2: those of the session, or terminal, that asked.

The service has a set for each session to which a terminal sent one; other sessions have the service's own. It forgets
all sets when it ends. They are kept only in memory here, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from bridge.opencode.capture.shapes import mapping
from sidecar.background.hosts import v2_requests as requests
from sidecar.record.opencode2.http import ServiceClient, ServiceError

log = logging.getLogger("sidecar.background")

KEPT: Final = 200
"""Of how many sessions the variables are kept."""

_READ: Final = ": durable-stream reads these variables; sleep 20; :"
"""The shell stays, because a command follows the sleep; so the variables are as the service gave them."""
_LOOKS: Final = 200
_LOOK_SECONDS: Final = 0.02


class Variables:
    """What is known of the variables of our sessions, and which service was told."""

    def __init__(self) -> None:
        self._of = dict[str, dict[str, str]]()
        self._told = dict[str, int]()

    def keep(self, session: str, variables: Mapping[str, str]) -> None:
        self._of[session] = dict(variables)
        self._told.pop(session, None)
        if len(self._of) > KEPT:
            self._told.pop(oldest := next(iter(self._of)), None)
            del self._of[oldest]

    async def of(self, client: ServiceClient, session: str, asking: str, directory: str) -> dict[str, str]:
        """The variables for a session of ours: the known ones, or else those of the session that asked for it. Empty if
        this system does not tell them."""
        if session not in self._of:
            self.keep(session, await _read(client, asking, directory))
        return self._of[session]

    async def tell(self, client: ServiceClient, session: str) -> None:
        """Give a session its variables, unless its service has them."""
        variables = self._of.get(session)
        if not variables or self._told.get(session) == client.pid:
            return
        path = f"{requests.path_of(session)}/environment"
        try:
            await requests.send(client, "PUT", path, {"variables": variables})
        except ServiceError as error:
            if error.status != requests.NOT_FOUND:
                raise requests.refused("PUT", path, error) from None
        else:
            self._told[session] = client.pid


async def _read(client: ServiceClient, session: str, directory: str) -> dict[str, str]:
    """The variables that a service gives to the commands of a session.

    No route tells them. So it starts a command that waits, of which the system tells them. That touches no disk.
    """
    if not await asyncio.to_thread(Path("/proc/self/environ").exists):
        return {}
    where = f"location[directory]={quote(directory, safe='')}"
    asked = {"command": _READ, "metadata": {"sessionID": session}}
    made = mapping(mapping(await requests.post(client, f"/api/shell?{where}", asked)).get("data"))
    try:
        for _ in range(_LOOKS):
            if found := _environment_of(made.get("pid")):
                return found
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await requests.change(client, "DELETE", f"/api/shell/{quote(str(made.get('id')), safe='')}?{where}")
    log.info("the variables of the session %s cannot be read, so its work has those of the service", session)
    return {}


def _environment_of(pid: object) -> dict[str, str]:
    """The variables of our own waiting command; empty while it is not running yet, or if its pid is not one of ours."""
    place = Path("/proc", str(pid))
    try:
        if _READ.encode() not in (place / "cmdline").read_bytes():
            return {}
        pairs = (place / "environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return {}
    return {name: value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}
