"""The variables of the commands of background work on OpenCode 2: those of the session, or terminal, that asked.

The service has a set for each session to which a terminal sent one; other sessions have the service's own. It forgets
all sets when it ends. They are kept only in memory here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from bridge.opencode.capture.shapes import mapping
from sidecar.background.hosts import v2_requests as requests
from sidecar.background.hosts.calling import call
from sidecar.record.opencode2.http import ServiceClient, ServiceError

if TYPE_CHECKING:
    from sidecar.link.links import ShimConnection

KEPT: Final = 200
"""Of how many sessions the variables are kept."""


class Variables:
    """The variables of our sessions, and the service that has them. ``link_of`` returns the link to the
    plugin of a service, or raises ``HostAbsent``."""

    def __init__(self, link_of: Callable[[ServiceClient], ShimConnection]) -> None:
        self._link_of = link_of
        self._of = dict[str, dict[str, str]]()
        self._given = dict[str, int]()

    def keep(self, session: str, variables: Mapping[str, str]) -> None:
        self._of[session] = dict(variables)
        self._given.pop(session, None)
        if len(self._of) > KEPT:
            self._given.pop(oldest := next(iter(self._of)), None)
            del self._of[oldest]

    async def of(self, client: ServiceClient, session: str, asking: str, directory: str) -> dict[str, str]:
        """The variables for a session of ours: the known ones, or else those of the session that asked for it. Empty if
        the service does not tell them."""
        if session not in self._of:
            self.keep(session, await self._read(client, asking, directory))
        return self._of[session]

    async def _read(self, client: ServiceClient, session: str, directory: str) -> dict[str, str]:
        """The variables that a service gives to the commands of a session. No route tells them. But its plugin sees
        those of each command that begins, so one begins that only waits."""
        link, where = self._link_of(client), f"location[directory]={quote(directory, safe='')}"
        command = await call(link, "variables.ask", {})
        asked = {"command": command, "metadata": {"sessionID": session}}
        made = mapping(mapping(await requests.post(client, f"/api/shell?{where}", asked)).get("data"))
        await requests.change(client, "DELETE", f"/api/shell/{quote(str(made.get('id')), safe='')}?{where}")
        return dict(await call(link, "variables.get", {"command": command}) or {})

    async def tell(self, client: ServiceClient, session: str) -> None:
        """Give a session its variables, unless its service has them."""
        variables = self._of.get(session)
        if not variables or self._given.get(session) == client.pid:
            return
        path = f"{requests.path_of(session)}/environment"
        try:
            await requests.send(client, "PUT", path, {"variables": variables})
        except ServiceError as error:
            if error.status != requests.NOT_FOUND:
                raise requests.refused("PUT", path, error) from None
        else:
            self._given[session] = client.pid
