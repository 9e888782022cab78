"""Reads from OpenCode 1 the turns that it ran without the plugin, or while its plugin lost hooks.

A session that continues in a new process may have had turns that were not recorded, because the plugin was removed or
switched off, or the disk was full. OpenCode still has the messages of those turns. When the session's next turn ends,
the missing turns are read and recorded, marked as history. The records of the missing turns come after that turn in the
log, with the times at which the turns happened. Turns before the log's first message of a session are left to ``import
--opencode``.

For OpenCode 2, see ``sidecar/record/opencode2/history.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Final

from bridge.opencode.capture.history import HISTORY_INSTANCE, turn_items, turns_of
from bridge.opencode.capture.state import CaptureState, SessionState
from bridge.opencode.capture.translate import Origin
from bridge.opencode.link.protocol import CallError
from sidecar.components import Tasks
from sidecar.record.ingest import Ingest
from streams.errors import StreamError
from streams.lineage import RESUMED
from streams.store import Record, StreamStore

log = logging.getLogger("sidecar.record.back_fill")

PAGES: Final = (20, 200)
"""How many of a session's newest messages are read: first a small page, then a large one only if the small page does
not reach back to the recorded messages. OpenCode may have to send megabytes for a page."""

_CALL_SECONDS: Final = 20.0
_KINDS: Final = ("human.input", "agent.input", "turn.started")
"""An event of any of these types, with a user message as its key, shows that the message was recorded."""

GAP, ENDED = "capture.gap", "turn.ended"
_NOTED: Final = frozenset({RESUMED, GAP, ENDED})


class BackFill:
    """A component. Give ``recorded`` every record that capture appends."""

    def __init__(self, ingest: Ingest, store: StreamStore, state: CaptureState) -> None:
        self._ingest, self._store, self._state = ingest, store, state
        self._due: dict[str, str] = {}
        """Maps a session to the OpenCode process that continues the session."""
        self._tasks = Tasks()
        self._seqs = count(1)

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._tasks.cancel)

    def owes(self) -> bool:
        """See ``Component``: whether a session is being read."""
        return bool(self._tasks)

    def recorded(self, records: Sequence[Record]) -> None:
        """Note which sessions may be missing turns, and read the idle ones."""
        for record in records:
            event = record.event
            if event.type not in _NOTED:
                continue
            boot = event.metadata.get("boot")
            is_other = event.metadata.get("history") or event.metadata.get("host")
            if record.duplicate or not isinstance(boot, str) or is_other:
                continue
            session = str(event.payload.get("session"))
            if event.type == RESUMED:
                self._due[session] = boot
            elif event.type == GAP:
                self._due.update(dict.fromkeys(self._state.sessions.having("boot", boot), boot))
            elif event.type == ENDED and session in self._due:
                self._tasks.spawn(self._fill(session))

    async def _fill(self, session: str) -> None:
        """Record the missing turns of a session. If the next turn of the session has begun, this is tried again at the
        end of that turn.
        """
        boot, known = self._due.get(session), self._state.sessions.get(session)
        link = self._ingest.link_of(boot, known.directory) if boot is not None and known is not None else None
        if boot is None or known is None or link is None:
            return
        missing: dict[str, list[dict[str, Any]]] = {}
        try:
            for limit in PAGES:
                given = {"path": {"id": session}, "query": {"limit": limit}}
                messages = await link.call("session.messages", given, timeout=_CALL_SECONDS)
                found = messages if isinstance(messages, list) else []
                turns = turns_of([message for message in found if isinstance(message, dict)])
                missing = {user: turn for user, turn in turns.items() if await self._is_missing(known, user)}
                if len(found) < limit or next(iter(turns), None) not in missing:
                    break
        except (CallError, StreamError) as error:
            log.warning("the history of %s cannot be read: %s", session, error)
            return
        if known.turn is not None or self._due.pop(session, None) is None:
            return
        for turn in missing.values():
            items = list(turn_items(session, turn))
            seq = next(self._seqs)
            for _ in items[1:]:
                next(self._seqs)
            self._ingest.take(Origin(boot, HISTORY_INSTANCE), seq, items, None)
        if missing:
            log.info("%d missing turns of %s were read from OpenCode", len(missing), session)

    async def _is_missing(self, session: SessionState, user: str) -> bool:
        if session.first_message is None or user <= session.first_message or user in session.inputs:
            return False
        return not any(await self._store.find_each([f"{kind}:{session.id}:{user}" for kind in _KINDS]))
