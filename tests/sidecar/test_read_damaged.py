"""A log with a damaged record in its middle: every command that reads, and the page, show what stands before the damage
and say where it is."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.inspector.data import Data
from sidecar.inspector.server import build
from sidecar.read.find_by_id import SelectError, open_reader
from sidecar.read.story import reading
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.sidecar.bad_stores import damage_in_database, damage_in_journal
from tests.sidecar.cli.helpers import append, events_of, make_home, run
from tests.streams.unmoved import nothing_moves

ROOT = "ses_dff0a5b68ffegK4yUQGH09hey7"
DEMO = "../../sidecar/record/recordings/demo"
LATER = ("chat", "permission_once", "write_edit", "task_parallel")
PLACE = 0.6


def background() -> list[StreamEvent]:
    """A piece of work, an alert and a dead letter, which stand before the damage."""
    identity = seeded_identity(5)

    def own(agent: str, type_: str, role: str = "output", /, **payload: Any) -> StreamEvent:
        about = {"stream_id": f"agent/{agent}", "actor": agent, "source": {"agent": agent, "adapter": "engine"}}
        return identity.stamp({**about, "type": type_, "payload": payload, "metadata": {"role": role}})

    about = {"intent": "int_1", "prompt": "Do", "title": "Some work", "parent": ROOT, "root": ROOT, "directory": "/"}
    letter = {"code": "agent-failed", "reason": "it broke", "command": {"id": "k", "type": "add", "payload": {}}}
    return [
        own("intents", "intent.created", **about, ts=1),
        own("intents", "intent.starting", intent="int_1", session="ses_work", ts=2),
        own("intents", "intent.started", intent="int_1", session="ses_work", ts=2),
        own("messages", "message.queued", message="alr_1", kind="alert", text="It waits", to=ROOT),
        own("counter", "agent.dead_letter", "dead", **letter),
    ]


@pytest.fixture(scope="module", params=[damage_in_database, damage_in_journal])
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str, str]:
    """A home whose log is damaged, the number of records before that, and a whole event and a lost session."""
    in_journal = request.param is damage_in_journal
    with nothing_moves() if in_journal else nullcontext():
        home = make_home(tmp_path_factory.mktemp("damaged") / "home", DEMO)
    translator = Translator(seeded_identity(8))
    later = [event for name in LATER for event in events_of(name, translator)]
    with nothing_moves() if in_journal else nullcontext():
        asyncio.run(append(home / "store", [[each] for each in (*background(), *later)]))
    shown = [each["event"] for each in run(home, "query", "--stream", ROOT, "--json").objects()]
    step = [each["id"] for each in shown if each["type"] == "execution.step"][3]
    before: int = request.param(home / "store", PLACE)
    assert len(shown) + len(background()) < before, "the demo stands before the damage"
    return home, before, step, later[-1].stream_id


READING = (
    ("streams", ROOT),
    (f"log {ROOT}", "session"),
    (f"read {ROOT}", "login"),
    ("tree --project all", "login"),
    (f"tree {ROOT}", "login"),
    ("changes --project all", "login.py"),
    ("query --text login", "login"),
    (f"state {ROOT}", "login"),
    (f"state {ROOT} --at 20", "login"),
    (f"diff {ROOT} 5 40", "login.py"),
    ("costs --by session", "login"),
    (f"export {ROOT} --format html", "login"),
    (f"export {ROOT} --format otlp", "spans"),
    ("top --once", "Some work"),
    ("intents --all", "Some work"),
    ("checkpoints", ""),
)
"""What reads all of the log, or its catalog; and a word that stands before the damage."""

ONLY_SCANNED = (
    ("show EVENT", "execution.step"),
    ("why EVENT", "execution.step"),
    ("intents", "Some work"),
    ("intents int_1", "Some work"),
    ("notices", "It waits"),
    ("dlq list", "it broke"),
)
"""What an index may lead past the damage."""


def test_each_command_prints_what_stands_before_the_damage(damaged: tuple[Path, int, str, str]) -> None:
    home, before, event, _ = damaged
    for line, word in (*READING, *ONLY_SCANNED):
        done = run(home, *line.replace("EVENT", event).split())
        told = f"(position {before})" in done.err and "[log-damaged]" in done.err
        assert word in done.out and (done.code, told) in ((1, True), (0, False)), (line, done)
        assert told or (line, word) in ONLY_SCANNED, (line, done)
        assert "othing" not in done.err.replace("nothing was changed", ""), (line, done)


def test_what_may_stand_after_the_damage_is_not_called_unknown(damaged: tuple[Path, int, str, str]) -> None:
    home, *_ = damaged
    for line in ("log ses_unknown", "show 01HF7YAT0M6P8KRMRYA1R2SZZZ", "intents int_9 --all"):
        done = run(home, *line.split())
        assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1), (line, done)


def test_a_page_is_not_written_and_an_export_says_that_it_ends_at_the_damage(
    damaged: tuple[Path, int, str, str], tmp_path: Path
) -> None:
    home, *_ = damaged
    for name, form in (("a.jsonl", "jsonl"), ("b.html", "html")):
        done = run(home, "export", ROOT, "--format", form, "--output", str(tmp_path / name))
        assert done.code == 1 and "[log-damaged]" in done.err, done
        assert (tmp_path / name).exists() is (form == "jsonl"), done


async def test_each_route_of_the_page_answers_and_says_where_the_damage_is(
    damaged: tuple[Path, int, str, str],
) -> None:
    home, before, event, lost = damaged

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    data = Data(home, open_reader(home / "store", to_damage=True), seeded_identity(1).now_ms, nothing, nothing)
    app = build(data)
    views = [f"s/{ROOT}/{view}" for view in ("head", "conversation", "timeline", "files", "events")]
    paths = ["sessions", "work", "costs", "search?q=login", *views, f"e/{event}", "file?path=login.py"]
    try:
        known = {each["stream_id"] for each in (await data.sessions())["sessions"]}
        assert ROOT in known and lost not in known
        paths += [f"compare?a={ROOT}&b={min(known - {ROOT})}", "health"]
        for path in paths:
            status, headers = await _get(app, f"/api/{path}")
            assert status == 200 and f"position%20{before}" in headers.get("log-damage", ""), (path, status, headers)
        assert [each["title"] for each in (await data.work())["intents"]] == ["Some work"]
        with pytest.raises(SelectError):
            await data.session("ses_unknown", None)
    finally:
        await data.reader.close()


async def test_the_page_says_up_to_where_it_knows_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home", "chat")

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    data = Data(home, open_reader(home / "store"), seeded_identity(1).now_ms, nothing, nothing)
    app, (found,) = build(data), (await data.sessions())["sessions"]
    path = f"/api/s/{found['stream_id']}/conversation"
    try:
        assert "log-behind" not in (await _get(app, path))[1]
        monkeypatch.setattr(reading, "MOST_ABOVE", 3)
        assert "doctor" in (await _get(app, path))[1]["log-behind"]
        monkeypatch.undo()
        assert "log-behind" not in (await _get(app, path))[1]
    finally:
        await data.reader.close()


async def _get(app: Any, url: str) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer."""
    path, _, query = url.partition("?")
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    await app({**scope, "headers": [], "root_path": "", "http_version": "1.1"}, receive, send)
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}
