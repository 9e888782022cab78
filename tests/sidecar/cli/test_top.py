"""``top`` and ``intents``: background work, what waits for a person, and the changes in a copy, whole."""

from __future__ import annotations

import asyncio
import json
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bridge.opencode.capture.translate import Translator
from sidecar.background.board import MOST_ENDED, open_board
from sidecar.background.copies.copies import MAX_DIFF, Copies, Copy
from sidecar.cli.printing.output import Output
from sidecar.cli.work.top import AGENTS, OTHERS, REFRESH_SECONDS, _screen
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.reader import LogReader
from tests.real.terminal import Terminal
from tests.sidecar.background.projects import ID, repository, write
from tests.sidecar.cli.helpers import ROOT, append, command, environment, events_of, run
from tests.sidecar.cli.test_read import check_drawn
from tests.streams.builders import event

NOW = 1_800_000_000_000
IDENTITY = seeded_identity(3)


@pytest.fixture
def busy_home(tmp_path: Path) -> Path:
    """A session that asks for a permission and waits; background work of every kind; more than is shown has ended."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    asking = events_of("permission_once", Translator(seeded_identity(2)))
    asks = next(n for n, event in enumerate(asking, 1) if event.type == "workflow.checkpoint")
    made = [*asking[:asks], *intent("int_queued")]
    made += intent("int_runs", ("intent.started", {"session": "ses_runs", "parent": None, "ts": NOW}))
    for n in range(MOST_ENDED + 1):
        started = ("intent.started", {"session": f"ses_{n}", "parent": None, "ts": NOW})
        made += intent(f"int_ended{n}", started, ("intent.completed", {"ts": NOW}))
    asyncio.run(append(home / "store", [[event] for event in made]))
    return home


def intent(name: str, *more: tuple[str, dict[str, Any]], title: str = "", **given: Any) -> list[StreamEvent]:
    """What the agent ``intents`` records of one intent."""
    about = {"prompt": "p", "title": title or f"the title of {name}", "parent": None, "directory": "/p", "ts": NOW}
    about |= given
    about["models"] = ["anthropic/claude-x"] if name == "int_costly" else []
    prompted = [("intent.prompted", {"ts": given["ts"]}) for type_, given in more if type_ == "intent.started"]
    later = [("intent.starting", {}), *more[:1], *prompted, *more[1:]] if more else []
    return [made_by("intents", type_, intent=name, **payload) for type_, payload in [("intent.created", about), *later]]


def made_by(agent: str, type_: str, **payload: Any) -> StreamEvent:
    """An event of a built-in agent."""
    about: dict[str, Any] = {"actor": agent, "metadata": {"role": "output"}, "payload": payload}
    about["source"] = {"agent": agent, "adapter": "runtime"}
    key = f"{payload.get('message', payload.get('intent'))}:{type_}"
    return event(key, stream=f"agent/{agent}", type_=type_, identity=IDENTITY, **about)


async def test_the_board_shows_what_runs_what_waits_and_what_ended_lately(busy_home: Path) -> None:
    board = await open_board(LogReader(busy_home / "store"))
    assert board.position == LogReader(busy_home / "store").head
    state = board.state(NOW + 1000)
    ended = [f"int_ended{n}" for n in range(1, MOST_ENDED + 1)]
    assert [agent["id"] for agent in state["agents"]] == [*ended, "int_queued", "int_runs"]
    assert (state["agents"][-1]["state"], state["agents"][-1]["ran"]) == ("running", 1000)
    (waiting,) = state["waiting"]
    assert waiting["id"].startswith("chk_")
    (session,) = state["sessions"]
    assert session["session"] == waiting["session"] and session["doing"]
    later = board.state(NOW + 10_000_000)
    assert [agent["id"] for agent in later["agents"]] == ["int_queued", "int_runs"]


def test_what_a_session_spent_in_all_is_shown(busy_home: Path) -> None:
    about = {"parent": "ses_parent", "root": "ses_parent"}
    spends = ("intent.spent", {"tokens": 1500, "cost": 0.25})
    made = [*intent("int_one", spends, **about), *intent("int_two", spends, **about)]
    asyncio.run(append(busy_home / "store", [[event] for event in made]))
    used = {"root": "ses_parent", "sessions": 2, "tokens": 3000, "cost": 0.5, "ran": 0}
    assert json.loads(run(busy_home, "top", "--json").out)["roots"] == [used]
    assert "3.0k\t$0.50\tses_parent" in run(busy_home, "top").out
    assert json.loads(run(busy_home, "intents", "int_two", "--json").out)["spent"] == used
    assert json.loads(run(busy_home, "intents", "--json").out.splitlines()[-1])["spent"] == used
    assert "2 started" in run(busy_home, "intents", "int_two").out
    assert "started," not in run(busy_home, "intents", "int_runs").out


def test_an_intent_in_full_says_what_it_used_and_what_it_waits_for(busy_home: Path) -> None:
    (busy_home / "config.toml").write_text("[phantom]\nmax_running = 1\n")
    begins = ("intent.started", {"session": "ses_x", "parent": None, "ts": NOW})
    ask = {
        "message": "chk_one",
        "intent": "int_asks",
        "session": "ses_x",
        "text": "bash rm -rf build",
        "directory": "/p",
    }
    made = [
        *intent(
            "int_asks", begins, ("intent.spent", {"tokens": 1500, "cost": 0.25, "ts": NOW + 60_000}), max_tokens=9000
        ),
        made_by("intents", "intent.paused", intent="int_asks", checkpoint="chk_one", ts=NOW + 60_000),
        made_by("messages", "message.queued", **ask, kind="permission", request="per_1", ts=NOW + 60_000),
        *intent("int_cut", begins, ("intent.interrupted", {"ts": NOW}), ("intent.waiting", {"ts": NOW})),
    ]
    asyncio.run(append(busy_home / "store", [[event] for event in made]))

    def shown(name: str) -> tuple[str, list[dict[str, str]]]:
        return run(busy_home, "intents", name).out, json.loads(run(busy_home, "intents", name, "--json").out)["waits"]

    text, waits = shown("int_asks")
    assert "used        1m, 1.5k of 9.0k tokens, $0.25\n" in text
    assert "waits for   your answer to chk_one: p asks for permission: bash rm -rf build\n" in text
    assert waits == [{"for": "answer", "id": "chk_one", "text": "p asks for permission: bash rm -rf build"}]
    text, waits = shown("int_queued")
    assert "waits for   a free place ([phantom] max_running)\n" in text and "used" not in text
    assert waits == [{"for": "place", "id": "max_running", "text": "a free place ([phantom] max_running)"}]
    text, waits = shown("int_cut")
    assert "waits for   an OpenCode that may do" in text and [each["for"] for each in waits] == ["opencode"]
    assert shown("int_runs")[1] == [] and "waits" not in shown("int_ended1")[0]
    (busy_home / "config.toml").write_text("[")
    assert shown("int_queued")[1] == [] and "limits could not be read" in run(busy_home, "intents", "int_queued").err


@pytest.mark.parametrize("width", [80, 200])
async def test_the_screen_is_as_it_was_drawn(busy_home: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    about = {"session": "ses_runs", "tokens": 12_345, "cost": 1.5}
    hostile = "a title of two\nlines with \x1b[31mcolour, and more than an edge of eighty columns leaves room for"
    made = [
        *intent("int_costly", ("intent.started", {**about, "parent": None, "ts": NOW - 90_000})),
        *intent("int_failed", ("intent.failed", {"ts": NOW, "reason": "timeout: it ran for more than 3600 s"})),
        *intent("int_title", title=hostile),
    ]
    await append(busy_home / "store", [[event] for event in made])
    board = await open_board(LogReader(busy_home / "store"))
    drawn = StringIO()
    out = Output()
    out.console = Console(file=drawn, width=width, height=40, highlight=False, markup=False, emoji=False)
    out.console.print(_screen(out, board.state(NOW + 1000)))
    screen = "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"
    check_drawn(f"top-{width}", screen)
    assert "\x1b" not in screen and all(len(line) <= width for line in screen.splitlines())


def test_a_model_that_is_called_again_is_told_until_something_happens(busy_home: Path) -> None:
    """Alike for OpenCode 1 and 2."""
    retries = events_of("abort_retry", Translator(seeded_identity(4)))[:4]
    session = retries[-1].payload["session"]
    work = intent("int_retries", ("intent.started", {"session": session, "parent": None, "ts": NOW}))

    def views() -> list[str]:
        board = asyncio.run(open_board(LogReader(busy_home / "store")))
        of_work = next(row["doing"] for row in board.state(NOW)["agents"] if row["id"] == "int_retries")
        (listed,) = [line for line in run(busy_home, "intents").out.splitlines() if line.startswith("int_retries")]
        return [of_work, listed, run(busy_home, "intents", "int_retries").out, run(busy_home, "tree", session).out]

    asyncio.run(append(busy_home / "store", [[event] for event in [*work, *retries]]))
    assert all("retries (1): scripted error, next in 2.1s" in view for view in views()), views()
    ended = event("over", stream=session, type_="turn.ended", payload={"session": session})
    asyncio.run(append(busy_home / "store", [[ended]]))
    assert not any("retries (" in view for view in views()), views()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (200, 24)])
async def test_what_runs_is_seen_before_what_waits_and_no_line_is_left_empty(
    busy_home: Path, width: int, height: int
) -> None:
    begins = ("intent.started", {"session": "ses_late", "parent": None, "ts": NOW})
    made = [*intent("int_late", begins), *(each for n in range(40) for each in intent(f"int_more{n:02}"))]
    await append(busy_home / "store", [[event] for event in made])
    board = await open_board(LogReader(busy_home / "store"))
    drawn, out = StringIO(), Output()
    out.console = Console(file=drawn, width=width, height=height, highlight=False, markup=False, emoji=False)
    out.console.print(_screen(out, board.state(NOW + 1000)))
    lines = drawn.getvalue().splitlines()
    assert len(lines) in range(height - 1, height + 1)
    shown = [line.split()[0] for line in lines if line.startswith("int_")]
    assert shown[:2] == ["int_runs", "int_late"] and "int_ended8" not in shown
    assert f"{51 - len(shown)} more not shown" in drawn.getvalue()


@pytest.mark.parametrize("keys", [b"q", b"xq"])
def test_the_screen_follows_the_log_until_q(busy_home: Path, keys: bytes) -> None:
    with Terminal(command(busy_home, "top"), ROOT, environment(), columns=80) as screen:
        screen.wait_for("the title of int_runs")
        screen.wait_for("Waiting for you")
        asyncio.run(append(busy_home / "store", [intent("int_new")]))
        screen.wait_for("the title of int_new")
        screen.press(keys)
        assert screen.process.wait(20 * REFRESH_SECONDS) == 0


def test_lists_tell_what_waits_for_a_person_and_what_was_last_done_when(busy_home: Path) -> None:
    begins = ("intent.started", {"session": "ses_x", "parent": None, "ts": NOW})
    changes = {"ref": "refs/x", "count": 1, "files": [], "diff": ""}
    made = [
        *intent("int_asks", begins),
        made_by("intents", "intent.paused", intent="int_asks", checkpoint="chk_one", ts=NOW),
        *intent("int_applied", begins, ("intent.completed", {"ts": NOW, "changes": changes})),
        made_by("intents", "intent.applied", intent="int_applied", ts=NOW),
    ]
    asyncio.run(append(busy_home / "store", [[event] for event in made]))
    told = {row[0]: row for row in (line.split("\t") for line in run(busy_home, "intents").out.splitlines())}
    assert told["int_applied"][-1] == "the title of int_applied in p"
    board = asyncio.run(open_board(LogReader(busy_home / "store")))
    (session,) = board.state(NOW)["sessions"]
    shown = {agent["id"]: agent["asks"] for agent in board.state(NOW)["agents"]}
    assert (shown["int_asks"], shown["int_runs"]) == (1, 0)
    agents, at_work, _ = (rows for _, _, rows in (AGENTS, *OTHERS))
    assert {row[0]: row[1] for row in agents(board.state(NOW))}["int_asks"] == "waiting for you"
    (row,) = at_work(board.state(session["done"] + 240_000))
    assert f"4m ago: {session['doing']}" in row[-1]


async def _work(project: Path, home: Path) -> tuple[Copy, dict[str, Any]]:
    copies = Copies(home / "copies")
    made = await copies.make(ID, str(project))
    root = Path(made.root)
    write(root / "a_big.txt", "a line\n" * 60_000)
    write(root / "zz_hook.sh")
    write(root / "out/report.txt")
    return made, await copies.collect(ID)


@pytest.fixture(scope="module")
def changed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Background work that ended, with a long diff and a file that is only in its copy. Put back what you move."""
    place = tmp_path_factory.mktemp("changed")
    project, home = repository(place / "project", {".gitignore": "out\n"}), place / "home"
    home.mkdir(mode=0o700)
    made, changes = asyncio.run(_work(project, home))
    assert len(changes["diff"]) == MAX_DIFF and changes["is_cut"]
    setup = [{"command": "make deps", "code": 0, "seconds": 72.0, "output": "built \x1b[1mall\n"}]
    isolated = ("intent.isolated", {"copy": made._asdict(), "setup": setup})
    started = ("intent.started", {"session": "ses_1", "parent": None, "ts": NOW})
    ended = ("intent.completed", {"ts": NOW, "changes": changes})
    asyncio.run(append(home / "store", [[event] for event in intent(ID, isolated, started, ended)]))
    return home


