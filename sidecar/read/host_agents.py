"""OpenCode's own background agents: subagents that it started in the background and that report by themselves. Pure."""

from __future__ import annotations

from typing import Any, Final

from sidecar.read.overview import Overview

LABEL: Final = "OpenCode's own"
"""How these agents are told apart from background work of Durable Stream."""


def host_agents(overview: Overview) -> list[dict[str, Any]]:
    """The agents, oldest first, as ``intents --all --json`` prints them. Times are in ms since 1970.

    ``state`` is ``running``, or the outcome of the newest turn: an agent may get more work after its report.
    ``asks`` is how many answers of a person it is waiting for.
    """
    rows = []
    for session in overview.sessions.values():
        turns = overview.turns(session.id)
        if not session.is_background or not turns:
            continue
        known = overview.lineage.sessions.get(session.id)
        rows.append(
            {
                "id": session.id,
                "host": True,
                "state": turns[-1].outcome or ("running" if session.is_active else "unknown"),
                "asks": len(session.asks),
                "title": session.title,
                "agent": session.agent,
                "session": session.id,
                "parent": known.parent if known is not None else None,
                "created": turns[0].started_ms,
                "ended": turns[-1].ended_ms,
                "ran": sum(turn.duration_ms or 0 for turn in turns),
                "cost": round(sum(turn.cost for turn in turns), 9),
                "turns": len(turns),
            }
        )
    return sorted(rows, key=lambda row: row["created"])
