"""OpenCode's HTTP API, as the tests use it. Every method is one call and blocks until the answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.real.events import EventStream
from tests.real.model_server import HANG_LIMIT_S, MODEL_ID

DIRECTORY_HEADER = "x-opencode-directory"


class OpenCodeError(Exception):
    """OpenCode's API answered with an error; ``body`` is its JSON, or its text if it is not JSON."""

    def __init__(self, method: str, path: str, status: int, body: Any) -> None:
        super().__init__(method, path, status, body)
        self.status = status
        self.body = body

    def __str__(self) -> str:
        method, path, status, body = self.args
        return f"{method} {path} -> {status}: {body}"


class OpenCodeApi:
    """The API of the server at ``port`` on loopback, for the project directory ``project``."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.port = 0

    def log_tail(self) -> str:
        """The end of the server's log, for failure messages; empty if there is no log."""
        return ""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float = HANG_LIMIT_S,
        directory: Path | None = None,
    ) -> Any:
        """One call of OpenCode's HTTP API in the project (or ``directory``); its JSON, or None.

        Raises:
            OpenCodeError: OpenCode answered with an error.
            OSError: no answer (in ``timeout`` seconds).
        """
        if query:
            path += "?" + urlencode(query)
        headers = {DIRECTORY_HEADER: quote(str(directory or self.project))}
        if body is not None:
            headers["content-type"] = "application/json"
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            with connection.getresponse() as response:
                status, data = response.status, response.read()
        value = _decoded(data)
        if status >= 400:
            raise OpenCodeError(method, path, status, value)
        return value

    @contextmanager
    def events(self, directory: Path | None = None) -> Iterator[EventStream]:
        """The events of the project (or ``directory``) from now on; connected when entered."""
        stream = EventStream(self.port, {DIRECTORY_HEADER: quote(str(directory or self.project))}, self.log_tail)
        try:
            yield stream
        finally:
            stream.close()

    def create_session(self, title: str = "test", **body: Any) -> str:
        """Create a session and return its id. ``body``: ``parentID``, ``permission``, ``metadata``, …

        An empty title lets OpenCode ask the model for one.
        """
        return str(self.request("POST", "/session", ({"title": title} if title else {}) | body)["id"])

    def prompt(self, session: str, text: str, *, timeout: float = HANG_LIMIT_S, **body: Any) -> dict[str, Any]:
        """Prompt, wait for the end of the turn, and return the last assistant message ``{info, parts}``."""
        answer = self.request("POST", f"/session/{session}/message", _prompt(text, body), timeout=timeout)
        return dict(answer)

    def prompt_async(self, session: str, text: str, **body: Any) -> None:
        """Queue a prompt (204); it runs after those already running. ``body``: ``agent``, ``messageID``, …"""
        self.request("POST", f"/session/{session}/prompt_async", _prompt(text, body))

    def messages(self, session: str) -> list[dict[str, Any]]:
        """All messages ``{info, parts}`` of a session, oldest first."""
        return list(self.request("GET", f"/session/{session}/message"))

    def parts(self, session: str, kind: str | None = None) -> list[dict[str, Any]]:
        """All parts of a session in order, or those of one type ("tool", "text", …)."""
        return [part for message in self.messages(session) for part in message["parts"] if kind in (None, part["type"])]

    def session(self, session: str) -> dict[str, Any]:
        return dict(self.request("GET", f"/session/{session}"))

    def sessions(self) -> list[dict[str, Any]]:
        return list(self.request("GET", "/session"))

    def children(self, session: str) -> list[dict[str, Any]]:
        return list(self.request("GET", f"/session/{session}/children"))

    def status(self) -> dict[str, dict[str, Any]]:
        """The sessions that are not idle in this process, by id."""
        return dict(self.request("GET", "/session/status"))

    def abort(self, session: str) -> bool:
        return bool(self.request("POST", f"/session/{session}/abort"))

    def delete(self, session: str) -> bool:
        return bool(self.request("DELETE", f"/session/{session}"))

    def summarize(self, session: str) -> bool:
        """Compact the session and wait for the summary."""
        body = {"providerID": "mock", "modelID": MODEL_ID}
        return bool(self.request("POST", f"/session/{session}/summarize", body))

    def permissions(self) -> list[dict[str, Any]]:
        """The open permission requests."""
        return list(self.request("GET", "/permission"))

    def reply_permission(self, permission: str, reply: str, message: str | None = None) -> bool:
        """Answer a permission request: "once", "always" or "reject" (with a ``message`` that the model sees)."""
        body = {"reply": reply} | ({"message": message} if message else {})
        return bool(self.request("POST", f"/permission/{permission}/reply", body))

    def questions(self) -> list[dict[str, Any]]:
        """The open questions."""
        return list(self.request("GET", "/question"))

    def dispose(self) -> bool:
        """Dispose the project's instance: plugins get ``dispose``, and the next request loads them again."""
        return bool(self.request("POST", "/instance/dispose"))


def _prompt(text: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"parts": [{"type": "text", "text": text}], **body}


def _decoded(data: bytes) -> Any:
    if not data:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
