"""OpenCode's own background agents: subagents that it started in the background and that report by themselves. Pure."""

from __future__ import annotations

from typing import Any, Final

from sidecar.read.story.catalog import Catalog

LABEL: Final = "OpenCode's own"
"""How these agents are distinguished from background work of Durable Stream."""


def host_agents(catalog: Catalog) -> list[dict[str, Any]]:
    """The agents, oldest first, as ``intents --all --json`` prints them. Times are in ms since 1970.

    ``state`` is ``running``, or the outcome of the newest turn: an agent may get more work after its report.
    ``asks`` is how many answers of a person it is waiting for.
    """
    rows = [
        {
            "id": session.id,
            "host": True,
            "state": session.outcome or ("running" if session.is_active else "unknown"),
            "asks": len(session.asks),
            "title": session.title,
            "agent": session.agent,
            "session": session.id,
            "parent": session.parent,
            "created": session.begun_ms,
            "ended": session.ended_ms,
            "ran": session.ran_ms,
            "cost": session.cost,
            "turns": session.turns,
        }
        for session in catalog.background()
        if session.turns
    ]
    return sorted(rows, key=lambda row: row["created"])
