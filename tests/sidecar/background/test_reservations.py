"""Reservations: no two sessions ever hold what can be the same file, whatever comes in whatever order."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.agents.agent import Output
from sidecar.background.reservations.agent import MOST_PATHS, Held, ReservationAgent
from sidecar.background.reservations.paths import BadPath, checked, folded, meet, overlap, shown
from sidecar.background.reservations.project import address, path_in, project_of, remote_of
from streams.event import StreamEvent
from tests.sidecar.background.projects import git, repository
from tests.streams.builders import event

SEGMENTS = ("a", "A", "b", "ab", "*", "a*", "*b", "?", "**")
PATTERNS = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4).map("/".join)
NAMES = ("a", "b", "ab", "aab")
FILES = ["/".join(each) for length in (1, 2, 3, 4, 5) for each in product(NAMES, repeat=length)]
VECTORS = Path(__file__).parents[3] / "plugin-shim" / "test" / "reserved.json"


def is_matched(pattern: str, file: str) -> bool:
    """The same by trying: ``**`` takes nothing, or one more segment."""

    def tries(one: tuple[str, ...], two: tuple[str, ...]) -> bool:
        if not one:
            return not two
        if one[0] == "**":
            return tries(one[1:], two) or (bool(two) and tries(one, two[1:]))
        return bool(two) and name(one[0], two[0]) and tries(one[1:], two[1:])

    def name(one: str, two: str) -> bool:
        if not one:
            return not two
        if one[0] == "*":
            return name(one[1:], two) or (bool(two) and name(one, two[1:]))
        return bool(two) and one[0] in ("?", two[0]) and name(one[1:], two[1:])

    return tries(folded(pattern), folded(file))


@given(PATTERNS, PATTERNS)
@settings(max_examples=150)
def test_two_paths_overlap_if_a_file_is_meant_by_both(one: str, two: str) -> None:
    both = [file for file in FILES if is_matched(one, file) and is_matched(two, file)]
    assert overlap(one, two) == overlap(two, one)
    # A longer file may be meant by both, if a `**` is in each.
    assert overlap(one, two) or not both
    assert both or not overlap(one, two) or (len(one.split("/")) + len(two.split("/")) > 5) or one == two == "**"
    assert all(overlap(one, file) == is_matched(one, file) for file in FILES[:84])


def test_the_plugin_matches_as_the_sidecar() -> None:
    for pattern, file, expected in json.loads(VECTORS.read_text()):
        assert overlap(pattern, file) == is_matched(pattern, file) == expected, (pattern, file)


class World:
    """The agent."""

    def __init__(self) -> None:
        self.agent, self._count = ReservationAgent(), 0

    def sent(self, type_: str, ts: int, session: str, project: str = "p", **about: Any) -> list[Output]:
        self._count += 1
        payload = {"project": project, "machine": "m", "session": session, **about}
        return self.handled(type_, payload, ts)

    def handled(self, type_: str, payload: dict[str, Any], ts: int) -> list[Output]:
        given = self._event(type_, payload, ts)
        outputs = self.agent.receive(given)
        assert outputs == self.agent.receive(given)
        for output in outputs:
            self.agent.apply(self._event(output.type, output.payload, ts))
        self.agent.load(json.loads(json.dumps(self.agent.state())))
        return outputs

    def reserve(self, ts: int, session: str, *paths: str, minutes: float = 1.0, **about: Any) -> str:
        (output,) = self.sent("reserve", ts, session, paths=list(paths), minutes=minutes, **about)
        return output.type

    def held(self) -> list[Held]:
        return [each for held in self.agent.data.projects.values() for each in held]

    def _event(self, type_: str, payload: dict[str, Any], ts: int) -> StreamEvent:
        self._count += 1
        return event(f"{self._count}", stream="agent/reservations", type_=type_, payload=payload, ts=ts)


LINES = {"child": ["parent"], "sibling": ["parent"], "grandchild": ["child", "parent"]}
COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "release"]),
        st.sampled_from(["one", "parent", "child", "sibling", "grandchild"]),
        st.lists(PATTERNS, max_size=3),
        st.integers(0, 20),
        st.sampled_from(["p", "q"]),
    ),
    max_size=12,
)


@given(COMMANDS)
@settings(max_examples=200)
def test_no_two_sessions_ever_hold_the_same(commands: list[tuple[str, str, list[str], int, str]]) -> None:
    world = World()
    for type_, session, paths, minute, project in commands:
        ts, before = minute * 60_000, world.agent.state()
        if type_ == "release":
            world.sent(type_, ts, session, project, paths=paths)
            continue
        if not paths:
            continue
        about = {"paths": paths, "minutes": 5, "above": LINES.get(session, [])}
        (output,) = world.sent(type_, ts, session, project, **about)
        live = [h for h in before["projects"].get(project, []) if h["until"] > ts]
        others = [h for h in live if h["session"] != session and not related(h["session"], session)]
        in_way = any(overlap(h["path"], path) for h in others for path in paths)
        assert output.type == ("reservation.refused" if in_way else "reservation.granted")
        held = [each for each in world.agent.data.projects.get(project, ()) if each.session == session]
        if in_way:
            assert world.agent.state() == before, "nothing half"
        else:
            assert {each.path for each in held if each.until == ts + 300_000} >= set(paths)
        for held_in in world.agent.data.projects.values():
            for one, two in product(held_in, held_in):
                if one.session != two.session and not related(one.session, two.session):
                    assert not overlap(one.path, two.path)


def related(one: str, two: str) -> bool:
    return one in LINES.get(two, ()) or two in LINES.get(one, ())


def test_a_session_extends_freely_and_what_expired_refuses_nobody() -> None:
    world = World()
    assert world.reserve(0, "one", "src/**") == "reservation.granted"
    assert world.reserve(30_000, "one", "src/**", "src/a.py") == "reservation.granted"
    assert [(each.path, each.since, each.until) for each in world.held()] == [
        ("src/**", 0, 90_000),
        ("src/a.py", 30_000, 90_000),
    ]
    assert world.reserve(89_999, "two", "SRC/b.py") == "reservation.refused"
    assert world.reserve(90_000, "two", "SRC/b.py") == "reservation.granted"
    assert [each.session for each in world.held()] == ["two"], "the state keeps nothing that is over"


def test_a_release_names_what_is_below_or_takes_all_but_never_what_is_anothers() -> None:
    world = World()
    world.reserve(0, "one", "src/a.py", "src/b.py", "docs/**")
    assert world.sent("release", 1, "two") == []
    (output,) = world.sent("release", 1, "one", paths=["src/**"])
    assert output.payload["paths"] == ["src/a.py", "src/b.py"]
    (output,) = world.sent("release", 1, "one")
    assert output.payload["paths"] == ["docs/**"] and world.agent.data.projects == {}


def test_a_refusal_says_who_holds_what_why_and_until_when() -> None:
    world = World()
    world.reserve(0, "one", "src/auth/**", title="Fix login", why="tests")
    (output,) = world.sent("reserve", 1, "two", paths=["docs/**", "src/auth/x.py"], minutes=1)
    assert output.type == "reservation.refused" and output.payload["code"] == "reserved"
    (held,) = output.payload["held"]
    assert held["asked"] == "src/auth/x.py" and held["path"] == "src/auth/**"
    assert (held["session"], held["title"], held["why"], held["until"]) == ("one", "Fix login", "tests", 60_000)


def test_too_many_paths_are_refused_as_a_whole() -> None:
    world = World()
    assert world.reserve(0, "one", *(f"a{n}" for n in range(MOST_PATHS))) == "reservation.granted"
    (output,) = world.sent("reserve", 1, "one", paths=["b"], minutes=1)
    assert output.payload["code"] == "too-many" and len(world.held()) == MOST_PATHS


@pytest.mark.parametrize("path", ["", "/a", "a//b", "../a", "a/..", "./a", "a/", "a\n", "a\x00", "{a,b}/c", "x" * 301])
def test_a_path_that_is_none_reserves_nothing(path: str) -> None:
    with pytest.raises(BadPath):
        checked(path)
    world = World()
    with pytest.raises(BadPath):
        world.reserve(0, "one", "good", path)
    assert world.held() == []


def test_many_stars_take_no_time() -> None:
    long = "/".join(["*a*b*c*d*" * 3] * 9)[:300].rstrip("/")
    assert not meet(folded(long), folded("b" * 300), "**", lambda a, b: meet(a, b, "*", lambda x, y: x == y))


# --- projects and paths on the disk ---


@pytest.mark.parametrize(
    ("remote", "key"),
    [
        ("https://github.com/Ada/shop.git", "github.com/Ada/shop"),
        ("https://ada:secret@GitHub.com:443//Ada/shop/", "github.com/Ada/shop"),
        ("git@github.com:Ada/shop.git", "github.com/Ada/shop"),
        ("GITHUB.com:Ada/shop", "github.com/Ada/shop"),
        ("ssh://git@github.com/Ada/shop", "github.com/Ada/shop"),
        ("ssh://git@github.com:22/Ada/shop", "github.com/Ada/shop"),
        ("git://github.com/Ada/shop.git", "github.com/Ada/shop"),
        ("https://git.example.org:8443/x", "git.example.org:8443/x"),
        ("/srv/git/shop.git", ""),
        ("file:///srv/git/shop.git", ""),
        ("../shop", ""),
        ("https://[broken", ""),
    ],
)
def test_the_addresses_of_one_remote_are_one_project(remote: str, key: str) -> None:
    assert address(remote) == key


def test_a_remote_is_read_as_git_reads_it(tmp_path: Path) -> None:
    text = (
        '[core]\n bare = false\n[Remote "b"]\n\turl = other ; said\n[remote "origin"] url = "a b"\\\n c # not\nurl=x\n'
    )
    assert remote_of(text.encode()) == "a b c"
    assert remote_of(b'[remote "z"]\nurl = z\n[remote "y"]\nurl = y\n') == "z"
    assert remote_of(b"[remote]\nurl = x\n") == remote_of(b"\xff[") == ""
    top = repository(tmp_path / "clone")
    git(top, "remote", "add", "origin", "git@github.com:Ada/sh#op.git")
    assert project_of(str(top), "m") == ("github.com/Ada/sh#op", str(top))


def test_clones_of_a_remote_are_one_project_and_all_else_is_of_one_machine(tmp_path: Path) -> None:
    one, two = repository(tmp_path / "one"), repository(tmp_path / "two")
    (one / "src").mkdir()
    for each, remote in ((one, "https://github.com/ada/shop"), (two, "git@github.com:ada/shop.git")):
        git(each, "remote", "add", "origin", remote)
    assert project_of(str(one / "src"), "m") == ("github.com/ada/shop", str(one))
    assert project_of(str(one), "m").key == project_of(str(two), "n").key
    git(two, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert project_of(str(tmp_path / "tree"), "n") == ("github.com/ada/shop", str(tmp_path / "tree"))
    alone = repository(tmp_path / "alone")
    assert project_of(str(alone), "m").key != project_of(str(alone), "n").key
    git(alone, "remote", "add", "origin", str(one))
    assert project_of(str(alone), "m").key == f"m:{one}", "a directory is not the same on another machine"
    (tmp_path / "none").mkdir()
    assert project_of(str(tmp_path / "none"), "m") == (f"m:{tmp_path / 'none'}", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("given_path", "path"),
    [
        ("a.py", "src/a.py"),
        ("./a.py", "src/a.py"),
        ("../src/a.py", "src/a.py"),
        ("{root}/src/a.py", "src/a.py"),
        ("auth", "src/auth/"),
        ("auth/", "src/auth/"),
        ("../..//{name}/docs", "docs/"),
        ("new", "src/new/"),
        ("new.py", "src/new.py"),
        ("new.d/", "src/new.d/"),
        ("*.py", "src/*.py"),
        ("../**/*.md", "**/*.md"),
        ("../linked/x.py", "src/auth/x.py"),
        ("../linked/*.py", "src/auth/*.py"),
        ("..", "**"),
        ("{root}", "**"),
        (".", "src/"),
        ("[id].tsx", "src/[id].tsx"),
        ("../..", None),
        ("/etc", None),
        ("../away/x", None),
        ("../away/*", None),
        ("../*/../../x", None),
        ("/*", None),
        ("../.git/config", None),
        ("a\x00b", None),
        (" ", None),
        ("~/x", None),
    ],
)
def test_a_path_is_what_it_leads_to_in_the_project(tmp_path: Path, given_path: str, path: str | None) -> None:
    root = repository(tmp_path / "project")
    (root / "src" / "auth").mkdir(parents=True)
    (root / "src" / "a.py").touch()
    (root / "docs").mkdir()
    (root / "linked").symlink_to("src/auth")
    (root / "away").symlink_to(tmp_path)
    wanted = given_path.format(root=root, name=root.name) if "[" not in given_path else given_path
    if path is None:
        with pytest.raises(BadPath):
            path_in(str(root), str(root / "src"), wanted)
    else:
        assert shown(path_in(str(root), str(root / "src"), wanted)) == path
