"""How far a log's mirror is: found out at each connection, and kept in between.

The stream, the log and our own notes are asked, and ``bridge/nats/mirror/resuming.py`` decides where to go on.
On the way there what was forgotten is erased on the server, and places are folded from the last snapshot on.

Cursor and snapshot are hints: what is lost of them is found out from the stream, or read from the log once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Final

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.mirror.messages import Mirror
from bridge.nats.mirror.publish import MAX_RUN, begin_anew
from bridge.nats.mirror.resuming import Resume, resume_plan
from bridge.nats.mirror.state import MIRROR, MIRROR_VERSION, MirrorState
from bridge.nats.mirror.surveying import cut, erase_l0, erase_records, survey
from sidecar.nats.mirror.ahead import YIELD_RECORDS
from sidecar.nats.mirror.log_survey import log_survey, told_events
from streams.errors import StreamError
from streams.store import NOTHING, StreamStore

log = logging.getLogger("sidecar.nats")

AGAIN_SECONDS: Final = 0.1
"""Between two looks at a fault: what was sent before may still arrive."""

CURSOR_SECONDS: Final = 0.5
"""Between two cursors, while records are being published."""


class Progress:
    """How far the mirror of one log is. One task uses it; ``counts`` gets ``republished`` and ``erased``."""

    def __init__(self, store: StreamStore, log_id: str, counts: Counter[str]) -> None:
        self._store, self._log_id, self._counts = store, log_id, counts
        self.anew = False
        """Whether all is to be published again at the next ``resume``."""
        self.erase: set[str] = set()
        """Streams whose payloads were forgotten since, for the next ``resume``; it finds others by itself."""
        self.is_forgetting = False
        """Whether ``resume`` found something that was forgotten, and is not at its end."""
        self.state = MirrorState()
        """What is known of the progress; its places may be ahead of its position."""
        self.noted = NOTHING
        """The cursor, as far as it was tried to keep it."""
        self.kept = NOTHING
        """Position of the last snapshot."""
        self._cursor_due = 0.0

    @property
    def has_work(self) -> bool:
        """Whether something was asked for that ``resume`` does."""
        return self.anew or bool(self.erase)

    # --- where to go on ---

    async def resume(self, session: JetStream) -> int:
        """Find out where the mirror is, make the stream right up to there, and fold what is needed to go on: ``state``.

        How many of the following records may have been told in the L0 protocol before. What fails, or is cancelled,
        is done again by the next call.

        Raises:
            NatsError: the server cannot be asked, or says no.
            StreamError, OSError: the log cannot be read.
        """
        try:
            return await self._resume(session)
        finally:
            self.is_forgetting = False

    async def _resume(self, session: JetStream) -> int:
        known, folded = await self._known()
        erased = await self._forget(session, known)
        plan = await self._plan(session, known)
        if erased and not plan.note:
            why = "what was forgotten was erased, and what follows it"
            plan = replace(plan, rebuild=plan.rebuild + 1, why=why, note="forgotten")
        if self.anew and not plan.anew:
            plan = Resume(NOTHING, plan.rebuild, anew=True, why="a rebuild was asked for", note="asked")
        if plan.note:
            follows = "all is published anew" if plan.anew else f"it goes on after position {plan.after}"
            log.warning("the mirror: %s; %s", plan.why, follows)
            known.notes[f"resumed:{plan.note}"] += 1
        state = replace(known, rebuild=plan.rebuild)
        if plan.anew:
            state = await begin_anew(session, self._log_id, known)
            self.anew = False
            self._counts["republished"] += 1
            self.kept = NOTHING
        elif folded.position <= plan.after:
            state.position, state.places = folded.position, folded.places
        else:
            state.position, state.places = NOTHING, MirrorState().places
        state.sequence = 0
        kept = folded.rebuild
        await self._fold(state, plan.after)
        if state.rebuild > kept:
            # Before anything is published under it: what was, and is then removed, is taken for a duplicate for a
            # while, so no number may be used twice, whenever this process ends.
            await self._store.put_snapshot(MIRROR, state.snapshot())
            self.kept = state.position
        self.state = state
        return max(self._store.head - plan.after, MAX_RUN) if plan.note else MAX_RUN

    async def _known(self) -> tuple[MirrorState, MirrorState]:
        """What is left of our own notes, at the greatest position of all; and the state that can be folded on."""
        snapshot = await self._store.snapshot(MIRROR, MIRROR_VERSION)
        state = MirrorState()
        if snapshot is not None:
            try:
                state = MirrorState.of(snapshot)
            except ValueError:
                state = MirrorState()  # a hint: the log is folded from its beginning
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
        """Decide where to go on; a fault is looked at twice, for what was sent before may still arrive."""
        found = await self._decide(session, known)
        if found.anew:
            await asyncio.sleep(AGAIN_SECONDS)
            found = await self._decide(session, known)
        return found

    async def _decide(self, session: JetStream, known: MirrorState) -> Resume:
        there = await survey(session, self._log_id)
        plan = resume_plan(known, there, await log_survey(self._store, there.last.position if there.last else NOTHING))
        known.created = there.created
        return plan

    async def is_elsewhere(self, session: JetStream) -> bool:
        """Whether the stream is not where ``state`` says, while nothing is under way. Raises as ``resume``."""
        known = replace(self.state)
        plan = await self._decide(session, known)
        if not plan.anew and plan.after == self.state.position:
            return False
        log.warning("the mirror: %s", plan.why or "the stream is elsewhere")
        return True

    async def _fold(self, state: MirrorState, until: int) -> None:
        """Take the records that are mirrored already."""
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
        # The record itself may have been pruned.
        state.position = until

    # --- forgetting ---

    async def _forget(self, session: JetStream, known: MirrorState) -> bool:
        """Erase what the log has forgotten since, and all that follows it, so that it is published in its order.

        Whether there was something.
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
            await erase_l0(session, await told_events(self._store, due), mirror.version, mirror.channel)
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
        """Begin with what the cursor says. Never fails."""
        if self.state.position == NOTHING:
            try:
                self.state.position = await self._store.cursor(MIRROR)
            except (OSError, StreamError) as error:
                log.warning("the mirror's cursor cannot be read: %s", error)

    async def keep_cursor(self) -> None:
        """Keep the position as the cursor. Never fails."""
        self._cursor_due = asyncio.get_running_loop().time() + CURSOR_SECONDS
        self.noted = self.state.position
        try:
            await self._store.advance(MIRROR, self.state.position)
        except (OSError, StreamError) as error:
            log.warning("the mirror's cursor was not kept: %s", error)

    async def keep_cursor_if_due(self) -> None:
        """Keep the cursor, where that was a while ago. Never fails."""
        if asyncio.get_running_loop().time() >= self._cursor_due:
            await self.keep_cursor()

    async def keep_snapshot(self) -> None:
        """Keep a snapshot of ``state``, whose places must be those at its position. Never fails."""
        if self.state.position == self.kept:
            return
        try:
            await self._store.put_snapshot(MIRROR, self.state.snapshot())
            self.kept = self.state.position
        except (OSError, StreamError) as error:
            log.warning("no snapshot of the mirror was kept, it reads more of the log at its next start: %s", error)
