"""The built-in agent ``gardener``: if too many steps of a session fail, it starts a background agent to find out why.
Pure.

At the end of each turn, the agent checks how many steps (tool calls and model calls) of the session's last turns
failed. At ``ILL``, it records ``agent.correction`` and registers one intent, whose result reaches the session as
a message. The gardener starts another agent for the same session only after the session's failure rate has fallen to
``CALM`` of that. Steps of the gardener's own agents, and of agents that these start, never count.

Off by default: ``[gardener] enabled = true``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from sidecar.agents.agent import Output
from sidecar.background.intents.intents import NAME as INTENTS
from sidecar.background.own_agent import OwnAgent
from streams.event import StreamEvent

NAME: Final = "gardener"

TURNS: Final = 5
"""How many of a session's last turns count."""

MIN_STEPS: Final = 10
"""With fewer steps in these turns, the share of failed ones is ignored."""

ILL: Final = 0.5
"""The share of failed steps at which an agent is started."""

PER_DAY: Final = 4
"""Maximum number of agents started in 24 hours."""

MINUTES: Final = 10
"""How long each agent may run."""

AGENT: Final = "plan"
"""The OpenCode agent to start. It changes no files."""

CALM: Final = 0.4
"""A session has recovered when its share of failed steps is at most this part of ``ILL``. Until then, it gets no
second agent."""

KEPT: Final = 200
"""How many sessions the gardener remembers."""

ROOT: Final = "gardener"
"""The gardener's agents share a separate budget, as if one session had started them."""

DAY_MS: Final = 24 * 3_600_000

PROMPT: Final = """In the OpenCode session {session}, {failed} of the last {steps} steps failed. Read what happened \
there with the tool stream_read. Find out why, and answer in a few sentences: what goes wrong, and what to do instead. \
Change no files."""


@dataclass(slots=True)
class Watched:
    """One session: its last turns, each ``[steps, failed]``, what failed in the open turn, and whether an agent was
    started since the session last worked well.
    """

    directory: str
    turns: list[list[int]] = field(default_factory=list)
    failed: int = 0
    broken: int = 0
    """How many of the failures in the open turn are errors without a step."""
    is_corrected: bool = False


@dataclass(slots=True)
class State:
    sessions: dict[str, Watched] = field(default_factory=dict)
    corrected: list[int] = field(default_factory=list)
    """The times, in ms UTC, when the gardener started its last agents."""


class GardenerAgent(OwnAgent[State]):
    begins_anywhere = False
    """See ``Agent``. Sessions that failed before the gardener was switched on get no agent."""

    events: Sequence[str] = (
        "lifecycle.session.created",
        "lifecycle.session.resumed",
        "execution.step",
        "agent.error",
        "turn.ended",
    )

    def __init__(
        self,
        root_of: Callable[[str], str] = lambda session: "",
        ran_as: Callable[[str], str] = lambda session: "",
    ) -> None:
        """``root_of`` returns the root of the background work that a session belongs to, or belonged to; ``ran_as``
        the identity in which a session runs."""
        self._root_of, self._ran_as = root_of, ran_as
        super().__init__(NAME, State)

    # --- deciding ---

    def receive(self, event: StreamEvent) -> list[Output]:
        given, session = event.payload, str(event.payload.get("session"))
        if self._root_of(session) == ROOT:
            return []
        match event.type:
            case "lifecycle.session.created" | "lifecycle.session.resumed":
                directory = given.get("directory")
                if isinstance(directory, str) and session not in self.data.sessions:
                    return [Output("gardener.watched", {"session": session, "directory": directory})]
            case "execution.step" if given.get("status") == "error" and session in self.data.sessions:
                return [Output("gardener.failed", {"session": session, "broken": False})]
            case "agent.error" if session in self.data.sessions:
                return [Output("gardener.failed", {"session": session, "broken": True})]
            case "turn.ended" if session in self.data.sessions:
                return self._turn_ended(event, session, self.data.sessions[session])
        return []

    def _turn_ended(self, event: StreamEvent, session: str, watched: Watched) -> list[Output]:
        steps = event.payload.get("steps")
        ended = [(steps if isinstance(steps, int) else 0) + watched.broken, watched.failed]
        turns = [*watched.turns, ended][-TURNS:]
        total, failed = sum(turn[0] for turn in turns), sum(turn[1] for turn in turns)
        if not total:
            return []
        rate = failed / total
        is_calm = rate <= CALM * ILL
        seen = Output("gardener.turn", {"session": session, "turns": turns, "calm": is_calm})
        today = [ts for ts in self.data.corrected if ts > event.ts - DAY_MS]
        is_ill = rate >= ILL and total >= MIN_STEPS
        if not is_ill or watched.is_corrected or len(today) >= PER_DAY:
            return [seen]
        intent = f"int_{sha256(event.id.encode()).hexdigest()[:12]}"
        register = {
            "intent": intent,
            "prompt": PROMPT.format(session=session, failed=failed, steps=total),
            "title": f"Why {failed} of {total} steps failed",
            "directory": watched.directory,
            "parent": session,
            "agent": AGENT,
            "environment": self._ran_as(session),
            "wall_ms": MINUTES * 60_000,
            "isolation": "shared",
            "root": ROOT,
            "wake": False,
        }
        correction = {"session": session, "intent": intent, "failed": failed, "steps": total, "ts": event.ts}
        return [seen, Output("agent.correction", correction), Output("intent.register", register, to=INTENTS)]

    # --- remembering ---

    def apply(self, event: StreamEvent) -> None:
        given, data = event.payload, self.data
        if event.type == "gardener.watched":
            data.sessions[given["session"]] = Watched(given["directory"])
            while len(data.sessions) > KEPT:
                del data.sessions[next(iter(data.sessions))]
        elif event.type == "gardener.failed":
            data.sessions[given["session"]].failed += 1
            data.sessions[given["session"]].broken += given["broken"]
        elif event.type == "gardener.turn":
            watched = data.sessions[given["session"]]
            watched.turns, watched.failed, watched.broken = given["turns"], 0, 0
            watched.is_corrected = watched.is_corrected and not given["calm"]
        elif event.type == "agent.correction":
            data.sessions[given["session"]].is_corrected = True
            data.corrected = [*data.corrected, given["ts"]][-KEPT:]
