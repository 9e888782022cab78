"""The mirror's task: reads the log, publishes what is new, and knows how far it is.

The log is the outbox: nothing is queued beyond two runs, so a server that is
away costs no memory, and recording never waits. Every failure ends in the same
way as a start does: the stream is asked how far it is (``bridge/nats/resuming.py``).

While one run is on its way to the server, the next one is read and made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final

from bridge.nats.errors import NatsError
from bridge.nats.jetstream import JetStream
from bridge.nats.keeping import StreamFacts, ensure_streams
from bridge.nats.messages import Mirror
from bridge.nats.mirror_state import MIRROR, MIRROR_VERSION, MirrorState
from bridge.nats.mirroring import (
    DAY_MS,
    L0_DAYS,
    MAX_RUN,
    BegunRun,
    KnownL0,
    RunStored,
    Vanished,
    begin_anew,
    begin_run,
    finish_run,
)
from bridge.nats.resuming import Resume, resume_plan
from bridge.nats.sessions import Sessions
from bridge.nats.stream_plan import UNLIMITED, wanted
from bridge.nats.surveying import cut, erase_l0, erase_records, survey
from sidecar.nats.ahead import YIELD_RECORDS, Ahead
from sidecar.nats.log_survey import end_of, log_survey, told_events
from streams.errors import StreamError
from streams.store import NOTHING, StreamStore

log = logging.getLogger("sidecar.nats")

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 60.0
"""How often the stream is looked at though nothing failed: somebody may have emptied it."""

SNAPSHOT_RECORDS: Final = 2000
CURSOR_SECONDS: Final = 0.5


class _Again(Exception):
    """Something is to be done before the mirror goes on."""


class MirrorTask:
    """The mirror of one log; belongs to its event loop. ``log_id`` names the log on the server.

    ``max_bytes`` bounds ``MESHFORGE_EVENTS``; the oldest messages go first.
    """

    def __init__(
        self,
        store: StreamStore,
        log_id: str,
        sessions: Sessions,
        now_ms: Callable[[], int],
        *,
        max_bytes: int = UNLIMITED,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._store, self._log_id, self._sessions, self._now_ms = store, log_id, sessions, now_ms
        self._definitions = wanted(max_bytes=max_bytes)
        self._look_seconds = look_seconds
        self._mirror = Mirror(log_id)
        self._task: asyncio.Task[None] | None = None
        self._wake, self._caught_up = asyncio.Event(), asyncio.Event()
        self._ending = self._publishing = False
        self._anew = False
        self._erase: set[str] = set()
        self._state = MirrorState()
        """What is known of the progress; its places may be ahead of its position."""
        self._cursor_due = 0.0
        self._noted = NOTHING
        """The cursor, as far as it was tried to keep it."""
        self._kept = NOTHING
        """Position of the last snapshot."""
        self._is_level = False
        """Whether the state's places are those at its position: nothing was made that is not stored."""
        self._end = NOTHING
        """Up to where there is no record after the mirrored ones: what is pruned at the log's end never comes."""
        self._doing = "waiting"
        self._problem = ""
        self.counts: Counter[str] = Counter()
        """``published`` and ``duplicates`` (messages), ``republished`` (how often all was), ``erased`` (streams)."""

    def start(self) -> None:
        """Begin, in the background. Nothing if it runs."""
        if self._task is None:
            self._ending = False
            self._task = asyncio.create_task(self._run())

    async def close(self, *, drain_seconds: float = 0) -> None:
        """Stop, and keep how far it is. Idempotent. What is under way is found out by the next one.

        While something is being published, it may go on for ``drain_seconds``.
        """
        if self._task is not None and self.status()["state"] == "publishing":
            self._caught_up.clear()
            caught_up = asyncio.create_task(self._caught_up.wait())
            await asyncio.wait((caught_up, self._task), timeout=drain_seconds, return_when=asyncio.FIRST_COMPLETED)
            caught_up.cancel()
        await self._stop(patient=False)
        await self._keep_last()

    async def pause(self) -> None:
        """Publish nothing from the return of this call until ``resume``; what is under way is finished or given up."""
        await self._stop(patient=True)
        self._doing = "paused"
        await self._keep_last()

    def resume(self) -> None:
        """Go on. How far the mirror is, is found out anew: from the snapshot ``MIRROR`` and from the stream."""
        self._doing = "waiting"
        self.start()

    def rebuild(self) -> None:
        """Purge this log's part of the stream and publish everything again, in the background; ``status`` tells."""
        self._anew = True
        self._wake.set()

    def forgotten(self, streams: Collection[str]) -> None:
        """Payloads of these streams were forgotten: their messages are erased and published again without them.

        In the background. Not calling it delays that to the next connection: the log knows what was forgotten.
        """
        self._erase.update(streams)
        self._wake.set()

    def project_of(self, session: str) -> str:
        """A session's project, as far as the log was read."""
        return self._state.places.project_of(session)

    def status(self) -> dict[str, Any]:
        """For ``status``.

        ``position`` (last mirrored), ``head`` (of the log), ``lag`` (records in between), ``published`` and
        ``duplicates`` (messages, in the life of this object), ``rebuild`` (its number), ``state`` (``waiting``,
        ``resuming``, ``forgetting``, ``publishing``, ``rebuilding``, ``paused`` or ``idle``), ``problem`` (one line;
        empty while all is well) and ``notes`` (counts).
        """
        position, head = max(self._state.position, self._end), self._store.head
        doing = self._doing
        return {
            "state": "publishing" if doing == "idle" and position < head else doing,
            "position": position,
            "head": head,
            "lag": max(head - position, 0),
            "published": self.counts["published"],
            "duplicates": self.counts["duplicates"],
            "rebuild": self._state.rebuild,
            "problem": self._problem or (self._sessions.problem if doing == "waiting" else ""),
            "notes": dict(sorted(self._state.notes.items())),
        }

    # --- its life ---

    async def _stop(self, *, patient: bool) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._ending = True
        self._wake.set()
        if not (patient and self._publishing):
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        await self._load_cursor()
        while not self._is_ending():
            self._doing = "waiting"
            before = self._state.position
            try:
                await self._serve(await self._sessions.wait())
                return  # the log was closed
            except _Again:
                continue
            except Vanished as error:
                # The server knows these ids and not their messages: only other ids are stored.
                self._state.rebuild += 1
                self._note(str(error))
            except (NatsError, StreamError, OSError) as error:
                self._note(str(error))
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # A mirror that cannot go on must not end unseen; the log is not concerned.
                log.exception("the mirror failed")
                self._note(f"{type(error).__name__}; see sidecar.log")
            pause = FIRST_PAUSE_SECONDS if self._state.position > before else min(pause * 2, LONGEST_PAUSE_SECONDS)
            self._doing = "waiting"
            await asyncio.sleep(pause)

    def _is_ending(self) -> bool:
        """Whether this task shall end; a cancellation that the client library swallowed counts as well."""
        task = asyncio.current_task()
        return self._ending or (task is not None and task.cancelling() > 0)

    async def _serve(self, session: JetStream) -> None:
        """Mirror as long as the connection lasts; returns when the log is closed."""
        self._doing, self._is_level = "resuming", False
        streams = await ensure_streams(session, self._definitions)
        unsure = await self._resume(session)
        self._doing = "rebuilding" if unsure > MAX_RUN else "publishing"
        await self._keep_cursor()
        self._problem = ""
        self._mirror = Mirror(self._log_id, session.server.max_payload, self._state.rebuild)
        ahead = Ahead(self._store, self._state, self._mirror, self._l0_after_ms())
        reading = asyncio.create_task(ahead.read())
        ended = asyncio.create_task(session.ended())
        try:
            await self._publish(session, streams, ahead, (reading, ended), unsure)
        finally:
            reading.cancel()
            ended.cancel()
            await asyncio.gather(reading, ended, return_exceptions=True)
            self._is_level = not ahead.run.own and ahead.run.position == self._state.position

    async def _publish(
        self,
        session: JetStream,
        streams: dict[str, StreamFacts],
        ahead: Ahead,
        tasks: tuple[asyncio.Task[None], asyncio.Task[str]],
        unsure: int,
    ) -> None:
        """Publish run after run. The first ``unsure`` records may have been told in the L0 protocol before."""
        reading, ended = tasks
        known: KnownL0 | None = KnownL0()
        loop = asyncio.get_running_loop()
        look = loop.time() + self._look_seconds
        state = self._state
        begun: BegunRun | None = None
        folds: dict[int, bytes] = {}
        """Places as they were at the end of a run that a snapshot is due after."""

        async def begin() -> BegunRun:
            nonlocal unsure, known
            run = ahead.take()
            if run.position - self._kept >= SNAPSHOT_RECORDS:
                # Now: the next record changes them.
                folds[run.position] = state.places.dump()
                self._kept = run.position
            if unsure <= 0:
                known = None
            unsure -= len(run.own)
            return await begin_run(session, streams, run, known=known)

        while True:
            if self._is_ending() or self._anew or self._erase:
                raise _Again
            if loop.time() >= look:
                await self._look(session)
                look = loop.time() + self._look_seconds
            if begun is None:
                if not ahead.is_ready and not reading.done():
                    if not ahead.run.own:
                        self._doing = "idle"
                        if state.position < self._store.head:
                            self._end = await end_of(self._store, state.position)
                        if state.position != self._noted:
                            # ``mirror verify`` counts on it: what is missing up to there is lost, the rest only waits.
                            await self._keep_cursor()
                    await self._wait_for_news(ahead, reading, ended, look - loop.time())
                    continue
                if not ahead.run.own:
                    return reading.result()
                begun = await begin()
            run, places = begun.run, folds.pop(begun.run.position, None)
            self._publishing = True
            finishing = asyncio.create_task(finish_run(begun, self._log_id))
            try:
                begun = None
                if await self._is_ready_before(ahead, finishing):
                    begun = await begin()
                stored = await finishing
            finally:
                self._publishing = False
                finishing.cancel()
                await asyncio.gather(finishing, return_exceptions=True)
            if stored.sequence <= state.sequence:
                raise Vanished("the mirror's stream is another one than before", "it is looked at anew")
            state.position, state.sequence = run.position, stored.sequence
            if state.position >= self._store.head:
                self._caught_up.set()
            state.notes.update(run.notes)
            self.counts["published"] += stored.published
            self.counts["duplicates"] += stored.duplicates
            if places is not None:
                await self._store.put_snapshot(MIRROR, state.snapshot(places))
            if loop.time() >= self._cursor_due:
                await self._keep_cursor()

    async def _is_ready_before(self, ahead: Ahead, finishing: asyncio.Task[RunStored]) -> bool:
        """Whether another run can be begun while one is being finished."""
        ready = asyncio.create_task(ahead.ready.wait())
        try:
            await asyncio.wait((ready, finishing), return_when=asyncio.FIRST_COMPLETED)
            return ready.done() and not finishing.done()
        finally:
            ready.cancel()

    async def _wait_for_news(
        self, ahead: Ahead, reading: asyncio.Task[None], ended: asyncio.Task[str], seconds: float
    ) -> None:
        """Until there is a record, something else to do, or nothing for so long."""
        self._wake.clear()
        if self._ending or self._anew or self._erase:
            return
        news, wake = asyncio.create_task(ahead.ready.wait()), asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait(
                (news, wake, reading, ended), timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            news.cancel()
            wake.cancel()
        if ended.done():
            raise _Again

    # --- where to go on ---

    async def _resume(self, session: JetStream) -> int:
        """Find out where the mirror is, and fold what is needed to go on there.

        How many records may have been told in the L0 protocol before.
        """
        known, folded = await self._known()
        erased = await self._forget(session, known)
        plan = await self._plan(session, known)
        if erased and not plan.note:
            why = "what was forgotten was erased, and what follows it"
            plan = replace(plan, rebuild=plan.rebuild + 1, why=why, note="forgotten")
        if self._anew and not plan.anew:
            plan = Resume(NOTHING, plan.rebuild, anew=True, why="a rebuild was asked for", note="asked")
        if plan.note:
            follows = "all is published anew" if plan.anew else f"it goes on after position {plan.after}"
            log.warning("the mirror: %s; %s", plan.why, follows)
            known.notes[f"resumed:{plan.note}"] += 1
        state = replace(known, rebuild=plan.rebuild)
        if plan.anew:
            state = await begin_anew(session, self._log_id, known)
            self._anew = False
            self.counts["republished"] += 1
            self._kept = NOTHING
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
            self._kept = state.position
        self._state = state
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
        self._kept = state.position
        mine = self._state
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
            await asyncio.sleep(FIRST_PAUSE_SECONDS)
            found = await self._decide(session, known)
        return found

    async def _decide(self, session: JetStream, known: MirrorState) -> Resume:
        there = await survey(session, self._log_id)
        plan = resume_plan(known, there, await log_survey(self._store, there.last.position if there.last else NOTHING))
        known.created = there.created
        return plan

    async def _look(self, session: JetStream) -> None:
        """Compare with the stream while nothing is under way."""
        known = replace(self._state)
        plan = await self._decide(session, known)
        if plan.anew or plan.after != self._state.position:
            log.warning("the mirror: %s", plan.why or "the stream is elsewhere")
            raise _Again

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
        wanted_now, self._erase = self._erase, set()
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
            self._doing = "forgetting"
            await erase_l0(session, await told_events(self._store, due), self._mirror.version, self._mirror.channel)
            positions = []
            for stream in sorted(due):
                lowest = await erase_records(session, self._log_id, stream, below=due[stream])
                positions += [] if lowest is None else [lowest]
                self.counts["erased"] += 1
            if positions:
                after = await cut(session, self._log_id, after=min(positions) - 1)
                known.position = min(known.position, after)
        except BaseException:
            self._erase |= wanted_now
            raise
        known.forgotten = {**known.forgotten, **due}
        self._state.forgotten = known.forgotten
        return bool(positions)

    # --- hints ---

    async def _load_cursor(self) -> None:
        if self._state.position == NOTHING:
            try:
                self._state.position = await self._store.cursor(MIRROR)
            except (OSError, StreamError) as error:
                log.warning("the mirror's cursor cannot be read: %s", error)

    async def _keep_cursor(self) -> None:
        self._cursor_due = asyncio.get_running_loop().time() + CURSOR_SECONDS
        self._noted = self._state.position
        try:
            await self._store.advance(MIRROR, self._state.position)
        except (OSError, StreamError) as error:
            log.warning("the mirror's cursor was not kept: %s", error)

    async def _keep_last(self) -> None:
        """What makes the next start quick."""
        await self._keep_cursor()
        if not self._is_level or self._state.position == self._kept:
            return
        try:
            await self._store.put_snapshot(MIRROR, self._state.snapshot())
            self._kept = self._state.position
        except (OSError, StreamError) as error:
            log.warning("no snapshot of the mirror was kept, it reads more of the log at its next start: %s", error)

    def _l0_after_ms(self) -> int:
        return self._now_ms() - L0_DAYS * DAY_MS

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("the mirror waits: %s", problem)
        self._problem = problem
