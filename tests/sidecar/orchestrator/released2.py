"""A fake of the service of a released OpenCode 2, of which no program was available: it answers only its routes.

Source of the routes and of their bodies: ``packages/protocol/src/groups/session.ts`` of ``anomalyco/opencode`` after
the release, read and not run. That ``decision`` replaced ``reply`` is from observations of 2.0.24.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

_ROUTES: Final = {
    "POST /api/session": "create",
    "GET /api/session/active": "list_active",
    "GET /api/session/([^/]+)": "get",
    "PATCH /api/session/([^/]+)": "update",
    "POST /api/session/([^/]+)/prompt": "prompt",
    "POST /api/session/([^/]+)/agent": "switch",
    "POST /api/session/([^/]+)/model": "switch",
    "POST /api/session/([^/]+)/interrupt": "interrupt",
    "GET /api/session/([^/]+)/inbox": "list_inbox",
    "GET /api/session/([^/]+)/message": "list_messages",
    "GET /api/session/([^/]+)/message/([^/]+)": "message",
    "GET /api/session/([^/]+)/permission": "list_permissions",
    "POST /api/session/([^/]+)/permission/([^/]+)/reply": "reply",
    "GET /api/session/([^/]+)/form": "list_forms",
    "POST /api/session/([^/]+)/form/([^/]+)/reply": "fill",
    "DELETE /api/session/([^/]+)/form/([^/]+)": "cancel",
}
"""Method and path → what answers it. The first match counts."""


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class FakeReleased:
    """``sessions`` are its sessions; ``requests`` what it was asked, and ``settled`` what became of its asks."""

    def __init__(self) -> None:
        self.sessions: dict[str, Json] = {}
        self.inbox: dict[str, list[Json]] = {}
        self.messages: dict[str, list[Json]] = {}
        self.permissions: dict[str, Json] = {}
        self.forms: dict[str, Json] = {}
        self.settled: dict[str, Json | None] = {}
        self.active: set[str] = set()
        self.drops_titles = False
        self.requests: list[str] = []
        self._turn = threading.Lock()

    def add(self, session: str, directory: str, **about: Any) -> None:
        self.sessions[session] = {"id": session, "location": {"directory": directory}, **about}
        self.inbox[session], self.messages[session] = [], []

    def answer(self, method: str, path: str, body: Json) -> tuple[int, Any]:
        """The status and the body of an answer."""
        path = path.partition("?")[0]
        with self._turn:
            self.requests.append(f"{method} {path}")
            for route, name in _ROUTES.items():
                if found := re.fullmatch(route, f"{method} {path}"):
                    try:
                        made = getattr(self, name)(*found.groups(), body)
                    except _Refused as refused:
                        return refused.status, {}
                    return (204, None) if made is None else (200, made)
            return 404, None

    # --- what answers a route ---

    def create(self, body: Json) -> Json:
        if body["id"] not in self.sessions:
            parent = body.get("parentID")
            location = body["location"] if parent is None else self._session(parent)["location"]
            title = None if self.drops_titles else body.get("title")
            about = {"parentID": parent, "metadata": body.get("metadata"), "model": body.get("model")}
            self.add(body["id"], location["directory"], title=title or "New session", **about)
        return {"data": self.sessions[body["id"]]}

    def get(self, session: str, _: Json) -> Json:
        return {"data": self._session(session)}

    def list_active(self, _: Json) -> Json:
        return {"data": {session: {"type": "running"} for session in self.active}}

    def update(self, session: str, body: Json) -> None:
        self._session(session).update(body)

    def prompt(self, session: str, body: Json) -> Json:
        self._session(session)
        if body["id"] not in {each["id"] for each in self.inbox[session] + self.messages[session]}:
            self.inbox[session].append(body)
        return {"data": body}

    def switch(self, session: str, body: Json) -> None:
        self._session(session).update(body)

    def interrupt(self, session: str, _: Json) -> Json:
        self._session(session)
        return {"interrupted": session in self.active}

    def list_inbox(self, session: str, _: Json) -> Json:
        self._session(session)
        return {"data": self.inbox[session]}

    def list_messages(self, session: str, _: Json) -> Json:
        self._session(session)
        return {"data": self.messages[session][::-1], "cursor": {}}

    def message(self, session: str, message: str, _: Json) -> Json:
        self._session(session)
        found = [each for each in self.messages[session] if each["id"] == message]
        if not found:
            raise _Refused(404)
        return {"data": found[0]}

    def list_permissions(self, session: str, _: Json) -> Json:
        return {"data": list(self.permissions.values())}

    def list_forms(self, session: str, _: Json) -> Json:
        return {"data": list(self.forms.values())}

    def reply(self, session: str, request: str, body: Json) -> None:
        if body.get("decision") not in ("once", "always", "reject"):
            raise _Refused(400)
        self._settle(self.permissions, request, {"decision": body["decision"], "message": body.get("message")})

    def fill(self, session: str, form: str, body: Json) -> None:
        self._settle(self.forms, form, body["answer"])

    def cancel(self, session: str, form: str, _: Json) -> None:
        self._settle(self.forms, form, None)

    def _settle(self, open_: dict[str, Json], request: str, answer: Json | None) -> None:
        if request in self.settled:
            raise _Refused(409)
        if open_.pop(request, None) is None:
            raise _Refused(404)
        self.settled[request] = answer

    def _session(self, session: str) -> Json:
        if session not in self.sessions:
            raise _Refused(404)
        return self.sessions[session]


@contextmanager
def registered(fake: FakeReleased, path: Path) -> Iterator[Path]:
    """The fake listens on loopback, and ``path`` names it as a service's registration does."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing; the requests are in ``FakeReleased.requests``."""

        def any_method(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, made = fake.answer(self.command, self.path, json.loads(body) if body else {})
            content = b"" if made is None else json.dumps(made).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    for method in ("GET", "POST", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.any_method)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    path.write_text(json.dumps({"id": "i", "version": "2.2.0", "url": url, "pid": os.getpid(), "password": "secret"}))
    path.chmod(0o600)
    try:
        yield path
    finally:
        path.unlink()
        server.shutdown()
        server.server_close()
        thread.join()
