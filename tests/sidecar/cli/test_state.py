"""``state`` and ``diff``: a session at any moment, what happened in between, and two sessions beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.read.past.compare import figures, same_until
from streams.identity import seeded_identity
from streams.store import Record
from tests.sidecar.cli.helpers import append, events_of, run
from tests.sidecar.cli.test_top import intent
from tests.sidecar.read.story.playing import past_of, records_of

Named = Callable[[str], str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an edit, a permission, a child session, and two runs that differ late."""
    translator = Translator(seeded_identity(2))
    names = ("write_edit", "permission_once", "task_child", "chat", "chat_two_turns")
    made = [event for name in names for event in events_of(name, translator)]
    asks = next(event for event in made if event.type == "workflow.checkpoint")
    started = ("intent.started", {"session": "ses_back", "parent": None, "ts": 1})
    # The work begins after the ask, so the session's state before that must not show it.
    work = intent("int_1", started, parent=asks.stream_id, root=asks.stream_id)
    place = made.index(asks) + 1
    home = tmp_path_factory.mktemp("state") / "home"
    home.mkdir(mode=0o700)
    asyncio.run(append(home / "store", [[event] for event in [*made[:place], *work, *made[place:]]]))
    return home


@pytest.fixture(scope="module")
def named(home: Path) -> Named:
    """The stream that has an event of this type, and the text."""

    def find(text: str) -> str:
        return str(run(home, "query", "--text", text, "--json").objects()[0]["event"]["stream_id"])

    return find


def test_the_files_of_a_moment_are_those_changed_so_far(home: Path, named: Named) -> None:
    stream = named("CALL:write")
    now = run(home, "state", stream, "--json").objects()[0]
    assert now["at"] == now["records"] - 1 and now["turn"]["state"] == "completed"
    assert [(each["edits"], each["added"], each["removed"]) for each in now["files"]] == [(2, 2, 1)]
    begun = run(home, "state", stream, "--at", "3", "--json").objects()[0]
    assert (begun["at"], begun["files"], begun["turn"]["state"], begun["status"]) == (3, [], "running", "active")
    assert begun["hash"] != now["hash"] and begun["last"]
    first = run(home, "state", stream, "--at", "0", "--json").objects()[0]
    assert (first["turn"], first["event"]["label"], first["tokens"]) == (None, "session", {})


def test_an_open_ask_and_running_work_are_those_of_the_moment(home: Path) -> None:
    asked = run(home, "query", "--type", "workflow.checkpoint", "--json").objects()[0]["event"]
    at = run(home, "state", asked["stream_id"], "--at", asked["id"], "--json").objects()[0]
    assert [ask["event"] for ask in at["asks"]] == [asked["id"]] and at["status"] == "waiting"
    now = run(home, "state", asked["stream_id"], "--json").objects()[0]
    assert now["asks"] == [] and at["work"] == []
    assert [(work["id"], work["session"]) for work in now["work"]] == [("int_1", "ses_back")]


def test_a_child_runs_until_it_ends(home: Path, named: Named) -> None:
    stream = named("child work")
    told = run(home, "state", stream, "--at", "9", "--json").objects()[0]["sessions"]
    assert [(each["depth"], each["status"]) for each in told] == [(0, "active"), (1, "active")]
    child = run(home, "state", told[1]["id"], "--json").objects()[0]
    assert child["title"] == told[1]["title"] and child["records"] < 17


def test_a_pipe_gets_names_and_values(home: Path, named: Named) -> None:
    rows = run(home, "state", named("CALL:write")).rows()
    assert [row[0] for row in rows if row[0] != "last"] == [
        *("session", "directory", "at", "status", "turn", "file", "so far"),
    ]
    assert all(len(row) == 2 for row in rows)


def test_what_happened_between_two_moments(home: Path, named: Named) -> None:
    stream = named("CALL:write")
    whole = run(home, "diff", stream, "0", "9", "--json").objects()[0]
    assert whole["tools"] == {"write": 1, "edit": 1} and whole["totals"]["files"] == 1
    assert sum(whole["types"].values()) == 9 and whole["turns"] == 1
    edit = next(n for n in range(10) if _tool(home, stream, n) == "edit")
    told = run(home, "diff", stream, str(edit), str(edit - 1), "--json").objects()[0]
    assert (told["from"], told["to"], told["tools"]) == (edit - 1, edit, {"edit": 1})
    piped = run(home, "diff", stream, str(edit - 1), str(edit))
    assert "+bye" in piped.out and "-hello" in piped.out and "+hello" not in piped.out


def _tool(home: Path, stream: str, at: int) -> str:
    return str(run(home, "state", stream, "--at", str(at), "--json").objects()[0]["event"]["label"])


def test_a_side_counts_its_tools_and_those_that_failed() -> None:
    for name, tools, failed in (("bash_exit_1", {"bash": 1}, 1), ("write_edit", {"write": 1, "edit": 1}, 0)):
        events = events_of(name, Translator(seeded_identity(2)))
        told = figures(past_of(records_of(events)))
        assert (told["tools"], told["failed"]) == (tools, failed), name


def test_two_runs_are_the_same_until_they_differ(home: Path, named: Named) -> None:
    streams = [each["stream_id"] for each in run(home, "streams", "--json").objects()]
    two, one = streams[0], streams[1]
    events = events_of("chat", Translator(seeded_identity(2)))
    records = [Record(event, offset, offset, "") for offset, event in enumerate(events)]
    assert same_until(records, records) is None
    told = run(home, "diff", one, two, "--json").objects()[0]
    assert [side["turns"] for side in told["sides"]] == [1, 2]
    assert told["same"] == told["sides"][0]["records"] and told["rows"][0][0] is None
    other = run(home, "diff", one, named("CALL:write"), "--json").objects()[0]
    assert other["same"] == 1 and [side["type"] for side in other["rows"][0]] == ["human.input"] * 2
    rows = run(home, "diff", one, two).rows()
    assert rows[0] == ["what", one, two] and ["turns", "1", "2"] in rows


def test_a_session_is_not_compared_with_itself(home: Path) -> None:
    stream = run(home, "streams", "--json").objects()[0]["stream_id"]
    for other in (stream, stream[-6:], stream[:-1]):
        done = run(home, "diff", stream, other)
        assert (done.code, done.out) == (1, "") and "[same-session]" in done.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("state", "{stream}", "--at", "999"), 2),
        (("diff", "{stream}", "1", "999"), 2),
        (("state", "ses_none"), 1),
        (("diff", "{stream}", "ses_none"), 1),
        (("state", "{stream}", "--at", "{foreign}"), 1),
    ],
)
def test_a_moment_that_does_not_exist(home: Path, named: Named, arguments: tuple[str, ...], code: int) -> None:
    foreign = run(home, "query", "--type", "agent.spawned", "--json").objects()[0]["event"]["id"]
    given = [each.format(stream=named("CALL:write"), foreign=foreign) for each in arguments]
    done = run(home, *given)
    assert (done.code, done.out) == (code, "")
    assert code == 2 or "[not-found]" in done.err
