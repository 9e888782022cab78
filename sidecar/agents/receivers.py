"""Which agents get an event of the log. Pure."""

from __future__ import annotations

from typing import Final

from sidecar.agents.agent import Agent
from sidecar.agents.inputs import RECEIVED, agent_stream, effects_stream
from sidecar.agents.view import COMPLETED, FAILED, IN_DOUBT
from streams.event import StreamEvent
from streams.query import type_matches

RESULTS: Final = frozenset({COMPLETED, FAILED, IN_DOUBT})


def concerns_agents(event: StreamEvent) -> bool:
    return "role" in event.metadata or "history" in event.metadata or event.stream_id.startswith("agent/")


def wants(agent: Agent, event: StreamEvent) -> bool:
    """Whether an event of the log is for an agent.

    A command goes only to its receiver. Every other event goes to each agent that lists its type, and the result of an
    effect always to the agent that asked for it. An agent never gets its own events, events of imported old sessions,
    or the pointers with which other agents record their inputs.
    """
    if event.metadata.get("history") or event.type == RECEIVED:
        return False
    if event.metadata.get("role") == "command":
        return event.metadata.get("to") == agent.name and event.metadata.get("route") == "log"
    if event.stream_id == agent_stream(agent.name):
        return False
    if event.stream_id.endswith("/effects") and event.type in RESULTS:
        is_told = event.stream_id == effects_stream(agent.name) or lists(agent, event.type)
        return is_told and (event.type == IN_DOUBT or event.payload.get("final") is True)
    return lists(agent, event.type)


def lists(agent: Agent, type_: str) -> bool:
    return any(type_matches(type_, wanted) for wanted in agent.events)
