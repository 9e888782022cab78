"""Scripted services of OpenCode 2, and a log that a reader fills from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from bridge.opencode.capture.v2.shapes import session_info
from bridge.opencode.capture.v2.translate import HostTranslator, Service
from sidecar.opencode2.http import ServiceError
from sidecar.opencode2.reader import Reader
from sidecar.opencode2.session_logs import Progress
from streams.identity import seeded_identity
from tests.bridge.opencode.playing import Log
from tests.bridge.opencode.playing2 import Recording, as_released, play2, summary

Row = dict[str, Any]


class FakeService:
    """The API of a service over what a recording says: its logs, and live events that the test sends."""

    def __init__(self, recording: Recording) -> None:
        self.sessions, self.logs = dict(recording.sessions), dict(recording.logs)
        self.live: asyncio.Queue[Row | None] = asyncio.Queue()
        self.asks: dict[str, list[Row]] = {}
        self.active: list[str] = []
        self.requests: list[str] = []

    async def get(self, path: str) -> Any:
        self.requests.append(path)
        match path.split("?")[0].split("/")[3:]:
            case []:
                return self._page(**dict(parse_qsl(path.partition("?")[2])))
            case ["active"]:
                return {"data": {session: {"type": "running"} for session in self.active}}
            case [session] if session in self.sessions:
                return {"data": self.sessions[session]}
            case [session, kind] if session in self.sessions:
                return {"data": self.asks.get(f"{session}/{kind}", [])}
        raise ServiceError(404)

    def _page(self, limit: str, cursor: str = "0") -> Row:
        """Some sessions, the last created ones first."""
        end = int(cursor) + int(limit)
        newest = sorted(self.sessions.values(), key=lambda info: -info.get("time", {}).get("created", 0))
        return {"data": newest[int(cursor) : end], "cursor": {"next": str(end)}}

    async def stream(self, path: str, silence: float = 0.0) -> AsyncGenerator[Any, None]:
        self.requests.append(path)
        if path == "/api/event":
            yield {"type": "server.connected", "data": {}}
            while (row := await self.live.get()) is not None:
                yield row
            return
        session, after = path.split("/")[4], int(path.partition("after=")[2] or -1)
        if session not in self.logs:
            raise ServiceError(404)
        for row in self.logs[session]:
            await asyncio.sleep(0)  # others run meanwhile, as they do while a real answer comes
            if row["type"] == "log.synced" or row["durable"]["seq"] > after:
                yield row


class Bench:
    """One log, and a reader of one service after the other."""

    def __init__(self, service: FakeService) -> None:
        self.service, self.log = service, Log()
        self.identity = seeded_identity(5)
        self.translator, self.progress = HostTranslator(self.identity, self.log.state()), Progress()
        self.writes = 0

    async def write(self) -> None:
        drained = self.translator.drain()
        await asyncio.sleep(0)
        self.log.append(drained.events)
        self.writes += bool(drained.events)

    def reader(self, id_: str = "service-1", place: str = "place", since_ms: int = 0, **options: Any) -> Reader:
        service = Service(id_, "0.0.0-next-16350", 4321, place)
        times = {"since_ms": since_ms, "began_ms": 2**52, "progress": self.progress, **options}
        return Reader(self.service, service, self.translator, self.write, **times)

    def restart(self) -> None:
        """Kill the sidecar: only the log is left."""
        self.translator, self.progress = HostTranslator(self.identity, self.log.state()), Progress()

    async def run(self, reader: Reader, *rows: Row) -> None:
        """Run a reader until it has taken the rows."""
        running = asyncio.create_task(reader.run())
        await asyncio.wait({running, asyncio.create_task(reader.caught_up.wait())}, return_when="FIRST_COMPLETED")
        for row in rows:
            self.service.live.put_nowait(row)
        for _ in range(50 + 20 * len(rows)):
            await asyncio.sleep(0)
        running.cancel()
        with suppress(asyncio.CancelledError, ExceptionGroup):
            await running

    def gaps(self) -> list[tuple[str, int, int, str]]:
        """The session, the first and the last number, and the reason of each gap."""
        found = [event.payload for event in self.log.events.values() if event.type == "capture.gap"]
        return [(gap["session"], gap["first_seq"], gap["last_seq"], gap["reason"]) for gap in found]

    def lines(self) -> list[str]:
        """The log's events, without asks."""
        player = play2("chat")
        player.log = self.log
        return [line for line in summary(player) if "workflow.checkpoint" not in line]


def lines_of(name: str) -> list[str]:
    return [line for line in summary(play2(name)) if "workflow.checkpoint" not in line]


def session_of(recording: Recording) -> str:
    return next(iter(recording.sessions))


class LoglessService(FakeService):
    """A service that numbers the events of its sessions and keeps none, as OpenCode 2 does since its release.

    Source: packages/core/src/bus.ts of anomalyco/opencode, 2.0.24: ``persist`` is off unless it is asked for, and no
    command asks. The log has only the newest number. Usage has a number and is not announced. Messages are kept.
    Events have the release's names.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._known, self.sessions, self.logs = self.sessions, {}, {}
        self.messages: dict[str, dict[str, Row]] = {}
        rows = {row["id"]: row for log in recording.logs.values() for row in log if "durable" in row}
        rows |= {row["id"]: row for row in recording.live if "durable" in row}
        live = [row["id"] for row in recording.live if "durable" in row]
        order = {id_: place for place, id_ in enumerate([*live, *rows])}
        self.rows = sorted(rows.values(), key=lambda row: (row["created"], order[row["id"]]))
        """All events, in their order."""

    def happen(self, row: Row, *, heard: bool = True) -> None:
        """Let an event happen, and announce it."""
        session, data = row["durable"]["aggregateID"], row["data"]
        if session not in self.sessions:
            info = session_info(data) if row["type"] == "session.created" else {}
            self.sessions[session] = {**info, **self._known.get(session, {}), "id": session, "title": info.get("title")}
        self.logs[session] = [{"type": "log.synced", "aggregateID": session, "seq": row["durable"]["seq"]}]
        messages, waiting = self.messages.setdefault(session, {}), self.asks.setdefault(f"{session}/inbox", [])
        if row["type"] == "session.input.admitted":
            waiting.append({"id": data["inputID"], "timeCreated": row["created"]})
        elif row["type"] == "session.renamed":
            self.sessions[session]["title"] = data["title"]
        elif row["type"] == "session.input.promoted":
            waiting[:] = [each for each in waiting if each["id"] != data["inputID"]]
            messages[data["inputID"]] = {"type": "user", "time": {"created": row["created"]}}
        elif row["type"].startswith("session.step.") and "assistantMessageID" in data:
            message = messages.setdefault(data["assistantMessageID"], {"type": "assistant", "time": {}})
            message["time"]["created" if row["type"] == "session.step.started" else "completed"] = row["created"]
        elif row["type"] == "session.deleted":
            del self.sessions[session], self.logs[session]
        if heard and row["type"] != "session.usage.recorded":
            self.live.put_nowait(as_released(row))

    async def get(self, path: str) -> Any:
        parts = path.split("?")[0].split("/")[3:]
        if len(parts) == 2 and parts[1] == "message" and parts[0] in self.sessions:
            return {"data": list(reversed(self.messages[parts[0]].values()))[:20], "cursor": {}}
        return await super().get(path)
