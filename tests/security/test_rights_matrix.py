"""Background work does no more than the session that asks for it: each way to forbid, on both hosts, in the user's
directory and in a copy, for each way to start work.

The hosts are the real ones, over an OpenCode that only keeps sessions and rules. Calls are decided as OpenCode's own
code decides them, which ``tests/real/test_rights.py`` checks. In a copy, the agents have none of the bans: the
configuration that has them was not found there. ``tests/real`` runs some of the cells on the real OpenCodes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pytest

from bridge.opencode.capture.state import CaptureState, SessionState, Turn
from bridge.opencode.link.protocol import RequestError
from sidecar.background.hosts import v2_requests
from sidecar.background.hosts.host import HostAbsent, Look
from sidecar.background.hosts.rights import Rights, Rule
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v2 import V2Host
from sidecar.background.hosts.v2_variables import Variables
from sidecar.background.intents.intents import NAME as INTENTS
from sidecar.background.intents.registration import RegisterArgs
from sidecar.background.service import BackgroundWork
from sidecar.record.opencode2.http import ServiceError
from streams.bus.command import Command
from tests.memory import MemoryStore
from tests.sidecar.background.orchestrations import Host, orchestration
from tests.sidecar.background.released2 import FakeReleased, Json
from tests.sidecar.background.support import Bench
from tests.sidecar.background.test_rights import RANKS, hides, real
from tests.sidecar.background.test_v1 import NOBODY, FakeLink

ALLOW: Final = (
    Rule("*", "*", "allow"),
    Rule("external_directory", "*", "ask"),
    Rule("read", "*.env", "ask"),
    Rule("read", "*.env.example", "allow"),
)


class Way(NamedTuple):
    """What forbids: rules of the asking agent, rules of the session, or a plugin that the copy does not load."""

    agent: tuple[Rule, ...] = ()
    session: tuple[Rule, ...] = ()
    plugin: str = ""


def deny(what: str, pattern: str = "*", effect: str = "deny") -> tuple[Rule, ...]:
    return (Rule(what, pattern, effect),)


WAYS: Final = {
    "config-deny": Way(deny("bash")),
    "config-ask": Way(deny("bash", effect="ask")),
    "agent-edit": Way(deny("edit")),
    "session-deny": Way(session=deny("bash")),
    "session-ask": Way(session=deny("webfetch", effect="ask")),
    "environment": Way((*deny("bash"), *deny("webfetch"))),
    "external-directory": Way(deny("external_directory")),
    "outside-by-path": Way((*deny("external_directory", "/srv/*", "allow"), *deny("external_directory", "/srv/key/*"))),
    "bash-pattern": Way((*deny("bash", "git *", "ask"), *deny("bash", "git push *"))),
    "allowlist": Way((*deny("*"), *deny("read", effect="allow"), *deny("task", effect="allow"))),
    "backslash": Way((*deny("read", "secret\\*"), *deny("edit", "secret/*"))),
    "no-agents": Way(deny("task")),
    "some-agents": Way((*deny("task"), *deny("task", "reader", "allow"))),
    "ask-agents": Way(deny("task", effect="ask")),
    "plan": Way((*deny("edit"), *deny("edit", "plans/*.md", "allow"))),
    "tools-false": Way((*deny("mine"), *deny("write"))),
    "tool-glob": Way((*deny("server_*"), *deny("*_read", effect="allow"))),
    "ban-and-ask-all": Way((*deny("mine"), *deny("*", "rm *", "ask"))),
    "middle": Way((*deny("bash", "* --force*"), *deny("read", "*/private/*"))),
    "guard": Way(plugin="guard.js"),
}
SPAWNS: Final = ("tool", "named", "nested", "nested-named", "terminal", "continued", "gardener", "restarted")
ISOLATIONS: Final = ("shared", "copy")
CALLS: Final = [
    *product(["bash"], ["ls", "git", "git log", "git push", "git push --force", "rm -rf /", "a --force b"]),
    *product(
        ["edit", "read"], ["a.py", "plans/a.md", "a.env", "a.env.example", "secret/a", "secret\\a", "x/private/y"]
    ),
    *product(["external_directory"], ["/etc/*", "/srv/a/*", "/srv/key/*"]),
    *product(["task"], ["build", "helper", "reader"]),
    *product(["webfetch", "mine", "write", "server_x", "server_read", "other_read"], ["*", "rm x"]),
]
TWO: Final = {"bash": "shell", "task": "subagent"}
"""How OpenCode 2 names a tool."""


class Link(FakeLink):
    """A link to an OpenCode 1 that has sessions and agents."""

    def __init__(self, boot: str, world: World, directory: str) -> None:
        super().__init__(boot, NOBODY, directory)
        self.world, self.worktree = world, directory

    async def call(self, method: str, args: Json, timeout: float = 0.0) -> Any:
        if method == "session.get":
            return self.world.sessions[args["path"]["id"]]
        if method == "app.agents":
            agents = self.world.agents(args["query"]["directory"])
            return [{"name": name, "permission": self.world.written(rules)} for name, rules in agents.items()]
        if method == "plugin.list":
            return [{"name": each} for each in self.world.plugins(self.directory)]
        if method == "session.create":
            return {"id": self.world.add(args["body"], args["query"]["directory"])}
        return {} if method == "session.get" else []


class World:
    """An OpenCode with a project, a copy and a session for each way to forbid. ``names`` are the fields of its rules,
    and ``other`` its names of tools."""

    names: tuple[str, str, str] = ("permission", "pattern", "action")
    other: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sessions: dict[str, Json] = {}
        self._ids = count()

    def project(self, way: str) -> str:
        return str(self.path / "projects" / way)

    def copy(self, directory: str) -> str:
        return f"{self.path}/copies/{Path(directory).name}/files{directory}"

    def _bans(self, directory: str) -> Way:
        return WAYS[Path(directory).name] if Path(directory).parent == self.path / "projects" else Way()

    def agents(self, directory: str) -> dict[str, tuple[Rule, ...]]:
        bans = {"build": self._bans(directory).agent}
        return {name: self.named(ALLOW + bans.get(name, ())) for name in ("build", "helper", "plan")}

    def plugins(self, directory: str) -> list[str]:
        return ["ours.js", *filter(None, [self._bans(directory).plugin])]

    def named(self, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        return tuple(rule._replace(what=self.other.get(rule.what, rule.what)) for rule in rules)

    def written(self, rules: tuple[Rule, ...]) -> list[Json]:
        return [dict(zip(self.names, rule, strict=True)) for rule in rules]

    def add(self, body: Json, directory: str) -> str:
        session = f"ses_{next(self._ids)}"
        self.sessions[session] = {"id": session, "location": {"directory": directory}, **body}
        return session

    def users_file(self, argument: str, place: str, project: str) -> str:
        """How a session in another place names a file of the project."""
        return os.path.relpath(f"{project}/{argument}", place)

    def rules_of(self, session: str, agent: str) -> list[Rule]:
        found = self.sessions[session]
        own = found.get("permission" if not self.other else "permissions", [])
        directory = found["location"]["directory"]
        return [*self.agents(directory)[agent], *(Rule(*(each[name] for name in self.names)) for each in own)]

    def allows_more(self, session: str, agent: str, asker: str) -> list[str]:
        """The calls for which a session may do more than the one that asks, which runs the agent ``build``."""
        mine, theirs = self.rules_of(session, agent), self.rules_of(asker, "build")
        calls = [(self.other.get(what, what), argument) for what, argument in CALLS]
        more = [f"{each}" for each in calls if RANKS[real(mine, *each)] > RANKS[real(theirs, *each)]]
        place, project = (self.sessions[each]["location"]["directory"] for each in (session, asker))
        for what, argument in calls if place != project else ():
            users = self.users_file(argument, place, project)
            if what in ("edit", "read") and RANKS[real(mine, what, users)] > RANKS[real(theirs, what, argument)]:
                more.append(f"{what} of the user's {argument}")
        return more + [what for what, _ in calls if hides(theirs, what) and not hides(mine, what)]


class Service(FakeReleased):
    """A service of OpenCode 2 that has the sessions and agents of a world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def answer(self, method: str, path: str, body: Json) -> tuple[int, Any]:
        directory = path.partition("directory%5D=")[2] or path.partition("directory]=")[2]
        directory = unquote(directory)
        if found := re.match(r"/api/agent/(\w+)", path):
            rules = self.world.agents(directory)[found[1]]
            return 200, {"data": {"permissions": self.world.written(rules)}}
        if path.startswith("/api/plugin"):
            state = {"status": "active"}
            listed = [
                {"id": each, "source": {"type": "file"}, "state": state} for each in self.world.plugins(directory)
            ]
            return 200, {"data": listed}
        return super().answer(method, path, body)

    def create(self, body: Json) -> Json:
        self.world.sessions.setdefault(body["id"], body)
        return {"data": self.world.sessions[body["id"]]}

    def get(self, session: str, _: Json) -> Json:
        return {"data": self._session(session)}

    def _session(self, session: str) -> Json:
        return self.world.sessions[session]


