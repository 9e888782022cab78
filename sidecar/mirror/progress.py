"""The progress of a log's mirror, which is determined at each connection and stored in between.

``bridge/nats/mirror/resuming.py`` decides where to resume, from the stream, the log and the stored progress. Before
that, forgotten payloads are erased on the server. Afterwards, session contexts are folded, starting from the last
snapshot.

Cursor and snapshot are hints. If cursor and snapshot are lost, the stream and the log supply the same facts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Final

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.stream_plan import EVENTS
from bridge.nats.jetstream.streams import last_message
from bridge.nats.mirror.messages import Mirror
from bridge.nats.mirror.publish import MAX_RUN, begin_anew, mirrored_record
from bridge.nats.mirror.resuming import Resume, resume_plan
from bridge.nats.mirror.state import MIRROR, MIRROR_VERSION, MirrorState
from bridge.nats.mirror.surveying import cut, erase_l0, erase_records, survey
from bridge.nats.subjects import log_pattern
from sidecar.mirror.ahead import YIELD_RECORDS
from sidecar.mirror.log_survey import l0_event_ids, log_survey
from streams.errors import StreamError
from streams.store import NOTHING, StreamStore

log = logging.getLogger("sidecar.mirror")

AGAIN_SECONDS: Final = 0.1
"""Pause before a fault is checked again, because messages that were already sent may still arrive."""

COMMANDS_SENT: Final = "mirror-commands"
"""The cursor of ``Progress.commands_to``; it may lag behind ``MIRROR``, and survives a rebuild."""

CURSOR_SECONDS: Final = 0.5
"""Time between two stored cursors while records are being published."""


class Progress:
    """The progress of one log's mirror, for use by one task. Updates ``republished`` and ``erased`` in ``counts``."""

    def __init__(self, store: StreamStore, log_id: str, counts: Counter[str]) -> None:
        self._store, self._log_id, self._counts = store, log_id, counts
        self.rebuild_requested = False
        """Whether the next ``resume`` publishes everything again."""
        self.erase: set[str] = set()
        """The streams with newly forgotten payloads; a hint for the next ``resume``."""
        self.is_forgetting = False
        """Whether ``resume`` is erasing forgotten payloads."""
        self.state = MirrorState()
        self.noted = NOTHING
        """The last cursor that was written, or that could not be written."""
        self.kept = NOTHING
        self.commands_to = NOTHING
        """Commands up to this position are not sent again, even if their records are published again."""
        self._cursor_due = 0.0

    @property
    def has_work(self) -> bool:
        """Whether ``resume`` has a rebuild or an erasure to do."""
        return self.rebuild_requested or bool(self.erase)

    # --- where to continue ---

    async def resume(self, session: JetStream) -> int:
        """Determine up to which position the log is mirrored, correct the stream up to that position, and update
        ``state``.

        Returns how many of the following records may already have L0 messages. After a failure or a cancellation
        the next call repeats the work.

        Raises:
            NatsError: the server is unreachable or refused the request.
            StreamError, OSError: the log cannot be read.
        """
        try:
            return await self._resume(session)
        finally:
            self.is_forgetting = False

    async def _resume(self, session: JetStream) -> int:
        known, folded = await self._known()
        await self._note_commands(session, known)
        erased = await self._forget(session, known)
        plan = await self._plan(session, known)
        if erased and not plan.note:
            why = "forgotten payloads and all records after them were erased"
            plan = replace(plan, rebuild=plan.rebuild + 1, why=why, note="forgotten")
        if self.rebuild_requested and not plan.purge:
            plan = Resume(NOTHING, plan.rebuild, purge=True, why="a rebuild was requested", note="asked")
        if plan.note:
            follows = "everything will be published again" if plan.purge else f"it resumes after position {plan.after}"
            log.warning("the mirror: %s; %s", plan.why, follows)
            known.notes[f"resumed:{plan.note}"] += 1
        state = replace(known, rebuild=plan.rebuild)
        if plan.purge:
            state = await begin_anew(session, self._log_id, known)
            self.rebuild_requested = False
            self._counts["republished"] += 1
            self.kept = NOTHING
        elif folded.position <= plan.after:
            state.position, state.contexts = folded.position, folded.contexts
        else:
            state.position, state.contexts = NOTHING, MirrorState().contexts
        state.sequence = 0
        kept = folded.rebuild
        await self._fold(state, plan.after)
        if state.rebuild > kept:
            # Store the rebuild number before publishing under it. For a while the server treats purged ids as
            # duplicates, so no number may be used twice, even if this process dies at any point.
            await self._store.put_snapshot(MIRROR, state.snapshot())
            self.kept = state.position
        self.state = state
        return max(self._store.head - plan.after, MAX_RUN) if plan.note else MAX_RUN

    async def _known(self) -> tuple[MirrorState, MirrorState]:
        snapshot = await self._store.snapshot(MIRROR, MIRROR_VERSION)
        state = MirrorState()
        if snapshot is not None:
            try:
                state = MirrorState.of(snapshot)
            except ValueError:
                state = MirrorState()  # a snapshot is only a hint, and without one the log is folded from its beginning
        self.kept = state.position
        mine = self.state
        position = max(state.position, mine.position)
        known = MirrorState(
            position if position <= self._store.head else NOTHING,
            max(state.rebuild, mine.rebuild),
            0,
            mine.created or state.created,
            {**state.forgotten, **mine.forgotten},
            notes=mine.notes or state.notes,
        )
        return known, state

    async def _plan(self, session: JetStream, known: MirrorState) -> Resume:
        """Decide where to resume. Checks any fault a second time, because messages already sent may still arrive."""
        found = await self._decide(session, known)
        if found.purge:
            await asyncio.sleep(AGAIN_SECONDS)
            found = await self._decide(session, known)
        return found

    async def _decide(self, session: JetStream, known: MirrorState) -> Resume:
        there = await survey(session, self._log_id)
        plan = resume_plan(known, there, await log_survey(self._store, there.last.position if there.last else NOTHING))
        known.created = there.created
        return plan

    async def _note_commands(self, session: JetStream, known: MirrorState) -> None:
        """Determine and store which commands were sent, before anything in the stream is removed.

        Carrying out an old command twice would be worse than losing a command.
        """
        head = self._store.head
        there, found = NOTHING, await last_message(session, EVENTS, log_pattern(self._log_id))
        last = mirrored_record(found) if found is not None else None
        if last is not None and NOTHING < last.position <= head:
            record = (await log_survey(self._store, last.position)).at_last
            if record is None or record.event.id == last.event_id:
                there = last.position
        stored = min(await self._store.cursor(COMMANDS_SENT), head)
        self.commands_to = max(min(self.commands_to, head), stored, known.position, there)
        if self.commands_to > stored:
            await self._store.advance(COMMANDS_SENT, self.commands_to)

    async def is_elsewhere(self, session: JetStream) -> bool:
        """Whether the stream differs from ``state`` while nothing is in flight. Raises the same errors as
        ``resume``."""
        known = replace(self.state)
        plan = await self._decide(session, known)
        if not plan.purge and plan.after == self.state.position:
            return False
        log.warning("the mirror: %s", plan.why or "the stream is at another position")
        return True

    async def _fold(self, state: MirrorState, until: int) -> None:
        if state.position >= until:
            return
        passed = 0
        async for record in self._store.read_all(after=state.position):
            if record.position > until:
                break
            state.pass_over(record)
            passed += 1
            if passed % (YIELD_RECORDS * 8) == 0:
                await asyncio.sleep(0)
        # The last record may have been pruned, so the loop above need not have reached this position.
        state.position = until

    # --- forgetting ---

    async def _forget(self, session: JetStream, known: MirrorState) -> bool:
        """Erase the messages that contain newly forgotten payloads, and remove all later messages of this log, so that
        the mirror publishes those records again in order.

        Returns whether any record's message was erased.
        """
        wanted_now, self.erase = self.erase, set()
        try:
            removed = await self._store.removed()
            below = {
                stream: max(gone.forgotten_to, gone.first_offset if stream in wanted_now else 0)
                for stream, gone in removed.items()
            }
            due = {
                stream: offset
                for stream, offset in below.items()
                if offset > known.forgotten.get(stream, 0) or (offset and stream in wanted_now)
            }
            if not due:
                return False
            self.is_forgetting = True
            mirror = Mirror(self._log_id)
            await erase_l0(session, await l0_event_ids(self._store, due), mirror.version, mirror.channel)
            positions = []
            for stream in sorted(due):
                lowest = await erase_records(session, self._log_id, stream, below=due[stream])
                positions += [] if lowest is None else [lowest]
                self._counts["erased"] += 1
            if positions:
                after = await cut(session, self._log_id, after=min(positions) - 1)
                known.position = min(known.position, after)
        except BaseException:
            self.erase |= wanted_now
            raise
        known.forgotten = {**known.forgotten, **due}
        self.state.forgotten = known.forgotten
        return bool(positions)

    # --- hints ---

    async def load(self) -> None:
        """Start from the cursor. Never fails."""
        if self.state.position == NOTHING:
            try:
                self.state.position = await self._store.cursor(MIRROR)
            except (OSError, StreamError) as error:
                log.warning("cannot read the mirror's cursor: %s", error)

    async def keep_cursor(self) -> None:
        """Store the position as the cursor. Never fails."""
        self._cursor_due = asyncio.get_running_loop().time() + CURSOR_SECONDS
        self.noted = self.state.position
        try:
            await self._store.advance(MIRROR, self.state.position)
        except (OSError, StreamError) as error:
            log.warning("cannot store the mirror's cursor: %s", error)

    async def keep_cursor_if_due(self) -> None:
        if asyncio.get_running_loop().time() >= self._cursor_due:
            await self.keep_cursor()

    async def keep_snapshot(self) -> None:
        """Store a snapshot of ``state``, whose contexts must match its position. Never fails."""
        if self.state.position == self.kept:
            return
        try:
            await self._store.put_snapshot(MIRROR, self.state.snapshot())
            self.kept = self.state.position
        except (OSError, StreamError) as error:
            log.warning("cannot store the mirror's snapshot, so its next start reads more of the log: %s", error)
