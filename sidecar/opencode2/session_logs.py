"""Records single sessions of one process of an OpenCode 2 service. Each session is recorded in the order of its event
numbers.

A live event that has its session's next number is recorded at once. If a live event has any other number, the session's
durable log is read. A number counts as read only when its event was recorded, or when a ``capture.gap`` names it. So an
event that is missing from the session's log is taken from the live stream, whatever its number; numbers that are
missing from both are a gap. If a service keeps no log and its stream is unbroken, skipped numbers are not a gap,
because the service counts some events that it never sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import quote

from bridge.opencode.capture.shapes import mapping, text
from bridge.opencode.capture.v2.missing import Told, tells_more
from bridge.opencode.capture.v2.shapes import HostEvent, ask_of, child_of, read_event, session_info
from bridge.opencode.capture.v2.translate import HostTranslator, Service
from sidecar.opencode2.http import ServiceError

_BATCH: Final = 256
_MESSAGES: Final = 20
"""How many of a session's newest messages are searched for content that the log lacks."""


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


class SessionLogs:
    """Records the sessions of one process of a service, while one connection to its live stream lasts.

    ``service`` may be replaced by a marked copy while old sessions are being imported. For the arguments, see
    ``Reader``.
    """

    def __init__(
        self,
        client: Client,
        service: Service,
        translator: HostTranslator,
        write: Callable[[], Awaitable[None]],
        excludes: Callable[[str], bool],
        progress: Progress,
    ) -> None:
        self.service, self.excluded, self.is_logless = service, 0, False
        self._client, self._translator, self._write, self._excludes = client, translator, write, excludes
        self._state, self._cursors, self._turn = translator.state, progress.cursors, progress.turn
        self._reading: set[str] = set()
        self._excluded: set[str] = set()
        self._followed: set[str] = set()
        self._unread: dict[str, int] = {}

    def lose_track(self) -> None:
        """Remember that live events were dropped, so that the stream no longer counts as unbroken."""
        self._followed.clear()

    async def take(self, event: HostEvent) -> None:
        """Take one live event."""
        session_id = event.session or ""
        if event.seq is None:
            self._translator.hint(event)
            if ask_of(event) is not None and await self.read(session_id):
                self._translator.feed(self.service, event)
                await self._write()
            return
        if event.name == "created":
            info = session_info(event.data)
            if text(info.get("parentID")) is None and await self._place(session_id, info, event.t):
                self._followed.add(session_id)
            # A child session is placed at its next event: by then, OpenCode has announced the call that created it.
            return
        cursor = self._cursors.get(session_id)
        if cursor is None or event.reach > cursor:
            is_there = (cursor is not None and event.seq == cursor + 1) or await self.read(session_id)
            cursor = self._cursors.get(session_id)
            if cursor is None or event.reach <= cursor:
                return
            await self._miss(session_id, event.seq - 1, before_ms=event.t, is_deleted=not is_there)
            self._followed.add(session_id)
            await self._feed(session_id, [event])

    async def settle(self) -> None:
        """Record what happened before this connection and is missing from the sessions' logs. Call this when no live
        event is waiting.
        """
        for session_id, until in list(self._unread.items()):
            async with self._turn:
                if session_id not in self._followed:
                    # Read once more, because the session's last event may have been committed after the service sent
                    # the log's rows but before it sent the number of the log's last event.
                    is_there = await self.read(session_id)
                    await self._miss(session_id, until, is_deleted=not is_there)
                self._followed.add(session_id)
                del self._unread[session_id]

    async def _place(self, session_id: str, info: dict[str, Any] | None, at_ms: int | None = None) -> bool:
        """Place a session in the log, after its parents. Returns false if the session is deleted or excluded."""
        if session_id in self._excluded:
            self.excluded += 1
            return False
        if session_id in self._state.sessions:
            return True
        if info is None:
            try:
                info = mapping(await self._client.get(f"/api/session/{quote(session_id, safe='')}")).get("data")
            except ServiceError as error:
                if 400 <= error.status < 500:
                    return False
                raise
        info = session_info(mapping(info))
        if self._excludes(text(info.get("directory")) or ""):
            self._excluded.add(session_id)
            return False
        parent = text(info.get("parentID"))
        if parent is not None and parent not in self._cursors and parent not in self._reading:
            # Read the parent first: its log names the call that created this session, which is read at that call.
            self._reading.discard(session_id)
            await self.read(parent)
            self._reading.add(session_id)
        self._translator.appear(self.service, {**info, "id": session_id}, at_ms)
        self._cursors.setdefault(session_id, 0)
        await self._write()
        return session_id in self._state.sessions

    async def read(self, session_id: str, info: dict[str, Any] | None = None) -> bool:
        """Read what is new in a session's own log.

        Returns false if there is no such log, because the session is deleted or not recorded.
        """
        if session_id in self._reading:
            return True  # an outer call is reading this session and waits for one of its children
        self._reading.add(session_id)
        try:
            if info is not None and session_id not in self._state.sessions and not await self._has_log(session_id):
                return False  # nothing has happened in the session yet, or it belongs to OpenCode 1
            return await self._place(session_id, info) and await self._read_log(session_id)
        except ServiceError as error:
            if 400 <= error.status < 500:
                return False
            raise
        finally:
            self._reading.discard(session_id)

    async def _has_log(self, session_id: str) -> bool:
        """True if the service has counted events of a session. While old sessions are being imported, true only if the
        service also returns such events.
        """
        async with aclosing(self._client.stream(_log_path(session_id))) as rows:
            async for row in rows:
                event = read_event(row)
                if event is not None and event.seq is not None:
                    return True
                if event is None and _synced(row) > 0:
                    return not self.service.is_history
        return False

    async def _read_log(self, session_id: str) -> bool:
        session = self._state.sessions[session_id]
        begin = self._cursors.get(session_id)
        if begin is None:
            # This sidecar reads the session for the first time, so read the latest turn again to restore what is
            # remembered about it.
            begin = min(session.host_turn, session.host_seq)
            self._translator.forget(session_id)
        recorded = max(begin, session.host_seq)
        reached, until, is_empty = max(recorded, 0), 0, True
        path = _log_path(session_id)
        if begin > 0:  # else read event 0 again, too: in a fork, it says which numbers the fork inherited
            path += f"?after={begin}"
        batch: list[HostEvent] = []
        async for row in self._client.stream(path):
            event = read_event(row)
            if event is None or event.seq is None:
                until = max(until, _synced(row))
                continue
            if event.seq > reached + 1:
                await self._feed(session_id, batch, recorded)
                batch = []
                self._translator.gap(self.service, session_id, reached, event.seq - 1, "hole_in_session_log")
                await self._write()
            reached, is_empty = max(reached, event.reach), False
            batch.append(event)
            # If events are read a second time, write them before any later event, so that later events are built on
            # what the log holds.
            if len(batch) >= _BATCH or event.seq == recorded:
                await self._feed(session_id, batch, recorded)
                batch = []
        await self._feed(session_id, batch, recorded)
        self._cursors.setdefault(session_id, recorded)
        if until > reached and session_id not in self._followed:
            self._unread[session_id] = until
        else:
            self._followed.add(session_id)
        if not is_empty or until > reached:
            self.is_logless = is_empty
        return True

    async def _feed(self, session_id: str, events: list[HostEvent], recorded: int = -1) -> None:
        """Feed events of one session, and write the resulting events of the log before returning; see
        ``Ingest.is_quiet``."""
        for event in events:
            child = child_of(event)
            if child is not None and event.seq is not None and event.seq > recorded:
                await self._write()
                self._translator.hint(event)
                await self.read(child)
            self._translator.feed(self.service, event, known=(event.seq or 0) < recorded)
            self._cursors[session_id] = max(self._cursors.get(session_id, -1), event.reach)
        await self._write()

    async def _miss(
        self, session_id: str, until: int, *, before_ms: int | None = None, is_deleted: bool = False
    ) -> None:
        """Record that the numbers up to ``until`` are lost, unless they belong to events that are never recorded."""
        session = self._state.sessions.get(session_id)
        if session is None:
            return  # the session was removed from the log, and the service no longer has it
        reached = max(self._cursors[session_id], session.host_seq)
        if until <= reached or (self.is_logless and session_id in self._followed):
            return
        reason, told = "hole_in_session_log", None
        if self.is_logless and not is_deleted:
            told = await self._told(session_id)
            reason, is_deleted = "no_session_log", told is None
        if told is not None and not tells_more(session, told, before_ms):
            return
        if is_deleted:
            reason = "session_deleted"
        self._translator.gap(self.service, session_id, reached, until, reason)
        await self._write()

    async def _told(self, session_id: str) -> Told | None:
        """What the service says about a session; ``None`` if the session is deleted."""
        try:
            info = await self._client.get(f"/api/session/{quote(session_id, safe='')}")
        except ServiceError as error:
            if error.status == 404:
                return None
            raise
        messages = await self._list(session_id, f"message?order=desc&limit={_MESSAGES}")
        waiting = await self._list(session_id, "pending") or await self._list(session_id, "inbox")
        return Told(mapping(mapping(info).get("data")), messages, waiting)

    async def _list(self, session_id: str, what: str) -> tuple[dict[str, Any], ...]:
        """A list from the service's API; empty if this version of the service does not have the list."""
        try:
            answer = await self._client.get(f"/api/session/{quote(session_id, safe='')}/{what}")
        except ServiceError as error:
            if error.status == 404:
                return ()
            raise
        found = mapping(answer).get("data")
        return tuple(mapping(each) for each in found) if isinstance(found, list) else ()


def _synced(row: Any) -> int:
    """The number of the session's newest event, as stated at the end of the session's log; 0 if no number is stated."""
    synced = mapping(row).get("seq")
    return synced if type(synced) is int else 0


def _log_path(session_id: str) -> str:
    return f"/api/experimental/session/{quote(session_id, safe='')}/log"
