"""Compares sessions of OpenCode 2 with the service's messages, and records what lacks as history.

The plugin hands on every event from the moment it is loaded. What it could not see is in the service's messages: the
first event of a process, what a service commits while it stops, the last moments before a ``kill -9``, and turns
without the plugin. A session is compared when its first event comes from a process, and when a plugin links.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Protocol
from urllib.parse import quote

from bridge.opencode.capture.emitter import Origin
from bridge.opencode.capture.shapes import mapping, number, text
from bridge.opencode.capture.state import SessionState
from bridge.opencode.capture.v2.event_fields import HostEvent, ask_of, read_event, session_info
from bridge.opencode.capture.v2.messages import before, children_of, events_of
from bridge.opencode.capture.v2.translate import HostTranslator
from sidecar.processes import still_runs
from sidecar.record.opencode2.http import ServiceError
from streams.store import StreamStore

log = logging.getLogger("sidecar.record.opencode2")

_PAGE: Final = 100
_NOT_FOUND: Final = 404
_ASKS: Final = (("permission", "permission.asked"), ("form", "form.created"))


class Client(Protocol):
    """The part of a ``ServiceClient`` that is needed here."""

    async def get(self, path: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """Of which process and since when sessions are recorded.

    ``since_ms``: a session that is not in the log and was created earlier began before the log, so that only
    ``import`` records its beginning. ``pid`` and ``started_ms``: the service's process; a turn that another process
    runs is not over although this service does not know it as active. ``directories``: a plugin in a project records
    only the sessions below its project; empty if all are recorded.
    """

    origin: Origin
    since_ms: int
    pid: int = 0
    started_ms: int = 0
    directories: tuple[str, ...] = ()

    def covers(self, info: dict[str, Any]) -> bool:
        """Whether a session is recorded, according to its description."""
        place = PurePath(text(session_info(info).get("directory")) or "")
        return not self.directories or any(place.is_relative_to(each) for each in self.directories)


class History:
    """Compares the sessions of one service. All readers of one log share the translator and the store."""

    def __init__(self, client: Client, translator: HostTranslator, store: StreamStore) -> None:
        self._client, self._translator, self._store = client, translator, store
        self._state = translator.state

    async def compare(self, session_id: str, scope: Scope, *, is_import: bool = False) -> int:
        """Record what the service knows of a session and the log does not; return the number of records.

        Events that wait for this comparison, and what came after them, are left to them. An import compares the
        session from its beginning.

        Raises:
            ServiceGone, ServiceError: the service did not answer, or refused one of the requests.
            StreamError: the log cannot be read.
        """
        info = await self._info(session_id)
        if info is None:
            self._translator.end_missing(session_id, scope.origin)
            return 0
        waiting = self._translator.waiting(session_id, scope.origin)
        known = self._state.sessions.get(session_id)
        is_whole = self._translator.is_whole(session_id, scope.origin)
        is_new = is_import or _created(info) >= scope.since_ms or is_whole
        if not await self._placed(info, known, scope, is_new=is_new, is_import=is_import):
            return 0
        session = self._state.sessions[session_id]
        is_active = session_id in await self._active()
        asks = await self._asks(session_id) if is_active else []
        if is_active and not waiting and not asks:
            return 0  # its next event is on its way, and the session is compared then
        from_ms = 0 if is_import else _begin(session, known, waiting, is_new=is_new)
        # OpenCode 1 recorded the session until then, under other keys.
        hosted_ms = 0 if known is None else known.hosted_ms if known.host else known.last_ms + 1
        messages, is_whole = await self._messages(session_id, from_ms, hosted_ms)
        inbox = await self._list(f"{_path(session_id)}/inbox")
        for child, message, call in children_of(messages):
            if child not in self._state.sessions:
                self._translator.note_call(child, message, call, _turn_of(messages, message))
                await self.compare(child, scope, is_import=is_import)
        is_over = not _is_elsewhere(session, messages, scope)
        events = events_of(session_id, messages, inbox, is_active=is_active, is_over=is_over)
        while True:
            waiting = self._translator.waiting(session_id, scope.origin)
            past = before(events, waiting)
            rebuilt, memory = self._translator.rebuild(session_id, past, scope.origin, is_whole=is_whole)
            if known is None and not is_new:
                rebuilt = []  # the session began before the log; only what happens from now on is recorded
            keys = [event.idempotency_key for event in rebuilt]
            found = await self._store.find_each(keys) if keys else []
            there = {key: record.event.id for key, record in zip(keys, found, strict=True) if record is not None}
            if len(waiting) == len(self._translator.waiting(session_id, scope.origin)):
                break
        count = self._translator.fill(rebuilt, there)
        self._translator.adopt(session_id, memory, scope.origin)
        title = text(info.get("title"))
        if title not in (None, session.title) and "renamed" not in [event.name for event in waiting]:
            self._translator.rename(session_id, str(title), scope.origin)
        waiting = self._translator.waiting(session_id, scope.origin)
        for ask in asks:
            # An ask that waits, or whose turn waits, comes in its place.
            if not waiting or (session.turn is not None and _request(ask) not in map(_request, waiting)):
                self._translator.record_ask(scope.origin, ask)
        return count

    async def sessions(self) -> list[dict[str, Any]]:
        """The service's descriptions of all sessions, oldest first."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            path = f"/api/session?limit={_PAGE}" + (f"&cursor={quote(cursor, safe='')}" if cursor else "")
            page = mapping(await self._client.get(path))
            infos = [info for info in map(mapping, _data(page)) if text(info.get("id"))]
            found += infos
            cursor = text(mapping(page.get("cursor")).get("next"))
            if not infos or cursor is None:
                return sorted(found, key=_created)

    def differs(self, info: dict[str, Any], scope: Scope) -> bool:
        """Whether a session may have something that the log has not, according to its description."""
        session = self._state.sessions.look(str(info.get("id")))
        times = mapping(info.get("time"))
        if not scope.covers(info):
            return False
        if session is None:
            return _created(info) >= scope.since_ms or text(info.get("parentID")) in self._state.sessions
        if session.ended:
            return False
        newest = max((number(times.get(name)) or 0 for name in ("updated", "idle")), default=0)
        title = text(info.get("title"))
        return session.turn is not None or newest > session.last_ms or title not in (None, session.title)

    # --- parts of a comparison ---

    async def _placed(
        self, info: dict[str, Any], known: SessionState | None, scope: Scope, *, is_new: bool, is_import: bool
    ) -> bool:
        parent = text(info.get("parentID"))
        if known is None and parent is not None and parent not in self._state.sessions:
            await self.compare(parent, scope, is_import=is_import)
        return self._translator.place(info, scope.origin, is_new=is_new)

    async def _asks(self, session_id: str) -> list[HostEvent]:
        """What the session asks and nobody has answered."""
        found = []
        for kind, name in _ASKS:
            for ask in await self._list(f"{_path(session_id)}/{kind}"):
                data = {"form": ask} if kind == "form" else ask
                found.append(read_event({"type": name, "data": {"sessionID": session_id, **data}}))
        return [event for event in found if event is not None]

    # --- the service's API ---

    async def _info(self, session_id: str) -> dict[str, Any] | None:
        try:
            answer = await self._client.get(_path(session_id))
        except ServiceError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return session_info(mapping(mapping(answer).get("data")))

    async def _active(self) -> dict[str, Any]:
        return mapping(mapping(await self._client.get("/api/session/active")).get("data"))

    async def _messages(self, session_id: str, from_ms: int, hosted_ms: int) -> tuple[list[dict[str, Any]], bool]:
        """The messages since the execution before ``from_ms`` ended, in the API's order, and whether these are all.

        What happened before ``hosted_ms`` is left out.
        """
        newest_first: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            query = f"limit={_PAGE}" + (f"&cursor={quote(cursor, safe='')}" if cursor else "&order=desc")
            page = mapping(await self._client.get(f"{_path(session_id)}/message?{query}"))
            found = [message for message in map(mapping, _data(page)) if message]
            newest_first += found
            cursor = text(mapping(page.get("cursor")).get("next"))
            is_end = not found or cursor is None
            ends = (n for n, each in enumerate(newest_first) if each.get("type") == "idle" and _created(each) < from_ms)
            old = next(ends, None)
            if is_end or old is not None or (hosted_ms and _created(found[-1]) < hosted_ms):
                break
        messages = newest_first[:old][::-1]
        hosted = [message for message in messages if _created(message) >= hosted_ms]
        return hosted, old is None and len(hosted) == len(messages)

    async def _list(self, path: str) -> list[dict[str, Any]]:
        return [each for each in map(mapping, _data(await self._client.get(path))) if each]


