"""Serves a recording of OpenCode 2 on the routes of the original service, so that a sidecar reads it in the same way.

A recording is a JSON Lines file. A line is a live event as the service sent it, or an object that holds such an event
in its field ``data`` or ``ev``. ``{"session": …}`` is what the service's API said about a session at the end, and
``{"of": ID, "log": […]}`` is a session's durable log. Both kinds of lines may be missing, because a service may keep no
log. Other lines are skipped.
"""

from __future__ import annotations

import hmac
import json
import threading
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from bridge.opencode.capture.shapes import mapping, text
from bridge.opencode.capture.v2.shapes import HostEvent, ask_of, read_event, session_info

Row = dict[str, Any]

HEARTBEAT_SECONDS: Final = 15.0
_CLOSE_SECONDS: Final = 0.02
"""Maximum number of seconds that closing may take."""

ASKS: Final = ("permission", "form", "question")


@dataclass(frozen=True, slots=True)
class ServiceRecording:
    """``rows``: the live events, then the events that are only in the durable logs. ``skipped``: the number of lines
    that were skipped.
    """

    digest: str
    version: str
    rows: list[tuple[Row, HostEvent]]
    logs: dict[str, list[tuple[Row, HostEvent]]]
    infos: dict[str, Row]
    skipped: int

    def is_in_order(self, place: int) -> bool:
        """Whether a reader must have read everything up to and including this row before the next row is played.

        True for an ask, because asks are in no log, so only its place in the stream shows when it happened; and for the
        row before a deletion, because a deleted session can no longer be read.
        """
        event = self.rows[place][1]
        following = self.rows[place + 1][1].name if place + 1 < len(self.rows) else "deleted"
        return (event.seq is None and ask_of(event) is not None) or following == "deleted"


def read_service_recording(content: bytes) -> ServiceRecording | None:
    """Parse a recording of a service; ``None`` if the content is not such a recording, because a line has a hook or no
    line has an event."""
    live: dict[str, tuple[Row, HostEvent]] = {}
    logged: dict[str, tuple[Row, HostEvent]] = {}
    infos: dict[str, Row] = {}
    version, skipped = "", 0
    for line in content.splitlines():
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(told, dict) or {"hook", "input"} <= told.keys():
            return None
        version = text(told.get("opencode")) or version
        found = [one for each in (told, told.get("data"), told.get("ev")) if (one := _event(each)) is not None]
        if found:
            row, event = found[0]
            live.setdefault(event.key, (row, event))
        elif isinstance(told.get("log"), list):
            rows = [one for each in told["log"] if (one := _event(each)) is not None]
            logged |= {event.key: (row, event) for row, event in rows if event.seq is not None}
        elif (named := text(mapping(told.get("session")).get("id"))) is not None:
            infos[named] = told["session"]
        elif "opencode" not in told:
            skipped += 1
    if not live and not logged:
        return None
    left = sorted((one for key, one in logged.items() if key not in live), key=lambda one: one[1].t)
    logs: dict[str, list[tuple[Row, HostEvent]]] = {}
    kept = {event.session for _, event in logged.values()}
    for row, event in sorted({**live, **logged}.values(), key=lambda one: one[1].seq or 0):
        if event.seq is not None and event.session in kept:
            logs.setdefault(event.session or "", []).append((row, event))
    return ServiceRecording(sha256(content).hexdigest(), version, [*live.values(), *left], logs, infos, skipped)


def _event(row: Any) -> tuple[Row, HostEvent] | None:
    event = read_event(row) if isinstance(row, dict) and isinstance(row.get("id"), str) else None
    return (row, event) if event is not None else None


