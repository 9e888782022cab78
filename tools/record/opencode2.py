"""Make the recordings of OpenCode 2 in ``tests/recordings/opencode2``.

    python -m tools.record.opencode2 [NAME…]

One file for each scenario: what the plugin in the service handed on (``DURABLE_STREAM_RECORD``), as ``play`` reads it.
The lines of the recorder begin with ``__``: a header ``__recording``, and for each session a ``__told`` with what the
service's own API said at the end: ``info`` (null if the session is deleted), ``messages`` and ``inbox``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.real.durable import PLUGIN, SHIM
from tests.real.model_server import ModelServer
from tests.real.opencode2 import Api2Error, RealOpenCode2
from tools.install_opencode import VERSION_2, binary_path

PLACE = Path(__file__).parents[2] / "tests" / "recordings" / "opencode2"

CONFIG = {
    "snapshot": False,
    "permission": {"bash": {"*": "allow", "printf *": "ask"}, "shell": {"*": "allow", "printf *": "ask"}},
}


class Feed:
    """What the plugin has handed on so far, after the first ``begin`` lines."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self.path, self._begin = path, begin

    @property
    def items(self) -> list[dict[str, Any]]:
        lines = self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []
        return [json.loads(line) for line in lines[self._begin :]]

    def from_now(self) -> Feed:
        """What the plugin will hand on."""
        return Feed(self.path, self._begin + len(self.items))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [item["input"] for item in self.items if item["hook"] == "service"]

    def sessions(self) -> list[str]:
        """The sessions of the events, in the order of their first event."""
        return list(dict.fromkeys(event["data"]["sessionID"] for event in self.events if "sessionID" in event["data"]))

    def families(self) -> list[list[str]]:
        """Each root session with its children."""
        created = [event["data"] for event in self.events if event["type"] == "session.created"]
        parents = {data["sessionID"]: data["parentID"] for data in created if "parentID" in data}
        roots = [each for each in self.sessions() if each not in parents]
        return [[root, *(child for child, parent in parents.items() if parent == root)] for root in roots]

    def saw(self, type_: str, count: int = 1) -> bool:
        return sum(event["type"] == type_ for event in self.events) >= count

    def last(self, type_: str) -> dict[str, Any]:
        return [event for event in self.events if event["type"] == type_][-1]


Scenario = Callable[[RealOpenCode2, ModelServer, Feed], None]


def call(tool: str, **arguments: Any) -> str:
    return f"CALL:{tool} {json.dumps(arguments)}"


def _until(client: RealOpenCode2, feed: Feed, type_: str, count: int = 1) -> None:
    client.until(lambda: feed.saw(type_, count), type_)


def _wait(client: RealOpenCode2, feed: Feed, session: str) -> None:
    """Wait until the session is idle and the plugin has handed on the end of its work."""
    client.wait(session)
    ends = ("succeeded", "failed", "interrupted")

    def is_told() -> bool:
        mine = [
            e["type"].removeprefix("session.execution.") for e in feed.events if e["data"].get("sessionID") == session
        ]
        return next((name for name in reversed(mine) if name in ("started", *ends)), "started") in ends

    client.until(is_told, "the end of the execution")


def _turn(client: RealOpenCode2, feed: Feed, text: str, session: str | None = None) -> str:
    session = session or client.new_session()
    client.prompt(session, text)
    _wait(client, feed, session)
    return session


