"""``import FILE``: what ``export`` wrote comes back whole, once, and nothing else comes in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.agents.runtime import wants
from sidecar.care.exported import Seal
from sidecar.cli.setup import import_
from sidecar.home import Home
from sidecar.record import history
from streams.event import StreamEvent
from streams.log.reader import LogReader
from tests.sidecar.agents.agents import Watcher
from tests.sidecar.cli.helpers import append, make_home, run, run_and_stop
from tests.sidecar.cli.test_top import NOW, intent, made_by
from tests.sidecar.life import end_sidecars
from tests.streams.builders import event

NAMES = ("task_child", "permission_child", "compaction_manual")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with sessions. Read-only."""
    return make_home(tmp_path_factory.mktemp("source") / "home", *NAMES)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A home that was never used."""
    home = tmp_path / "target"
    yield home
    end_sidecars(Home(home))


def exports(home: Path, directory: Path) -> list[Path]:
    """Every stream of a home in a file of its own."""
    streams = [stream["stream_id"] for stream in run(home, "streams", "--json").objects()]
    files = [directory / f"{number}.jsonl" for number, _ in enumerate(streams)]
    for stream, file in zip(streams, files, strict=True):
        assert run(home, "export", stream, "-o", str(file)).code == 0
    return files


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()[1:-1]]


def resealed(file: Path, lines: list[str]) -> Path:
    """A file of these lines, with the last line that ``export`` would write."""
    seal = Seal()
    file.write_bytes(b"".join([*(seal.line(f"{line}\n".encode()) for line in lines), seal.last()]))
    return file


def without_history(record: dict[str, Any]) -> dict[str, Any]:
    event = record["event"]
    metadata = {name: value for name, value in event["metadata"].items() if name != "history"}
    return {"event": {**event, "metadata": metadata}, "offset": record["offset"]}


def changed(file: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The export with its second record changed."""
    lines = file.read_text().splitlines()
    record = json.loads(lines[2])
    change(record)
    return resealed(file.with_name("changed.jsonl"), [*lines[:2], json.dumps(record), *lines[3:-1]])


def test_a_round_trip_keeps_every_event_but_for_the_mark(source: Path, target: Path, tmp_path: Path) -> None:
    files = exports(source, tmp_path)
    for file in files:
        done = run(target, "import", str(file), "--json").objects()
        assert done == [{"added": len(records(file)), "known": 0, "forgotten": 0}]
    again = run_and_stop(target, "import", str(files[0]), "--json").objects()
    assert again == [{"added": 0, "known": len(records(files[0])), "forgotten": 0}]
    assert run(target, "verify").code == 0
    back = tmp_path / "back"
    back.mkdir()
    came = {json.loads(each.read_text().splitlines()[0])["stream_id"]: each for each in exports(target, back)}
    for file in files:
        stream = json.loads(file.read_text().splitlines()[0])["stream_id"]
        assert [*map(without_history, records(came[stream]))] == [*map(without_history, records(file))]
        assert all(record["event"]["metadata"]["history"] for record in records(came[stream]))


def test_a_home_that_holds_a_part_gets_the_rest(source: Path, target: Path, tmp_path: Path) -> None:
    file = exports(source, tmp_path)[0]
    lines = file.read_text().splitlines()
    part = resealed(tmp_path / "part.jsonl", lines[:4])
    run(target, "import", str(part))
    done = run_and_stop(target, "import", str(file), "--json").objects()
    assert done == [{"added": len(lines) - 5, "known": 3, "forgotten": 0}]


def test_a_forgotten_session_has_nothing_to_import(source: Path, target: Path, tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "chat")
    stream = run(home, "streams", "--json").objects()[0]["stream_id"]
    run_and_stop(home, "forget", stream, "--yes")
    file = exports(home, tmp_path)[0]
    done = run_and_stop(target, "import", str(file), "--json").objects()
    assert done[0]["forgotten"] > 0 and done[0]["added"] + done[0]["forgotten"] == len(records(file))


@pytest.mark.parametrize(
    ("code", "make"),
    [
        ("not-an-export", lambda file: Path(__file__)),
        ("not-an-export", lambda file: rewritten(file, lambda lines: ["{}", *lines[1:]])),
        ("newer-export", lambda file: rewritten(file, lambda lines: ['{"durable_stream_export": 2}', *lines[1:]])),
        ("damaged-export", lambda file: rewritten(file, lambda lines: lines[:-1])),
        ("damaged-export", lambda file: rewritten(file, lambda lines: [*lines[:-1], lines[-1][:40]])),
        ("damaged-export", lambda file: rewritten(file, lambda lines: [*lines, "[]"])),
        ("damaged-export", lambda file: rewritten(file, lambda lines: [*lines, lines[-1]])),
        ("damaged-export", lambda file: rewritten(file, lambda lines: [lines[0], *lines[2:]])),
        ("damaged-export", lambda file: rewritten(file, lambda lines: [*lines[:2], *lines[1:]])),
        ("damaged-export", lambda file: rewritten(file, lambda lines: [lines[0].replace("ses_", "ses_0"), *lines[1:]])),
        (
            "damaged-export",
            lambda file: rewritten(file, lambda lines: [each.replace('"text":"', '"text":"x') for each in lines]),
        ),
        ("damaged-export", lambda file: changed(file, lambda record: record["event"].pop("type"))),
        ("damaged-export", lambda file: changed(file, broken_payload)),
        ("agent-export", lambda file: changed(file, lambda record: record["event"]["metadata"].update(role="command"))),
        ("agent-export", lambda file: changed(file, lambda record: record["event"].update(stream_id="agent/intents"))),
    ],
)
def test_any_other_file_is_refused_and_changes_nothing(
    source: Path, target: Path, tmp_path: Path, code: str, make: Callable[[Path], Path]
) -> None:
    refused = run_and_stop(target, "import", str(make(exports(source, tmp_path)[0])))
    assert refused.code == 1 and f"[{code}]" in refused.err
    assert run(target, "streams").out.count("\n") <= 1


