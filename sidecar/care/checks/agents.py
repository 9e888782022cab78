"""Checks agents and their commands, from the running sidecar's status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sidecar.care.checks.check import Check, Scene, counted

_RESERVED: Final = "reserved_keys"
_UNSENT: Final = "cmd_unsent:"
LETTERS_HINT: Final = "run `durable-stream dlq list` to see them"


def check_agents(scene: Scene) -> list[Check]:
    """What the running sidecar's agents are waiting for, and what they could not handle."""
    notes = agent_notes(scene.answer) if scene.answer is not None else []
    return [Check("agents", "note", text, hint) for text, hint in notes]


def agent_notes(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The problems of the agents, each with a hint. Empty if there are none."""
    notes = []
    worker = status.get("worker") or {}
    rows = worker.get("agents") or []
    if dead := sum(row.get("dead", 0) for row in rows):
        notes.append(letters_note(dead, [(row["name"], row["last_error"]) for row in rows if row["dead"]]))
    notes += [
        (f"the agent {row['name']} failed: {row['last_error']}", "sidecar.log says more")
        for row in rows
        if row["last_error"] and not row["dead"]
    ]
    for problem in worker.get("problems") or ():
        text = f"the agent {problem['spec']} cannot be loaded: {problem['reason']}"
        notes.append((text, "correct it, then run `durable-stream stop`; the next sidecar loads it"))
    nats = status.get("nats") or {}
    consumers = nats.get("commands") or []
    for consumer in consumers:
        if consumer["problem"] and nats.get("connected"):
            text = f"the agent {consumer['agent']} gets no commands from NATS: {consumer['problem']}"
            notes.append((text, "only one consumer can receive these commands: remove the other consumer"))
    counts = (nats.get("mirror") or {}).get("notes") or {}
    if reserved := sum(consumer["counts"].get(_RESERVED, 0) for consumer in consumers):
        text = f"{counted(reserved, 'command')} had CG-* keys in the payload; these keys are reserved for headers"
        notes.append((text, "rename these keys in the program that sends them"))
    if unsent := sum(count for name, count in counts.items() if name.startswith(_UNSENT)):
        text = f"{counted(unsent, 'command')} for agents in other homes were not sent (too old, too large or forgotten)"
        notes.append((text, "`durable-stream mirror status --json` counts the reasons in `notes`"))
    return notes


def letters_note(count: int, reasons: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """The text and the hint about open dead letters; ``reasons`` are pairs of an agent and the reason of a letter."""
    told = ", ".join(f"{agent}: {reason}" for agent, reason in dict(reasons).items())
    return (
        f"{counted(count, 'dead letter')}, which an agent could not handle ({told})",
        LETTERS_HINT,
    )
