"""What a registration of background work says, and when two say the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from bridge.opencode.link.protocol import RequestError
from sidecar.background.hosts.headless import Terminal
from sidecar.background.intents.state import Intent, intent_of
from sidecar.registry import Args

DEFAULT_MINUTES: Final = 60.0
MAX_TITLE: Final = 60


class RegisterArgs(Args):
    prompt: str = Field(min_length=1, max_length=100_000, description="all that the agent must know")
    title: str = Field(default="", max_length=100, description="a few words")
    directory: str = Field(max_length=8192, description="the project, absolute")
    parent: str | None = Field(default=None, max_length=200, description="the session that gets the result")
    agent: str | None = Field(default=None, max_length=100, description="the OpenCode agent to run")
    models: list[str] = Field(
        default=[], description="`provider/model` names; after a provider error, the next one is used"
    )
    minutes: float = Field(default=DEFAULT_MINUTES, gt=0, le=1440, description="the most it may work")
    tokens: int = Field(default=0, ge=0, description="the most it may use, 0: no limit")
    cost: float = Field(default=0.0, ge=0, description="the same in dollars")
    isolation: Literal["auto", "copy", "shared"] | None = Field(
        default=None, description="where the agent edits; default: `[phantom] isolation`"
    )
    continues: str | None = Field(
        default=None,
        max_length=100,
        description="an ended intent, whose session, copy, parent, agent and project the work takes over",
    )
    terminal: Terminal | None = Field(default=None, description="what the terminal may do that asks, as in `terminal`")
    variables: dict[str, str] = Field(default={}, description="those of the terminal that asks; never recorded")
    key: str | None = Field(default=None, max_length=300, description="requests with the same key count once")
    rights: dict[str, Any] | None = Field(
        default=None, description="what the session may do that asks on another machine; with `opencode`, 1 or 2"
    )
    asked_by: dict[str, Any] = Field(
        default={}, description="the other machine that asks: `machine`, `ask`, `on`, `session`, `root`, `depth`"
    )


class ResumeArgs(Args):
    intent: str = Field(max_length=100, description="its id, or a unique prefix of it")
    terminal: Terminal = Field(description="what the terminal may do that asks, as in `terminal`")


def title_of(prompt: str) -> str:
    """The title of work that was given none: the beginning of its prompt, on one line."""
    line = " ".join(prompt.split())
    return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 2]} …"


def check_agent(effect: str, agent: str, *, is_person: bool) -> None:
    """Check that the rules of the session that asks let it start another agent, as OpenCode's own tool would.
    ``effect`` is what they say. A person who asks for the work need not be asked.

    Raises:
        RequestError: they do not (``agent-denied``), or not before a person agreed (``agent-asks``).
    """
    if effect == "deny":
        raise RequestError("agent-denied", f"the rules of this session do not let it start the agent {agent[:60]!a}")
    if effect != "allow" and not is_person:
        why = f"a person must agree before this session starts the agent {agent[:60]!a}: ask the user to allow it in"
        raise RequestError("agent-asks", f"{why} OpenCode's rules, or go on without `agent`")


_GIVEN: Final = {
    "prompt": "prompt",
    "directory": "directory",
    "parent": "parent",
    "agent": "agent",
    "wall_ms": "minutes",
    "max_tokens": "tokens",
    "max_cost": "cost",
}
"""The values that must be equal for two registrations to be the same work, each with the name of its argument."""


def differences(intent: Intent, payload: Mapping[str, Any]) -> list[str]:
    """The arguments in which a registration differs from an intent. Title and isolation do not count."""
    other = intent_of({**payload, "ts": intent.created})
    if intent.said != other.said:
        return ["prompt"]
    found = [name for key, name in _GIVEN.items() if getattr(intent, key) != getattr(other, key)]
    # The intent no longer lists the models that have failed, so compare only the remaining ones.
    models = other.models if intent.fell_back is None else other.models[-len(intent.models) :]
    return [*found, "models"] if models != intent.models else found
