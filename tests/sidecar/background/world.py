"""The agent ``intents`` with an OpenCode of a few lines, which acts when a test says so."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sidecar.agents.agent import decisions
from sidecar.background.intents.intent_effects import ABORT, COLLECT, CREATE, ISOLATE, PROMPT, WAKE
from sidecar.background.intents.intents import IntentAgent
from sidecar.background.intents.state import Intent, steps_of
from sidecar.config import PhantomConfig
from tests.sidecar.agents.kinds import Clock
from tests.streams.builders import event


class World:
    """The agent, and an OpenCode that does what it is asked when the test says so."""

    def __init__(self, *, begin: str = "ses_", **limits: Any) -> None:
        self.agent, self.clock = (
            IntentAgent(PhantomConfig(**{"max_steps": 0, "silence_minutes": 0, "readers": ()} | limits)),
            Clock(),
        )
        self._begin = begin
        """How the ids of sessions begin."""
        self.effects: list[tuple[str, str, dict[str, Any]]] = []
        self.done = Counter[tuple[str, str]]()
        self.types: list[str] = []
        self.messages: dict[str, list[str]] = {}
        self.worktrees: set[str] = set()
        self.busy: set[str] = set()
        """The sessions that work."""
        self.keeps = True
        """Whether OpenCode saves the next message that it accepts."""
        self._count = 0

    def happens(self, type_: str, metadata: dict[str, Any] | None = None, **payload: Any) -> list[str]:
        """One input; the types of what the agent recorded."""
        self._count += 1
        about: dict[str, Any] = {"payload": payload, "metadata": metadata or {}}
        identity = self.clock.identity(self._count)
        given = event(f"{self._count}", stream="ses_1", type_=type_, identity=identity, **about)
        assert self.agent.receive(given) == self.agent.receive(given)
        found: list[str] = []
        for outputs in decisions(self.agent, given):
            for output in outputs:
                args = {"args": output.payload}
                if output.effect:
                    self.effects.append((output.effect, output.node, dict(output.payload)))
                for step, about in steps_of("", args) if output.effect else [(output.type, output.payload)]:
                    self.agent.data.fold(step, about)
                    found += [step] if step else []
            self.agent.load(self.agent.state())
        self.types += found
        return found

    def register(self, name: str, parent: str | None = "ses_user", **more: Any) -> Intent:
        given = {"intent": f"int_{name}", "prompt": "do it", "title": name, "directory": "/p", "parent": parent}
        self.happens("intent.register", **given, above=[parent] if parent else [], **more)
        return self.agent.data.intents[f"int_{name}"]

    def act(self, which: int = 0) -> None:
        """Let the host do one of the effects that wait."""
        kind, node, args = self.effects.pop(which)
        self.done[kind, node] += 1
        result: dict[str, Any] = {}
        if kind == CREATE:
            result = {"session": args.get("session") or f"{self._begin}{node}"}
        if kind == ISOLATE:
            result = {"directory": "/w/sub", "root": "/w", "base": "b", "repository": "/r"}
            self.worktrees.add(node)
        if kind == COLLECT:
            self.worktrees.discard(node)
            result = {"ref": f"refs/durable-stream/{node}", "files": [], "count": 0, "diff": "+one"}
        if kind == PROMPT:
            self.busy.add(args["session"])
        if kind == ABORT:
            self.busy.discard(args["session"])
        if kind == WAKE:
            result = {"status": "sent", "kept": self.keeps}
            if self.keeps:
                saved = self.messages.setdefault(node, [])
                saved += [each["key"] for each in args["texts"] if each["key"] not in saved]
            self.keeps = True
        self.happens("effect.completed", kind=kind, node=node, result=result)

    def settle(self) -> None:
        while self.effects or self.agent.deadline() == 0:
            if self.effects:
                self.act()
            else:
                self.happens("tick", now=self.clock.now_ms)

    def ends(self, intent: Intent, outcome: str = "completed", **more: Any) -> list[str]:
        session = f"{self._begin}{intent.id}"
        self.busy.discard(session)
        return self.happens("turn.ended", session=session, outcome=outcome, **more)

    def loses_its_opencode(self, name: str) -> None:
        """Its turn breaks off, and then no OpenCode hosts its session: it waits for one."""
        self.ends(self.intent(name), "interrupted")
        kind, node, args = self.effects.pop()
        assert args["waits"]
        assert self.happens("effect.completed", kind=kind, node=node, result={"absent": True}) == ["intent.waiting"]

    def spends(self, session: str, input_: int, *, finish: str = "tool-calls", cost: float = 0.0) -> list[str]:
        tokens = {"input": input_, "output": 0}
        return self.happens(
            "execution.step", session=session, kind="inference", finish=finish, tokens=tokens, cost=cost
        )

    def states(self) -> Counter[str]:
        return Counter(intent.state for intent in self.agent.data.intents.values())

    def intent(self, name: str) -> Intent:
        return self.agent.data.intents[f"int_{name}"]


def later(world: World, seconds: float) -> None:
    """Time passes, in which the sidecar looks at the clock whenever the agent wants it."""
    end = world.clock.now_ms + round(seconds * 1000)
    while (deadline := world.agent.deadline()) is not None and deadline <= end:
        world.clock.now_ms = max(deadline, world.clock.now_ms)
        world.happens("tick", now=world.clock.now_ms)
        world.settle()
    world.clock.now_ms = end
