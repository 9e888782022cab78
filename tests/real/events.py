"""OpenCode's event stream, read in a thread, so that tests wait for events instead of times."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from tests.real.model_server import HANG_LIMIT_S

Event = dict[str, Any]


class EventStream:
    """The events ``{id, type, properties}`` of one directory, in order of arrival.

    Connected when the constructor returns; ``events`` has everything after that.
    """

    def __init__(self, port: int, headers: dict[str, str], log: Callable[[], str]) -> None:
        self.events: list[Event] = []
        self.ended = False
        """True once OpenCode (or ``close``) ended the stream; no event comes any more."""
        self._log = log
        self._changed = threading.Condition()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_LIMIT_S)
        try:
            self._connection.request("GET", "/event", headers=headers)
            # Kept because the connection lets go of its socket when a response closes it at its end.
            self._socket: socket.socket = self._connection.sock
            self._response = self._connection.getresponse()
            self._socket.settimeout(None)
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._read, name="opencode-events", daemon=True)
        self._thread.start()
        self.wait_for(lambda event: event["type"] == "server.connected")

    def close(self) -> None:
        """Disconnect and wait for the reader. Idempotent."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            self.ended = True  # OpenCode hung up first
        self._thread.join(HANG_LIMIT_S)
        self._response.close()
        self._connection.close()

    def mark(self) -> int:
        """The number of events so far; pass it as ``since`` to wait for later ones only."""
        with self._changed:
            return len(self.events)

    def wait_for(self, predicate: Callable[[Event], bool], timeout: float = HANG_LIMIT_S, since: int = 0) -> Event:
        """The first event from index ``since`` on that satisfies ``predicate``, also if it already arrived.

        Raises:
            TimeoutError: none came within ``timeout`` seconds, or the stream ended without one.
        """
        at = since
        found: Event | None = None

        def look() -> bool:
            nonlocal at, found
            while at < len(self.events) and found is None:
                if predicate(self.events[at]):
                    found = self.events[at]
                at += 1
            return found is not None or self.ended

        with self._changed:
            self._changed.wait_for(look, timeout)
            if found is not None:
                return found
            seen = ", ".join(event["type"] for event in self.events[since:])
        state = "the stream ended" if self.ended else f"{timeout} s passed"
        raise TimeoutError(f"{state} without the expected event; seen: {seen}\n{self._log()}")

    def wait_type(self, kind: str, session: str, since: int = 0, timeout: float = HANG_LIMIT_S) -> Event:
        """The first event of a type in a session, e.g. ``session.idle``, from index ``since`` on."""
        return self.wait_for(
            lambda event: event["type"] == kind and event["properties"].get("sessionID") == session, timeout, since
        )

    def of(self, session: str, since: int = 0) -> list[Event]:
        """The events of one session so far."""
        with self._changed:
            return [e for e in self.events[since:] if e["properties"].get("sessionID") == session]

    def _read(self) -> None:
        try:
            for line in self._response:
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    with self._changed:
                        self.events.append(event)
                        self._changed.notify_all()
        except (OSError, http.client.HTTPException, ValueError):
            pass  # the server was killed, or the line was cut by that
        finally:
            with self._changed:
                self.ended = True
                self._changed.notify_all()