class RecordedService:
    """Serves the events of a recording on loopback, as far as ``show`` has allowed. Use it as a context manager.

    The service answers the requests that a reader makes, and answers all other requests with 404.
    """

    def __init__(self, recording: ServiceRecording, password: str) -> None:
        self.recording = recording
        self._login = "Basic " + b64encode(f"opencode:{password}".encode()).decode()
        self.shown = 0
        """How many rows of the recording have been played so far."""
        self._news, self._is_closed = threading.Condition(), False
        self._reached: dict[str, int] = {}
        begun = {
            event.session or "": session_info(event.data) for _, event in recording.rows if event.name == "created"
        }
        ids = begun.keys() | recording.infos.keys()
        self._infos = {each: {**begun.get(each, {}), **recording.infos.get(each, {}), "id": each} for each in ids}
        """The sessions that are not deleted. A reader may know all of them from an earlier play."""
        self._listed = ids - begun.keys()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_CLOSE_SECONDS,), daemon=True)

    def __enter__(self) -> RecordedService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._news:
            self._is_closed = True
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """The port on which the service listens."""
        return int(self._server.server_address[1])

    def show(self, count: int) -> None:
        """Play the rows up to number ``count``: from now on, readers can see these events."""
        with self._news:
            for _, event in self.recording.rows[self.shown : count]:
                session = event.session or ""
                if event.seq is not None:
                    self._reached[session] = max(self._reached.get(session, -1), event.seq)
                if event.name == "created":
                    self._listed.add(session)
                elif event.name == "deleted":
                    self._infos.pop(session, None)
            self.shown = max(self.shown, count)
            self._news.notify_all()

    # --- answers to requests, called in the server's threads ---

    def is_known(self, login: str) -> bool:
        """Whether a request has the password."""
        return hmac.compare_digest(login.encode(), self._login.encode())

    def answer(self, path: str) -> Any:
        """The JSON answer to a ``GET``; ``None`` if nothing has this path."""
        with self._news:
            infos = dict(self._infos)
            listed = [info for session, info in infos.items() if session in self._listed]
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["api", "session"]:
                return {"data": listed, "cursor": {}}
            case ["api", "session", session] if session in infos:
                return {"data": infos[session]}
            case ["api", "session", session, kind] if session in infos and kind in ASKS:
                return {"data": []}
        return None

    def log(self, path: str, after: int) -> list[Row] | None:
        """The rows of a session's durable log after a number; ``None`` if the session does not exist."""
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["api", "experimental", "session", session, "log"]:
                with self._news:
                    reached = self._reached.get(session, -1)
                    if session not in self._infos:
                        return None
                rows = [row for row, event in self.recording.logs.get(session, []) if after < (event.seq or 0)]
                rows = [row for row in rows if row["durable"]["seq"] <= reached]
                return [*rows, {"type": "log.synced", "aggregateID": session, "seq": max(reached, 0)}]
        return None

    def next_rows(self, place: int) -> list[Row] | None:
        """Wait for rows after ``place``; empty if there are none for a while, ``None`` at the end."""
        with self._news:
            self._news.wait_for(lambda: self._is_closed or self.shown > place, HEARTBEAT_SECONDS)
            return None if self._is_closed else [row for row, _ in self.recording.rows[place : self.shown]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing, because an error only means that the reader has disconnected, and it may connect again."""


def _handler(service: RecordedService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing, because the terminal shows the command's output."""

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if not service.is_known(self.headers.get("Authorization", "")):
                return self._begin(401)
            if address.path == "/api/event":
                return self._events()
            after = parse_qs(address.query).get("after", ["-1"])[0]
            if after.removeprefix("-").isdecimal() and (rows := service.log(address.path, int(after))) is not None:
                self._begin(200)
                self.wfile.write(b"".join(_line(row) for row in rows))
                return None
            answer = service.answer(address.path)
            self._begin(404 if answer is None else 200)
            self.wfile.write(b"" if answer is None else json.dumps(answer).encode())
            return None

        def _events(self) -> None:
            self._begin(200)
            self.wfile.write(_line({"type": "server.connected", "data": {}}))
            place = 0
            while (rows := service.next_rows(place)) is not None:
                self.wfile.write(b"".join(_line(row) for row in rows) or b": heartbeat\n\n")
                place += len(rows)

        def _begin(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Connection", "close")
            self.end_headers()

    return Handler


def _line(row: Row) -> bytes:
    return b"data: " + json.dumps(row).encode() + b"\n\n"
