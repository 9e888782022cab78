"""Checks agents and their commands, from the running sidecar's status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.care.checks.check import Check, Scene
from sidecar.read.rendering.agents import Trouble, agent_troubles
from sidecar.read.wording import counted

RESERVED: Final = "reserved_keys"
"""The name of a count of messages whose payload has keys reserved for headers."""

_UNSENT: Final = "cmd_unsent:"


def check_agents(scene: Scene) -> list[Check]:
    """What is wrong with the running sidecar's agents and their commands; of agents at rest, what the log says.

    ``status`` shows what a checkpoint asks as a question.
    """
    notes = agent_notes(scene.answer if scene.answer is not None else {"worker": {"agents": scene.survey.agents}})
    return [Check("agents", "note", each.text, each.hint) for each in notes if not (scene.quick and each.is_asked)]


def agent_notes(status: Mapping[str, Any]) -> list[Trouble]:
    """The troubles of the agents and their commands. Empty if there are none."""
    notes = agent_troubles(status.get("worker") or {})
    nats = status.get("nats") or {}
    consumers = nats.get("commands") or []
    for consumer in consumers:
        if consumer["problem"] and nats.get("connected"):
            text = f"the agent {consumer['agent']} gets no commands from NATS: {consumer['problem']}"
            notes.append(Trouble("", text, "only one consumer can receive these commands: remove the other consumer"))
    counts = (nats.get("mirror") or {}).get("notes") or {}
    if reserved := sum(consumer["counts"].get(RESERVED, 0) for consumer in consumers):
        text = f"{counted(reserved, 'command')} had CG-* keys in the payload; these keys are reserved for headers"
        notes.append(Trouble("", text, "rename these keys in the program that sends them"))
    if unsent := sum(count for name, count in counts.items() if name.startswith(_UNSENT)):
        text = f"{counted(unsent, 'command')} for agents in other homes were not sent (too old, too large or forgotten)"
        notes.append(Trouble("", text, "`durable-stream mirror status --json` counts the reasons in `notes`"))
    return notes
