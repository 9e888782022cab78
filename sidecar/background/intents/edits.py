"""Detects that several agents are editing the same files, for background work without its own copy. Pure."""

from __future__ import annotations

from sidecar.agents.agent import Output
from sidecar.background.intents.state import MOST_EDITED, State
from sidecar.read.changes.edits import file_changes
from streams.event import StreamEvent


def seen(state: State, event: StreamEvent) -> list[Output]:
    """What follows from an ``execution.step`` of any session: an ``intent.edited`` for the session's own intent, and an
    ``intent.overlap`` for each running intent that edited the same file."""
    session = str(event.payload.get("session"))
    intent = state.working(session)
    files = {change.file for change in file_changes(dict(event.payload)) if change.file}
    if not files or (intent is not None and intent.copy):
        return []
    outputs = []
    if intent is not None:
        new = sorted(files - set(intent.edited))[: MOST_EDITED - len(intent.edited)]
        outputs += [Output("intent.edited", {"intent": intent.id, "files": new})] if new else []
    for file in sorted(files):
        others = [each for each in state.unfinished() if file in each.edited and each is not intent]
        warned = [(each, session if intent is None else intent.id) for each in others]
        if intent is not None and others:
            warned.append((intent, others[0].id))
        for each, by in warned:
            if file not in each.overlaps:
                outputs.append(Output("intent.overlap", {"intent": each.id, "file": file, "by": by}))
    return outputs
