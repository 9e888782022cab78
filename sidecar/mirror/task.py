"""The mirror's task: reads the log and publishes new records; ``progress.py`` holds the mirror's position.

The log is the outbox. At most two runs are queued, so an unreachable server costs no memory, and recording never waits.
After a failure, the mirror continues as it would after a start: by reading its position from the stream.

While one run is being published, the next one is read and built.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final, Literal

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError
from bridge.nats.jetstream.sessions import RECONNECT, Sessions
from bridge.nats.jetstream.stream_plan import UNLIMITED, wanted
from bridge.nats.jetstream.streams import StreamFacts, ensure_streams
from bridge.nats.mirror.messages import Mirror
from bridge.nats.mirror.publish import (
    MAX_RUN,
    BegunRun,
    KnownL0,
    Vanished,
    begin_run,
    finish_run,
)
from bridge.nats.mirror.resuming import MIRROR
from sidecar.mirror.ahead import Ahead
from sidecar.mirror.progress import Progress
from streams.errors import StreamError
from streams.store import StreamStore

log = logging.getLogger("sidecar.mirror")

LOOK_SECONDS: Final = 60.0
"""How often the stream is checked even without a failure, because an administrator may have emptied it."""

SNAPSHOT_RECORDS: Final = 2000


class _Again(Exception):
    pass


class MirrorTask:
    """The mirror of one log, bound to one event loop. ``log_id`` names the log on the server.

    ``max_bytes`` limits the stream ``MESHFORGE_EVENTS``, which removes its oldest messages first. ``stop`` is for
    tests.
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
        stop: Callable[[Literal["before-publish", "after-publish"]], None] = lambda point: None,
    ) -> None:
        self._stop_at = stop
        self._store, self._log_id, self._sessions, self._now_ms = store, log_id, sessions, now_ms
        self._definitions = wanted(max_bytes=max_bytes)
        self._look_seconds = look_seconds
        self._task: asyncio.Task[None] | None = None
        self._wake, self._caught_up = asyncio.Event(), asyncio.Event()
        self._ending = self._publishing = False
        self._is_level = False
        """Whether the state's contexts match its position, because every record that was read is stored."""
        self._doing = "waiting"
        self._problem = ""
        self.counts: Counter[str] = Counter()
        """``published`` and ``duplicates`` (messages), ``republished`` (whole logs), ``erased`` (streams)."""
        self._progress = Progress(store, log_id, self.counts)

    def start(self) -> None:
        if self._task is None:
            self._ending = False
            self._task = asyncio.create_task(self._run())

    async def close(self, *, drain_seconds: float = 0) -> None:
        """Stop, and save the position. Idempotent. The next start reads from the stream whether later records were
        published.

        A publish in progress may continue for ``drain_seconds``.
        """
        if self._task is not None and self.status()["state"] == "publishing":
            self._caught_up.clear()
            await _first(self._caught_up, tasks=(self._task,), seconds=drain_seconds)
        await self._stop(patient=False)
        await self._keep_last()

    async def pause(self) -> None:
        """Stop publishing until ``resume``. The run in progress is finished or abandoned before this returns."""
        await self._stop(patient=True)
        self._doing = "paused"
        await self._keep_last()

    def resume(self) -> None:
        """Continue after ``pause``. The position is re-read from the snapshot ``MIRROR`` and from the stream."""
        self._doing = "waiting"
        self.start()

    def rebuild(self) -> None:
        """Purge this log's part of the stream and publish everything again, in the background; see ``status``."""
        self._progress.rebuild_requested = True
        self._wake.set()

    def forgotten(self, streams: Collection[str]) -> None:
        """Erase the messages of these streams and publish them again without the forgotten payloads.

        Runs in the background. Without this call, the messages are erased on the next connection, because the log lists
        what was forgotten.
        """
        self._progress.erase.update(streams)
        self._wake.set()

    def project_of(self, session: str) -> str:
        """A session's project, from the part of the log read so far."""
        return self._progress.state.contexts.project_of(session)

    def status(self) -> dict[str, Any]:
        """What ``status`` shows about the mirror.

        ``position`` (last mirrored), ``head`` (of the log), ``lag`` (records in between), ``published`` and
        ``duplicates`` (messages, in the life of this object), ``rebuild`` (its number), ``state`` (``waiting``,
        ``resuming``, ``forgetting``, ``publishing``, ``rebuilding``, ``paused`` or ``idle``), ``problem`` (one line;
        empty while all is well) and ``notes`` (counts).
        """
        state = self._progress.state
        position, head = max(state.position, self._progress.end), self._store.head
        progress, doing = self._progress, self._doing
        if progress.is_forgetting or (progress.erase and doing not in ("waiting", "paused")):
            doing = "forgetting"
        return {
            "state": "publishing" if doing == "idle" and position < head else doing,
            "position": position,
            "head": head,
            "lag": max(head - position, 0),
            "published": self.counts["published"],
            "duplicates": self.counts["duplicates"],
            "rebuild": state.rebuild,
            "problem": self._problem or (self._sessions.problem if doing == "waiting" else ""),
            "notes": dict(sorted(state.notes.items())),
        }

    # --- start and stop ---

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
        failures = 0
        await self._progress.load()
        while not self._is_ending():
            self._doing = "waiting"
            before = self._progress.state.position
            try:
                await self._serve(await self._sessions.wait())
                return  # ``_serve`` returns only when the log is closed
            except _Again:
                continue
            except Vanished as error:
                # The server lost messages but still rejects their ids as duplicates, so publish them under new ids.
                self._progress.state.rebuild += 1
                self._note(str(error))
            except (NatsError, StreamError, OSError) as error:
                self._note(str(error))
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # Report an unexpected failure instead of ending the mirror silently. The log is not affected.
                log.exception("the mirror failed")
                self._note(f"{type(error).__name__}; see sidecar.log")
            has_moved = self._progress.state.position > before
            failures = 1 if has_moved else failures + 1
            self._doing = "waiting"
            await asyncio.sleep(RECONNECT.pause(failures))

    def _is_ending(self) -> bool:
        """Whether this task must end. The reason may be a cancellation that the client library swallowed."""
        task = asyncio.current_task()
        return self._ending or (task is not None and task.cancelling() > 0)

    async def _serve(self, session: JetStream) -> None:
        self._doing, self._is_level = "resuming", False
        streams = await ensure_streams(session, self._definitions)
        unsure = await self._progress.resume(session)
        self._doing = "rebuilding" if unsure > MAX_RUN else "publishing"
        await self._progress.keep_cursor()
        self._problem = ""
        state = self._progress.state
        mirror = Mirror(self._log_id, session.server.max_payload, state.rebuild)
        ahead = Ahead(self._store, state, mirror, self._now_ms(), self._progress.commands_to)
        reading = asyncio.create_task(ahead.read())
        ended = asyncio.create_task(session.ended())
        try:
            await self._publish(session, streams, ahead, (reading, ended), unsure)
        finally:
            reading.cancel()
            ended.cancel()
            await asyncio.gather(reading, ended, return_exceptions=True)
            self._is_level = not ahead.run.own and ahead.run.position == state.position

    async def _publish(
        self,
        session: JetStream,
        streams: dict[str, StreamFacts],
        ahead: Ahead,
        tasks: tuple[asyncio.Task[None], asyncio.Task[str]],
        unsure: int,
    ) -> None:
        reading, ended = tasks
        known: KnownL0 | None = KnownL0()
        loop = asyncio.get_running_loop()
        look = loop.time() + self._look_seconds
        state = self._progress.state
        sequence = 0
        begun: BegunRun | None = None

        async def begin() -> BegunRun:
            nonlocal unsure, known
            run = ahead.take()
            if run.position - self._progress.kept >= SNAPSHOT_RECORDS:
                # Dump the contexts now, because the next record changes them.
                run.contexts = state.contexts.dump()
                self._progress.kept = run.position
            if unsure <= 0:
                known = None
            unsure -= len(run.own)
            return await begin_run(session, streams, run, known=known)

        while True:
            if self._is_ending() or self._progress.has_work:
                raise _Again
            if loop.time() >= look:
                if await self._progress.is_elsewhere(session):
                    raise _Again
                look = loop.time() + self._look_seconds
            if begun is None:
                if not ahead.is_ready and not reading.done():
                    if not ahead.run.own:
                        self._doing = "idle"
                        if state.position < self._store.head:
                            await self._progress.find_end()
                        if state.position != self._progress.noted:
                            # ``mirror verify`` reads the cursor: a message that is missing before the cursor is lost,
                            # and one after the cursor is only waiting.
                            await self._progress.keep_cursor()
                    await self._wait_for_news(ahead, reading, ended, look - loop.time())
                    continue
                if not ahead.run.own:
                    return reading.result()
                begun = await begin()
            run = begun.run
            self._publishing = True
            self._stop_at("before-publish")
            finishing = asyncio.create_task(finish_run(begun, self._log_id))
            try:
                begun = None
                await _first(ahead.ready, tasks=(finishing,))
                if ahead.is_ready and not finishing.done():
                    begun = await begin()
                stored = await finishing
                self._stop_at("after-publish")
            finally:
                self._publishing = False
                finishing.cancel()
                await asyncio.gather(finishing, return_exceptions=True)
            if stored.sequence <= sequence:
                raise Vanished("the mirror's stream was replaced", "the mirror is re-reading its position")
            state.position, sequence = run.position, stored.sequence
            if state.position >= self._store.head:
                self._caught_up.set()
            state.notes.update(run.notes)
            self.counts["published"] += stored.published
            self.counts["duplicates"] += stored.duplicates
            if run.contexts is not None:
                await self._store.put_snapshot(MIRROR, state.snapshot(run.contexts))
            await self._progress.keep_cursor_if_due()

    async def _wait_for_news(
        self, ahead: Ahead, reading: asyncio.Task[None], ended: asyncio.Task[str], seconds: float
    ) -> None:
        self._wake.clear()
        if self._ending or self._progress.has_work:
            return
        await _first(ahead.ready, self._wake, tasks=(reading, ended), seconds=max(seconds, 0))
        if ended.done():
            raise _Again

    async def _keep_last(self) -> None:
        """Save the position and the contexts, so that the next start is quick."""
        await self._progress.keep_cursor()
        if self._is_level:
            await self._progress.keep_snapshot()

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("the mirror is waiting: %s", problem)
        self._problem = problem


async def _first(*events: asyncio.Event, tasks: tuple[asyncio.Task[Any], ...], seconds: float | None = None) -> None:
    """Wait until an event is set, a task has ended, or the time is over."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait((*waiting, *tasks), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
