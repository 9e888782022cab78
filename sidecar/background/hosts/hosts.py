"""The hosts of a home in which OpenCode 1 and 2 are used."""

from __future__ import annotations

from typing import Any

from sidecar.background.hosts.host import Host
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v2 import V2Host


class Hosts:
    """A phantom is created in the OpenCode of its parent; without a parent, in OpenCode 2 if only OpenCode 2 is linked,
    otherwise in OpenCode 1."""

    def __init__(self, one: V1Host, two: V2Host) -> None:
        self.one, self.two = one, two

    def of(self, session: str) -> Host:
        return self.two if self.two.hosts(session) else self.one

    def new(self, parent: str | None) -> Host:
        """The OpenCode in which a phantom is created."""
        if parent is not None:
            return self.of(parent)
        return self.two if self.two.is_there and not self.one.is_there else self.one

    async def observe(self, link: Any) -> list[str]:
        """Handle a new link of an OpenCode. Returns the sessions on which that OpenCode may now be asked to act."""
        if registration := link.identity.service:
            return self.two.waiting_for(registration)
        return self.one.waiting_for(link)

    async def environment(self, link: Any) -> str:
        return "" if link.identity.service else await self.one.know(link)

    def environment_of(self, session: str | None, pid: int | None) -> str:
        """See ``V1Host``. All work in OpenCode 2 has the environment of its service."""
        return "" if session is not None and self.two.hosts(session) else self.one.environment_of(session, pid)

    async def variables(self, parent: str | None, directory: str, environment: str) -> dict[str, str]:
        """The variables with which the OpenCode that runs a phantom was started.

        Raises:
            HostAbsent: they are not known until an OpenCode that has them is open.
            HostError: several OpenCodes could be meant.
        """
        if self.new(parent) is self.two:
            return await self.two.variables(parent or "")
        return self.one.variables(directory, environment)

    def knows(self, link: Any, session: str) -> bool:
        """Whether it is known which OpenCode the session belongs to. A tool call of the session came through ``link``.

        OpenCode 2 makes tool calls as soon as it starts, but its log is read only a moment later.
        """
        return not link.identity.service or self.two.knows(session)
