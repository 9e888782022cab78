"""Project-aware reading: whose sessions come first, what ``--project`` chooses, and what waits for a person."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.shared.project import project_here
from sidecar.read.find_by_id import LogReader, catalog_of
from sidecar.read.projects import Project, short_directory
from streams.event import StreamEvent
from tests.sidecar.background.projects import Marker
from tests.sidecar.cli.helpers import MAY_REMOVE, append, run, run_and_stop
from tests.sidecar.cli.processes import Process
from tests.sidecar.cli.test_terminal import ANSI, on_terminal
from tests.streams.builders import event


def session(name: str, directory: Path | str, ts: int, *, project: str = "global", **more: Any) -> list[StreamEvent]:
    """A session that ran in ``directory``, asked one thing."""
    place = {"directory": str(directory), "project": project, "lineage": "root", "title": f"Work of {name}"}
    return [
        event(stream=name, type_="lifecycle.session.created", ts=ts, payload={"session": name, **place}, **more),
        event(stream=name, type_="human.input", ts=ts, actor="user", payload={"session": name, "message": f"m_{name}"}),
    ]


def happened(name: str, type_: str, ts: int = 9, **payload: Any) -> StreamEvent:
    return event(stream=name, type_=type_, ts=ts, payload={"session": name, **payload})


def asked(name: str, request: str, **payload: Any) -> StreamEvent:
    return happened(name, "workflow.checkpoint", state="asked", kind="permission", request=request, **payload)


def agent_record(stream: str, session: str) -> StreamEvent:
    """A record of an agent that names a session."""
    return event(stream=stream, type_="agent.received", ts=20, payload={"session": session})


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories ``shop`` (a repository with the worktree ``other``), ``shop/web``, ``blog`` and ``empty``. The
    current one is ``shop/web``."""
    for name in ("shop/.git/worktrees/other", "shop/web", "other", "blog", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "shop/.git/worktrees/other/gitdir").write_text(f"{tmp_path / 'other/.git'}\n")
    (tmp_path / "other/.git").write_text(f"gitdir: {tmp_path / 'shop/.git/worktrees/other'}\n")
    monkeypatch.chdir(tmp_path / "shop" / "web")
    return tmp_path


@pytest.fixture
def projects_home(places: Path) -> Path:
    home = places / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(MAY_REMOVE)
    made = [
        *session("ses_tree", places / "other", 3, project="abc"),
        *session("ses_shop", places / "shop", 4, project="abc"),
        *session("ses_web", places / "shop" / "web", 5),
        *session("ses_blog", places / "blog", 6, project="abc"),
    ]
    asyncio.run(append(home / "store", [made]))
    return home


