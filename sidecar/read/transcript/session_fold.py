"""Folds the records of one session into turns and their items. Pure.

Records come in position order. Any field of a payload may be missing or of another type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sidecar.read.asked import CHECKPOINT
from sidecar.read.catalog import TURN_ENDED
from sidecar.read.changes.approvals import Approvals, Ask, add_answer, ask_of
from sidecar.read.fields import (
    as_mapping,
    as_text,
    is_forgotten,
)
from sidecar.read.past.journal import Lazy, Map
from sidecar.read.starting import Started, starts_session
from sidecar.read.telling.describe import describe
from sidecar.read.transcript.items import background, called, other, said
from sidecar.read.transcript.items import prompt as prompt_of
from sidecar.read.transcript.model import Branch, Call, Item, Notice, NoticeKind, Prompt, Session, Turn
from sidecar.read.transcript.turns import TurnFold
from streams.lineage import CREATED, ENDED, MOVED, RESUMED, STEP_STARTED, TURN_STARTED
from streams.store import Record

_BESIDE = ("intent.", "message.")
"""The types of what an imported session has of its background work, questions and messages."""

_UNDONE = 60
"""How many characters of a prompt are shown to identify an undone prompt."""


@dataclass(slots=True, kw_only=True)
class SessionFold(TurnFold):
    """A session that is being folded. If a ``task`` call started the session, its turns go into ``branch``."""

    session: Session
    parent: str = ""
    branch: Branch | None = None
    prompts: dict[str, Prompt] = field(default_factory=Map)
    removed: dict[str, bool] = field(default_factory=Map)
    """The messages that OpenCode removed after they were undone."""
    answered: dict[str, str] = field(default_factory=Map)
    """The user message that each assistant message answers."""
    approvals: Approvals = field(default_factory=Approvals)
    running: dict[tuple[str, str], Call] = field(default_factory=Map)
    """The ``task`` calls whose child session was announced, by turn and call id."""
    starting: Started[Call] = field(default_factory=Started)
    waiting: dict[str, Ask] = field(default_factory=Map)
    """The asks that are open, by request."""
    source: Callable[[int], Record] | None = None
    """Reads the record at a position again, so that an item need not be kept; ``None`` if items are kept."""

    def apply(self, record: Record) -> None:
        event, payload = record.event, record.event.payload
        self.session.first_ms = min(self.session.first_ms, event.ts)
        self.session.last_ms = max(self.session.last_ms, event.ts)
        kind = SessionFold._background if event.type.startswith(_BESIDE) else SessionFold._other
        fold = _FOLDS.get(event.type, kind)
        (SessionFold._forgotten if is_forgotten(payload) else fold)(self, record, payload)

    # --- turns ---

    def _begun(self, turn: Turn) -> None:
        if self.source is not None:
            turn.items = Lazy(make=self.again)
        (self.session if self.branch is None else self.branch).turns.append(turn)

    def again(self, position: int) -> Item:
        """Make the item again that the record at ``position`` made."""
        assert self.source is not None
        record = self.source(position)
        match record.event.type:
            case "execution.step":
                return called(record, self.session.directory)
            case "execution.output":
                return said(record)
            case kind:
                return background(record) if kind.startswith(_BESIDE) else other(record)

    def _add(self, turn: Turn, record: Record, made: Callable[[Record], Item]) -> None:
        """Add an item that nobody changes, or what ``again`` makes it from."""
        turn.items.add(made(record) if self.source is None else record.position)

    def turn_of(self, payload: dict[str, Any]) -> Turn:
        turn = TurnFold.turn_of(self, payload)
        if message := as_text(payload.get("message")):
            self.answered[message] = turn.message
        return turn

    def started(self, record: Record, payload: dict[str, Any]) -> None:
        self._end_asks()
        TurnFold.started(self, record, payload)
        turn = self.turn(as_text(payload.get("message")))
        self.session.agent = self.session.agent or turn.agent
        self.answered[as_text(payload.get("assistant_message"))] = turn.message

    def ended(self, record: Record, payload: dict[str, Any]) -> None:
        self._title(record, payload)
        TurnFold.ended(self, record, payload)
        self._end_asks(self.turn(as_text(payload.get("message"))).message)

    # --- the session ---

    def _appeared(self, record: Record, payload: dict[str, Any]) -> None:
        session = self.session
        self._title(record, payload)
        session.agent = session.agent or as_text(payload.get("agent"))
        session.directory = session.directory or as_text(payload.get("directory"))
        session.ended = ""
        if record.event.type == RESUMED:
            self._end_asks()
            if self.turns:
                self.notice(record, "resumed", "OpenCode was started again")

    def _moved(self, record: Record, payload: dict[str, Any]) -> None:
        self.session.directory = as_text(payload.get("directory")) or self.session.directory

    def _ended(self, record: Record, payload: dict[str, Any]) -> None:
        self._title(record, payload)
        self._end_asks()
        self.session.ended = as_text(payload.get("reason")) or "ended"
        self.notice(record, "ended", f"session {self.session.ended}")

    def _title(self, record: Record, payload: dict[str, Any]) -> None:
        self.session.title = as_text(payload.get("title")) or self.session.title

    def _named(self, record: Record, payload: dict[str, Any]) -> None:
        self.session.name = as_text(payload.get("name"))

    # --- what people and models said ---

    def _input(self, record: Record, payload: dict[str, Any]) -> None:
        event, prompt = record.event, prompt_of(record)
        if not (prompt.text or prompt.files or prompt.shell):
            return  # the input has only synthetic text, which OpenCode itself adds
        message = as_text(payload.get("message")) or event.id
        self.prompts[message] = prompt
        self.turn(message).items.append(prompt)
        self.asked(record, payload)

    def _said(self, record: Record, payload: dict[str, Any]) -> None:
        turn = self.turn_of(payload)
        if not as_text(payload.get("text")):
            return
        if turn.trigger == "compaction" and payload.get("kind") != "reasoning":
            turn.items.append(replace(said(record), kind="summary"))
        else:
            self._add(turn, record, said)

    # --- what agents did ---

    def stepped(self, record: Record, payload: dict[str, Any]) -> None:
        TurnFold.stepped(self, record, payload)
        if payload.get("kind") != "inference":
            self._tool(record, payload, self.turn_of(payload))

    def _tool(self, record: Record, payload: dict[str, Any], turn: Turn) -> None:
        known = self.running.pop((turn.message, as_text(payload.get("call"))))
        asks, starts = [each.ask for each in self.approvals.of_step(payload)], starts_session(payload)
        if known is None and self.source is not None and self.session.directory and not (asks or starts):
            turn.items.add(record.position)
            return
        call = called(record, self.session.directory, known)
        if starts:
            self.starting.add(payload, call)
        if asks:
            # An ask that belongs to an earlier call with the same id is no longer an item of the turn.
            call.asks = [ask for ask in asks if any(item is ask for item in turn.items)]
            turn.items = turn.items.without(asks)
        if known is None:
            turn.items.append(call)

    def _checkpoint(self, record: Record, payload: dict[str, Any]) -> None:
        known = self.approvals.apply(record)
        if known is None:  # an answer to an unknown ask is shown as its own item
            ask = ask_of(record)
            add_answer(ask, record)
            self.turn(ask.turn).items.append(ask)
        elif known.asked is record:
            self.turn(known.ask.turn).items.append(known.ask)
            self.waiting[known.ask.request] = known.ask
        else:
            self.waiting.pop(known.ask.request)

    def _end_asks(self, turn: str | None = None) -> None:
        """End open asks. OpenCode keeps asks only in memory, so they end with the turn and with the process."""
        for request, ask in list(self.waiting.items()):
            if turn in (None, ask.turn):
                ask.state = "over"
                self.waiting.pop(request)

    # --- everything else ---

    def notice(self, record: Record, what: NoticeKind, text: str, turn: str = "") -> None:
        """Add a notice to a turn, by default to the latest one."""
        self.turn(turn).items.append(Notice(record.event.id, record.event.ts, what, text))

    def _error(self, record: Record, payload: dict[str, Any]) -> None:
        self.notice(record, "error", describe(record.event).text, as_text(payload.get("turn")))

    def _compacted(self, record: Record, payload: dict[str, Any]) -> None:
        self.notice(record, "compacted", "older messages were summed up")

    def _gap(self, record: Record, payload: dict[str, Any]) -> None:
        self.notice(record, "gap", describe(record.event).text)

    def _forgotten(self, record: Record, payload: dict[str, Any]) -> None:
        items = self.turn("").items
        if items and isinstance(last := items[-1], Notice) and last.what == "forgotten":
            last.count += 1
        else:
            self.notice(record, "forgotten", "")

    def _removed(self, record: Record, payload: dict[str, Any]) -> None:
        message = as_text(as_mapping(payload.get("properties")).get("messageID"))
        prompt, was_known = self.prompts.get(message), message in self.removed
        self.removed[message] = True
        if prompt is not None:
            was_known, prompt.undone = prompt.undone, True
        if not was_known and not self._undone(record, "undone", prompt, payload) and message not in self.answered:
            self._other(record, payload)

    def _reverted(self, record: Record, payload: dict[str, Any]) -> None:
        """Mark the prompts from a message on as undone, and the earlier ones as not, apart from those removed."""
        first, is_undone = as_text(payload.get("message")), False
        for message, prompt in self.prompts.items():
            is_undone = is_undone or message == first
            prompt.undone = is_undone or message in self.removed
        self._undone(record, "undone" if first else "redone", self.prompts.get(first), payload)

    def _undone(self, record: Record, what: NoticeKind, prompt: Prompt | None, payload: dict[str, Any]) -> bool:
        """Add a notice with the first words of a prompt; return false if there are none."""
        words = as_text(payload.get("prompt")) if prompt is None else prompt.command or prompt.shell or prompt.text
        if said := " ".join(words.split()):
            self.notice(record, what, said[:_UNDONE] + "…" * (len(said) > _UNDONE))
        return bool(said)

    def _command(self, record: Record, payload: dict[str, Any]) -> None:
        given = as_mapping(payload.get("properties"))
        message = as_text(given.get("messageID"))
        prompt = self.prompts.get(self.answered.get(message, message))
        if prompt is None:
            self._other(record, payload)
        else:
            prompt.command = f"/{as_text(given.get('name'))} {as_text(given.get('arguments'))}".strip()

    def _background(self, record: Record, payload: dict[str, Any]) -> None:
        self._add(self.turn(""), record, background)

    def _other(self, record: Record, payload: dict[str, Any]) -> None:
        self._add(self.turn(""), record, other)

    def _nothing(self, record: Record, payload: dict[str, Any]) -> None:
        """Ignore a record that only says where sessions belong, or what its step will say."""


_FOLDS: dict[str, Callable[[SessionFold, Record, dict[str, Any]], None]] = {
    CREATED: SessionFold._appeared,
    RESUMED: SessionFold._appeared,
    ENDED: SessionFold._ended,
    "lineage.linked": SessionFold._nothing,
    "stream.pinned": SessionFold._nothing,
    "stream.unpinned": SessionFold._nothing,
    "stream.named": SessionFold._named,
    "lineage.forked": SessionFold._nothing,
    "agent.spawned": SessionFold.spawned,
    "agent.handoff": SessionFold._nothing,
    "lifecycle.session.compacted": SessionFold._compacted,
    "human.input": SessionFold._input,
    "agent.input": SessionFold._input,
    TURN_STARTED: SessionFold.started,
    TURN_ENDED: SessionFold.ended,
    "execution.output": SessionFold._said,
    STEP_STARTED: SessionFold._nothing,
    "execution.step": SessionFold.stepped,
    "agent.error": SessionFold._error,
    CHECKPOINT: SessionFold._checkpoint,
    "capture.gap": SessionFold._gap,
    "opencode.message.removed": SessionFold._removed,
    "opencode.session.reverted": SessionFold._reverted,
    "opencode.command.executed": SessionFold._command,
    "opencode.session.renamed": SessionFold._title,
    MOVED: SessionFold._moved,
}
