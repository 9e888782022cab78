"""Who may let an agent work: the home that owns it. Pure.

Two homes that share a NATS server may both configure an agent of one name, but the agent's history is in the log of one
of them only. An agent that its home does not own stands still: it takes no input, and no effect of it starts.
"""

from __future__ import annotations

from typing import Final

from sidecar.agents.deciding import AgentFailed

SHARED: Final = frozenset({"machine", "pmo", "ui_worker"})
"""What a home may own besides agents: parts of the sidecar that take messages of all homes."""


class NotOwner(AgentFailed):
    """This home does not own the agent now, so the agent takes no commands here. Nothing was recorded."""

    code = "not-owner"

    def __str__(self) -> str:
        return self.reason


class Owner:
    """Tells which agents this home owns. The answer may change at any time. Here, every agent belongs to this home: no
    other home can reach its commands, and the home's lock is enough."""

    def holds(self, agent: str) -> bool:
        return True

    async def claim(self, agent: str, seconds: float) -> bool:
        """Take an agent from the home that owns it, because a person says so; false after ``seconds`` without it."""
        return True

    async def until_owned(self, agent: str) -> None:
        """Return when this home owns the agent. Cancelling is safe."""

    async def until_known(self, agent: str) -> None:
        """Return once this home has looked who owns the agent. Cancelling is safe."""

    def refusal(self, agent: str) -> str:
        """A sentence that says why this home does not own the agent, and what to do; empty if it does."""
        return ""


ALONE: Final = Owner()