class TestProjects:
    def test_its_own_streams_come_first_and_all_are_there(self, projects_home: Path, places: Path) -> None:
        found = run(projects_home, "streams", "--json").objects()
        assert [one["stream_id"] for one in found] == ["ses_web", "ses_shop", "ses_tree", "ses_blog"]
        assert {one["stream_id"]: one["directory"] for one in found}["ses_blog"] == str(places / "blog")
        assert found[1]["project"] == "abc"

    def test_a_named_project_with_what_is_below_it_and_other_worktrees(self, projects_home: Path, places: Path) -> None:
        shop = {"ses_web", "ses_shop", "ses_tree"}
        for verb in ("streams", "tree"):
            found = run(projects_home, verb, "--project", str(places / "shop"), "--json").objects()
            assert {one["stream_id"] for one in found} == shop
        found = run(
            projects_home, "query", "--project", str(places / "shop"), "--type", "human.input", "--json"
        ).objects()
        assert {one["event"]["stream_id"] for one in found} == shop
        everything = run(projects_home, "streams", "--project", "all", "--json").objects()
        assert {one["stream_id"] for one in everything} == {*shop, "ses_blog"}

    @pytest.mark.parametrize("verb", ["streams", "query", "tree", "log"])
    def test_a_project_without_sessions_is_named(self, projects_home: Path, places: Path, verb: str) -> None:
        done = run(projects_home, verb, "--project", str(places / "empty"))
        assert done.out == "" and str(places / "empty") in done.err and done.code == (verb == "log")

    def test_log_alone_shows_the_newest_of_this_project(self, projects_home: Path, places: Path) -> None:
        assert {r["event"]["stream_id"] for r in run(projects_home, "log", "--json").objects()} == {"ses_web"}
        for given, stream in ((str(places / "blog"), "ses_blog"), ("all", "ses_blog")):
            found = run(projects_home, "log", "--project", given, "--json").objects()
            assert {r["event"]["stream_id"] for r in found} == {stream}

    @pytest.mark.parametrize("verb", ["log", "read", "export"])
    def test_a_stream_of_an_agent_is_never_the_newest_session(
        self, projects_home: Path, places: Path, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        asyncio.run(append(projects_home / "store", [[agent_record("agent/intents", "ses_x")]]))
        monkeypatch.chdir(places / "empty")
        assert f"The newest session in {places}/blog: ses_blog" in run(projects_home, verb).err

    def test_the_project_is_the_repository_around(self, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert project_here() == Project(str(places / "shop"))
        monkeypatch.chdir(places / "blog")
        assert project_here() == Project(str(places / "blog"))

    def test_a_directory_that_begins_alike_is_another(self) -> None:
        shop = Project("/home/ada/shop")
        assert shop.holds("/home/ada/shop") and shop.holds("/home/ada/shop/web")
        assert not shop.holds("/home/ada/shop2") and not shop.holds("") and not shop.holds("shop")

    def test_directories_are_shown_as_people_write_them(self) -> None:
        assert short_directory("/home/ada/shop", "/home/ada") == "~/shop"
        assert short_directory("/home/ada", "/home/ada") == "~"
        assert short_directory("/home/adam", "/home/ada") == "/home/adam"


def test_a_directory_of_windows_is_one_project_however_it_is_written(tmp_path: Path) -> None:
    one = ["C:\\w\\shop", "c:\\w\\shop", "C:/w/shop", "c:/w/shop/", "C:\\w\\shop\\", "\\\\?\\C:\\w\\shop", "c:\\w/shop"]
    others = ["D:\\w\\shop", "/c:/w/shop", "/w/shop", "c:", "c:shop"]
    written = [session(f"ses_{n}", directory, n) for n, directory in enumerate([*one, *others])]
    asyncio.run(append(tmp_path / "store", written))
    rows = sorted(run(tmp_path, "streams", "--json").objects(), key=lambda row: int(row["stream_id"][4:]))
    assert [row["directory"] for row in rows] == ["C:\\w\\shop"] * len(one) + [*others[:3], "C:\\", "c:shop"]


class TestWaiting:
    def test_what_waits_is_shown_until_it_is_answered(self, projects_home: Path) -> None:
        store = projects_home / "store"
        ask = asked("ses_web", "per_1", permission="bash", metadata={"command": "rm -rf build"}, patterns=["rm *"])
        asyncio.run(append(store, [[happened("ses_web", "turn.started", message="m_ses_web"), ask]]))
        found = run(projects_home, "streams", "--json").objects()[0]
        assert found["status"] == "waiting" and found["asks"][0]["text"] == "bash rm -rf build"
        assert found["asks"][0]["event"] == ask.id
        for done in (run(projects_home, "log", "ses_web").err, run(projects_home, "status").out):
            assert "waiting for you: web asks for permission: bash rm -rf build · since " in done
            assert "--answer once|always|reject" in done
        assert "waiting for you" not in run(projects_home, "log", "ses_blog").err
        replied = happened("ses_web", "workflow.checkpoint", state="replied", request="per_1", reply="once")
        asyncio.run(append(store, [[replied]]))
        assert run(projects_home, "streams", "--json").objects()[0]["status"] == "active"
        assert "waiting for you" not in run(projects_home, "status").out

    @pytest.mark.parametrize(
        "end",
        [
            happened("ses_web", "turn.ended", message="m_ses_web", outcome="interrupted"),
            happened("ses_web", "lifecycle.session.resumed"),
            happened("ses_web", "lifecycle.session.ended", reason="deleted"),
        ],
        ids=["turn ended", "resumed", "deleted"],
    )
    def test_asks_end_with_their_turn_and_their_process(self, projects_home: Path, end: StreamEvent) -> None:
        begun = [happened("ses_web", "turn.started", message="m_ses_web"), asked("ses_web", "q", questions=[{}])]
        asyncio.run(append(projects_home / "store", [[*begun, end]]))
        assert run(projects_home, "streams", "--json").objects()[0]["asks"] == []

    def test_they_are_those_of_one_stream_on_one_line(self, projects_home: Path) -> None:
        questions = [{"question": "Which one?"}, {"question": "And\x1b[2J why?"}, 5]
        asyncio.run(append(projects_home / "store", [[asked("ses_blog", "que_1", questions=questions)]]))
        catalog, _ = asyncio.run(catalog_of(LogReader(projects_home / "store")))
        assert catalog.asks({"ses_blog"}) == catalog.asks() and catalog.asks({"ses_web"}) == []
        assert [ask.text for ask in catalog.asks({"ses_blog"})] == ["Which one?; And<U+001B>[2J why?"]


class TestTitles:
    def test_a_resumed_session_keeps_its_title(self, projects_home: Path) -> None:
        asyncio.run(append(projects_home / "store", [[happened("ses_web", "lifecycle.session.resumed")]]))
        assert run(projects_home, "streams", "--json").objects()[0]["title"] == "Work of ses_web"

    def test_a_forgotten_stream_says_so(self, projects_home: Path) -> None:
        assert run_and_stop(projects_home, "forget", "ses_blog", "--yes").code == 0
        assert "(forgotten)" in run(projects_home, "streams").out


class TestFollowAll:
    def test_new_records_of_every_stream_and_of_new_ones(self, projects_home: Path, started: list[Process]) -> None:
        started.append(follower := Process(projects_home, "log", "--follow", "--json", "--last", "1"))
        assert follower.record()["event"]["stream_id"] == "ses_blog"
        made = [
            happened("ses_web", "turn.started"),
            *session("ses_new", "/tmp/x", 8),
            happened("ses_blog", "turn.ended"),
        ]
        asyncio.run(append(projects_home / "store", [made]))
        told = [follower.record()["event"]["stream_id"] for _ in made]
        assert told == ["ses_web", "ses_new", "ses_new", "ses_blog"]
        assert follower.interrupt() == 130


def test_install_warns_of_what_git_would_commit(places: Path, projects_home: Path) -> None:
    project = places / "repo"
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    marker = Marker(places / "marker")
    subprocess.run(["git", "-C", str(project), "config", "core.fsmonitor", str(marker)], check=True)
    loose = run(projects_home, "install", "--project", str(project), "--json").objects()[0]["git_would_commit"]
    assert ".opencode/plugin/durable-stream.js" in loose
    assert loose[0] in run(projects_home, "install", "--project", str(project)).err
    (project / ".gitignore").write_text(".opencode/\n")
    assert "git_would_commit" not in run(projects_home, "install", "--project", str(project), "--json").objects()[0]
    assert not marker.ran, "what the repository names"


def test_changes_of_a_project(projects_home: Path, places: Path) -> None:
    step = {"kind": "tool", "tool": "write", "input": {"filePath": "a.txt", "content": "x\n"}, "status": "completed"}
    made = [
        happened(name, type_, message=f"m_{name}", turn=f"m_{name}", **(step if type_ == "execution.step" else {}))
        for name in ("ses_web", "ses_blog")
        for type_ in ("turn.started", "execution.step")
    ]
    asyncio.run(append(projects_home / "store", [made]))
    ours = run(projects_home, "changes", "--json").objects()
    assert {one["session"] for one in ours} == {"ses_web"}, "of this project"
    everything = run(projects_home, "changes", "--project", "all", "--json").objects()
    assert {one["session"] for one in everything} == {"ses_web", "ses_blog"}
    found = run(projects_home, "changes", "--project", str(places / "blog"), "--json").objects()
    assert {one["session"] for one in found} == {"ses_blog"}
    assert str(places / "empty") in run(projects_home, "changes", "--project", str(places / "empty")).err
    assert run(projects_home, "changes", "ses_web", "--project", "all").code == 2


def test_a_turn_that_was_undone_says_so_and_is_not_counted(projects_home: Path, places: Path) -> None:
    step = {"kind": "tool", "tool": "write", "input": {"filePath": "a.txt", "content": "x\n"}, "status": "completed"}
    turn = {"message": "m_ses_web", "turn": "m_ses_web"}
    made = [happened("ses_web", "turn.started", **turn), happened("ses_web", "execution.step", **turn, **step)]
    staged = happened("ses_web", "opencode.session.reverted", message="m_ses_web")
    redone = happened("ses_web", "opencode.session.reverted")
    removed = happened("ses_web", "opencode.message.removed", properties={"messageID": "m_ses_web"})
    for more, is_undone in (([*made, staged], True), ([redone], False), ([removed], True)):
        asyncio.run(append(projects_home / "store", [more]))
        [found] = run(projects_home, "changes", "--json").objects()
        assert found["undone"] is is_undone
        header, row = run(projects_home, "changes").rows()
        assert dict(zip(header, row, strict=True))["undone"] == "undone" * is_undone
    said = ANSI.sub("", on_terminal(projects_home, "changes", width=100, cwd=places / "shop"))
    assert "1 turn undone" in said and "1 file changed" not in said


def test_what_a_command_says_of_its_choice_cannot_drive_a_terminal(projects_home: Path, places: Path) -> None:
    hostile = happened("ses_web", "lifecycle.session.resumed", title="\x1b]0;PWN\x07\u202eevil\x1b[31m")
    asyncio.run(append(projects_home / "store", [[hostile]]))
    for verb in ("log", "read"):
        told = run(projects_home, verb).err
        assert "evil" in told and not any(not c.isprintable() for c in told.replace("\n", ""))


def test_an_ask_is_worded_alike_everywhere_and_a_long_one_is_shown_whole(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(30)]
    told = {"permission": "bash", "patterns": ["echo *"], "metadata": {"command": " ".join(["echo", *words])}}
    made = [*session("ses_a", tmp_path, 1), happened("ses_a", "turn.started", message="m"), asked("ses_a", "p", **told)]
    asyncio.run(append(tmp_path / "store", [made]))
    shown = [on_terminal(tmp_path, *command, width=80) for command in (["streams"], ["log", "ses_a"])]
    shown.append(run(tmp_path, "status").out)
    for screen in shown:
        assert f"bash echo {' '.join(words)}" in " ".join(ANSI.sub("", screen).split())


def test_nothing_says_that_what_agents_alone_recorded_was_pruned(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(home, "agents").code == 0 and not home.exists(), "it starts no sidecar, and makes no home"
    home.mkdir(mode=0o700)
    asyncio.run(append(home / "store", [[agent_record("agent/intents", "ses_a")]]))
    told = run(home, "streams").err
    assert "pruned" not in told and "streams --all" in told
    assert run(home, "streams", "--all", "--json").objects()[0]["stream_id"] == "agent/intents"


def test_a_text_is_searched_in_records_that_repeat_others_only_if_asked(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    said = happened("ses_a", "execution.output", text="the marmot")
    own = event(stream="agent/intents", type_="agent.received", payload={"text": "the marmot"})
    starts = happened("ses_a", "execution.step.started", input={"command": "feed the marmot"})
    asyncio.run(append(home / "store", [[said], [own], [starts]]))
    for more in ([], ["--limit", "5"]):
        asked_of = {
            tuple(options): [each["event"]["stream_id"] for each in run(home, *options, *more).objects()]
            for options in (
                ["query", "marmot", "--json"],
                ["query", "marmot", "--internal", "--json"],
                ["query", "marmot", "--stream", "agent/intents", "--json"],
            )
        }
        assert list(asked_of.values()) == [["ses_a"], ["ses_a", "agent/intents", "ses_a"], ["agent/intents"]]
        assert "--internal" in run(home, "query", "marmot", *more).err
