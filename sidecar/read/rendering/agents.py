"""What is wrong with agents, in words: the sentences of ``status``, ``doctor`` and the alerts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sidecar.read.wording import counted

TROUBLE: Final = "agents:"
"""With what ``Trouble.about`` begins."""


class Trouble(NamedTuple):
    """Something about an agent that a person should know, and what to do about it.

    ``about`` stays the same as long as the trouble lasts. ``may_pass``: the trouble may end by itself. ``is_asked``: a
    checkpoint asks a person about it.
    """

    about: str
    text: str
    hint: str
    may_pass: bool = False
    is_asked: bool = False


def agent_troubles(worker: Mapping[str, Any]) -> list[Trouble]:
    """The troubles of all agents; ``worker`` is the status of the runtime, or what the log tells of it."""
    found = []
    for row in worker.get("agents") or ():
        name, reasons = row["name"], "; ".join(row["reasons"])
        if row["health"] == "FAILED":
            hint = "`durable-stream agents` shows it, and sidecar.log says more"
            found.append(Trouble(f"{TROUBLE}{name} failed", f"the agent {name} failed: {reasons}", hint))
        if dead := row["dead"]:
            text = f"the agent {name} could not handle {counted(dead, 'message')}: {row['last_error']}"
            hint = "`durable-stream dlq list` lists the dead letters, and `dlq redrive` tries one again"
            found.append(Trouble(f"{TROUBLE}{name} dead", text, hint))
        # The error that made a dead letter also degrades its agent.
        if row["health"] == "DEGRADED" and not (dead and reasons == row["last_error"]):
            hint = "`durable-stream agents` shows whether it still is"
            text = f"the agent {name} is degraded: {reasons}"
            found.append(Trouble(f"{TROUBLE}{name} degraded", text, hint, may_pass=True))
        if doubts := row["in_doubt"]:
            text = f"{counted(doubts, 'effect')} of the agent {name} may or may not have happened"
            hint = "`durable-stream checkpoints` asks you which"
            found.append(Trouble(f"{TROUBLE}{name} in doubt", text, hint, is_asked=True))
    for problem in worker.get("problems") or ():
        text = f"{problem['spec']} cannot be loaded: {problem['reason']}"
        hint = "correct it, then run `durable-stream stop`; the next sidecar loads it"
        found.append(Trouble(f"{TROUBLE}{problem['spec']} not loaded", text, hint))
    return found
