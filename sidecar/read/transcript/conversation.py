"""Folds the records of a root session and its descendants into a conversation: sessions, and the child sessions below
the calls that started them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sidecar.read.fields import as_text, is_forgotten
from sidecar.read.past.journal import Items, Map
from sidecar.read.transcript.model import Branch, Call, Session
from sidecar.read.transcript.session_fold import SessionFold
from streams.lineage import CREATED, LINKED, RESUMED
from streams.store import Record

MOST_DEPTH = 8
"""Maximum nesting depth of sessions; deeper sessions become roots."""


class Conversation:
    """A fold over records in position order; ``roots`` is the result so far.

    With ``source``, which reads the record at a position again, items are made when they are read, and take no memory.
    """

    def __init__(self, source: Callable[[int], Record] | None = None) -> None:
        self._source = source
        self._folds: dict[str, SessionFold] = Map()
        self._parents: dict[str, bool] = Map()

    @property
    def roots(self) -> list[Session]:
        """The sessions that are below no ``task`` call, in the order in which they appeared."""
        return [fold.session for fold in self._folds.values() if fold.branch is None]

    def apply(self, record: Record) -> None:
        event, payload = record.event, record.event.payload
        named = payload.get("session")
        # A forgotten record names no session, so it goes to the root session, which has its stream's name.
        fold = self._fold(named if isinstance(named, str) else event.stream_id, record)
        fold.apply(record)
        if is_forgotten(payload):
            return
        if event.type in (CREATED, RESUMED, LINKED) and fold.branch is None:
            self._adopt(record, fold, as_text(payload.get("parent")))
        elif event.type == "agent.spawned":
            self._spawned(record, fold, payload)
        elif event.type == "execution.step":
            self._finished(fold, payload)

    def know(self, session: Session) -> None:
        """Take a session whose beginning is not among the records."""
        self._folds[session.id] = SessionFold(session=session, source=self._source)

    def _fold(self, session: str, record: Record) -> SessionFold:
        if session not in self._folds:
            ts = record.event.ts
            self._folds[session] = SessionFold(
                session=Session(session, record.event.stream_id, first_ms=ts, last_ms=ts), source=self._source
            )
        return self._folds[session]

    def _spawned(self, record: Record, above: SessionFold, payload: dict[str, Any]) -> None:
        event, turn = record.event, above.turn_of(payload)
        name, key = as_text(payload.get("child")), (turn.message, as_text(payload.get("call")))
        call = above.starting.find(payload)
        if call is None or (call.child is not None and call.child.session != name):
            call = above.running[key] = Call(event.id, event.ts, event.actor, "task", key[1])
            call.title = as_text(payload.get("description"))
            turn.items.append(call)
        if name:
            child = self._fold(name, record)
            child.session.agent = as_text(payload.get("agent")) or child.session.agent
            self._put_below(above, child, call)

    def _finished(self, above: SessionFold, payload: dict[str, Any]) -> None:
        """Handle the end of a ``task`` call: put the child session below the call, even if no event announced the
        child."""
        child = self._folds.get(as_text(payload.get("child")))
        if child is not None and child.branch is None:
            last = next(reversed(above.turn_of(payload).items), None)
            if isinstance(last, Call) and last.child is None:
                self._put_below(above, child, last)

    def _adopt(self, record: Record, fold: SessionFold, parent: str) -> None:
        """Put a session without a known call into its parent's open turn; if none is open, no turn started the session,
        so it gets a place of its own after the last turn."""
        above = self._folds.get(parent)
        if above is not None:
            call = Call(record.event.id, record.event.ts, record.event.actor, "task", "", status="unknown")
            if self._put_below(above, fold, call):
                is_open = above.current is not None and not above.current.outcome
                above.turn("" if is_open else record.event.id).items.append(call)

    def _put_below(self, above: SessionFold, fold: SessionFold, call: Call) -> bool:
        """Put the session's later turns below ``call``, and also its earlier turns if the session was a root."""
        session = fold.session
        is_again = fold.branch is not None and fold.parent == above.session.id
        if not is_again and (fold.branch is not None or not self._fits(above, fold)):
            return False
        branch = Branch(session.id, call.title or session.title, session.agent)
        if fold.branch is None:
            branch.turns, session.turns = session.turns, Items()
            fold.parent = above.session.id
            self._parents[fold.parent] = True
        session.directory = session.directory or above.session.directory
        call.child = fold.branch = branch
        return True

    def _fits(self, above: SessionFold, fold: SessionFold) -> bool:
        """False if the session contains its parent, or would be nested too deep."""
        name, chain, height = fold.session.id, self._chain(above), 0
        if name in self._parents:
            below = [each for other in self._folds.values() if name in (each := self._chain(other))]
            height = max(each.index(name) for each in below)
        return name not in chain and len(chain) + height < MOST_DEPTH

    def _chain(self, fold: SessionFold) -> list[str]:
        """The session and its ancestors, nearest first."""
        chain = [fold.session.id]
        while fold.parent:
            fold = self._folds[fold.parent]
            chain.append(fold.session.id)
        return chain