def _request(event: HostEvent) -> str | None:
    ask = ask_of(event)
    return ask[0] if ask is not None else None


def _data(answer: Any) -> list[Any]:
    found = mapping(answer).get("data")
    return found if isinstance(found, list) else []


def _path(session_id: str) -> str:
    return f"/api/session/{quote(session_id, safe='')}"


def _created(about: dict[str, Any]) -> int:
    return number(mapping(about.get("time")).get("created")) or 0


def _begin(session: SessionState, known: SessionState | None, waiting: list[HostEvent], *, is_new: bool) -> int:
    """From which time on the messages are compared: from the beginning of the newest recorded turn; 0 for all."""
    if known is None:
        return 0 if is_new or not waiting else waiting[0].t - 1
    turn = session.turn or session.last_turn
    if turn is not None:
        return turn.started_ms
    return 0 if session.born else session.last_ms


def _turn_of(messages: Iterable[dict[str, Any]], message: str) -> str | None:
    """The input that an assistant message answers."""
    user = None
    for each in messages:
        if each.get("type") == "user":
            user = text(each.get("id"))
        elif each.get("id") == message:
            return user
    return None


def _is_elsewhere(session: SessionState, messages: list[dict[str, Any]], scope: Scope) -> bool:
    """Whether another process may run the session's open turn, if this service does not know the session as active."""
    turn = session.turn
    if turn is not None and turn.pid is not None:
        return turn.pid != scope.pid and still_runs(turn.pid, turn.started_ms)
    # What this service's process began has an end, so what is newer than the process and has none is another's.
    newest = max((_created(message) for message in messages), default=0)
    return 0 < scope.started_ms < newest
