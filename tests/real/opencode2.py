"""The real OpenCode 2, isolated and offline, as the tests drive it: its background service and its HTTP API."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.real.model_server import HANG_LIMIT_S, MODEL_ID
from tests.real.opencode import POLL_S, RealOpenCode, free_port

Json = dict[str, Any]

_REST_S = 0.05
"""Between two looks, each of which costs the service a request or two."""


class RealOpenCode2(RealOpenCode):
    """One isolated OpenCode 2: its service, started as its terminal starts it, and what its API says.

    The arguments are those of ``RealOpenCode``; its configuration is in the format of OpenCode 1, which 2 converts.
    Servers on one ``root`` share the database.
    """

    registers = True
    """False for a server that no file names, as ``opencode serve`` starts it."""

    def start(self) -> None:
        """Start the service on a free port and return when it is registered and ready."""
        self._spawn()
        deadline = time.monotonic() + HANG_LIMIT_S
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            if self._is_ready():
                return
            time.sleep(POLL_S)
        raise RuntimeError(f"opencode2 serve did not come up:\n{self.log_tail()}")

    def _spawn(self) -> None:
        self._starts += 1
        self.port = free_port()
        more = ["--service"] if self.registers else []
        self._launch("serve", "--hostname", "127.0.0.1", "--port", str(self.port), *more)

    def _is_ready(self) -> bool:
        try:
            if self.registers:
                is_up = json.loads(self.registration.read_bytes())["pid"] == self.pid
            else:
                is_up = "server password " in self.stdout_path.read_text()
            return bool(is_up and self.api("GET", "/api/info"))
        except (OSError, ValueError, http.client.HTTPException, Api2Error):
            return False

    @property
    def registration(self) -> Path:
        """The file in which the service says where it listens."""
        return Path(self.environment()["XDG_STATE_HOME"]) / "opencode" / "service.json"

    def stop_in(self) -> float:
        """Send SIGTERM to the service and wait for its end; return how many seconds that took."""
        assert self.process is not None
        began = time.monotonic()
        self._end(signal.SIGTERM)
        return time.monotonic() - began

    # The API

    def api(self, method: str, path: str, body: Json | None = None, *, timeout: float = HANG_LIMIT_S) -> Any:
        """One request to the service; the decoded answer, or ``None`` if it is empty.

        Raises:
            Api2Error: the status is not 2xx.
        """
        headers = {**self.credentials(), "content-type": "application/json"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status // 100 != 2:
            raise Api2Error(answer.status, text[:500])
        return json.loads(text) if text else None

    def credentials(self) -> dict[str, str]:
        """The header that the service asks for, from its registration, or from what it printed."""
        if self.registers:
            password = json.loads(self.registration.read_bytes())["password"]
        else:
            password = self.stdout_path.read_text().partition("server password ")[2].split("\n")[0]
        token = base64.b64encode(f"opencode:{password}".encode()).decode()
        return {"authorization": f"Basic {token}"}

    def new_session(self, directory: Path | None = None) -> str:
        """A session in the project, with the scripted model."""
        body = {
            "model": {"id": MODEL_ID, "providerID": "mock"},
            "location": {"directory": str(directory or self.project)},
        }
        return str(self.api("POST", "/api/session", body)["data"]["id"])

    def prompt(self, session: str, text: str, **more: Any) -> str:
        """Admit a prompt; returns the id of its message at once."""
        return str(self.api("POST", f"/api/session/{session}/prompt", {"text": text, **more})["data"]["id"])

    def wait(self, session: str) -> None:
        """Wait until the session is idle and no admitted prompt is waiting to run."""

        def is_idle() -> bool:
            # In this order: a prompt leaves the inbox only after its session has become active.
            waiting = self.api("GET", f"/api/session/{session}/inbox")["data"]
            return not waiting and session not in self.api("GET", "/api/session/active")["data"]

        try:
            self.until(is_idle, f"{session} is idle")
        except AssertionError:
            inbox, active = self.api("GET", f"/api/session/{session}/inbox"), self.api("GET", "/api/session/active")
            newest = self.messages(session)[-3:]
            print(f"not idle: inbox {inbox}, active {active}, newest {newest}", file=self.stdout_path.open("a"))
            raise

    def messages(self, session: str) -> list[Json]:
        """All messages of a session, oldest first, as the service's API has them."""
        path, found = f"/api/session/{session}/message", []
        page = self.api("GET", f"{path}?order=asc&limit=200")
        while page["data"]:
            found += page["data"]
            if (following := page["cursor"].get("next")) is None:
                break
            page = self.api("GET", f"{path}?limit=200&cursor={following}")
        return found

    def exists(self, session: str) -> bool:
        """Whether the service has a session."""
        try:
            self.api("GET", f"/api/session/{session}")
        except Api2Error as error:
            if error.status == 404:
                return False
            raise
        return True

    def progress(self, session: str) -> int:
        """A number that grows with each message, part, started and ended call of a session."""
        messages = self.messages(session)
        parts = [part for message in messages for part in message.get("content", [])]
        states = [len(part.get("time", {})) for part in parts]
        return len(messages) + len(parts) + sum(states) + sum(len(message["time"]) for message in messages)

    def until(self, check: Callable[[], Any], what: str) -> Any:
        """Wait until ``check`` is true and return its value."""
        deadline = time.monotonic() + HANG_LIMIT_S
        while time.monotonic() < deadline:
            if found := check():
                return found
            time.sleep(_REST_S)
        raise AssertionError(f"it did not happen: {what}")


class Api2Error(Exception):
    """The service answered with a status that is not 2xx."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status
