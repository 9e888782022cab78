"""The agents ``intents`` and ``messages`` with an OpenCode of a few lines, which acts when a test says so."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sidecar.agents.agent import decisions
from sidecar.background.intents.intent_effects import ABORT, CHECK, COLLECT, CREATE, ISOLATE, PROMPT
from sidecar.background.intents.intents import IntentAgent
from sidecar.background.intents.state import Intent, steps_of
from sidecar.background.intents.watch import CHECKED
from sidecar.background.intents.works import Asker
from sidecar.background.messages.agent import MessageAgent
from sidecar.background.messages.deliver import WAKE
from sidecar.background.messages.message import Message
from sidecar.background.messages.person import SHOW
from sidecar.config import PhantomConfig
from streams.event import StreamEvent
from tests.sidecar.agents.kinds import Clock
from tests.streams.builders import event


class World:
    """The agents, and an OpenCode that does what it is asked when the test says so."""

    def __init__(self, *, begin: str = "ses_", **limits: Any) -> None:
        self.agent, self.clock = (
            IntentAgent(PhantomConfig(**{"max_steps": 0, "silence_minutes": 0, "readers": ()} | limits)),
            Clock(),
        )
        self.teller = MessageAgent(
            asker=lambda session: Asker(None, session, "work" * (session in self.agent.data.sessions))
        )
        self.teller._person.notify = lambda *_, **__: []  # type: ignore[method-assign]  # no alert notifies anybody
        self._begin = begin
        """How the ids of sessions begin."""
        self.effects: list[tuple[str, str, dict[str, Any]]] = []
        self.done = Counter[tuple[str, str]]()
        self.types: list[str] = []
        self.messages: dict[str, list[str]] = {}
        self.copies: set[str] = set()
        self.busy: set[str] = set()
        """The sessions that work."""
        self.keeps = True
        """Whether OpenCode saves the next message that it accepts."""
        self._count = 0

    def happens(self, type_: str, metadata: dict[str, Any] | None = None, **payload: Any) -> list[str]:
        """One input; the types of what the agent recorded."""
        self._count += 1
        about: dict[str, Any] = {"payload": payload, "metadata": metadata or {}}
        about |= {"actor": "messages"} if payload.get("kind") == WAKE else {}
        identity = self.clock.identity(self._count)
        given = event(f"{self._count}", stream="ses_1", type_=type_, identity=identity, **about)
        found: list[str] = []
        for made in [given, *self._handled(self.agent, given, found)]:
            self._handled(self.teller, made, found)
        self.types += found
        return found

    def _handled(self, agent: IntentAgent | MessageAgent, given: StreamEvent, found: list[str]) -> list[StreamEvent]:
        """Let an agent handle an event; the events that it recorded, whose types and steps are added to ``found``."""
        assert agent.receive(given) == agent.receive(given)
        recorded = []
        for outputs in decisions(agent, given):
            for output in outputs:
                self._count += 1
                if output.effect and output.effect != SHOW:
                    self.effects.append((output.effect, output.node, dict(output.payload)))
                payload = {"args": output.payload} if output.effect else output.payload
                identity = self.clock.identity(self._count)
                made = event(f"{self._count}", stream="agent/a", type_=output.type, identity=identity, payload=payload)
                agent.apply(made)
                recorded.append(made)
                found += [step for step, _ in steps_of(made.type, payload) if step != "effect.requested"]
            agent.load(agent.state())
        return recorded

    def notice(self, intent: str) -> Message:
        """The message with the result of an intent."""
        return self.teller.data.messages[f"ntc_{intent}"]

    def heard(self) -> list[str]:
        """The states of all messages."""
        return [each.state for each in self.teller.data.messages.values()]

    def deadline(self) -> int | None:
        due = (self.agent.deadline(), self.teller.deadline())
        return min((each for each in due if each is not None), default=None)

    def register(self, name: str, parent: str | None = "ses_user", **more: Any) -> Intent:
        given = {"intent": f"int_{name}", "prompt": "do it", "title": name, "directory": "/p", "parent": parent}
        self.happens("intent.register", **given, above=[parent] if parent else [], **more)
        return self.agent.data.intents[f"int_{name}"]

    def act(self, which: int = 0) -> list[str]:
        """Let the host do one of the effects that wait."""
        kind, node, args = self.effects.pop(which)
        self.done[kind, node] += 1
        result: dict[str, Any] = {}
        if kind == CREATE:
            result = {"session": args.get("session") or f"{self._begin}{node}"}
        if kind == ISOLATE:
            result = {
                "directory": "/w/sub",
                "root": "/w",
                "name": (args.get("continues") or {}).get("copy", {}).get("name", node),
            }
            self.copies.add(node)
        if kind == COLLECT:
            self.copies.discard(node)
            result = {"saved": True, "files": [], "count": 0, "diff": "+one"}
        if kind == PROMPT:
            self.busy.add(args["session"])
        if kind == CHECK:
            about = {name: args[name] for name in CHECKED}
            result = {"state": "busy" if args["session"] in self.busy else "answered", **about}
        if kind == ABORT:
            self.busy.discard(args["session"])
        if kind == WAKE:
            result = {"status": "sent", "saved": self.keeps}
            if self.keeps:
                saved = self.messages.setdefault(node, [])
                saved += [each["key"] for each in args["texts"] if each["key"] not in saved]
            self.keeps = True
        return self.happens("effect.completed", kind=kind, node=node, result=result)

    def settle(self) -> None:
        while self.effects or self.deadline() == 0:
            if self.effects:
                self.act()
            else:
                self.happens("tick", now=self.clock.now_ms)

    def ends(self, intent: Intent, outcome: str = "completed", **more: Any) -> list[str]:
        session = f"{self._begin}{intent.id}"
        self.busy.discard(session)
        found = self.happens("turn.ended", session=session, outcome=outcome, **more)
        # On OpenCode 1, only a turn whose answer was not heard is looked at.
        return self.act(-1) if found == ["intent.checked"] and self._begin == "ses_" else found

    def loses_its_opencode(self, name: str) -> None:
        """Its turn breaks off, and then no OpenCode hosts its session: it waits for one."""
        self.ends(self.intent(name), "interrupted")
        kind, node, args = self.effects.pop()
        assert args["waits"]
        assert self.happens("effect.completed", kind=kind, node=node, result={"absent": True}) == ["intent.waiting"]

    def spends(self, session: str, input_: int, *, finish: str = "tool-calls", cost: float = 0.0) -> list[str]:
        # As OpenCode 1 says it: the sum beside what it is the sum of.
        tokens = {"input": input_, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}, "total": input_}
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
    while (deadline := world.deadline()) is not None and deadline <= end:
        world.clock.now_ms = max(deadline, world.clock.now_ms)
        world.happens("tick", now=world.clock.now_ms)
        world.settle()
    world.clock.now_ms = end
