"""``Hosts``: what an OpenCode of either version means when it links, or calls a tool. The environments are fakes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bridge.opencode.capture.state import CaptureState, SessionState
from sidecar.background.hosts.borrowed import Borrowed
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v2 import V2Host
from sidecar.record.opencode2.registration import place_of

SERVICE = "/home/user/opencode/service.json"


class FakeHeadless(Borrowed):
    """Notes which processes it is told of."""

    def __init__(self) -> None:
        super().__init__(list)
        self.known: list[int] = []

    def know(self, pid: int) -> str:
        self.known.append(pid)
        return "env_1"


def link(service: str) -> Any:
    given = {"boot_id": "boot", "instance": "i", "pid": 7, "directory": "/project", "is_open": True}
    return SimpleNamespace(**given, identity=SimpleNamespace(service=service))


def hosts(*links: Any) -> tuple[Hosts, FakeHeadless]:
    """Both hosts, with one session each."""
    state, headless = CaptureState(), FakeHeadless()
    one = state.sessions["ses_one"] = SessionState("ses_one", "s", "s", None, True, "e", directory="/project")
    one.boots.add("boot")
    state.sessions["ses_two"] = SessionState("ses_two", "s", "s", None, True, "e", host=place_of(Path(SERVICE)))
    first = V1Host(lambda: links, lambda _: True, state, headless, lambda _: False, lambda: 0)
    return Hosts(first, V2Host(tuple, state, lambda: 0)), headless


async def test_of_an_opencode_1_that_links_the_program_is_remembered() -> None:
    linked = link("")
    both, headless = hosts(linked)
    assert await both.environment(linked) == "env_1"
    assert await both.observe(linked) == ["ses_one"]
    assert headless.known == [7]


async def test_of_an_opencode_2_that_links_nothing_needs_to_be_remembered() -> None:
    linked = link(SERVICE)
    both, headless = hosts()
    assert await both.environment(linked) == ""
    assert await both.observe(linked) == ["ses_two"]
    assert headless.known == []


def test_a_tool_of_opencode_2_is_called_before_its_session_is_known() -> None:
    both, _ = hosts()
    assert both.knows(link(""), "ses_new")
    assert not both.knows(link(SERVICE), "ses_new") and both.knows(link(SERVICE), "ses_two")
    assert not both.knows(link(SERVICE), "ses_ds2new"), "not even of one that background work has"
