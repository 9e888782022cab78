"""Record the sessions of one process of an OpenCode 2 service.

The live stream reports what happens now. Each session's durable log, read by number, is authoritative. A live event
with its session's next number is recorded at once. On any other number, the log is read. So nothing is lost while the
stream, the sidecar or the network is down. Asks are not in that log, so they are taken from the live stream and listed
after each connect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from urllib.parse import quote

from bridge.opencode.capture.shapes import mapping, number, text
from bridge.opencode.capture.v2.shapes import HostEvent, ask_of, child_of, read_event, session_info
from bridge.opencode.capture.v2.translate import HostTranslator, Service
from sidecar.opencode2.http import SILENCE_SECONDS, ServiceError, ServiceGone

log = logging.getLogger("sidecar.opencode2")

POLL_SECONDS: Final = 30.0
"""How often the newest sessions' logs are read without an announcement, because another server may share the database.
"""

POLLED: Final = 20
"""How many of the newest sessions are read."""

MAX_WAITING: Final = 20_000
"""Maximum number of live events that may wait. Beyond that, the sessions' logs are read instead."""

_ASKS: Final = {"permission": "permission.asked", "form": "form.created", "question": "question.asked"}
"""The lists of open asks of a session, and what announced each ask."""

_BATCH: Final = 256
_PAGE: Final = 100


