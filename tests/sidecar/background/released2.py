"""A fake of the service of OpenCode 2.0.15: it answers as that service was measured to, and runs no model.

``tests/real/test_host2.py`` runs the same host on the real service.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from tests.answering import AnsweringServer

Json = dict[str, Any]

_ROUTES: Final = {
    "POST /api/session": "create",
    "GET /api/session/active": "list_active",
    "GET /api/session/([^/]+)": "get",
    "POST /api/session/([^/]+)/prompt": "prompt",
    "POST /api/session/([^/]+)/agent": "switch",
    "POST /api/session/([^/]+)/model": "switch",
    "POST /api/session/([^/]+)/interrupt": "interrupt",
    "POST /api/session/([^/]+)/synthetic": "synthetic",
    "GET /api/session/([^/]+)/inbox": "list_inbox",
    "DELETE /api/session/([^/]+)/inbox/([^/]+)": "withdraw",
    "GET /api/session/([^/]+)/message": "list_messages",
    "GET /api/session/([^/]+)/message/([^/]+)": "message",
    "GET /api/session/([^/]+)/permission": "list_permissions",
    "POST /api/session/([^/]+)/permission/([^/]+)/reply": "reply",
    "GET /api/session/([^/]+)/form": "list_forms",
    "POST /api/session/([^/]+)/form/([^/]+)/reply": "fill",
    "DELETE /api/session/([^/]+)/form/([^/]+)": "cancel",
    "GET /api/shell": "list_shells",
    "POST /api/shell": "start_shell",
    "DELETE /api/shell/([^/]+)": "end_shell",
    "PUT /api/session/([^/]+)/environment": "set_variables",
    "GET /api/location": "locate",
    "DELETE /api/debug/location": "evict",
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
        self.shells: list[Json] = []
        """The commands that run, each with the ``directory`` of its session."""
        self.variables: dict[str, dict[str, str]] = {}
        self.begun: dict[str, dict[str, str]] = {}
        """The variables with which each command began."""
        self.unknown = ""
        """Requests that match this expression are unknown to the service."""
        self.page: bytes | None = None
        """What the service answers to unknown requests instead of 404."""
        self.requests: list[str] = []
        self.traces: set[str] = set()
        """The traces in which it was asked."""
        self._query: dict[str, str] = {}
        self._turn = threading.Lock()

    def add(self, session: str, directory: str, **about: Any) -> None:
        self.sessions[session] = {"id": session, "location": {"directory": directory}, **about}
        self.inbox[session], self.messages[session] = [], []

    def answer(self, method: str, path: str, body: Json) -> tuple[int, Any]:
        """The status and the body of an answer."""
        path, _, query = path.partition("?")
        with self._turn:
            self.requests.append(f"{method} {path}")
            if self.unknown and re.fullmatch(self.unknown, f"{method} {path}"):
                return (404, None) if self.page is None else (200, self.page)
            self._query = dict(parse_qsl(query))
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
        """A parent is dropped; an id that is known is answered with its session."""
        if body["id"] not in self.sessions:
            about = {name: body[name] for name in ("title", "metadata", "model") if name in body}
            self.add(body["id"], body["location"]["directory"], **about)
        return {"data": self.sessions[body["id"]]}

    def get(self, session: str, _: Json) -> Json:
        return {"data": self._session(session)}

    def list_active(self, _: Json) -> Json:
        return {"data": {session: {"type": "running"} for session in self.active}}

    def prompt(self, session: str, body: Json) -> Json:
        """An id that is known is answered with its message, and begins a turn, which is empty if nothing waits."""
        self._session(session)
        held = self.inbox[session] + self.messages[session]
        known = next((each for each in held if each["id"] == body.get("id")), None)
        if known is None:
            self.inbox[session].append(known := {"id": f"msg_made{len(held)}", **body, "type": "user"})
        elif known in self.messages[session] and body.get("resume", True):
            self.messages[session].append({"id": "msg_idle", "type": "idle", "outcome": "succeeded"})
        return {"data": known}

    def synthetic(self, session: str, body: Json) -> Json:
        self._session(session)
        self.inbox[session].append({**body, "type": "synthetic"})
        return {"data": body}

    def withdraw(self, session: str, message: str, _: Json) -> None:
        self.inbox[session] = [each for each in self.inbox[session] if each["id"] != message]

    def switch(self, session: str, body: Json) -> None:
        self._session(session).update(body)

    def interrupt(self, session: str, _: Json) -> Json:
        self._session(session)
        return {"interrupted": session in self.active}

    def list_inbox(self, session: str, _: Json) -> Json:
        self._session(session)
        return {"data": self.inbox[session]}

    def list_messages(self, session: str, _: Json) -> Json:
        """In pages; the cursor says the order, and the number of messages that were listed before."""
        self._session(session)
        limit, order = int(self._query["limit"]), self._query.get("order", "")
        if limit > 200 or (order and "cursor" in self._query):
            raise _Refused(400)
        order, _, begun = self._query.get("cursor", f"{order}:0").partition(":")
        listed, begin = self.messages[session][:: 1 if order == "asc" else -1], int(begun)
        following = {"next": f"{order}:{begin + limit}"} if begin + limit < len(listed) else {}
        return {"data": listed[begin : begin + limit], "cursor": following}

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
        if set(body) - {"decision", "message"} or body.get("decision") not in ("once", "always", "reject"):
            raise _Refused(400)
        if self.permissions.pop(request, None) is None:
            raise _Refused(404)  # also if it was answered
        self.settled[request] = body

    def fill(self, session: str, form: str, body: Json) -> None:
        self._settle(form, body["answer"])

    def cancel(self, session: str, form: str, _: Json) -> None:
        self._settle(form, None)

    def list_shells(self, _: Json) -> Json:
        return {"data": [each for each in self.shells if each["directory"] == self._query["location[directory]"]]}

    def start_shell(self, body: Json) -> Json:
        """Begins a command with the variables of its session."""
        self.begun[body["command"]] = self.variables.get(body["metadata"]["sessionID"], {"OF": "service"})
        return {"data": {"id": f"sh_begun_{len(self.begun)}"}}

    def set_variables(self, session: str, body: Json) -> None:
        self._session(session)
        self.variables[session] = body["variables"]

    def end_shell(self, shell: str, _: Json) -> None:
        """The session of a tool's command is told, and so a turn begins."""
        if shell.startswith("sh_begun_"):
            return
        (ended,) = [each for each in self.shells if each["id"] == shell]
        self.shells.remove(ended)
        self.active.add(ended["metadata"]["sessionID"])

    def locate(self, _: Json) -> Json:
        directory = self._query["location[directory]"]
        return {"directory": directory, "project": {"id": "project", "directory": directory}}

    def evict(self, _: Json) -> None:
        """Ends the commands of a directory, and tells nobody."""
        self.shells = [each for each in self.shells if each["directory"] != self._query["location[directory]"]]

    def _settle(self, form: str, answer: Json | None) -> None:
        if form in self.settled:
            raise _Refused(409)
        if self.forms.pop(form, None) is None:
            raise _Refused(404)
        self.settled[form] = answer

    def _session(self, session: str) -> Json:
        if session not in self.sessions:
            raise _Refused(404)
        return self.sessions[session]


class _Served(AnsweringServer):
    def __init__(self, fake: FakeReleased) -> None:
        super().__init__()
        self._fake = fake

    def answer(self, method: str, path: str, body: bytes, headers: Message) -> tuple[int, bytes, Mapping[str, str]]:
        self._fake.traces |= {headers["traceparent"]} if "traceparent" in headers else set()
        status, made = self._fake.answer(method, path, json.loads(body) if body else {})
        return status, made if isinstance(made, bytes) else b"" if made is None else json.dumps(made).encode(), {}


@contextmanager
def registered(fake: FakeReleased, path: Path) -> Iterator[Path]:
    """The fake listens on loopback, and ``path`` names it as a service's registration does."""
    with _Served(fake) as server:
        about = {"id": "i", "version": "2.0.15", "url": server.address, "pid": os.getpid(), "password": "secret"}
        path.write_text(json.dumps(about))
        path.chmod(0o600)
        try:
            yield path
        finally:
            path.unlink()
