"""``import FILE``: what ``export`` wrote comes back whole, once, and nothing else comes in, however odd or hostile."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.care import export_files
from sidecar.care.export_files import Seal, check, header, read
from sidecar.failure import Failure
from sidecar.home import Home
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import MAY_REMOVE, append, damage, make_home, run, run_and_stop
from tests.sidecar.cli.test_top import NOW, intent, made_by
from tests.sidecar.life import end_sidecars
from tests.sidecar.read.story.playing import catalog_of

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


def test_a_forgotten_session_has_nothing_to_import(source: Path, target: Path, tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "chat")
    (home / "config.toml").write_text(MAY_REMOVE)
    stream = run(home, "streams", "--json").objects()[0]["stream_id"]
    run_and_stop(home, "forget", stream, "--yes")
    file = exports(home, tmp_path)[0]
    done = run_and_stop(target, "import", str(file), "--json").objects()
    assert done[0]["forgotten"] > 0 and done[0]["added"] + done[0]["forgotten"] == len(records(file))


def rewritten(file: Path, change: Callable[[list[str]], list[str]]) -> Path:
    other = file.with_name("rewritten.jsonl")
    other.write_text("\n".join([*change(file.read_text().splitlines()), ""]))
    return other


def broken_payload(record: dict[str, Any]) -> None:
    """An event that the log would take, and no sidecar could start with."""
    record["event"].update(type="human.input", payload={"session": record["event"]["payload"]["session"]})


REFUSED: list[tuple[str, Callable[[Path], Path]]] = [
    ("not-an-export", lambda file: Path(__file__)),
    ("not-an-export", lambda file: rewritten(file, lambda lines: ["{}", *lines[1:]])),
    ("newer-export", lambda file: rewritten(file, lambda lines: ['{"durable_stream_export": 2}', *lines[1:]])),
    ("damaged-export", lambda file: rewritten(file, lambda lines: lines[:-1])),
    ("damaged-export", lambda file: rewritten(file, lambda lines: [*lines, "[]"])),
    ("damaged-export", lambda file: rewritten(file, lambda lines: [lines[0], *lines[2:]])),
    (
        "damaged-export",
        lambda file: rewritten(file, lambda lines: [each.replace('"text":"', '"text":"x') for each in lines]),
    ),
    ("damaged-export", lambda file: changed(file, lambda record: record["event"].pop("type"))),
    ("damaged-export", lambda file: changed(file, broken_payload)),
    ("agent-export", lambda file: changed(file, lambda record: record["event"]["metadata"].update(role="command"))),
    ("agent-export", lambda file: changed(file, lambda record: record["event"].update(stream_id="agent/intents"))),
]


def test_any_other_file_is_refused_and_changes_nothing(source: Path, target: Path, tmp_path: Path) -> None:
    file = exports(source, tmp_path)[0]
    for code, make in REFUSED:
        refused = run(target, "import", str(make(file)))
        assert refused.code == 1 and f"[{code}]" in refused.err, refused
        assert run(target, "streams").out.count("\n") <= 1


def test_background_work_comes_along_as_history_that_nobody_acts_on(target: Path, tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "task_child")
    session = run(home, "streams", "--json").objects()[0]["stream_id"]
    ask = {"message": "chk_1", "session": session, "kind": "ask", "text": "Which colour?", "ts": NOW, "intent": None}
    made = [
        *intent("int_1", ("intent.completed", {"result": "It is blue.", "parent": session}), parent=session),
        *intent(
            "int_2", parent=session, title="paint it", prompt="Paint it.", rights={"rules": "secret"}, root=session
        ),
        *intent("int_3", parent="ses_other", title="not mine"),
        made_by(
            "messages", "message.queued", message="ntc_1", kind="result", to=session, text="It is blue.", intent="int_1"
        ),
        made_by("messages", "message.queued", **ask),
        made_by("messages", "message.queued", message="alr_1", kind="alert", to=session, text="Look here", due=1),
        made_by("messages", "message.sent", message="alr_1", channel="phone"),
    ]
    asyncio.run(append(home / "store", [[event] for event in made]))
    file = exports(home, tmp_path)[0]
    assert "secret" not in file.read_text() and "not mine" not in file.read_text()
    told = [each["event"] for each in records(file) if each["event"]["source"]["adapter"] == "runtime"]
    assert [each["type"] for each in told] == [
        *("intent.created", "intent.completed", "intent.created", "message.queued"),
        *("message.queued", "message.queued", "message.sent"),
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


def test_what_a_damaged_log_still_holds_goes_to_a_new_home(tmp_path: Path, target: Path) -> None:
    """The one way out of damage: every session that can be read, and of a damaged one what is before the damage."""
    home = make_home(tmp_path / "home", "chat", "task_child")
    first, second = sorted(
        (stream["first_ts"], stream["stream_id"]) for stream in run(home, "streams", "--json").objects()
    )
    whole = {stream: run(home, "log", stream, "--json").objects() for _, stream in (first, second)}
    hurt = min(whole, key=lambda stream: whole[stream][0]["position"])
    lost = whole[hurt][5]["position"]
    damage(home, lost)
    assert run(home, "verify").code == 1
    for number, stream in enumerate(whole):
        file = tmp_path / f"{number}.jsonl"
        done = run(home, "export", stream, "-o", str(file))
        assert done.code == 1 and done.err.endswith(" [log-damaged]\n"), done
        assert run(target, "import", str(file)).code == 0
    kept = {each["event"]["id"] for each in run(target, "query", "--json").objects()}
    readable = [each for records in whole.values() for each in records if each["position"] < lost]
    readable += [each for stream in whole if stream != hurt for each in whole[stream]]
    assert {each["event"]["id"] for each in readable} == kept
    assert run_and_stop(target, "verify").code == 0


RECORDED = 1_700_000_000_000


def event(type_: str = "execution.output", ts: int = RECORDED, **payload: Any) -> dict[str, Any]:
    given = {
        "type": type_,
        "stream_id": "ses_1",
        "idempotency_key": f"{type_}:{len(payload)}",
        "actor": "build",
        "source": {"agent": "build", "adapter": "opencode"},
        "payload": {"session": "ses_1", **payload},
        "metadata": {},
    }
    return {**seeded_identity(1).stamp(given).fields(), "ts": ts}


def written(path: Path, *lines: str) -> Path:
    head = json.dumps(header("ses_1", ["ses_1"], "log", RECORDED))
    seal = Seal()
    path.write_bytes(b"".join([*(seal.line(f"{line}\n".encode()) for line in (head, *lines)), seal.last()]))
    return path


def code(path: Path) -> str:
    with pytest.raises(Failure) as refused:
        check(path, RECORDED)
    return refused.value.code


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert code(tmp_path / "pipe") == "not-an-export"
    assert code(Path("/dev/zero")) == "not-an-export"


def test_deep_nesting_is_damage(tmp_path: Path) -> None:
    deep = '{"event":' + "[" * 100_000 + "]" * 100_000 + "}"
    assert code(written(tmp_path / "a", deep)) == "damaged-export"
    (tmp_path / "b").write_text("[" * 100_000)
    assert code(tmp_path / "b") == "not-an-export"


def test_a_line_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_files, "MAX_LINE", 10_000)
    file = written(tmp_path / "a", json.dumps({"event": event(text="x" * 20_000)}))
    assert code(file) == "damaged-export"


@pytest.mark.parametrize("ts", [2**53 - 1, RECORDED + 86_400_001])
def test_a_time_in_the_future_is_damage(tmp_path: Path, ts: int) -> None:
    assert code(written(tmp_path / "a", json.dumps({"event": event(ts=ts)}))) == "damaged-export"
    assert check(written(tmp_path / "b", json.dumps({"event": event(ts=RECORDED + 60_000)})), RECORDED) == (
        1,
        0,
    )


def test_an_imported_ask_waits_for_nobody(tmp_path: Path) -> None:
    asked = event("workflow.checkpoint", kind="permission", state="asked", request="per_1", permission="bash")
    (found,) = read(written(tmp_path / "a", json.dumps({"event": asked})), RECORDED)
    assert found is not None and found.metadata["history"] is True
    assert catalog_of([found]).asks() == []
