"""The hosts of a home in which OpenCode 1 and 2 are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.background.hosts.host import Host
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v2 import V2Host

if TYPE_CHECKING:
    from sidecar.link.links import ShimConnection


class Hosts:
    """A phantom is created in the OpenCode of its parent; without a parent, in OpenCode 2 if only OpenCode 2 is linked,
    otherwise in OpenCode 1."""

    def __init__(self, one: V1Host, two: V2Host) -> None:
        self.one, self.two = one, two

    def of(self, session: str) -> Host:
        return self.two if self.two.hosts(session) else self.one

    def new(self, parent: str | None) -> Host:
        if parent is not None:
            return self.of(parent)
        return self.two if self.two.is_there and not self.one.is_there else self.one

    async def forget(self, directory: str) -> None:
        """See ``Host``."""
        for host in (self.one, self.two):
            await host.forget(directory)

    def at(self, link: ShimConnection) -> Host:
        return self.two if link.identity.service else self.one
