"""Records the sessions of one process of an OpenCode 2 service.

The live stream reports what happens now; ``session_logs`` takes its events and reads each session's durable log. This
module decides which sessions are read, and when. Asks are not in the sessions' logs, so they are taken from the live
stream and are also listed after each connect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from bridge.opencode.capture.shapes import mapping, number, text
from bridge.opencode.capture.v2.shapes import HostEvent, ask_of, child_of, read_event
from bridge.opencode.capture.v2.translate import HostTranslator, Service
from sidecar.opencode2.http import SILENCE_SECONDS, ServiceError, ServiceGone
from sidecar.opencode2.session_logs import Client, Progress, SessionLogs

log = logging.getLogger("sidecar.opencode2")

POLL_SECONDS: Final = 30.0
"""How often the newest sessions' logs are read even if nothing was announced, because another server may share the
database.
"""

POLLED: Final = 20
"""How many of the newest sessions, and how many older ones, are read each time. The service sorts sessions by when they
were created, not by when they were used."""

MAX_WAITING: Final = 20_000
"""Maximum number of live events that may wait. Beyond that, the sessions' logs are read instead."""

_PAGE: Final = 100


class Reader:
    """Reads one process of a service into the log. Call ``run``, which raises an error when the service ends.

    Args:
        service: the process of the service, as named in the events.
        write: appends the events that the translator has ready, and returns when they are durable.
        since_ms: a session that is not in the log and has not been used since this time is history, which only
            ``import`` records.
        began_ms: the present time.
        excludes: true for a directory that is not recorded.
        progress: one object for all readers that share the translator.
        has_others: true while a server that no file names may run turns on the same database.
    """

    def __init__(
        self,
        client: Client,
        service: Service,
        translator: HostTranslator,
        write: Callable[[], Awaitable[None]],
        *,
        since_ms: int,
        began_ms: int,
        excludes: Callable[[str], bool] = lambda directory: False,
        poll_seconds: float = POLL_SECONDS,
        progress: Progress | None = None,
        has_others: Callable[[], bool] = lambda: False,
    ) -> None:
        self.caught_up = asyncio.Event()
        self.taken = 0
        """How many events of the live stream have been handled. An event that must be recorded counts once it is
        recorded.
        """
        self._client, self._service, self._translator, self._write = client, service, translator, write
        self._state = translator.state
        self._since_ms, self._began_ms = since_ms, began_ms
        self._poll_seconds = poll_seconds
        progress = progress or Progress()
        self._logs = SessionLogs(client, service, translator, write, excludes, progress)
        self._turn, self._has_others = progress.turn, has_others
        self._live: asyncio.Queue[HostEvent | asyncio.Future[int] | None] = asyncio.Queue()
        self._is_overrun = False
        self._in_turn: str | None = None

    async def run(self) -> None:
        """Record until the service ends.

        Raises:
            ServiceGone, ServiceError: the service ended, or refused a request.
            StreamError: the log cannot be written.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._run(tasks)
        finally:
            while not self._live.empty():
                if isinstance(asked := self._live.get_nowait(), asyncio.Future):
                    asked.cancel()

    async def _run(self, tasks: asyncio.TaskGroup) -> None:
        connected = asyncio.Event()
        tasks.create_task(self._listen(connected))
        await connected.wait()
        await self.catch_up()
        self.caught_up.set()
        tasks.create_task(self._poll())
        while True:
            if self._live.empty():
                await self._logs.settle()
            event = await self._live.get()
            if isinstance(event, asyncio.Future):
                await self._import(event)
            elif event is not None:
                async with self._turn:
                    await self._logs.take(event)
                self.taken += 1
            if self._live.empty() and self._is_overrun:
                self._is_overrun = False
                self._logs.lose_track()
                await self.catch_up()
            elif self._live.empty() and event is None:
                await self.catch_up(newest=True)

    async def import_history(self) -> int:
        """Record the sessions that are history; return their number. ``run`` must be running.

        Raises:
            CancelledError: ``run`` ended before the import was done.
        """
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._live.put_nowait(asked)
        return await asked

    async def _listen(self, connected: asyncio.Event) -> None:
        async for row in self._client.stream("/api/event", SILENCE_SECONDS):
            connected.set()
            event = read_event(row)
            if event is None or event.session is None or _is_never_recorded(event):
                self.taken += 1
                continue
            self._is_overrun = self._is_overrun or self._live.qsize() >= MAX_WAITING
            if not self._is_overrun:
                self._live.put_nowait(event)
        raise ServiceGone("the stream of events ended")

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            if self._live.empty():
                self._live.put_nowait(None)

    @property
    def excluded(self) -> int:
        """How many events of excluded sessions were skipped."""
        return self._logs.excluded

    @property
    def is_logless(self) -> bool:
        """True if, as far as is known, the service keeps no log of its sessions."""
        return self._logs.is_logless

    async def catch_up(self, *, newest: bool = False) -> None:
        """Read what is new in every session, then the open asks. Record the end of deleted sessions, and of turns that
        no process is running.

        With ``newest``, read only the newest sessions and some of the others, namely the sessions that have not been
        read for the longest time.
        """
        infos = await self._listed(all_of_them=not newest)
        for session_id, info in infos.items():
            if self._is_ours(session_id, info):
                async with self._turn:
                    await self._logs.read(session_id, info)
        if not newest:
            await self._end_missing(infos)
        for session_id in [session.id for session, turn in self._state.open_turns() if self._is_mine(session.id)]:
            await self._list_asks(session_id)
        await self._end_dead()

    async def _import(self, asked: asyncio.Future[int]) -> None:
        """Read every session that is missing from the log, and mark its events as history."""
        found = 0
        self._logs.service = replace(self._service, is_history=True)
        try:
            for session_id, info in (await self._listed(all_of_them=True)).items():
                async with self._turn:
                    if session_id not in self._state.sessions and await self._logs.read(session_id, info):
                        found += 1
        finally:
            self._logs.service = self._service
            if not asked.done():
                asked.set_result(found)

    def _is_ours(self, session_id: str, info: dict[str, Any]) -> bool:
        session = self._state.sessions.get(session_id)
        if session is not None:
            return not session.ended
        updated = number(mapping(info.get("time")).get("updated")) or 0
        return updated >= self._since_ms or text(info.get("parentID")) in self._state.sessions

    def _is_mine(self, session_id: str) -> bool:
        session = self._state.sessions.get(session_id)
        return session is not None and session.host == self._service.place and session.host_seq >= 0

    async def _listed(self, *, all_of_them: bool) -> dict[str, dict[str, Any]]:
        """The service's sessions by id, oldest first: all of them, or the newest and the next few of the others, in
        rotation.
        """
        found, following = await self._page(_PAGE if all_of_them else POLLED)
        while all_of_them and following is not None:
            more, following = await self._page(_PAGE, following)
            found += more
        if following is not None:
            more, self._in_turn = await self._page(POLLED, self._in_turn or following)
            found += more
        found.sort(key=lambda info: number(mapping(info.get("time")).get("created")) or 0)
        return {session: info for info in found if (session := text(info.get("id"))) is not None}

    async def _page(self, limit: int, cursor: str | None = None) -> tuple[list[dict[str, Any]], str | None]:
        """A page of the service's sessions, and the cursor of the next page; ``None`` if there is no next page."""
        path = f"/api/session?limit={limit}" + (f"&cursor={quote(cursor, safe='')}" if cursor is not None else "")
        page = mapping(await self._client.get(path))
        found = page.get("data")
        infos = [info for info in found if isinstance(info, dict)] if isinstance(found, list) else []
        return infos, text(mapping(page.get("cursor")).get("next")) if infos else None

    # --- what the sessions' logs do not contain ---

    async def _list_asks(self, session_id: str) -> None:
        for kind, name in (
            ("permission", "permission.asked"),
            ("form", "form.created"),
            ("question", "question.asked"),
        ):
            try:
                answer = await self._client.get(f"/api/session/{quote(session_id, safe='')}/{kind}")
            except ServiceError as error:
                if error.status != 404:  # the answer of a version of OpenCode that has no asks of this kind
                    log.warning("the OpenCode 2 service did not list what it asks (%s): %s", kind, error)
                continue
            found = mapping(answer).get("data")
            for ask in found if isinstance(found, list) else []:
                data = {"form": ask} if kind == "form" else mapping(ask)
                event = read_event({"type": name, "data": {"sessionID": session_id, **data}})
                if event is not None:
                    self._translator.feed(self._service, event)
            await self._write()

    async def _end_missing(self, listed: Collection[str]) -> None:
        """Record the end of sessions that were deleted while no reader was connected."""
        for session in list(self._state.sessions.values()):
            if session.id in listed or session.ended or not self._is_mine(session.id):
                continue
            try:
                await self._client.get(f"/api/session/{quote(session.id, safe='')}")
            except ServiceError as error:
                if error.status == 404:
                    self._translator.end_missing(self._service, session.id)
                    await self._write()

    async def _end_dead(self) -> None:
        """Record the end of turns that no process is running: the service that ran them was killed, and this service
        does not continue them.

        The service commits the end of a turn before it stops counting the turn as active. So a turn has no end if it is
        not active and its end is not in the session's log when this log is read afterwards. If a turn has had new
        events since this reader began, another server on the same database is running it; while such a server is
        linked, it may be running any turn.
        """
        if self._has_others():
            return
        suspects = [
            (session, turn.event_id)
            for session, turn in self._state.open_turns()
            if self._is_mine(session.id) and turn.last_ms < self._began_ms
        ]
        if not suspects:
            return
        active = mapping(mapping(await self._client.get("/api/session/active")).get("data"))
        for session, turn_id in suspects:
            if session.id in active:
                continue
            async with self._turn:
                await self._logs.read(session.id)
                if session.turn is not None and session.turn.event_id == turn_id:
                    self._translator.end_dead(self._service, session.id)
                    await self._write()


def _is_never_recorded(event: HostEvent) -> bool:
    """Whether an event is of a kind that is never recorded, such as a delta or a catalog."""
    return event.seq is None and ask_of(event) is None and child_of(event) is None
