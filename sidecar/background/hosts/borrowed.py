"""Background sessions in the user's own OpenCode 1 (``[phantom] host = "shim"``). The sidecar starts no process for
them.

This setting saves the memory that a headless OpenCode would take. But work stops when the user closes OpenCode, and
continues when an OpenCode is open again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from bridge.opencode.link.protocol import CallError
from sidecar.background.hosts.environments import Environments, linked, until_linked
from sidecar.background.hosts.host import HostAbsent, HostError

_CALL_SECONDS: Final = 20.0


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
        return self._environments.variables(environment or next(reversed(self._environments.names), ""))

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
        if (found := linked(self._open(), chosen.pid, directory)) is not None:
            return found
        # OpenCode loads the plugin for a directory when it gets a request for that directory.
        try:
            await chosen.call("session.list", {"query": {"directory": directory, "limit": 1}}, timeout=_CALL_SECONDS)
            found = await until_linked(self._open, chosen.pid, directory)
        except (CallError, TimeoutError):
            found = None
        if found is None:
            raise HostError(f"OpenCode did not load the plugin for {directory}")
        return found

    def _open(self) -> list[Any]:
        return [link for link in self._links() if link.is_open and link.directory and not link.identity.service]
