"""One ``Host`` for a home in which OpenCode 1 and 2 are used: acts on each session in the OpenCode that has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sidecar.background.hosts.host import Look, Part, Status
from sidecar.background.hosts.rights import Rights
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v2 import V2Host


class Hosts:
    """A phantom is created in the OpenCode of its parent; without a parent, in OpenCode 2 if only OpenCode 2 is linked,
    otherwise in OpenCode 1."""

    def __init__(self, one: V1Host, two: V2Host) -> None:
        self.one, self.two = one, two

    @property
    def lacks(self) -> frozenset[str]:
        """See ``Host``. What OpenCode 2 lacks if its service is linked, otherwise what OpenCode 1 lacks."""
        return self.two.lacks if self.two.is_there else self.one.lacks

    def _of(self, session: str) -> V1Host | V2Host:
        return self.two if self.two.hosts(session) else self.one

    def _new(self, parent: str | None) -> V1Host | V2Host:
        if parent is not None:
            return self._of(parent)
        return self.two if self.two.is_there and not self.one.is_there else self.one

    async def rights(self, session: str, agent: str | None, link: Any = None) -> Rights:
        return await self._of(session).rights(session, agent, link)

    async def create(
        self,
        intent: str,
        *,
        title: str,
        directory: str,
        parent: str | None,
        agent: str | None = None,
        rights: Rights | None = None,
    ) -> str:
        host = self._new(parent)
        return await host.create(intent, title=title, directory=directory, parent=parent, agent=agent, rights=rights)

    async def find(self, intent: str, *, directory: str, parent: str | None) -> str | None:
        return await self._new(parent).find(intent, directory=directory, parent=parent)

    async def prompt(
        self,
        session: str,
        parts: Sequence[Part],
        *,
        directory: str,
        agent: str | None = None,
        model: str | None = None,
        reply: bool = True,
    ) -> bool:
        host = self._of(session)
        return await host.prompt(session, parts, directory=directory, agent=agent, model=model, reply=reply)

    async def holds(self, session: str, key: str, *, directory: str) -> bool:
        return await self._of(session).holds(session, key, directory=directory)

    async def abort(self, session: str, *, directory: str) -> None:
        await self._of(session).abort(session, directory=directory)

    async def status(self, session: str) -> Status:
        return await self._of(session).status(session)

    async def look(self, session: str, *, directory: str) -> Look:
        return await self._of(session).look(session, directory=directory)

    async def goes_on(self, session: str) -> bool:
        return await self._of(session).goes_on(session)

    async def toast(self, session: str, title: str, text: str) -> bool:
        return await self._of(session).toast(session, title, text)

    async def answer(self, session: str, request: str, kind: str, answer: Sequence[str]) -> str:
        return await self._of(session).answer(session, request, kind, answer)

    def about(self, session: str) -> dict[str, Any]:
        return self._of(session).about(session)

    async def observe(self, link: Any) -> list[str]:
        """Handle a new link of an OpenCode. Returns the sessions on which that OpenCode may now be asked to act."""
        if registration := link.identity.service:
            return self.two.waiting_for(registration)
        return self.one.waiting_for(link)

    async def environment(self, link: Any) -> str:
        """The name of the environment of an OpenCode 1 that linked."""
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
        if self._new(parent) is self.two:
            return await self.two.variables(parent or "")
        return self.one.variables(directory, environment)

    def knows(self, link: Any, session: str) -> bool:
        """Whether it is known which OpenCode the session belongs to. A tool call of the session came through ``link``.

        OpenCode 2 makes tool calls as soon as it starts, but its log is read only a moment later.
        """
        return not link.identity.service or self.two.knows(session)
