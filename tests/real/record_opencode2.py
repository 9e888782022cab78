"""Make the recordings of OpenCode 2 in ``tests/recordings/opencode2``.

    python -m tests.real.record_opencode2 [NAME…]

One file for each scenario, JSON lines: a header ``{"opencode", "shows"}``, then the service's live events as its
``/api/event`` sent them, in order, without catalog noise. ``{"session": …}`` rows are what ``GET /api/session/ID`` said
at the end, and ``{"log": [seq, …], "of": ID}`` what its durable log held.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.real.model_server import ModelServer
from tests.real.opencode2 import Api2Error, RealOpenCode2
from tools.install_opencode import VERSION_2, binary_path

PLACE = Path(__file__).parents[1] / "recordings" / "opencode2"

_NOISE = re.compile(r"plugin\.added|server\.|.*\.updated$|models-dev|filesystem|pty\.|.*catalog.*|.*reference.*")
_KEPT = frozenset({"session.instructions.updated", "session.usage.updated"})

CONFIG = {
    "snapshot": False,
    "permission": {"bash": {"*": "allow", "printf *": "ask"}, "shell": {"*": "allow", "printf *": "ask"}},
}


class Feed:
    """The live events of a service since it was entered."""

    def __init__(self, client: RealOpenCode2) -> None:
        self.events: list[dict[str, Any]] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
        self._connection.request("GET", "/api/event", headers=client.credentials())
        self._answer = self._connection.getresponse()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while line := self._answer.readline():
                if line.startswith(b"data: "):
                    event = json.loads(line.removeprefix(b"data: "))
                    if event["type"] in _KEPT or not _NOISE.fullmatch(event["type"]):
                        self.events.append(event)
        except (OSError, ValueError, http.client.HTTPException, AttributeError):
            return  # the service is gone

    def saw(self, type_: str, count: int = 1) -> bool:
        return sum(event["type"] == type_ for event in self.events) >= count

    def last(self, type_: str) -> dict[str, Any]:
        return [event for event in self.events if event["type"] == type_][-1]


Scenario = Callable[[RealOpenCode2, ModelServer, Feed], "Feed | None"]


def call(tool: str, **arguments: Any) -> str:
    return f"CALL:{tool} {json.dumps(arguments)}"


def _until(client: RealOpenCode2, feed: Feed, type_: str, count: int = 1) -> None:
    client.until(lambda: feed.saw(type_, count), type_)


def _turn(client: RealOpenCode2, text: str, session: str | None = None) -> str:
    session = session or client.new_session()
    client.prompt(session, text)
    client.wait(session)
    return session


def chat(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Two prompts, the second with reasoning."""
    session = _turn(client, "SAY:hello there")
    _until(client, feed, "session.renamed")
    _turn(client, "REASON:let me think SAY:the answer", session)


