"""Intents and notices as the log has them, for commands that only read."""

from __future__ import annotations

from sidecar.orchestrator.intents import NAME, IntentAgent, State
from sidecar.runtime.inputs import APPLIED, agent_stream
from streams.store import StreamReader


async def read_intents(reader: StreamReader) -> State:
    """Fold the stream of the agent ``intents``; empty if there is none yet."""
    agent = IntentAgent()
    async for record in reader.read(agent_stream(NAME)):
        if record.event.metadata.get("role") in APPLIED:
            agent.apply(record.event)
    return agent.data
