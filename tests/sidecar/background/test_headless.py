"""Who starts a headless OpenCode, who shares one, and when an identity ends. The OpenCodes are scripted links."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.opencode.capture.state import CaptureState, SessionState, Turn
from bridge.opencode.link.protocol import CallError
from sidecar.background.effects import HostActs
from sidecar.background.hosts import headless as module
from sidecar.background.hosts.headless import LINK_SECONDS, START_SECONDS, Headless
from sidecar.background.hosts.host import HostAbsent, HostError
from sidecar.background.hosts.identity import NOBODY
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.intents.intent_effects import ABORT, CHECK, CREATE, PROMPT
from sidecar.home import Home
from tests.sidecar.background.support import PLAIN, Only

START = (CREATE, PROMPT, CHECK, ABORT)
"""The effects that may have to wait for one."""
PROJECT = "/project"


class OpenCode:
    """A link to an OpenCode. It sees a process of ``world`` unless the two are in different ``walls``."""

    def __init__(
        self, world: World, keys: str = "k", walls: str = "", space: str = "here", headless: str = "", **more: Any
    ) -> None:
        self.pid = next(world.pids)
        self.boot_id, self.directory, self.is_open = more.get("boot", f"boot{self.pid}"), PROJECT, True
        self.world, self.walls, self.calls = world, walls, list[tuple[str, Any]]()
        self.identity = SimpleNamespace(
            service="", headless=headless, kernel=keys, environment=f"e{keys}", pid_space=space, program=""
        )
        world.links.append(self)

    async def call(self, method: str, args: dict[str, Any], timeout: float = 0.0) -> Any:
        self.calls.append((method, args))
        match method:
            case "headless.sees":
                other = next((each for each in self.world.links if each.pid == args["pid"] and each.is_open), None)
                return f"start{other.pid}" if other is not None and other.walls == self.walls else ""
            case "headless.start":
                return {"pid": self._starts(args["id"]), "start": "7"}
            case "headless.opened":
                return self.world.failure
            case "headless.end":
                self.is_open = False
            case "session.list":
                self.world.opens(self, args["query"]["directory"])
        return None

    def _starts(self, name: str) -> int:
        if self.world.failure:
            return 1
        own = self.identity
        return OpenCode(self.world, own.kernel, self.walls, own.pid_space, name).pid


class World:
    def __init__(self, home: Path) -> None:
        self.home, self.links, self.failure = Home(home), list[OpenCode](), ""
        self.home.ensure_token(lambda: "5" * 64)
        self.pids, self.names = iter(range(1000, 2000)), iter(range(100))
        self.headless = self.sidecar()

    def sidecar(self) -> Headless:
        return Headless(self.home, lambda: self.links, lambda: f"id{next(self.names)}".ljust(64, "0"))  # type: ignore[arg-type,return-value]

    def opens(self, link: OpenCode, directory: str) -> None:
        other = OpenCode(self, link.identity.kernel, link.walls, link.identity.pid_space, link.identity.headless)
        other.pid, other.boot_id, other.directory = link.pid, link.boot_id, directory

    async def asks(self, asker: OpenCode, directory: str = PROJECT) -> Any:
        """The link to the headless OpenCode in which work runs that this one asks for."""
        return await self.headless.link(directory, await self.headless.know(asker))  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(module, "LINK_SECONDS", 0.2)
    return World(tmp_path)


async def test_the_one_that_asks_starts_it_and_the_work_of_one_identity_shares_it(world: World) -> None:
    asker = OpenCode(world)
    found = await world.asks(asker)
    assert found.identity.headless and ("headless.start", {"id": found.identity.headless, "directory": PROJECT}) in (
        asker.calls
    )
    assert await world.asks(asker) is found
    elsewhere = await world.asks(asker, "/worktree")
    assert (elsewhere.boot_id, elsewhere.directory) == (found.boot_id, "/worktree")
    assert await world.asks(OpenCode(world)) is found, "a second one that may do the same, in another terminal"
    assert (await world.asks(OpenCode(world, "other"))).boot_id != found.boot_id


async def test_two_with_equal_keys_of_which_one_cannot_see_the_other_share_none(world: World) -> None:
    free, fenced = OpenCode(world), OpenCode(world, walls="landlock")
    assert (await world.asks(free)).boot_id != (await world.asks(fenced)).boot_id


async def test_an_identity_ends_with_its_last_process_whatever_comes_with_its_numbers(world: World) -> None:
    asker = OpenCode(world)
    identity = await world.headless.know(asker)  # type: ignore[arg-type]
    found = await world.asks(asker)
    asker.is_open = False
    assert await world.headless.link(PROJECT, identity) is found and world.headless.left() == {identity}
    await world.headless.stop(world.headless.left())
    assert not found.is_open
    reused = OpenCode(world)
    assert await world.headless.know(reused) != identity  # type: ignore[arg-type]
    with pytest.raises(HostAbsent):
        await world.headless.link(PROJECT, identity)
    await world.asks(reused)
    with pytest.raises(HostAbsent):
        await world.headless.link(PROJECT, identity)


async def test_at_rest_each_of_ours_ends_that_has_no_work_and_the_users_never(world: World) -> None:
    askers = [OpenCode(world, keys) for keys in ("one", "other")]
    working, idle = [await world.asks(each) for each in askers]
    elsewhere = await world.asks(askers[0], "/worktree")
    wanted = {world.headless.identity_of(working)}
    assert await world.headless.rest(wanted) == [working.pid] and elsewhere.pid == working.pid
    assert (working.is_open, idle.is_open) == (True, False)
    world.headless = world.sidecar()
    assert await world.headless.rest([]) == []
    assert not working.is_open and "headless.end" not in [name for each in askers for name, _ in each.calls]
    assert all(each.is_open for each in askers)


async def test_outside_of_all_sandboxes_the_next_one_continues(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Headless, "_is_outside", lambda _self, link: _true())
    asker = OpenCode(world)
    identity, found = await world.headless.know(asker), await world.asks(asker)  # type: ignore[arg-type]
    asker.is_open = False
    assert not world.headless.left() and world.headless.idle([]) == {identity} and not world.headless.idle([identity])
    found.is_open = False
    with pytest.raises(HostAbsent):
        await world.headless.link(PROJECT, identity)
    again = OpenCode(world)
    assert await world.headless.know(again) == identity  # type: ignore[arg-type]
    assert (await world.headless.link(PROJECT, identity)).identity.headless
    assert "headless.start" in [name for name, _ in again.calls]


async def _true() -> bool:
    return True


async def test_a_process_that_shows_other_keys_than_it_told_is_not_outside(world: World) -> None:
    liar = OpenCode(world, space=world.headless._space)
    liar.pid = os.getpid()
    assert (await world.headless.know(liar)).startswith("box_")  # type: ignore[arg-type]


async def test_the_next_sidecar_finds_it_and_waits_for_its_link(world: World) -> None:
    asker = OpenCode(world)
    found = await world.asks(asker)
    world.headless = world.sidecar()
    assert await world.asks(asker) is found
    found.is_open = False  # its link breaks, and it runs on
    world.headless = world.sidecar()
    identity = await world.headless.know(asker)  # type: ignore[arg-type]
    assert not await world.headless.runs(identity), "the one that started it says that it ended"


async def test_a_pid_of_another_namespace_is_never_signalled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    monkeypatch.setattr(module, "started", lambda _: "7")
    for space, signals in (("elsewhere", 0), (world.headless._space, 1)):
        asker = OpenCode(world, f"keys of {space}", space=space)
        found = await world.asks(asker)
        asker.is_open = found.is_open = False
        await world.headless.rest([])
        assert len(killed) == signals


async def test_one_that_opens_no_directory_is_an_error_and_forgotten(world: World) -> None:
    world.failure = "it did not answer"
    asker = OpenCode(world)
    with pytest.raises(HostError, match="did not answer"):
        await world.asks(asker)
    world.failure = ""
    assert await world.asks(asker)


async def test_one_that_a_terminal_started_is_taken_for_its_identity(world: World) -> None:
    own = OpenCode(world, headless="of a terminal")
    identity = await world.headless.know(own)  # type: ignore[arg-type]
    assert (await world.headless.link(PROJECT, identity)).boot_id == own.boot_id
    assert await world.asks(OpenCode(world)) is own


async def test_a_link_that_breaks_during_the_start_fails_only_this_attempt(world: World) -> None:
    asker = OpenCode(world)

    async def breaks(method: str, args: dict[str, Any], timeout: float = 0.0) -> Any:
        raise CallError("closed", "the link closed")

    answers, asker.call = asker.call, breaks  # type: ignore[method-assign]
    with pytest.raises(HostError):
        await world.asks(asker)
    asker.call = answers  # type: ignore[method-assign]
    assert await world.asks(asker)


def host(world: World, state: CaptureState) -> V1Host:
    links: Any = lambda: world.links  # noqa: E731
    return V1Host(links, lambda _: True, state, world.headless, lambda _: False, lambda: 0)


@pytest.mark.parametrize("own", ["", "env_of the sidecar"])
async def test_work_for_which_nobody_asks_runs_in_no_opencode_that_may_do_other_things_than_the_sidecar(
    world: World, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    async def identity(_self: Headless) -> str:
        return own

    monkeypatch.setattr(Headless, "own", identity)
    monkeypatch.setattr(module, "find_program", lambda _: None)
    asker = OpenCode(world)
    await world.headless.know(asker)  # type: ignore[arg-type]
    nobody = await host(world, CaptureState()).identity_of(None, None)
    with pytest.raises(HostAbsent):
        await world.headless.link(PROJECT, nobody)
    with pytest.raises(HostAbsent):
        await world.headless.link(PROJECT, "")
    assert nobody == (own or NOBODY)
    assert "headless.start" not in [name for name, _ in asker.calls]


async def test_a_session_ran_as_the_process_of_its_last_turn_also_when_that_is_closed(world: World) -> None:
    asker, other, state = OpenCode(world), OpenCode(world, "other"), CaptureState()
    identity = await world.headless.know(asker)  # type: ignore[arg-type]
    await world.headless.know(other)  # type: ignore[arg-type]
    for session, boot in (("ses_1", asker.boot_id), ("ses_2", "of a spool")):
        turn = Turn("msg_1", "msg_2", "evt_1", 0, boot, "build", None)
        state.sessions[session] = SessionState(session, "s", "s", None, True, "e", directory=PROJECT, last_turn=turn)
    asker.is_open = False
    one = host(world, state)
    assert [one.ran_as(each) for each in ("ses_1", "ses_2", "ses_3")] == [identity, NOBODY, NOBODY]
    assert host(World(world.home.path), state).ran_as("ses_1") == identity, "after a restart of the sidecar"


def test_an_attempt_may_take_as_long_as_a_headless_opencode_may_take_to_start() -> None:
    kinds = HostActs(Only(None), PLAIN, print).kinds
    shorter = [each for each in START if kinds[each].longest_seconds < START_SECONDS + 2 * LINK_SECONDS]
    assert shorter == []