class Client:
    """A client of the service, without a connection."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def of(self, session: str) -> Any:
        return self

    async def get(self, path: str) -> Any:
        return await self.send("GET", path, {}, {})

    async def send(self, method: str, path: str, body: Json | None, headers: Any) -> Any:
        status, answer = self._service.answer(method, path, body or {})
        if status >= 400:
            raise ServiceError(status)
        return answer


class NoVariables(Variables):
    """Reads no variables, because no commands run here."""

    async def of(self, *about: Any) -> dict[str, str]:
        return {}


class World2(World):
    names, other = ("action", "resource", "effect"), TWO

    def users_file(self, argument: str, place: str, project: str) -> str:
        return f"{project}/{argument}"

    def add(self, body: Json, directory: str) -> str:
        session = super().add(body, directory)
        self.sessions[session]["agent"] = "build"
        return session


class Matrix(Host):
    """A host whose rights and sessions are those of a real host. ``is_copy``: work runs in a copy."""

    def __init__(self, real: V1Host | V2Host, world: World, *, is_copy: bool, place: str = "") -> None:
        super().__init__()
        self.real, self.world, self.is_copy, self.is_away, self._place = real, world, is_copy, False, place
        self.starts, self.state = real.starts, real._state

    async def rights(self, session: str, agent: str | None, link: Any = None, work: str = "") -> Rights:
        return await self.real.rights(session, agent, link, work)

    async def create(self, intent: str, **about: Any) -> str:
        if self.is_away:
            raise HostAbsent("closed")
        if self.is_copy:
            about |= {"directory": self.world.copy(about["directory"]), "project": about["directory"]}
        return await self.real.create(intent, **about)

    async def look(self, session: str, **about: Any) -> Look:
        return Look("answered", "done")

    def user(self, way: str) -> str:
        """A session of the user."""
        rules = self.world.written(self.world.named(WAYS[way].session))
        session = self.world.add({"permission": rules, "permissions": rules}, self.world.project(way))
        self.know(session, "build")
        return session

    def know(self, session: str, agent: str) -> None:
        """The session has had a turn."""
        directory = self.world.sessions[session]["location"]["directory"]
        known = SessionState(session, session, session, None, known=True, event_id="e", directory=directory)
        known.host, known.last_turn = self._place, Turn("m", "a", "e", 0, directory, agent, None, pid=NOBODY)
        self.state.sessions[session] = known


class Links:
    """An OpenCode 1 links for each directory."""

    def __init__(self, world: World) -> None:
        places = [each for way in WAYS for each in (world.project(way), world.copy(world.project(way)))]
        self.open = {each: Link(each, world, each) for each in places}

    async def link(self, directory: str, environment: str) -> Link:
        return self.open[directory]


@contextmanager
def opencode(version: int, path: Path, *, is_copy: bool) -> Iterator[Matrix]:
    state = CaptureState()
    if version == 1:
        world = World(path)
        links: Any = Links(world)
        one = V1Host(lambda: links.open.values(), lambda _: True, state, links, lambda _: False, lambda: 0)
        yield Matrix(one, world, is_copy=is_copy)
    else:
        world = World2(path)
        link = SimpleNamespace(is_open=True, identity=SimpleNamespace(service=str(path)))
        two = V2Host(lambda: [link], state, lambda: 0)  # type: ignore[list-item]
        two._client = Client(Service(world)).of  # type: ignore[method-assign]
        two.given = NoVariables(two._link)
        yield Matrix(two, world, is_copy=is_copy, place="service")


class Spawned(NamedTuple):
    session: str
    agent: str


async def spawn(
    made: BackgroundWork, run: Bench, parent: str, directory: str, *, agent: str | None = None, by: str | None = None
) -> list[Spawned]:
    """Start work, ``by`` an agent or a person; what came of it, nothing if it was refused or waits."""
    args = RegisterArgs(prompt="do it", directory=directory, parent=parent, agent=agent)
    try:
        given = args if by else args.model_copy(update={"agent": agent})
        call = "call_1" if by else None
        intent = (await made.register_intent(given, agent=by, call=call)).id
    except RequestError as error:
        assert error.code in ("agent-denied", "agent-asks"), error
        return []
    await run.settled()
    return found(made, intent)


def found(made: BackgroundWork, intent: str) -> list[Spawned]:
    known = made.data.intents[intent]
    if known.session is None:
        assert known.waits or known.code == "plugin-missing", known
        return []
    return [Spawned(known.session, known.agent or "")]


async def ended(run: Bench, works: list[Spawned]) -> None:
    for work in works:
        await run.happened("turn.ended", session=work.session, outcome="completed")


async def started(made: BackgroundWork, run: Bench, host: Matrix, how: str, way: str, parent: str) -> list[Spawned]:
    """The sessions of the work that one way to spawn starts."""
    directory = host.world.project(way)
    if how in ("tool", "named", "terminal", "restarted"):
        agent, by = "helper" if how == "named" else None, None if how == "terminal" else "build"
        return await spawn(made, run, parent, directory, agent=agent, by=by)
    if how == "gardener":
        about: Json = {
            "intent": f"int_{parent}",
            "prompt": "why",
            "title": "why",
            "directory": directory,
            "parent": parent,
        }
        about |= {"agent": "plan", "wall_ms": 60_000, "isolation": "shared", "root": "gardener"}
        await run.runtime.command(INTENTS, Command(f"register:{parent}", "intent.register", about))
        await run.settled()
        return found(made, f"int_{parent}")
    first = await spawn(made, run, parent, directory, by="build")
    for session, agent in first:
        if how == "continued":
            await ended(run, first)
            before = next(each for each in made.data.intents.values() if each.session == session)
            again = RegisterArgs(prompt="and now", directory=directory, parent=parent, agent=before.agent)
            await made.register_intent(again, before=before)
            await run.settled()
            assert host.prompts[-1][0] == session and host.prompts[-1][2]["agent"] == agent
        else:
            host.know(session, agent)
            named = "helper" if how == "nested-named" else None
            return first + await spawn(made, run, session, directory, agent=named, by=agent)
    return first


@pytest.mark.parametrize("how", SPAWNS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("version", [1, 2])
async def test_no_work_may_do_more_than_its_asker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, isolation: str, how: str
) -> None:
    monkeypatch.setattr(v2_requests, "RULES_SECONDS", 0)
    escapes: dict[str, list[str]] = {}
    works: dict[str, list[Spawned]] = {}
    store = MemoryStore()
    with opencode(version, tmp_path, is_copy=isolation == "copy") as host:
        parents = {way: host.user(way) for way in WAYS}
        host.is_away = how == "restarted"
        async with orchestration(tmp_path, host=host, store=store) as (made, _, run):
            for way, parent in parents.items():
                works[way] = await started(made, run, host, how, way, parent)
                await ended(run, works[way])
            if how == "restarted":
                assert not any(works.values())
                host.is_away = False
                (intents,) = (each for each in made.agents if each.name == INTENTS)
                intents.load(json.loads(json.dumps(intents.state())))  # as another sidecar reads it
                for way, parent in parents.items():
                    (intent,) = (each for each in made.data.intents.values() if each.parent == parent)
                    about = {"sessions": [], "environments": [intent.environment]}
                    await made.tell("host.ready", f"host:{intent.id}", about)
                    await run.settled()
                    works[way] = found(made, intent.id)
                    await ended(run, works[way])
    for way, parent in parents.items():
        escapes[way] = [
            call for work in works[way] for call in host.world.allows_more(work.session, work.agent, parent)
        ]
    assert {way: calls for way, calls in escapes.items() if calls} == {}
    refused = {way for way in WAYS if len(works[way]) < (2 if how.startswith("nested") else 1)}
    assert refused <= {"guard", "no-agents", "some-agents", "ask-agents", "allowlist"}, refused


def test_how_many_cells_there_are() -> None:
    assert len(WAYS) * len(SPAWNS) * len(ISOLATIONS) * 2 >= 600