class Client(Protocol):
    """The part of a ``ServiceClient`` that a reader needs."""

    async def get(self, path: str) -> Any: ...

    def stream(self, path: str, silence: float = ...) -> AsyncGenerator[Any, None]: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far each session has been read. Shared by all readers, because two services may share one database.

    ``turn`` is held while a session is read, so that each event is translated once and in order.
    """

    cursors: dict[str, int] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Reader:
    """Reads one process of a service into the log. Call ``run``; it ends with an error when the service ends.

    Args:
        service: its process, as the events name it.
        write: appends what the translator has ready, and returns when it is durable.
        since_ms: an unknown session that has not been touched since then is history, which only ``import`` records.
        began_ms: now.
        excludes: true for a directory that is not recorded.
        progress: the same for all readers that share the translator.
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
        self.excluded = 0
        self._client, self._service, self._translator, self._write = client, service, translator, write
        self._state = translator.state
        self._since_ms, self._began_ms = since_ms, began_ms
        self._excludes, self._poll_seconds = excludes, poll_seconds
        progress = progress or Progress()
        self._cursors, self._turn, self._has_others = progress.cursors, progress.turn, has_others
        self._reading: set[str] = set()
        self._excluded: set[str] = set()
        self._live: asyncio.Queue[HostEvent | asyncio.Future[int] | None] = asyncio.Queue()
        self._is_overrun = False

    async def run(self) -> None:
        """Record until the service ends.

        Raises:
            ServiceGone, ServiceError: the service ended, or refuses.
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
            event = await self._live.get()
            if isinstance(event, asyncio.Future):
                await self._import(event)
            elif event is not None:
                async with self._turn:
                    await self._take(event)
            if self._live.empty() and (event is None or self._is_overrun):
                everything, self._is_overrun = self._is_overrun, False
                await self.catch_up(newest=not everything)

    async def import_history(self) -> int:
        """Record the sessions that are history; return how many there were. ``run`` must be under way.

        Raises:
            CancelledError: ``run`` ended before.
        """
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._live.put_nowait(asked)
        return await asked

    async def _listen(self, connected: asyncio.Event) -> None:
        async for row in self._client.stream("/api/event", SILENCE_SECONDS):
            connected.set()
            event = read_event(row)
            if event is None or event.session is None:
                continue
            if event.seq is None and ask_of(event) is None and child_of(event) is None:
                continue  # deltas, catalogs: never recorded
            if self._live.qsize() < MAX_WAITING:
                self._live.put_nowait(event)
            else:
                self._is_overrun = True
        raise ServiceGone("the stream of events ended")

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            if self._live.empty():
                self._live.put_nowait(None)

    # Reading

    async def catch_up(self, *, newest: bool = False) -> None:
        """Read what is new in every session, then the open asks. End deleted sessions and turns that nobody runs.

        With ``newest``, only in the newest sessions.
        """
        infos = await self._listed(all_of_them=not newest)
        for session_id, info in infos.items():
            if self._is_ours(session_id, info):
                async with self._turn:
                    await self._read(session_id, info)
        if not newest:
            await self._end_missing(infos)
        for session_id in [session.id for session, turn in self._state.open_turns() if self._is_mine(session.id)]:
            await self._list_asks(session_id)
        await self._end_dead()

    async def _import(self, asked: asyncio.Future[int]) -> None:
        """Read every session that the log does not have, marked as history."""
        live, found = self._service, 0
        self._service = replace(live, is_history=True)
        try:
            for session_id, info in (await self._listed(all_of_them=True)).items():
                async with self._turn:
                    if session_id not in self._state.sessions and await self._read(session_id, info):
                        found += 1
        finally:
            self._service = live
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
        """The service's sessions by id, oldest first."""
        infos = [info async for info in self._sessions(all_of_them=all_of_them)]
        infos.sort(key=lambda info: number(mapping(info.get("time")).get("created")) or 0)
        return {session: info for info in infos if (session := text(info.get("id"))) is not None}

    async def _sessions(self, *, all_of_them: bool) -> AsyncIterator[dict[str, Any]]:
        path = f"/api/session?limit={_PAGE if all_of_them else POLLED}"
        while True:
            page = mapping(await self._client.get(path))
            found = page.get("data")
            for info in found if isinstance(found, list) else []:
                if isinstance(info, dict):
                    yield info
            following = text(mapping(page.get("cursor")).get("next"))
            if not all_of_them or following is None or not found:
                return
            path = f"/api/session?limit={_PAGE}&cursor={quote(following, safe='')}"

    async def _take(self, event: HostEvent) -> None:
        """Take one live event."""
        session_id = event.session or ""
        if event.seq is None:
            self._translator.hint(event)
            if ask_of(event) is not None and await self._read(session_id):
                self._translator.feed(self._service, event)
                await self._write()
            return
        if event.name == "created":
            info = session_info(event.data)
            if text(info.get("parentID")) is None:
                await self._place(session_id, info, event.t)
            return  # a child is placed at its next event, because the call that created it is announced in between
        cursor = self._cursors.get(session_id)
        if cursor is not None and event.seq <= cursor:
            return
        if cursor is None or event.seq != cursor + 1 or child_of(event) is not None:
            is_there = await self._read(session_id)
            cursor = self._cursors.get(session_id)
            if is_there or cursor is None or event.seq <= cursor:
                return
            # The session has been deleted together with its log, so events that were not read before are lost.
            if event.seq > cursor + 1:
                self._translator.gap(self._service, session_id, cursor, event.seq - 1)
        self._translator.feed(self._service, event)
        self._cursors[session_id] = event.seq
        await self._write()

    async def _place(self, session_id: str, info: dict[str, Any] | None, at_ms: int | None = None) -> bool:
        """Place a session, its parents first. False if it is gone or excluded."""
        if session_id in self._excluded:
            self.excluded += 1
            return False
        if session_id in self._state.sessions:
            return True
        if info is None:
            try:
                info = mapping(await self._client.get(f"/api/session/{quote(session_id, safe='')}")).get("data")
            except ServiceError as error:
                if error.status == 404:
                    return False
                raise
        info = session_info(mapping(info))
        if self._excludes(text(info.get("directory")) or ""):
            self._excluded.add(session_id)
            return False
        parent = text(info.get("parentID"))
        if parent is not None and parent not in self._cursors and parent not in self._reading:
            # Its log names the call that made this session, and reads this session's log at the call's end.
            self._reading.discard(session_id)
            await self._read(parent)
            self._reading.add(session_id)
        self._translator.appear(self._service, {**info, "id": session_id}, at_ms)
        self._cursors.setdefault(session_id, 0)
        await self._write()
        return session_id in self._state.sessions

    async def _read(self, session_id: str, info: dict[str, Any] | None = None) -> bool:
        """Read what is new in a session's own log.

        False if there is none, because the session is deleted or not recorded.
        """
        if session_id in self._reading:
            return True  # the session is waiting for its own child
        self._reading.add(session_id)
        try:
            if info is not None and session_id not in self._state.sessions and not await self._has_log(session_id):
                return False  # nothing happened in it yet, or it is one of OpenCode 1's
            return await self._place(session_id, info) and await self._read_log(session_id)
        except ServiceError as error:
            if error.status == 404:
                return False
            raise
        finally:
            self._reading.discard(session_id)

    async def _has_log(self, session_id: str) -> bool:
        async with aclosing(self._client.stream(_log_path(session_id))) as rows:
            async for row in rows:
                event = read_event(row)
                if event is not None and event.seq is not None:
                    return True
        return False

    async def _read_log(self, session_id: str) -> bool:
        session = self._state.sessions[session_id]
        begin = self._cursors.get(session_id)
        if begin is None:
            # This sidecar is reading the session for the first time, so it must relearn what the latest turn needs.
            begin = min(session.host_turn, session.host_seq)
            self._translator.forget(session_id)
        recorded = max(begin, session.host_seq)
        path = _log_path(session_id)
        if begin >= 0:
            path += f"?after={begin}"
        batch: list[HostEvent] = []
        async for row in self._client.stream(path):
            event = read_event(row)
            if event is None or event.seq is None:
                if isinstance(row, dict) and type(synced := row.get("seq")) is int:
                    self._cursors[session_id] = max(self._cursors.get(session_id, recorded), synced)
                continue
            batch.append(event)
            # An event that is read a second time is written separately, so that later events are made from the log's
            # own record.
            if len(batch) >= _BATCH or event.seq == recorded:
                await self._feed(session_id, batch, recorded)
                batch = []
        await self._feed(session_id, batch, recorded)
        self._cursors.setdefault(session_id, recorded)
        return True

    async def _feed(self, session_id: str, events: list[HostEvent], recorded: int) -> None:
        """Feed events of a session's log, and write what they make before returning; see ``Ingest.is_quiet``."""
        for event in events:
            child = child_of(event)
            if child is not None and event.seq is not None and event.seq > recorded:
                await self._write()
                self._translator.hint(event)
                await self._read(child)
            self._translator.feed(self._service, event, known=(event.seq or 0) < recorded)
            self._cursors[session_id] = max(self._cursors.get(session_id, -1), event.seq or 0)
        await self._write()

    # What the log does not say

    async def _list_asks(self, session_id: str) -> None:
        for kind, name in (
            ("permission", "permission.asked"),
            ("form", "form.created"),
            ("question", "question.asked"),
        ):
            try:
                answer = await self._client.get(f"/api/session/{quote(session_id, safe='')}/{kind}")
            except ServiceError:
                continue  # this version of OpenCode has no such asks
            found = mapping(answer).get("data")
            for ask in found if isinstance(found, list) else []:
                data = {"form": ask} if kind == "form" else mapping(ask)
                event = read_event({"type": name, "data": {"sessionID": session_id, **data}})
                if event is not None:
                    self._translator.feed(self._service, event)
            await self._write()

    async def _end_missing(self, listed: Collection[str]) -> None:
        """End the sessions that were deleted while nobody listened."""
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
        """End the turns that no process runs. Their service was killed, and this service does not continue them.

        The service commits a turn's end before it stops counting it as active, so a turn that is not active and has no
        end in the log afterwards has none. If a turn has had new events since this reader began, another server on the
        same database is running it; while such a server is linked, it may be running any turn.
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
                await self._read(session.id)
                if session.turn is not None and session.turn.event_id == turn_id:
                    self._translator.end_dead(self._service, session.id)
                    await self._write()


def _log_path(session_id: str) -> str:
    return f"/api/experimental/session/{quote(session_id, safe='')}/log"
