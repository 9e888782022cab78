"""The files that agents changed, and the commands that a person approved or rejected, by session and turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sidecar.read.changes.approvals import Approval
from sidecar.read.changes.edits import Diff
from streams.store import NOTHING


class Lines(Protocol):
    """Lines added and removed; ``None`` if the old content is not known."""

    @property
    def added(self) -> int | None: ...

    @property
    def removed(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Edit:
    """One file that one step changed, and the approvals of that step. ``position`` is that of the step's record."""

    event: str
    ts: int
    actor: str
    tool: str
    change: Diff
    approvals: list[Approval]
    position: int = NOTHING

    @property
    def added(self) -> int | None:
        """Lines added; ``None`` if the old content is not known."""
        return None if self.change.how == "replace" else self.change.additions

    @property
    def removed(self) -> int | None:
        """Lines removed; ``None`` if the old content is not known."""
        return None if self.change.how == "replace" else self.change.deletions

    def as_json(self) -> dict[str, Any]:
        """The edit in the form that ``changes --json`` prints."""
        return {
            "event": self.event,
            "ts": self.ts,
            "actor": self.actor,
            "tool": self.tool,
            "added": self.added,
            "removed": self.removed,
            "approvals": [approval.as_json() for approval in self.approvals],
        } | ({"diff": self.change.patch} if self.change.patch else {})


@dataclass(frozen=True, slots=True)
class Decision:
    """A permission that a person gave or refused. ``event`` is the answer, and ``actor`` is the agent that asked."""

    event: str
    ts: int
    actor: str
    approval: Approval

    def as_json(self) -> dict[str, Any]:
        """The decision in the form that ``changes --json`` prints."""
        return {"event": self.event, "ts": self.ts, "actor": self.actor, **self.approval.as_json()}


@dataclass(slots=True)
class TurnChanges:
    """Every edit of one turn, and the decisions about calls that changed no file.

    ``undone``: a person later reverted the turn with ``/undo``, which also restores the files.
    """

    stream: str
    session: str
    turn: str
    prompt: str
    undone: bool = False
    edits: list[Edit] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    @property
    def first_ts(self) -> int:
        """When the first edit or decision happened, in ms since 1970."""
        return min([edit.ts for edit in self.edits] + [decision.ts for decision in self.decisions])

    def files(self) -> dict[str, list[Edit]]:
        """The edits of each file, in the order in which files were first changed."""
        found: dict[str, list[Edit]] = {}
        for edit in self.edits:
            found.setdefault(edit.change.file, []).append(edit)
        return found

    def as_json(self) -> dict[str, Any]:
        """The turn in the form that ``changes --json`` prints."""
        return {
            "stream_id": self.stream,
            "session": self.session,
            "turn": self.turn,
            "prompt": self.prompt,
            "undone": self.undone,
            "ts": self.first_ts,
            "files": [
                {"file": file, **sums(edits), "edits": [edit.as_json() for edit in edits]}
                for file, edits in self.files().items()
            ],
            "decisions": [decision.as_json() for decision in self.decisions],
        }


def totals(turns: Sequence[TurnChanges]) -> dict[str, int]:
    """The totals of ``turns`` that were not undone; ``rewritten`` counts files whose old content is not known."""
    undone = [turn for turn in turns if turn.undone]
    turns = [turn for turn in turns if not turn.undone]
    edits = [(turn.stream, edit) for turn in turns for edit in turn.edits]
    replies = [decision.approval.reply for turn in turns for decision in turn.decisions]
    return {
        "files": len({(stream, edit.change.file) for stream, edit in edits}),
        "added": sum(edit.added or 0 for _, edit in edits),
        "removed": sum(edit.removed or 0 for _, edit in edits),
        "rewritten": len({(stream, edit.change.file) for stream, edit in edits if edit.added is None}),
        "approved": sum(reply not in ("reject", "withdrawn") for reply in replies),
        "rejected": sum(reply == "reject" for reply in replies),
        "turns": len(turns),
        "undone": len(undone),
        "sessions": len({turn.session for turn in turns}),
    }


def files_of(turns: Iterable[TurnChanges]) -> dict[str, list[Edit]]:
    """The edits of each file in the turns that were not undone, in the order in which files were first changed."""
    found: dict[str, list[Edit]] = {}
    for edit in (edit for turn in turns if not turn.undone for edit in turn.edits):
        found.setdefault(edit.change.file, []).append(edit)
    return found


def sums(edits: Sequence[Lines]) -> dict[str, int | None]:
    """How many lines several edits of one file ``added`` and ``removed``: ``None`` if the old content of one is not
    known."""
    if any(edit.added is None for edit in edits):
        return {"added": None, "removed": None}
    return {"added": sum(edit.added or 0 for edit in edits), "removed": sum(edit.removed or 0 for edit in edits)}