def chat(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Two prompts, the second with reasoning."""
    session = _turn(client, feed, "SAY:hello there")
    _until(client, feed, "session.renamed")
    _turn(client, feed, "REASON:let me think SAY:the answer", session)


def tools(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A file written and edited, a command that fails, an unknown tool, two commands in parallel."""
    session = _turn(client, feed, call("write", path="a.txt", content="one\ntwo\n"))
    _turn(client, feed, call("edit", path="a.txt", oldString="two", newString="three"), session)
    _turn(client, feed, call("shell", command="echo out; exit 3", description="d"), session)
    _turn(client, feed, call("nosuch", x=1), session)
    both = f"{call('shell', command='sleep 0.4; echo slow')} {call('shell', command='echo fast')}"
    _turn(client, feed, both, session)
    _turn(client, feed, call("read", path="missing.txt"), session)


def subagent(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A child session, and its deletion with its parent."""
    session = _turn(client, feed, call("subagent", agent="general", description="child", prompt="SAY:from the child"))
    client.api("DELETE", f"/api/session/{session}")
    _until(client, feed, "session.deleted", 2)


def subagents(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Two child sessions at once, whose calls differ in the prompt alone."""
    one, two = (
        call("subagent", agent="general", description="child", prompt=f"SAY:from {name}") for name in ("one", "two")
    )
    _turn(client, feed, f"{one} {two}")


def permission(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A command allowed once, one rejected, one rejected with a message."""
    session = client.new_session()
    for number, reply in enumerate(
        ({"decision": "once"}, {"decision": "reject"}, {"decision": "reject", "message": "not now"}), 1
    ):
        client.prompt(session, call("shell", command=f"printf {number}"))
        _until(client, feed, "permission.asked", number)
        asked = feed.last("permission.asked")["data"]["id"]
        client.api("POST", f"/api/session/{session}/permission/{asked}/reply", reply)
        _wait(client, feed, session)


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
    _wait(client, feed, session)
    client.prompt(session, call("question", questions=[one]))
    _until(client, feed, "form.created", 2)
    form = feed.last("form.created")["data"]["form"]
    client.api("DELETE", f"/api/session/{session}/form/{form['id']}")
    _wait(client, feed, session)


def abort(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """An interrupt while the model streams, and one while a command runs."""
    session = client.new_session()
    client.prompt(session, "DRIP:200,0.05")
    _until(client, feed, "session.text.started")
    client.api("POST", f"/api/session/{session}/interrupt")
    _wait(client, feed, session)
    client.prompt(session, call("shell", command="sleep 30"))
    _until(client, feed, "session.tool.called")
    client.api("POST", f"/api/session/{session}/interrupt")
    _wait(client, feed, session)


def errors(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A refused request, one that works at the second try, an answer cut off, an unknown model."""
    session = _turn(client, feed, "HTTPERR:400")
    _turn(client, feed, "HTTPERR:503*1,0 SAY:at last", session)
    _turn(client, feed, "CUT", session)
    other = str(
        client.api(
            "POST",
            "/api/session",
            {"model": {"id": "none", "providerID": "mock"}, "location": {"directory": str(client.project)}},
        )["data"]["id"]
    )
    _turn(client, feed, "SAY:never", other)


def retry(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A provider that is overloaded, then answers."""
    _turn(client, feed, "HTTPERR:503*2,0 SAY:at last")


def busy(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Prompts while a turn runs: one steers it, two are queued; a synthetic one; one that starts nothing."""
    session = client.new_session()
    client.prompt(session, f"{call('shell', command='sleep 0.5')} THEN: SAY:first done")
    _until(client, feed, "session.tool.called")
    client.prompt(session, "SAY:steered", delivery="steer")
    client.prompt(session, "SAY:queued one", delivery="queue")
    client.prompt(session, "SAY:queued two", delivery="queue")
    _wait(client, feed, session)
    client.api("POST", f"/api/session/{session}/synthetic", {"text": "SAY:a note", "metadata": {"durable_stream": 1}})
    _wait(client, feed, session)
    client.prompt(session, "SAY:only admitted", resume=False)
    _until(client, feed, "session.inbox.enqueued", 6)


def compaction(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A compaction that a person asked for, and a prompt after it."""
    session = _turn(client, feed, "SAY:long talk")
    client.api("POST", f"/api/session/{session}/compact", {})
    client.until(lambda: feed.saw("session.compaction.ended") or feed.saw("session.compaction.failed"), "its end")
    _wait(client, feed, session)
    _turn(client, feed, "SAY:after it", session)


def overflow(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Automatic compactions: before an answer, between two steps, and after the provider refused the context."""
    session = _turn(client, feed, "USAGE:31000 SAY:long talk")
    _turn(client, feed, "SAY:after it", session)
    _turn(client, feed, f"USAGE:31000 {call('shell', command='echo x')} THEN: SAY:after the tool", session)
    _turn(client, feed, "CTXERR SAY:at last", session)


def shell(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """A command that a person runs, then a prompt that is taken back, a fork, and a renaming."""
    session = _turn(client, feed, "SAY:hello")
    client.api("POST", f"/api/session/{session}/shell", {"command": "echo by hand"})
    _until(client, feed, "session.shell.ended")
    message = client.prompt(session, "SAY:to be undone")
    _wait(client, feed, session)
    client.api("POST", f"/api/session/{session}/revert/stage", {"messageID": message})
    _turn(client, feed, "SAY:instead", session)
    fork = client.api("POST", f"/api/session/{session}/fork", {})["data"]["id"]
    _turn(client, feed, "SAY:in the fork", fork)
    client.api("PATCH", f"/api/session/{session}", {"title": "named by hand"})
    client.until(lambda: feed.last("session.renamed")["data"]["title"] == "named by hand", "the new title")


def cancelled(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Of two prompts that wait, one is cancelled, and one steers the turn after all."""
    session = client.new_session()
    client.prompt(session, f"{call('shell', command='sleep 0.8')} THEN: SAY:first done")
    _until(client, feed, "session.tool.called")
    first = client.prompt(session, "SAY:queued one", delivery="queue")
    second = client.prompt(session, "SAY:queued two", delivery="queue")
    client.api("DELETE", f"/api/session/{session}/inbox/{first}")
    client.api("PATCH", f"/api/session/{session}/inbox/{second}", {"delivery": "steer"})
    _wait(client, feed, session)


def background(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """OpenCode's own background subagents: one that answers, one that fails."""
    given = {"agent": "general", "description": "bg", "background": True}
    session = client.new_session()
    for count, prompt in enumerate(("DRIP:20,0.1 SAY:bg done", "HTTPERR:400"), 1):
        client.prompt(session, f"{call('subagent', prompt=prompt, **given)} THEN: SAY:started")
        client.until(lambda count=count: len(_reports(feed)) >= count, "its report")  # type: ignore[misc]
        _wait(client, feed, session)


def _reports(feed: Feed) -> list[Any]:
    return [
        event
        for event in feed.events
        if event["type"] == "session.inbox.enqueued" and event["data"]["item"]["type"] == "synthetic"
    ]


def switch(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """Another agent, in a directory of its own, in a repository that was created a moment ago."""
    place = client.project / "inner"
    place.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    session = _turn(client, feed, "SAY:first", client.new_session(place))
    client.api("POST", f"/api/session/{session}/agent", {"agent": "plan"})
    _turn(client, feed, "SAY:as plan", session)


def crash(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """The service killed while a command runs and a prompt is queued; the next service goes on by itself."""
    session = client.new_session()
    client.prompt(session, call("shell", command="sleep 30"))
    _until(client, feed, "session.tool.called")
    client.prompt(session, "SAY:queued", delivery="queue")
    _until(client, feed, "session.inbox.enqueued", 2)
    client.kill9()
    client.start()
    _until(client, feed, "session.execution.succeeded")
    _turn(client, feed, "SAY:back again", session)


def sigterm(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """The service stopped while a command runs; the next service goes on with the turn by itself."""
    session = client.new_session()
    client.prompt(session, call("shell", command="sleep 30"))
    _until(client, feed, "session.tool.called")
    client.terminate()
    client.start()
    _until(client, feed, "session.execution.succeeded")


def cut(client: RealOpenCode2, model: ModelServer, feed: Feed) -> None:
    """The service killed while the model writes a text."""
    session = client.new_session()
    client.prompt(session, "DRIP:100,0.05 SAY:never whole")
    _until(client, feed, "session.text.started")
    client.kill9()
    client.start()
    _until(client, feed, "session.execution.succeeded")


SCENARIOS: tuple[Scenario, ...] = (
    chat, tools, subagent, subagents, permission, question, abort, errors, retry, busy, cancelled, compaction, overflow,
    shell, background, switch, crash, sigterm, cut,
)  # fmt: skip


def record(scenario: Scenario) -> None:
    name = getattr(scenario, "__name__", "")
    with tempfile.TemporaryDirectory() as directory, ModelServer() as model:
        path = Path(directory) / "items.jsonl"
        options = json.dumps({"command": ["/bin/false"], "home": f"{directory}/home"})
        plugin = (
            f"import {{ plugin }} from {json.dumps(str(SHIM))};\nexport default plugin({options}, import.meta.url);\n"
        )
        with RealOpenCode2(
            binary_path(VERSION_2),
            model.port,
            config=CONFIG,
            plugins={PLUGIN: plugin},
            plugin_scope="global",
            environment={"DURABLE_STREAM_RECORD": str(path)},
        ) as client:
            feed = Feed(path)
            scenario(client, model, feed)
            rows: list[dict[str, Any]] = [
                {"t": 0, "hook": "__recording", "input": {"opencode": VERSION_2, "shows": scenario.__doc__}},
                *feed.items,
            ]
            for session in feed.sessions():
                told = {"session": session, **_told(client, session)}
                rows += [{"t": 0, "hook": "__told", "input": told}]
            text = "".join(f"{json.dumps(row)}\n" for row in rows).replace(str(client.project), "/home/ada/project")
            PLACE.mkdir(exist_ok=True)
            (PLACE / f"{name}.jsonl").write_text(text.replace(str(client.root), "/work"))


def _told(client: RealOpenCode2, session: str) -> dict[str, Any]:
    try:
        info = client.api("GET", f"/api/session/{session}")["data"]
        messages = client.messages(session)
        return {"info": info, "messages": messages, "inbox": client.api("GET", f"/api/session/{session}/inbox")["data"]}
    except Api2Error as error:
        return {"info": None, "status": error.status, "messages": [], "inbox": []}


if __name__ == "__main__":
    for each in SCENARIOS:
        if not sys.argv[1:] or getattr(each, "__name__", "") in sys.argv[1:]:
            record(each)
