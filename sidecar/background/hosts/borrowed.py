"""Background sessions in the user's own OpenCode 1 (``[phantom] host = "shim"``). The sidecar starts no process for
them.

This setting saves the memory that a headless OpenCode would take. But work stops when the user closes OpenCode, and
continues when an OpenCode is open again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from bridge.opencode.link.protocol import CallError
from sidecar.background.hosts.environments import Environments
from sidecar.background.hosts.host import HostAbsent, HostError

LINK_SECONDS: Final = 30.0
_CALL_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05


class Borrowed:
    """Has the methods of ``Headless``, but uses the ``links`` of the user's OpenCode processes."""

    pid: int | None = None
    """Always ``None``, because the sidecar runs no process."""

    pids: frozenset[int] = frozenset()

    def __init__(self, links: Callable[[], Iterable[Any]], key: Callable[[], str] = str) -> None:
        self._links = links
        self._environments = Environments(key)

    def know(self, pid: int) -> str:
        return self._environments.know(pid)

    def environment_of(self, pid: int | None) -> str:
        return self._environments.of(pid)

    def variables(self, directory: str, environment: str) -> dict[str, str]:
        """See ``Headless``. Without an ``environment``, that of the OpenCode that linked last."""
        found = self._environments.get(environment or next(reversed(self._environments.names), ""))
        if found is None and environment:
            raise HostAbsent("no OpenCode is open with the environment of the one that asked for this work")
        return dict(found.environment if found is not None else os.environ)

    def never_links(self, directory: str) -> bool:
        return False

    def idle(self, wanted: Collection[str]) -> frozenset[str]:
        return frozenset()

    async def stop(self, only: Collection[str] | None = None) -> None:
        """See ``Headless``. Does nothing, because the user started the process."""

    async def link(self, directory: str, environment: str) -> Any:
        """The link to an OpenCode with an environment, for a directory: the newest link for the directory, else the
        newest link for any directory. An empty ``environment`` means any.

        Raises:
            HostAbsent: no OpenCode 1 with the environment is open.
            HostError: OpenCode did not load the plugin for the directory.
        """
        opened = [k for k in self._open() if environment in ("", self.environment_of(k.pid))]
        if not opened:
            raise HostAbsent("no OpenCode that could do this work is open, and `host` in [phantom] is `shim`")
        near = [link for link in opened if link.directory == directory]
        chosen = (near or opened)[-1]
        if (found := self._linked(chosen.pid, directory)) is not None:
            return found
        # OpenCode loads the plugin for a directory when it gets a request for that directory.
        try:
            await chosen.call("session.list", {"query": {"directory": directory, "limit": 1}}, timeout=_CALL_SECONDS)
            async with asyncio.timeout(LINK_SECONDS):
                return await self._loaded(chosen.pid, directory)
        except (CallError, TimeoutError):
            raise HostError(f"OpenCode did not load the plugin for {directory}") from None

    async def _loaded(self, pid: int, directory: str) -> Any:
        found = None
        while found is None:
            await asyncio.sleep(_POLL_SECONDS)
            found = self._linked(pid, directory)
        return found

    def _open(self) -> list[Any]:
        return [link for link in self._links() if link.is_open and link.directory and not link.identity.service]

    def _linked(self, pid: int, directory: str) -> Any:
        return next((link for link in self._open() if link.pid == pid and link.directory == directory), None)