def rewritten(file: Path, change: Callable[[list[str]], list[str]]) -> Path:
    other = file.with_name("rewritten.jsonl")
    other.write_text("\n".join([*change(file.read_text().splitlines()), ""]))
    return other


def broken_payload(record: dict[str, Any]) -> None:
    """An event that the log would take, and no sidecar could start with."""
    record["event"].update(type="human.input", payload={"session": record["event"]["payload"]["session"]})


def test_background_work_comes_along_as_history_that_nobody_acts_on(target: Path, tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "task_child")
    session = run(home, "streams", "--json").objects()[0]["stream_id"]
    ask = {"checkpoint": "chk_1", "session": session, "kind": "ask", "text": "Which colour?", "ts": NOW, "intent": None}
    made = [
        *intent("int_1", ("intent.completed", {"result": "It is blue.", "parent": session}), parent=session),
        *intent(
            "int_2", parent=session, title="paint it", prompt="Paint it.", rights={"rules": "secret"}, root=session
        ),
        *intent("int_3", parent="ses_other", title="not mine"),
        made_by("intents", "notice.queued", notice="ntc_1", session=session, text="It is blue.", intent="int_1"),
        made_by("checkpoints", "checkpoint.opened", **ask),
        made_by("alerts", "alert.raised", alert="alt_1", session=session, text="Look here", stages=[["phone"]], due=1),
        made_by("alerts", "alert.sent_to", alert="alt_1", channel="phone"),
    ]
    asyncio.run(append(home / "store", [[event] for event in made]))
    file = exports(home, tmp_path)[0]
    assert "secret" not in file.read_text() and "not mine" not in file.read_text()
    told = [each["event"] for each in records(file) if each["event"]["source"]["adapter"] == "runtime"]
    assert [each["type"] for each in told] == [
        *("intent.created", "intent.completed", "intent.created", "notice.queued"),
        *("checkpoint.opened", "alert.raised", "alert.sent_to"),
    ]
    assert run(target, "import", str(file), "--json").objects()[0]["added"] == len(records(file))
    for verb in ("intents", "checkpoints", "notices"):
        assert run(target, verb, "--json").out == ""
    shown = run(target, "read", session).out
    assert all(said in shown for said in ("paint it", "It is blue.", "Which colour?", "Look here"))
    assert "paint it" in run(target, "log", session).out
    assert run(target, "show", told[2]["id"], "--json").objects()[0]["event"]["payload"]["prompt"] == "Paint it."
    assert run_and_stop(target, "verify").code == 0
    back = run_and_stop(home, "import", str(file), "--json").objects()
    assert back == [{"added": 0, "known": len(records(file)), "forgotten": 0}]


def test_history_reaches_no_agent(source: Path, tmp_path: Path) -> None:
    agent = Watcher()
    event = StreamEvent.parse({**records(exports(source, tmp_path)[0])[0]["event"], "type": agent.events[0]})
    assert wants(agent, event)
    assert not wants(agent, StreamEvent.trusted({**event.fields(), "metadata": {"history": True}}))


def test_an_opencode_that_does_not_answer_is_not_called_absent(target: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "opencode"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    done = run(target, "import", "--opencode", PATH=str(program.parent))
    assert done.code == 1 and f"`{program} --version`" in done.err and done.err.endswith("[no-history]\n")


def test_only_what_the_log_lacked_counts_as_imported(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "opencode"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 1.18.33\n")
    program.chmod(0o700)

    async def imported(home: Home, *_: Any, **__: Any) -> tuple[int, Any]:
        """OpenCode has two sessions, of which one has nothing to record."""
        before = LogReader(home.store_path).head
        if before < 0:
            created = event("c", stream="ses_o", type_="lifecycle.session.created", payload={"session": "ses_o"})
            await append(home.store_path, [[created]])
        return 2, SimpleNamespace(added=LogReader(home.store_path).head - before)

    async def no_service(home: Home) -> dict[str, Any]:
        return {"services": 0, "sessions": 0}

    monkeypatch.setattr(history, "import_opencode_1", imported)
    monkeypatch.setattr(import_, "_opencode_2", no_service)
    done = [run(target, "import", "--opencode", "--json", PATH=str(program.parent)).objects() for _ in range(2)]
    assert [found["opencode_1"] for [found] in done] == [{"sessions": 1, "records": 1}, {"sessions": 0, "records": 0}]
    assert "nothing new" in run(target, "import", "--opencode", PATH=str(program.parent)).out