def tools(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A file written and edited, a command that fails, an unknown tool, two commands in parallel."""
    session = _turn(client, call("write", path="a.txt", content="one\ntwo\n"))
    _turn(client, call("edit", path="a.txt", oldString="two", newString="three"), session)
    _turn(client, call("shell", command="echo out; exit 3", description="d"), session)
    _turn(client, call("nosuch", x=1), session)
    both = f"{call('shell', command='sleep 0.4; echo slow')} {call('shell', command='echo fast')}"
    _turn(client, both, session)
    _turn(client, call("read", path="missing.txt"), session)


def subagent(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A child session, and its deletion with its parent."""
    session = _turn(client, call("subagent", agent="general", description="child", prompt="SAY:from the child"))
    client.api("DELETE", f"/api/session/{session}")
    _until(client, feed, "session.deleted", 2)


def subagents(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Two child sessions at once, whose calls differ in the prompt alone."""
    one, two = (
        call("subagent", agent="general", description="child", prompt=f"SAY:from {name}") for name in ("one", "two")
    )
    _turn(client, f"{one} {two}")


def permission(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A command allowed once, one rejected, one rejected with a message."""
    session = client.new_session()
    for number, reply in enumerate(
        ({"reply": "once"}, {"reply": "reject"}, {"reply": "reject", "message": "not now"}), 1
    ):
        client.prompt(session, call("shell", command=f"printf {number}"))
        _until(client, feed, "permission.asked", number)
        asked = feed.last("permission.asked")["data"]["id"]
        client.api("POST", f"/api/session/{session}/permission/{asked}/reply", reply)
        client.wait(session)


def question(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A question answered, and one dismissed."""
    one = {
        "question": "Which?",
        "header": "W",
        "options": [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}],
    }
    session = client.new_session()
    client.prompt(session, call("question", questions=[one]))
    _until(client, feed, "form.created")
    form = feed.last("form.created")["data"]["form"]
    reply = {"answer": {form["fields"][0]["key"]: "B"}}
    client.api("POST", f"/api/session/{session}/form/{form['id']}/reply", reply)
    client.wait(session)
    client.prompt(session, call("question", questions=[one]))
    _until(client, feed, "form.created", 2)
    form = feed.last("form.created")["data"]["form"]
    client.api("POST", f"/api/session/{session}/form/{form['id']}/cancel")
    client.wait(session)


def abort(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """An interrupt while the model streams, and one while a command runs."""
    session = client.new_session()
    client.prompt(session, "DRIP:200,0.05")
    _until(client, feed, "session.text.delta", 3)
    client.api("POST", f"/api/session/{session}/interrupt")
    client.wait(session)
    client.prompt(session, call("shell", command="sleep 30"))
    _until(client, feed, "session.tool.called")
    client.api("POST", f"/api/session/{session}/interrupt")
    client.wait(session)


def errors(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A refused request, one that works at the second try, an answer cut off, an unknown model."""
    session = _turn(client, "HTTPERR:400")
    _turn(client, "HTTPERR:503*1,0 SAY:at last", session)
    _turn(client, "CUT", session)
    other = str(
        client.api(
            "POST",
            "/api/session",
            {"model": {"id": "none", "providerID": "mock"}, "location": {"directory": str(client.project)}},
        )["data"]["id"]
    )
    _turn(client, "SAY:never", other)


def retry(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A provider that is overloaded, then answers."""
    _turn(client, "HTTPERR:503*2,0 SAY:at last")


def busy(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Prompts while a turn runs: one steers it, two are queued; a synthetic one; one that starts nothing."""
    session = client.new_session()
    client.prompt(session, f"{call('shell', command='sleep 0.5')} THEN: SAY:first done")
    _until(client, feed, "session.tool.called")
    client.prompt(session, "SAY:steered", delivery="steer")
    client.prompt(session, "SAY:queued one", delivery="queue")
    client.prompt(session, "SAY:queued two", delivery="queue")
    client.wait(session)
    client.api("POST", f"/api/session/{session}/synthetic", {"text": "SAY:a note", "metadata": {"durable_stream": 1}})
    client.wait(session)
    client.prompt(session, "SAY:only admitted", resume=False)


def compaction(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A compaction that a person asked for, and a prompt after it."""
    session = _turn(client, "SAY:long talk")
    client.api("POST", f"/api/session/{session}/compact", {})
    _until(client, feed, "session.compaction.ended")
    client.wait(session)
    _turn(client, "SAY:after it", session)


def overflow(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Automatic compactions: before an answer, between two steps, and after the provider refused the context."""
    session = _turn(client, "USAGE:31000 SAY:long talk")
    _turn(client, "SAY:after it", session)
    _turn(client, f"USAGE:31000 {call('shell', command='echo x')} THEN: SAY:after the tool", session)
    _turn(client, "CTXERR SAY:at last", session)


def shell(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A command that a person runs, then a prompt that is taken back, a fork, and a renaming."""
    session = _turn(client, "SAY:hello")
    client.api("POST", f"/api/session/{session}/shell", {"command": "echo by hand"})
    _until(client, feed, "session.shell.ended")
    message = client.prompt(session, "SAY:to be undone")
    client.wait(session)
    client.api("POST", f"/api/session/{session}/revert/stage", {"messageID": message})
    _turn(client, "SAY:instead", session)
    fork = client.api("POST", f"/api/session/{session}/fork", {})["data"]["id"]
    _turn(client, "SAY:in the fork", fork)
    client.api("POST", f"/api/session/{session}/rename", {"title": "named by hand"})
    _until(client, feed, "session.renamed")


def crash(client: RealOpenCode2, model: ModelServer, feed: Feed) -> Feed:
    """The service killed while a command runs and a prompt is queued; the next service goes on."""
    session = client.new_session()
    client.prompt(session, call("shell", command="sleep 30"))
    _until(client, feed, "session.tool.called")
    client.prompt(session, "SAY:queued", delivery="queue")
    _until(client, feed, "session.input.admitted", 2)
    client.kill9()
    client.start()
    again = Feed(client)
    again.events = feed.events
    _turn(client, "SAY:back again", session)
    return again


def sigterm(client: RealOpenCode2, model: ModelServer, feed: Feed) -> Feed:
    """The service stopped while a command runs; the next service goes on with the turn by itself."""
    session = client.new_session()
    client.prompt(session, call("shell", command="sleep 30"))
    _until(client, feed, "session.tool.called")
    client.terminate()
    client.start()
    again = Feed(client)
    again.events[:0] = feed.events
    client.until(lambda: "session.execution.succeeded" in [row["type"] for row in client.log_of(session)], "its end")
    return again


SCENARIOS: tuple[Scenario, ...] = (
    chat, tools, subagent, subagents, permission, question, abort, errors, retry, busy, compaction, overflow,
    shell, crash, sigterm,
)  # fmt: skip


def record(scenario: Scenario) -> None:
    name = getattr(scenario, "__name__", "")
    with ModelServer() as model, RealOpenCode2(binary_path(VERSION_2), model.port, config=CONFIG) as client:
        feed = Feed(client)
        feed = scenario(client, model, feed) or feed
        ids = list(dict.fromkeys(e["data"]["sessionID"] for e in feed.events if "sessionID" in e["data"]))
        rows: list[dict[str, Any]] = [{"opencode": VERSION_2, "shows": scenario.__doc__}, *feed.events]
        for session in ids:
            try:
                rows.append({"session": client.api("GET", f"/api/session/{session}")["data"]})
                log = client.log_of(session)
                rows.append({"log": log, "of": session})
            except Api2Error as error:
                rows.append({"session": None, "of": session, "status": error.status})
        text = "".join(f"{json.dumps(row)}\n" for row in rows).replace(str(client.project), "/work/project")
        PLACE.mkdir(exist_ok=True)
        (PLACE / f"{name}.jsonl").write_text(text.replace(str(client.root), "/work"))


if __name__ == "__main__":
    for each in SCENARIOS:
        if not sys.argv[1:] or getattr(each, "__name__", "") in sys.argv[1:]:
            record(each)
