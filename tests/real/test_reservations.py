"""Two sessions of one project, on either OpenCode: what one reserves, the other hears of before it edits there, and
what happens then is the user's choice. The reservations outlive the sidecar, but not the session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.real.background import intents, spawns, two_with_plugin, with_plugin
from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.opencode2 import RealOpenCode2

pytestmark = pytest.mark.real_opencode


class Client:
    """One of the OpenCodes. ``file`` is its tools' name for a file."""

    def __init__(self, client: RealOpenCode, model: ModelServer, durable: DurableStream) -> None:
        self.client, self.model, self.durable = client, model, durable
        self.is_two = isinstance(client, RealOpenCode2)
        self.file = "path" if self.is_two else "filePath"
        self.place = client.project / "src" / "a.py"
        self.place.parent.mkdir(exist_ok=True)
        self.place.write_text("one\n")

    def session(self) -> str:
        return self.client.new_session() if isinstance(self.client, RealOpenCode2) else self.client.create_session()

    def prompt(self, session: str, *calls: str) -> list[str]:
        """Let the model make these calls, one after the other; what it read of each."""
        before = len(self.model.of(session))
        self.client.prompt(session, " THEN: ".join([*calls, "SAY:done"]))
        if isinstance(self.client, RealOpenCode2):
            self.client.wait(session)
        (*_, last) = (each for each in self.model.of(session)[before:] if each.has_tools)
        return [str(message["content"]) for message in last.since_user() if message["role"] == "tool"]

    def reserve(self, session: str, *paths: str) -> str:
        return self.prompt(session, f"CALL:reserve {json.dumps({'paths': paths, 'why': 'new tests'})}")[0]

    def edits(self, session: str, old: str, new: str) -> list[str]:
        """What the model reads when it reads and edits the file."""
        named = {self.file: str(self.place)}
        edit = {**named, "oldString": old, "newString": new}
        return self.prompt(session, f"CALL:read {json.dumps(named)}", f"CALL:edit {json.dumps(edit)}")

    def delete(self, session: str) -> None:
        if isinstance(self.client, RealOpenCode2):
            self.client.api("DELETE", f"/api/session/{session}")
        else:
            self.client.delete(session)

    def held(self) -> list[tuple[str, str]]:
        return [(row["session"], row["path"]) for row in self.durable.lines("reservations")]


def check(made: Client) -> None:
    one, two = made.session(), made.session()
    assert made.reserve(one, "src").startswith("Reserved until ")
    assert made.held() == [(one, "src/")]
    assert made.reserve(two, "docs/", str(made.place)).startswith("Not reserved: src/ is reserved by "), "nothing half"
    assert made.held() == [(one, "src/")]
    told, done = made.edits(two, "one", "two")
    assert "src/ is reserved by" in told and "(new tests)" in told, "before the edit"
    assert "src/ is reserved by" in done and made.place.read_text() == "two\n", "OpenCode comes first"
    assert not any("reserved" in each for each in made.edits(one, "two", "three"))
    read = f"CALL:read {json.dumps({made.file: 'src/a.py'})} THEN: SAY:done"
    made.prompt(two, spawns(read))
    (work,) = wait_until(
        lambda: [each for each in intents(made.durable) if each["ended"]], "the end of background work"
    )
    (*_, last) = made.model.of(work["session"])
    assert "src/ is reserved by" in str(last.since_user()) and work["isolation"] == "copy", "also in a private copy"

    (made.durable.home / "config.toml").write_text('[phantom]\nreservations = "refuse"\n')
    made.durable.stop()
    made.durable.wait_linked()
    wait_until(lambda: made.held() == [(one, "src/")], "the next sidecar")
    _, refused = made.edits(two, "three", "four")
    assert "Not edited: src/ is reserved by" in refused and made.place.read_text() == "three\n"
    made.delete(one)
    wait_until(lambda: made.held() == [], "the release of what a deleted session held")
    assert not any("reserved" in each for each in made.edits(two, "three", "four"))
    assert made.place.read_text() == "four\n"
    assert made.reserve(two, "src/a.py").startswith("Reserved until ")
    assert made.prompt(two, "CALL:release {}") == ["Released: src/a.py."]
    made.durable.cli("verify")
    assert made.durable.lines("query", "--type", "capture.gap") == []


def test_on_opencode_1(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> None:
    with with_plugin(opencode_binary, model, durable) as client:
        check(Client(client, model, durable))
        durable.end_with(client)


def test_on_opencode_2(model: ModelServer, tmp_path: Path) -> None:
    with DurableStream(tmp_path / "home") as durable:
        durable.start()
        with two_with_plugin(model, durable) as client:
            check(Client(client, model, durable))
