"""``V1Host`` over fake links: which process is asked, and with what ids. The contract is in ``tests/real``."""

from __future__ import annotations

from typing import Any

from bridge.opencode.capture.state import CaptureState, SessionState, Turn
from sidecar.orchestrator.borrowed import Borrowed
from sidecar.orchestrator.host import Part
from sidecar.orchestrator.v1 import V1Host

SESSION = "ses_df06b6e8fffeS1kYb2Vh5Yc0Qm"
NOBODY = 2**22 + 1
"""No process has this id."""


class FakeLink:
    """A link to an OpenCode with one session; ``late``: it takes prompts, and keeps none yet."""

    def __init__(self, boot: str, pid: int, directory: str = "/project", *, late: bool = False) -> None:
        self.boot_id, self.pid, self.directory, self.late = boot, pid, directory, late
        self.instance, self.is_open = boot, True
        self.history: list[dict[str, Any]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def call(self, method: str, args: dict[str, Any], timeout: float = 0.0) -> Any:
        self.calls.append((method, args))
        if method == "session.messages":
            return [*self.history]
        if method == "session.promptAsync" and not self.late:
            self.keep(args["body"])
        return {}

    def keep(self, body: dict[str, Any], parts: int = 9) -> None:
        """Keep a prompt with the first of its parts."""
        self.history.append({"info": {"id": body["messageID"], "role": "user"}, "parts": body["parts"][:parts]})

    @property
    def prompts(self) -> list[dict[str, Any]]:
        return [args["body"] for method, args in self.calls if method == "session.promptAsync"]

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]


def host(*links: FakeLink, pid: int | None = NOBODY, phantom: bool = False) -> V1Host:
    """A host that knows one session, whose last turn ran in boot ``hosting`` of process ``pid``."""
    turn = Turn("msg_1", "msg_2", "evt_1", 0, "hosting", "build", None, pid=pid)
    known = SessionState(SESSION, SESSION, SESSION, None, True, "evt_0", directory="/project", last_turn=turn)
    state = CaptureState()
    state.sessions[SESSION] = known
    return V1Host(lambda: links, lambda _: True, state, Borrowed(lambda: links), lambda _: phantom, lambda: 0)


async def say(host: V1Host, *keys: str) -> bool:
    return await host.prompt(SESSION, [Part(f"text {key}", key) for key in keys], directory="/project")


async def test_a_prompt_that_is_not_kept_yet_is_sent_again_with_the_same_ids() -> None:
    link = FakeLink("hosting", NOBODY, late=True)
    one = host(link)
    assert await say(one, "a", "b") and await say(one, "a", "b")
    first, second = link.prompts
    assert first == second and len({part["id"] for part in first["parts"]}) == 2
    link.keep(first)
    assert not await say(one, "a", "b")


async def test_a_prompt_that_is_half_kept_gets_what_it_lacks() -> None:
    link = FakeLink("hosting", NOBODY, late=True)
    one = host(link)
    await say(one, "a", "b")
    for parts in (0, 1):
        link.history.clear()
        link.keep(link.prompts[0], parts)
        assert await say(one, "a", "b")
        again = link.prompts[-1]
        assert again["messageID"] == link.prompts[0]["messageID"]
        assert again["parts"] == link.prompts[0]["parts"][parts:]


async def test_a_part_that_came_with_an_earlier_message_is_left_out() -> None:
    link = FakeLink("hosting", NOBODY)
    one = host(link)
    assert await say(one, "a") and await say(one, "a", "b")
    first, second = link.prompts
    assert [part["metadata"]["durable_stream"]["key"] for part in second["parts"]] == ["b"]
    assert second["messageID"] > first["messageID"]
