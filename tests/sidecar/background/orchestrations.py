"""The façade ``BackgroundWork`` over a runtime and a host of a few lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from bridge.opencode.capture.state import CaptureState, SessionState, Turn
from sidecar.background.effects import HostActs
from sidecar.background.hosts.host import HostAbsent, HostError, Look, Part, Status
from sidecar.background.hosts.rights import Rights, Rule
from sidecar.background.service import BackgroundWork
from sidecar.background.tool_calls import ToolCalls
from sidecar.config import PhantomConfig
from sidecar.home import Home
from sidecar.notify_config import NotifyConfig
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.store import StreamStore
from tests.sidecar.agents.kinds import Clock
from tests.sidecar.agents.support import agents
from tests.sidecar.background.support import Bench, bench

PARENT = "ses_parent"
Clean = Callable[[Any], Any]
RIGHTS = Rights("build", (Rule("*", "*", "allow"),), (Rule("bash", "*", "deny"),))


class Host:
    """Creates every session, and takes every prompt."""

    starts = "task"

    def __init__(self) -> None:
        self.rules = RIGHTS.rules
        self.state = CaptureState()
        self.prompts: list[tuple[str, str, dict[str, Any]]] = []
        self.keys: set[str] = set()
        self.idle = True
        self.works = True
        self.is_away = False
        self.created: list[dict[str, Any]] = []

    async def rights(self, session: str, agent: str | None, link: Any = None, work: str = "") -> Rights:
        if not self.works:
            raise HostError("no OpenCode", permanent=True)
        return RIGHTS._replace(agent=agent or RIGHTS.agent, rules=self.rules)

    async def forget(self, directory: str) -> None:
        return

    async def know(self, link: Any) -> str:
        return "env_1"

    async def create(self, intent: str, **about: Any) -> str:
        if self.is_away:
            raise HostAbsent("no OpenCode is open")
        if not self.works:
            raise HostError("no OpenCode", permanent=True)
        self.created.append(about)
        return f"ses_{intent}"

    async def identity_of(self, session: str | None, link: Any) -> str:
        return "env_1"

    def knows(self, session: str) -> bool:
        return True

    def of(self, session: str | None) -> Host:
        return self

    new = at = of

    async def prompt(self, session: str, parts: Sequence[Part], **about: Any) -> bool:
        self.prompts += [(session, part.text, about) for part in parts]
        self.keys |= {part.key for part in parts}
        return True

    async def holds(self, session: str, key: str, **about: Any) -> bool:
        return key in self.keys

    async def abort(self, session: str, *, directory: str) -> None:
        return None

    async def leave(self, session: str, **about: Any) -> None:
        return None

    async def status(self, session: str) -> Status:
        return "idle" if self.idle else "busy"

    async def look(self, session: str, **about: Any) -> Look:
        return Look("busy")

    async def goes_on(self, session: str) -> bool:
        return False

    async def toast(self, session: str, title: str, text: str) -> bool:
        return False

    def about(self, session: str) -> dict[str, Any]:
        return {"directory": "/p", "model": "mock/parent"}

    def answers(self, message: str) -> None:
        """The parent is in a turn that answers this message of the user."""
        parent = SessionState(PARENT, "s", PARENT, None, known=True, event_id="e")
        parent.turn = Turn(message, "msg_a", "e", 0, "boot", "build", None)
        self.state.sessions[PARENT] = parent


class Watcher:
    """A user's agent that hears when background work goes on after a restart."""

    events = ("resume",)

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "watcher.heard", "payload": event["payload"]}]


@asynccontextmanager
async def orchestration(
    tmp_path: Path,
    isolation: Literal["copy", "shared"] = "shared",
    clean: Clean = lambda value: value,
    host: Host | None = None,
    store: StreamStore | None = None,
    listed: tuple[str, ...] = (),
    links: Sequence[Any] = (),
) -> AsyncIterator[tuple[BackgroundWork, Host, Bench]]:
    home, host, clock = Home(tmp_path / "home"), host or Host(), Clock()
    home.create()
    home.ensure_token(lambda: "5" * 64)
    log = store or await Log.open(home.store_path, seeded_identity(1))
    made = BackgroundWork(
        home,
        PhantomConfig(isolation=isolation, copy=listed),
        NotifyConfig(),
        clock.identity(9),
        None,
        host.state,
        clean,
        links=lambda: links,
        delivers=lambda link: True,
        runtime=lambda: run.runtime,
        machine="here",
    )
    made.hosts = host  # type: ignore[assignment]
    kinds = {**made.kinds, **HostActs(made.hosts, made._said, made.people.toasts.append).kinds}
    async with bench(log, [*made.agents, *made.shared, *agents(Watcher)], kinds, clock, clean=clean) as run:
        yield made, host, run
    if store is None:
        await log.close()


async def call(made: BackgroundWork, name: str, **args: Any) -> str:
    """The parent's model calls a tool."""
    link = SimpleNamespace(identity=SimpleNamespace(service=None), pid=1, directory="/p")
    return await ToolCalls(made, made._state, made._identity).call(
        link, name, args, {"sessionID": PARENT, "messageID": "msg_a", "callID": "call_1", "agent": "build"}
    )
