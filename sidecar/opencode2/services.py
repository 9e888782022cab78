"""The OpenCode 2 services that plugins announce: each has one reader, for as long as a plugin in the service is linked.

Only announced services are read. So ``DURABLE_STREAM=off`` and ``uninstall`` stop the recording, and a sidecar never
looks for a service on its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bridge.opencode.capture.v2.translate import HostTranslator, Service
from sidecar.capture.ingest import Ingest
from sidecar.opencode2.http import ServiceClient, ServiceError, ServiceGone
from sidecar.opencode2.reader import Reader
from sidecar.opencode2.registration import Registration, UnsafeService, is_played, place_of, read_registration
from sidecar.opencode2.session_logs import Progress
from streams.errors import StreamError

log = logging.getLogger("sidecar.opencode2")

LOOK_SECONDS: Final = 0.5
"""How often a registration is re-read while its service is not running."""

RETRY_MAX_SECONDS: Final = 10.0

RETURN_MS: Final = 10_000
"""How many ms after the sidecar's start every plugin that is still running has linked again."""

_ULID: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(slots=True)
class _Announced:
    """A registration file, and the processes of the plugin instances that named it."""

    path: Path
    links: dict[tuple[str, str], int] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    state: str = "absent"
    reader: Reader | None = None
    version: str = ""


class Services:
    """Records every announced service. Call all methods from the event loop.

    ``log_id`` shows when the log began. Sessions that were last used before the log began and before the service's
    process started are history; only ``import`` records such sessions.
    """

    def __init__(
        self,
        translator: HostTranslator,
        ingest: Ingest,
        log_id: str,
        now_ms: Callable[[], int],
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.translator = translator
        self._now_ms = now_ms
        self._ingest, self._look_seconds = ingest, look_seconds
        self._since_ms = began_ms(log_id)
        self._started_ms = now_ms()
        self._announced: dict[Path, _Announced] = {}
        self._progress = Progress()

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``."""
        stack.push_async_callback(self.close)

    def owes(self) -> bool:
        """See ``Component``: a service is read only while a plugin is linked, which keeps the sidecar running."""
        return False

    def opened(self, boot: str, instance: str, service: str, pid: int) -> None:
        """Remember a link of a plugin instance; ``service`` is the registration file that it announces, or empty."""
        path = Path(service)
        if not service or not path.is_absolute():
            return
        known = self._announced.setdefault(path, _Announced(path))
        known.links[boot, instance] = pid
        if known.task is None:
            known.task = asyncio.create_task(self._follow(known))

    def closed(self, boot: str, instance: str) -> None:
        """Remember the end of a link. When the last link from a service has ended, the service is no longer read."""
        for path, known in list(self._announced.items()):
            known.links.pop((boot, instance), None)
            if not known.links:
                del self._announced[path]
                if known.task is not None:
                    known.task.cancel()

    @property
    def registrations(self) -> list[Path]:
        """The registration files that linked plugins announce, except for played recordings, which cannot act on
        sessions.
        """
        return [path for path in self._announced if not is_played(path)]

    async def close(self) -> None:
        """Stop reading."""
        tasks = [known.task for known in self._announced.values() if known.task is not None]
        self._announced.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def import_history(self) -> dict[str, int]:
        """Record the old sessions of every service that is read. Return the numbers of services and of sessions.

        Raises:
            ServiceGone: a service ended during the import.
        """
        readers = [known.reader for known in self._announced.values() if known.state == "read" and known.reader]
        sessions = 0
        for reader in readers:
            asked = asyncio.ensure_future(reader.import_history())
            await asyncio.wait({asked})
            if asked.cancelled():
                raise ServiceGone("it ended")
            sessions += asked.result()
        return {"services": len(readers), "sessions": sessions}

    def status(self) -> list[dict[str, Any]]:
        """Everything that ``status`` and ``doctor`` show about each service."""
        return [
            {
                "registration": str(known.path),
                "state": known.state,
                "version": known.version,
                "plugins": len(known.links),
                "taken": known.reader.taken if known.reader is not None and known.reader.caught_up.is_set() else 0,
                "excluded": known.reader.excluded if known.reader is not None else 0,
                "keeps_log": known.reader is None or not known.reader.is_logless,
            }
            for known in self._announced.values()
        ]

    async def _follow(self, known: _Announced) -> None:
        """Read the service's processes one after another, as each of them writes the registration file."""
        wait, has_failed = self._look_seconds, False
        while True:
            try:
                registration = await asyncio.to_thread(read_registration, known.path)
                if registration is None:
                    known.state = "absent"
                else:
                    await self._read(known, registration)
            except* UnsafeService as refusals:
                if known.state != "refused":
                    log.warning("the OpenCode 2 service is not read: %s: %s", known.path, _first(refusals))
                known.state = "refused"
            except* (ServiceGone, ServiceError) as ended:
                reached = known.reader is not None and known.reader.caught_up.is_set()
                log.info("lost the OpenCode 2 service: %s", _first(ended))
                known.state = "lost"
                wait = self._look_seconds if reached else min(wait * 2, RETRY_MAX_SECONDS)
            except* StreamError:
                has_failed = True  # ingest has noted the error, and the sidecar is stopping
            if has_failed:
                return
            await asyncio.sleep(wait)

    async def _read(self, known: _Announced, registration: Registration) -> None:
        pid = 0 if is_played(known.path) else registration.pid  # the pid of a recorded process means nothing here
        service = Service(registration.id, registration.version, pid, place_of(known.path))
        known.version = registration.version
        known.reader = Reader(
            ServiceClient(registration),
            service,
            self.translator,
            self.write,
            # The first turns may end before the first sidecar begins the log, so read from the service's start.
            since_ms=min(self._since_ms, registration.written_ms or self._since_ms),
            began_ms=self._now_ms(),
            excludes=self._ingest.excludes,
            progress=self._progress,
            has_others=lambda: self._may_have_others(known, registration.pid),
        )
        log.info("reading the OpenCode 2 service: pid %d", registration.pid)
        known.state = "read"
        await known.reader.run()

    def _may_have_others(self, known: _Announced, pid: int) -> bool:
        """True while a plugin in another process is linked, or may not have relinked yet."""
        return self._now_ms() - self._started_ms < RETURN_MS or set(known.links.values()) != {pid}

    async def write(self) -> None:
        """Append the events that the translator has ready; return when they are durable. The append continues even if
        the waiting caller is cancelled.
        """
        appended = self._ingest.write(self.translator.drain())
        if appended is not None:
            await asyncio.shield(appended)


def _first(group: BaseExceptionGroup[Exception]) -> BaseException:
    """One of the group's errors. All of these errors are of one kind and say nearly the same."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def began_ms(log_id: str) -> int:
    """When a log began, from its id; 0 if the id is not one of ours."""
    number = 0
    for character in log_id[:10].upper():
        if character not in _ULID:
            return 0
        number = number * 32 + _ULID.index(character)
    return number
