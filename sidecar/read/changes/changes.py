"""The files that agents changed, and the commands that a person approved or rejected, by session and turn. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from sidecar.read.asked import CHECKPOINT
from sidecar.read.changes.approvals import Approval, Approvals
from sidecar.read.changes.edits import Diff, file_changes
from sidecar.read.fields import as_text
from sidecar.read.past.journal import Items, Kept, Map
from sidecar.read.telling.describe import LONGEST, input_text
from streams.query import EVERYTHING, Filter
from streams.store import NOTHING, Record

STEP: Final = "execution.step"
UNDONE: Final = "opencode.message.removed"
REVERTED: Final = "opencode.session.reverted"
TYPES: Final = ("human.input", "agent.input", STEP, CHECKPOINT, UNDONE, REVERTED)
"""The types of records that the fold needs."""


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
class TurnChanges(Kept):
    """Every edit of one turn, and the decisions about calls that changed no file.

    ``undone``: a person later reverted the turn with ``/undo``, which also restores the files.
    """

    stream: str
    session: str
    turn: str
    prompt: str
    undone: bool = False
    edits: list[Edit] = field(default_factory=Items)
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


class Changes:
    """A fold over the records of ``TYPES``, in position order; other records are ignored.

    Only changes in the time that ``wanted`` names count. Earlier records supply prompts and approvals.
    """

    def __init__(self, wanted: Filter = EVERYTHING, *, with_diffs: bool = False) -> None:
        self._wanted, self._with_diffs = wanted, with_diffs
        self._approvals = Approvals()
        self._prompts: dict[tuple[str, str], str] = Map()
        self._turns: dict[tuple[str, str], TurnChanges] = Map()
        self._decided: list[Approval] = Items()
        self._edited: dict[str, bool] = Map()
        self._undone: dict[tuple[str, str], bool] = Map()
        self._reverted: dict[str, set[str]] = Map()

    def apply(self, record: Record) -> None:
        event, payload = record.event, record.event.payload
        session = payload.get("session")
        if not isinstance(session, str):
            return
        if event.type == CHECKPOINT:
            self._checkpoint(record)
        elif event.type == STEP:
            self._step(record, session)
        elif event.type == UNDONE:
            removed = payload.get("properties")
            self._undone[session, as_text(removed.get("messageID")) if isinstance(removed, dict) else ""] = True
        elif event.type == REVERTED:
            said, first = [message for each, message in self._prompts if each == session], payload.get("message")
            self._reverted[session] = set(said[said.index(first) :] if first in said else ())
        elif event.type in TYPES:
            self._prompts[session, str(payload.get("message"))] = input_text(payload)[:LONGEST]

    def turns(self, after: int = NOTHING) -> list[TurnChanges]:
        """Every turn with a change or a decision above position ``after``, ordered by the first of them in the turn."""
        found = dict(self._turns)
        for key, turn in self._turns.items():
            if turn.edits[-1].position <= after:
                del found[key]
            elif turn.edits[0].position <= after:
                found[key] = replace(turn, edits=[edit for edit in turn.edits if edit.position > after], decisions=[])
            else:
                turn.decisions = []
        for approval in self._decided:
            event, answer = approval.asked.event, approval.answer
            if event.id in self._edited or answer is None or answer.position <= after:
                continue  # the decision is shown with the edited file
            key = approval.session, approval.ask.turn
            turn = found[key] = found.get(key) or self._new_turn(answer, *key)
            turn.decisions.append(Decision(answer.event.id, answer.event.ts, event.actor, approval))
        for key, turn in found.items():
            turn.undone = key in self._undone or key[1] in self._reverted.get(key[0], ())
        return sorted(found.values(), key=lambda turn: turn.first_ts)

    def _checkpoint(self, record: Record) -> None:
        approval = self._approvals.apply(record)
        if (
            approval is not None
            and approval.answer is record
            and approval.kind == "permission"
            and self._wanted.in_time(record.event)
        ):
            self._decided.append(approval)

    def _step(self, record: Record, session: str) -> None:
        event, payload = record.event, record.event.payload
        approvals = self._approvals.of_step(payload)
        changes = _of_step(record, approvals)
        if not changes:
            return
        self._edited |= dict.fromkeys((each.asked.event.id for each in approvals), True)
        if not self._wanted.in_time(event):
            return
        key = session, as_text(payload.get("turn"))
        told = self._turns.setdefault(key, self._new_turn(record, *key))
        for change in changes:
            if not self._with_diffs or change.how == "replace":
                change = replace(change, patch="")
            tool = str(payload.get("tool"))
            told.edits.append(Edit(event.id, event.ts, event.actor, tool, change, approvals, record.position))

    def _new_turn(self, record: Record, session: str, turn: str) -> TurnChanges:
        return TurnChanges(record.event.stream_id, session, turn, self._prompts.get((session, turn), ""))


def _of_step(record: Record, approvals: list[Approval]) -> list[Diff]:
    asked_diff = next((each.diff for each in approvals if each.diff), "")
    return [change for change in file_changes(record.event.payload, asked_diff) if change.file]


def with_diffs(turn: TurnChanges, source: Callable[[int], Record]) -> TurnChanges:
    """A turn with the diffs that its fold left out; ``source`` reads the record at a position again."""
    edits: list[Edit] = []
    for edit in turn.edits:
        number = sum(each.position == edit.position for each in edits)
        change = _of_step(source(edit.position), edit.approvals)[number]
        edits.append(edit if edit.change.how == "replace" else replace(edit, change=change))
    return replace(turn, edits=edits)


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
