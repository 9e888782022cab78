"""The progress of a log's mirror: where it is, determined at each connection and stored in between.

``bridge/nats/mirror/resuming.py`` is the model, and decides where to resume. This module reads what it decides from,
and carries out the decision: it erases forgotten payloads on the server, purges the stream if needed, and folds the
session contexts from the last snapshot on. Cursor and snapshot are hints: if they are lost, stream and log supply the
same facts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Final

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.stream_plan import EVENTS
from bridge.nats.jetstream.streams import purge
from bridge.nats.l0.captured import MEANINGS
from bridge.nats.mirror.publish import MAX_RUN
from bridge.nats.mirror.resuming import MIRROR, MIRROR_VERSION, LogSurvey, MirrorState, StreamSurvey, resume_plan
from bridge.nats.mirror.surveying import cut, erase_l0, erase_records, survey
from bridge.nats.subjects import log_pattern
from sidecar.mirror.ahead import YIELD_RECORDS
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
        self.end = NOTHING
        """There are no records between the last mirrored record and this position, because the end of the log was
        pruned."""
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
        self.end = NOTHING
        kept = await self._kept()
        known = self._known(kept)
        stream, log_ = await self._survey(session)
        await self._note_commands(known, stream, log_)
        is_erased = await self._forget(session, known)
        if is_erased:
            stream, log_ = await self._survey(session)
        is_asked = self.rebuild_requested
        plan = resume_plan(known, stream, log_, is_asked=is_asked, is_erased=is_erased)
        if plan.purge and not is_asked:
            # Check a fault a second time, because messages that were already sent may still arrive.
            await asyncio.sleep(AGAIN_SECONDS)
            stream, log_ = await self._survey(session)
            plan = resume_plan(known, stream, log_, is_erased=is_erased)
        if plan.note:
            follows = "everything will be published again" if plan.purge else f"it resumes after position {plan.after}"
            log.warning("the mirror: %s; %s", plan.why, follows)
            known.notes[f"resumed:{plan.note}"] += 1
        begin = kept if kept.position <= plan.after else MirrorState()
        state = replace(
            known, position=begin.position, contexts=begin.contexts, rebuild=plan.rebuild, created=stream.created
        )
        if plan.purge:
            await purge(session, EVENTS, subject=log_pattern(self._log_id))
            self.rebuild_requested = False
            self._counts["republished"] += 1
        self.kept = begin.position
        await self._fold(state, plan.after)
        if state.rebuild > kept.rebuild:
            # Store the rebuild number before publishing under it. For a while the server treats purged ids as
            # duplicates, so no number may be used twice, even if this process dies at any point.
            await self._store.put_snapshot(MIRROR, state.snapshot())
            await self._store.write_hints()
            self.kept = state.position
        self.state = state
        return max(self._store.head - plan.after, MAX_RUN) if plan.note else MAX_RUN

    async def _kept(self) -> MirrorState:
        """The state in the snapshot, or an empty one, for which the log is folded from its beginning."""
        snapshot = await self._store.snapshot(MIRROR, MIRROR_VERSION)
        try:
            return MirrorState() if snapshot is None else MirrorState.of(snapshot)
        except ValueError:
            return MirrorState()

    def _known(self, kept: MirrorState) -> MirrorState:
        """What is known from this life and from the snapshot, without contexts."""
        mine = self.state
        position = max(kept.position, mine.position)
        return MirrorState(
            position if position <= self._store.head else NOTHING,
            max(kept.rebuild, mine.rebuild),
            mine.created or kept.created,
            {**kept.forgotten, **mine.forgotten},
            notes=mine.notes or kept.notes,
        )

    async def _survey(self, session: JetStream) -> tuple[StreamSurvey, LogSurvey]:
        stream, store = await survey(session, self._log_id), self._store
        last = stream.last.position if stream.last is not None else NOTHING
        first, at_last = NOTHING, None
        async for record in store.read_all():
            first = record.position
            break
        if NOTHING < last <= store.head:
            async for record in store.read_all(after=last - 1):
                at_last = record if record.position == last else None
                break
        pruned = sum(gone.first_offset for gone in (await store.removed()).values())
        return stream, LogSurvey(first, store.head, at_last, pruned)

    async def _note_commands(self, known: MirrorState, stream: StreamSurvey, log_: LogSurvey) -> None:
        """Determine and store which commands were sent, before anything in the stream is removed.

        Carrying out an old command twice would be worse than losing a command.
        """
        last, there = stream.last, NOTHING
        if last is not None and last.position <= log_.head:
            is_same = log_.at_last is None or log_.at_last.event.id == last.event_id
            there = last.position if is_same else NOTHING
        stored = min(await self._store.cursor(COMMANDS_SENT), log_.head)
        self.commands_to = max(min(self.commands_to, log_.head), stored, known.position, there)
        if self.commands_to > stored:
            await self._store.advance(COMMANDS_SENT, self.commands_to)
            await self._store.write_hints()

    async def is_elsewhere(self, session: JetStream) -> bool:
        """Whether the stream differs from ``state`` while nothing is in flight. Raises the same errors as
        ``resume``."""
        plan = resume_plan(self.state, *await self._survey(session))
        if not plan.purge and plan.after == self.state.position:
            return False
        log.warning("the mirror: %s", plan.why or "the stream is at another position")
        return True

    async def find_end(self) -> None:
        """Set ``end``, when all records so far are mirrored."""
        position, head = self.state.position, self._store.head
        async for _ in self._store.read_all(after=position):
            return
        self.end = max(head, position)

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
            await erase_l0(session, self._log_id, await self._with_l0(due))
            erased = []
            for stream in sorted(due):
                first = await erase_records(session, self._log_id, stream, below=due[stream])
                erased += [] if first is None else [first]
                self._counts["erased"] += 1
            if erased:
                position, sequence = min(erased)
                after = await cut(session, self._log_id, after=position - 1, from_sequence=sequence)
                known.position = min(known.position, after)
        except BaseException:
            self.erase |= wanted_now
            raise
        known.forgotten = {**known.forgotten, **due}
        self.state.forgotten = known.forgotten
        return bool(erased)

    async def _with_l0(self, below: dict[str, int]) -> set[str]:
        """The ids of events that may have L0 messages, and whose offsets are below the given one of their stream."""
        found = set()
        for stream, offset in below.items():
            async for record in self._store.read(stream):
                if record.offset >= offset:
                    break
                if record.event.type in MEANINGS:
                    found.add(record.event.id)
        return found

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
