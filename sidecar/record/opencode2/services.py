"""The OpenCode 2 services whose plugins are linked: reads their API where the plugin's events do not suffice.

The plugin is the feed; see ``bridge/opencode/capture/v2/translate.py``. A service is asked only if a plugin or its
spool has named it. So ``DURABLE_STREAM=off`` and ``uninstall`` stop the recording, and a sidecar never looks for a
service on its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bridge.opencode.capture.emitter import Origin
from bridge.opencode.capture.v2.translate import HostTranslator
from sidecar.components import Tasks
from sidecar.record.ingest import Ingest
from sidecar.record.opencode2.history import History, Scope
from sidecar.record.opencode2.http import ServiceClient, ServiceError, ServiceGone
from sidecar.record.opencode2.registration import Registration, UnsafeService, place_of, read_registration
from streams.errors import StreamError
from streams.lineage import STEP_STARTED
from streams.query import Filter
from streams.store import StreamStore

log = logging.getLogger("sidecar.record.opencode2")

LOOK_SECONDS: Final = 0.5
"""How often a registration is read again while its service is starting."""

START_SECONDS: Final = 10.0
"""How long after a plugin has linked its service may still be starting."""

RETRY_SECONDS: Final = 5.0
"""How often a session is compared again whose messages could not be read."""

_ULID: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_UNREADABLE = (ServiceGone, ServiceError, UnsafeService)


@dataclass(slots=True)
class _Announced:
    """A registration file, and the plugin instances that named it, each with its pid, its scope, and the time of the
    loop until which the service may still be starting."""

    path: Path
    links: dict[tuple[str, str], tuple[int, tuple[str, ...], float]] = field(default_factory=dict)
    state: str = "starting"
    version: str = ""
    compared: int = 0
    rebuilt: int = 0


class Services:
    """A component. Call all methods from the event loop.

    ``log_id`` shows when the log began. Of sessions that began before the log and before the service's process started,
    only ``import`` records the beginning. ``take_spools`` records the spools of dead processes, which come before what
    a new process does.
    """

    def __init__(
        self,
        translator: HostTranslator,
        ingest: Ingest,
        store: StreamStore,
        log_id: str,
        take_spools: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.translator, self._ingest, self._store, self._take_spools = translator, ingest, store, take_spools
        self._since_ms = began_ms(log_id)
        self._announced: dict[str, _Announced] = {}
        """The services by ``place_of`` their registrations."""
        self._turn = asyncio.Lock()
        self._due: dict[str, Origin] = {}
        """The sessions that could not be compared, and the process whose event asked for it."""
        self._tasks = Tasks()

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._tasks.cancel)
        self._tasks.spawn(self._retry())

    def owes(self) -> bool:
        """See ``Component``: whether a session is being compared."""
        return self._turn.locked()

    def opened(self, origin: Origin, service: str, scope: tuple[str, ...], last_seq: int) -> None:
        """Note a link of a plugin instance. It announces its service's registration file, and the directories whose
        sessions it records."""
        until = asyncio.get_running_loop().time() + START_SECONDS
        self._announced[self.announce(service)].links[origin.boot_id, origin.instance] = origin.pid, scope, until
        self._tasks.spawn(self._catch_up(origin, last_seq))

    def closed(self, origin: Origin) -> None:
        for known in self._announced.values():
            known.links.pop((origin.boot_id, origin.instance), None)

    def announce(self, service: str) -> str:
        """Note a registration file that a plugin named; return a short name for the service."""
        path = Path(service)
        self._announced.setdefault(place_of(path), _Announced(path))
        return place_of(path)

    def status(self) -> list[dict[str, Any]]:
        """Everything that ``status`` and ``doctor`` show about each service."""
        return [
            {
                "registration": str(known.path),
                "state": known.state,
                "version": known.version,
                "plugins": len(known.links),
                "compared": known.compared,
                "rebuilt": known.rebuilt,
            }
            for known in self._announced.values()
            if known.links
        ]

    @property
    def not_compared(self) -> int:
        """How many sessions could not be compared yet, and may lack something."""
        return len(self._due)

    async def compare(self, session_id: str, origin: Origin) -> None:
        """Compare a session before its waiting events are translated; returns also if that is not possible."""
        if self._ingest.is_linked(origin) and self._take_spools is not None:
            # What a dead process left comes first, however long that takes.
            self.translator.put_behind(session_id, origin, is_behind=True)
            await self._take_spools()
            self.translator.put_behind(session_id, origin, is_behind=False)
        is_done = is_whole = self.translator.is_whole(session_id, origin)
        try:
            is_done = await self._compare_soon(session_id, origin, is_once=is_whole) or is_whole
        finally:
            if not is_done:
                self._due[session_id] = origin
        if not is_done:
            await self._recall(session_id, origin)

    async def import_history(self) -> dict[str, int]:
        """Record the old sessions of every linked service. Return the numbers of services and of sessions.

        Raises:
            ServiceGone: a service ended during the import.
        """
        services = sessions = 0
        for known in [each for each in self._announced.values() if each.links]:
            origin = _origin(known)
            read = await self._read(origin)
            if read is None:
                continue
            services += 1
            history, scope = read
            try:
                for info in await history.sessions():
                    session = self.translator.state.sessions.look(str(info["id"]))
                    if scope.covers(info) and (session is None or session.turn is None):
                        sessions += await self._compare(str(info["id"]), origin, is_import=True, required=True) > 1
            except (ServiceError, UnsafeService) as error:
                raise ServiceGone(str(error)) from None
        return {"services": services, "sessions": sessions}

    # --- comparing ---

    async def _catch_up(self, origin: Origin, last_seq: int) -> None:
        """Compare what may have happened before this plugin was loaded, once everything that it holds is recorded."""
        await self._ingest.caught_up(origin, last_seq)
        if self._take_spools is not None:
            await self._take_spools()
        while self._ingest.is_linked(origin):
            pause = LOOK_SECONDS
            try:
                read = await self._read(origin)
                if read is not None:
                    await self._compare_all(*read)
                    return
            except _UNREADABLE as error:
                log.info("the sessions of the OpenCode 2 service could not be compared: %s", error)
                pause = LOOK_SECONDS if isinstance(error, UnsafeService) else RETRY_SECONDS
            except StreamError:
                return  # ingest has noted the error, and the sidecar is stopping
            if pause == LOOK_SECONDS and not self._is_starting(origin):
                return
            await asyncio.sleep(pause)

    def _is_starting(self, origin: Origin) -> bool:
        """Whether the service of a linked plugin may not have written its registration yet."""
        known = self._announced.get(origin.service)
        *_, until = known.links.get((origin.boot_id, origin.instance), (0.0,)) if known is not None else (0.0,)
        return asyncio.get_running_loop().time() < until

    async def _recall(self, session_id: str, origin: Origin) -> None:
        """Tell the translator which calls a session's open turn has begun, as the log has it."""
        session = self.translator.state.sessions.get(session_id)
        if session is None or session.turn is None:
            return
        await self._ingest.flushed()
        wanted = Filter(types=(STEP_STARTED,), streams=(session.stream,), correlation_id=session.turn.user_message)
        begun = [record.event async for record in self._store.query(wanted)]
        self.translator.recall(session_id, origin, begun)

    async def _compare_all(self, history: History, scope: Scope) -> None:
        infos = await history.sessions()
        for info in infos:
            session_id = str(info["id"])
            is_due = history.differs(info, scope) and not self.translator.is_met(session_id, scope.origin)
            if is_due and not await self._compare(session_id, scope.origin):
                self._due[session_id] = scope.origin
        listed = {str(info["id"]) for info in infos}
        for session_id in self.translator.state.sessions.having("host", scope.origin.service):
            if session_id not in listed:
                await self._compare(session_id, scope.origin)

    async def _compare_soon(self, session_id: str, origin: Origin, *, is_once: bool) -> bool:
        """Compare a session, again and again while its service may be starting; return whether that was possible."""
        while not await self._compare(session_id, origin):
            if is_once or not self._is_starting(origin):
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def _compare(
        self, session_id: str, origin: Origin, *, is_import: bool = False, required: bool = False
    ) -> int:
        """Compare one session, and make the result durable. Returns 0 if the service cannot be read, unless that is
        ``required``, else 1 plus the number of records."""
        async with self._turn:
            try:
                read = await self._read(origin)
                if read is None:
                    raise ServiceGone("it is not running")
                history, scope = read
                await self._ingest.flushed()
                count = await history.compare(session_id, scope, is_import=is_import)
            except _UNREADABLE as error:
                if required:
                    raise
                if session_id not in self._due:  # else it is tried again and again
                    log.info("session %s could not be compared: %s", session_id, error)
                return 0
            known = self._announced[origin.service]
            known.compared, known.rebuilt = known.compared + 1, known.rebuilt + count
            self._due.pop(session_id, None)
            if count:
                log.info("%d records of session %s were rebuilt from the service's messages", count, session_id)
            self._ingest.pump()
            return 1 + count

    async def _retry(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            for session_id, origin in list(self._due.items()):
                try:
                    await self._compare(session_id, origin)
                except StreamError:
                    return

    async def _read(self, origin: Origin) -> tuple[History, Scope] | None:
        """A reader of the service that a process belongs to; ``None`` if the service is not running.

        Raises:
            UnsafeService: the registration cannot be trusted.
        """
        known = self._announced.get(origin.service)
        if known is None:
            return None
        try:
            registration = await asyncio.to_thread(read_registration, known.path)
        except UnsafeService as error:
            if known.state != "refused":
                log.warning("the OpenCode 2 service is not read: %s: %s", known.path, error)
            known.state = "refused"
            raise
        if registration is None:
            known.state = "starting" if self._is_starting(origin) else "absent"
            return None
        known.state, known.version = "read", registration.version
        history = History(ServiceClient(registration), self.translator, self._store)
        return history, self._scope(origin, registration, known)

    def _scope(self, origin: Origin, registration: Registration, known: _Announced) -> Scope:
        # The first turns may end before the first sidecar begins the log, so read from the service's start.
        since_ms = min(self._since_ms, registration.written_ms or self._since_ms)
        _, directories, _ = known.links.get((origin.boot_id, origin.instance), (0, (), 0.0))
        return Scope(origin, since_ms, registration.pid, registration.written_ms, directories)


def _origin(known: _Announced) -> Origin:
    (boot_id, instance), (pid, *_) = next(iter(known.links.items()))
    return Origin(boot_id, instance, pid, place_of(known.path))


def began_ms(log_id: str) -> int:
    """When a log began, from its id; 0 if the id is not one of ours."""
    number = 0
    for character in log_id[:10].upper():
        if character not in _ULID:
            return 0
        number = number * 32 + _ULID.index(character)
    return number