def test_the_diff_is_whole_or_an_error(changed_home: Path) -> None:
    shown = run(changed_home, "intents", ID, "--diff").out
    assert shown.count("\n+a line") == 60_000 and "+++ b/zz_hook.sh\n" in shown
    result = changed_home / "copies/results" / ID
    moved = result.rename(changed_home / "elsewhere")
    done = run(changed_home, "intents", ID, "--diff")
    moved.rename(result)
    assert (done.code, done.err.rstrip()[-12:]) == (1, "[no-changes]")


def test_an_ambiguous_id_and_a_diff_that_is_gone_say_so(changed_home: Path) -> None:
    gone = ("intent.discarded", {"ts": NOW})
    made = intent("int_gone", ("intent.completed", {"ts": NOW, "changes": {"saved": True, "count": 1}}), gone)
    asyncio.run(append(changed_home / "store", [[event] for event in made]))
    for words, code in ((["int_"], "ambiguous"), (["int_x"], "no-intent"), (["int_gone", "--diff"], "no-changes")):
        done = run(changed_home, "intents", *words)
        assert (done.code, done.out, done.err.endswith(f"[{code}]\n")) == (1, "", True), done


def test_what_the_setup_did_and_what_is_only_in_a_kept_copy_is_shown(changed_home: Path) -> None:
    shown, kept = run(changed_home, "intents", ID).out, changed_home / "copies" / ID
    assert str(kept) in shown and "> out (" in shown
    assert "make deps" in shown and "all" in shown and "\x1b" not in shown
    (row,) = run(changed_home, "intents", ID, "--json").objects()
    assert row["changes"]["kept"].startswith(f"{kept}/files/") and row["changes"]["unsaved_count"] == 1


def test_doctor_says_how_much_ended_work_left_behind(changed_home: Path) -> None:
    (found,) = [row for row in run(changed_home, "doctor", "--json").objects() if row["name"] == "copies"]
    assert found["level"] == "note" and "1 copy" in found["text"] and ID in found["hint"]
    kept = (changed_home / "copies" / ID).rename(changed_home / "elsewhere")
    told = [row["name"] for row in run(changed_home, "doctor", "--json").objects()]
    kept.rename(changed_home / "copies" / ID)
    assert "copies" not in told
