"""The mirror's task: reads the log, and publishes each record once and in order. It remembers nothing.

The log is the outbox, so an unreachable server costs no memory, and recording never waits. At each connection and after
each failure the stream says where the mirror is (``bridge/nats/mirror/place.py``). While one run is being stored, the
next one is read and built.

Every few seconds the task looks whether the stream is as it left it. If another program changed the stream, it is
emptied and published again. Only a copy of this home is left alone: if a stream with records of this process suddenly
holds other records under the log's name, the mirror stands still until a person ends one of the two homes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Final, Literal

from bridge.nats import headers as h
from bridge.nats.jetstream.client import check_not_cancelled
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import BatchRefused, NatsError, NatsRefused, WrongExpectation
from bridge.nats.jetstream.sessions import RECONNECT, Sessions
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS, UNLIMITED, wanted
from bridge.nats.jetstream.streams import ensure_streams, last_message
from bridge.nats.l0.context import ContextProjection
from bridge.nats.mirror.batches import Run, publish_run
from bridge.nats.mirror.messages import UNSENT, Mirror, mirrored
from bridge.nats.mirror.place import (
    Place,
    Wrong,
    empty,
    erase_l0,
    find_place,
    forget,
    l0_behind,
    lacks_beginning,
    may_have_removed,
    settled,
)
from bridge.nats.subjects import log_pattern
from streams.errors import StreamError
from streams.retention import StreamRemoval
from streams.store import NOTHING, Record, StreamStore
from streams.system.retry import Retry

log = logging.getLogger("sidecar.mirror")

LOOK_SECONDS: Final = 10.0
"""How often the task looks whether another program changed the stream."""

EMPTIED: Final = Retry(1.0, 300.0)
"""The pauses before a stream is emptied again and again, because another program keeps changing it."""

DAY_MS: Final = 24 * 3600 * 1000
COMMAND_DAYS: Final = 1
"""After this time a command that could not be sent is dropped, because nobody expects it to be carried out."""

L0_DAYS: Final = 7
"""How long the server keeps L0 events; older ones are no longer published."""

YIELD_RECORDS: Final = 32
"""How many records to process before yielding to other tasks: about a millisecond of work."""

COMMANDS_SENT: Final = "mirror-commands"
"""The cursor of the last command that was sent: a stream that somebody emptied does not say so any more."""


class MirrorTask:
    """The mirror of one log, bound to one event loop. ``log_id`` names the log on the server.

    ``max_bytes`` limits the stream ``MESHFORGE_EVENTS``, which removes its oldest messages first; ``max_store`` is the
    size limit of an embedded server's store (0: unknown). ``stop`` is for tests.
    """

    def __init__(
        self,
        store: StreamStore,
        log_id: str,
        sessions: Sessions,
        now_ms: Callable[[], int],
        *,
        max_bytes: int = UNLIMITED,
        max_store: int = 0,
        look_seconds: float = LOOK_SECONDS,
        stop: Callable[[Literal["before-publish", "after-publish"]], None] = lambda point: None,
    ) -> None:
        self._stop_at = stop
        self._store, self._log_id, self._sessions, self._now_ms = store, log_id, sessions, now_ms
        self._definitions, self._max_store = wanted(max_bytes=max_bytes), max_store
        self._look_seconds = look_seconds
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_ending = False
        self._doing, self._problem = "waiting", ""
        self._rebuild = False
        self._forgotten: set[str] = set()
        self._checked: dict[str, StreamRemoval] = {}
        """What the log had lost when the server was last searched for forgotten payloads."""
        self._fresh_ids = False
        self._emptied = 0
        self._commands_to = NOTHING
        """Commands up to this position were sent, also if their records are published again."""
        self._place = Place(NOTHING, 0, 0)
        self._read_to = self._level_to = NOTHING
        """The log has no record between the last one that was read and ``_read_to``, nor between the last one that was
        mirrored and ``_level_to``."""
        self._contexts, self._folded_to = ContextProjection(), NOTHING
        self._known_l0: set[tuple[str, str]] = set()
        self._notes: Counter[str] = Counter()
        self._full: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        """``published`` (messages), ``republished`` (how often the stream was emptied) and ``rebuilt`` (how often
        because somebody asked), in the life of this object."""

    def start(self) -> None:
        if self._task is None:
            self._is_ending = False
            self._task = asyncio.create_task(self._run())

    async def close(self, *, drain_seconds: float = 0) -> None:
        """Stop. Idempotent. A mirror that is publishing may go on for ``drain_seconds``."""
        task, self._task = self._task, None
        if task is None:
            return
        if drain_seconds and self.status()["state"] == "publishing":
            self._is_ending = True
            self._wake.set()
            await asyncio.wait((task,), timeout=drain_seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._doing = "waiting"

    def rebuild(self) -> None:
        """Remove this log's messages and publish everything again, in the background; see ``counts`` and ``status``."""
        self._rebuild = True
        self._wake.set()

    def forgotten(self, streams: Collection[str]) -> None:
        """Erase the messages of these streams, and publish the log again without the forgotten payloads.

        Runs in the background. Without this call, the payloads are found at the next start, because the log lists what
        was forgotten.
        """
        self._forgotten.update(streams)
        self._wake.set()

    def project_of(self, session: str) -> str:
        """A session's project, from the part of the log read so far."""
        return self._contexts.project_of(session)

    def status(self) -> dict[str, Any]:
        """What ``status`` shows about the mirror.

        ``position`` (last mirrored), ``head`` (of the log), ``lag`` (records in between), ``published`` and ``rebuilt``
        (see ``counts``), ``state`` (``waiting``, ``resuming``, ``forgetting``, ``publishing`` or ``idle``), ``problem``
        (one line; empty while all is well), ``notes`` (counts) and ``full`` (how full the mirror's ``stream`` and the
        server's ``store`` are, from 0 to 1, as far as they have limits).
        """
        head, doing = self._store.head, self._doing
        # The end of the log may have been pruned, so the last mirrored record need not be at its head.
        position = max(self._place.position, self._level_to)
        if (self._forgotten or self._rebuild) and doing != "waiting":
            doing = "forgetting" if self._forgotten else "resuming"
        return {
            "state": "publishing" if doing == "idle" and position < head else doing,
            "position": position,
            "head": head,
            "lag": max(head - position, 0),
            "published": self.counts["published"],
            "rebuilt": self.counts["rebuilt"],
            "problem": self._problem or (self._sessions.problem if doing == "waiting" else ""),
            "notes": dict(sorted(self._notes.items())),
            "full": dict(self._full),
        }

    # --- its life ---

    async def _run(self) -> None:
        failures = 0
        while True:
            check_not_cancelled()
            self._doing = "waiting"
            before = self.counts["published"]
            try:
                if await self._serve(await self._sessions.wait()):
                    return
            except BatchRefused as error:
                self._fresh_ids = True
                self._note(str(error))
            except WrongExpectation:
                log.info("the mirror's stream was changed; looking for the place again")
            except (NatsError, StreamError, OSError) as error:
                self._note(str(error))
            except Exception as error:
                # Report an unexpected failure instead of ending the mirror silently. The log is not affected.
                log.exception("the mirror failed")
                self._note(f"{type(error).__name__}; see sidecar.log")
            failures = 1 if self.counts["published"] > before else failures + 1
            self._doing = "waiting"
            await asyncio.sleep(RECONNECT.pause(failures))

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("the mirror is waiting: %s", problem)
        self._problem = problem

    # --- where it is ---

    async def _find(self, session: JetStream) -> Place | None:
        """The place behind which to go on; up to there, the stream equals the log. ``None``: it did not, and was
        emptied.
        """
        await ensure_streams(session, self._definitions)
        await settled(session, self._log_id)
        streams = await ensure_streams(session, self._definitions)
        events = streams[EVENTS]
        # Grows with each message that is stored, so it makes ids that the server does not know.
        fresh = events.last_sequence + streams[L0_EVENTS].last_sequence
        found = await find_place(session, self._log_id, self._store, events, fresh, fresh_ids=self._fresh_ids)
        if (
            isinstance(found, Place)
            and found.position == NOTHING < self._place.position
            and self._place.sequence <= events.last_sequence
            and may_have_removed(events)
        ):
            # The messages of another home pushed those of this one out of the full stream.
            found = self._place._replace(sequence=0, time="")
        sent = min(max(await self._store.cursor(COMMANDS_SENT), self._commands_to), self._store.head)
        self._commands_to = max(found.position, sent) if isinstance(found, Place) else sent
        asked, removed, has_forgotten = set(self._forgotten), await self._store.removed(), False
        if asked or removed != self._checked:
            has_forgotten = await forget(session, self._log_id, self._store, removed, asked)
            self._checked = {} if has_forgotten else removed
        if self._rebuild:
            await erase_l0(session, self._log_id)
            found = Wrong("asked", "a rebuild was requested")
        elif isinstance(found, Place) and has_forgotten:
            found = Wrong("forgotten", "the stream had payloads that the log has forgotten")
        elif isinstance(found, Place):
            self._forgotten -= asked
            self._fresh_ids = False
            return found
        elif found.note == "diverged" and self.counts["published"]:
            reason = "a copy of this home publishes other records under the same log's name"
            raise NatsRefused(reason, "end one of the two homes, then restart this sidecar")
        else:
            await asyncio.sleep(EMPTIED.pause(self._emptied) if self._emptied else 0)
            self._emptied += 1
        log.warning("the mirror: %s; everything is published again", found.why)
        await self._store.advance(COMMANDS_SENT, self._commands_to)
        await self._store.write_hints()
        await empty(session, self._log_id)
        if found.note == "asked":
            self._rebuild = False
            self.counts["rebuilt"] += 1
        self._notes[f"emptied:{found.note}"] += 1
        self.counts["republished"] += 1
        self._place, self._level_to = Place(NOTHING, 0, 0), NOTHING
        return None

    async def _fold(self, until: int) -> None:
        """Fold the sessions' contexts up to a position."""
        contexts, passed = (
            (self._contexts, self._folded_to) if self._folded_to <= until else (ContextProjection(), NOTHING)
        )
        if passed < until:
            async for record in self._store.read_all(after=passed):
                if record.position > until:
                    break
                contexts.apply(record)
                if record.position % (YIELD_RECORDS * 8) == 0:
                    await asyncio.sleep(0)
        self._contexts, self._folded_to = contexts, until

    async def _look(self, session: JetStream) -> bool:
        """Mend the streams' settings, and note how full they are. False if another program changed an end of the log's
        part.
        """
        events = (await ensure_streams(session, self._definitions))[EVENTS]
        last = await last_message(session, EVENTS, log_pattern(self._log_id))
        if (last.sequence if last else 0) != self._place.sequence:
            return False
        if last is not None and await lacks_beginning(session, self._log_id, self._store, events):
            return False
        account = await session.api("INFO")
        used = int(account.get("storage") or 0)
        sizes = {
            "stream": (int(events.state["bytes"]), int(events.config.get("max_bytes") or 0)),
            "store": (used, self._max_store or int((account.get("limits") or {}).get("max_storage") or 0)),
        }
        self._full = {name: round(size / limit, 3) for name, (size, limit) in sizes.items() if limit > 0}
        return True

    # --- publishing ---

    async def _serve(self, session: JetStream) -> bool:
        """Publish. True when the log is closed, or all is published and nothing more wanted; false if the task must
        look for its place again."""
        self._doing = "resuming"
        place = await self._find(session)
        if place is None:
            return False
        self._place, self._level_to = place, NOTHING
        await self._fold(self._place.position)
        self._known_l0 = await l0_behind(session, self._log_id, self._place)
        if not await self._look(session):
            return False
        self._doing, self._problem = "publishing", ""
        mirror = Mirror(self._log_id, session.server.max_payload, self._place.number)
        news = asyncio.create_task(self._news(self._store.head))
        ended = asyncio.create_task(session.ended())
        storing: asyncio.Task[int] | None = None
        loop = asyncio.get_running_loop()
        look = loop.time() + self._look_seconds
        records = self._records(self._place.position)
        waiting = Run(NOTHING)
        try:
            while True:
                self._wake.clear()
                run = await self._built(records, mirror)
                if storing is not None:
                    await self._stored(waiting, await storing)
                    storing = None
                check_not_cancelled()
                if self._rebuild or self._forgotten or ended.done():
                    return False
                if run.own:
                    self._stop_at("before-publish")
                    waiting, self._doing = run, "publishing"
                    storing = asyncio.create_task(publish_run(session, run, self._log_id, behind=self._place.sequence))
                    continue
                self._doing, self._level_to = "idle", self._read_to
                if self._is_ending or news.done():
                    return True
                if loop.time() >= look:
                    if not await self._look(session):
                        return False
                    self._emptied = 0
                    look = loop.time() + self._look_seconds
                await self._quiet(look - loop.time(), news, ended)
        finally:
            tasks = [task for task in (storing, news, ended) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stored(self, run: Run, sequence: int) -> None:
        self._stop_at("after-publish")
        self._place = self._place._replace(position=run.position, sequence=sequence)
        self._notes.update(run.notes)
        self.counts["published"] += len(run.l0) + len(run.commands) + len(run.own)
        if run.commands:
            self._commands_to = run.position
            await self._store.advance(COMMANDS_SENT, run.position)

    async def _records(self, after: int) -> AsyncIterator[Record | None]:
        """The records behind a position, and ``None`` whenever there are no more for now."""
        while True:
            head = self._store.head
            if after < head:
                async for record in self._store.read_all(after=after):
                    after = record.position
                    yield record
                after = max(after, head)  # the end of the log may have been pruned
            self._read_to = after
            yield None

    async def _built(self, records: AsyncIterator[Record | None], mirror: Mirror) -> Run:
        """The next run; empty if there are no records for now."""
        run, now = Run(NOTHING), self._now_ms()
        while not run.is_full and (record := await anext(records)) is not None:
            self._add(run, record, mirror, now)
            if len(run.own) % YIELD_RECORDS == 0:
                await asyncio.sleep(0)
        return run

    def _add(self, run: Run, record: Record, mirror: Mirror, now_ms: int) -> None:
        ts = record.event.ts
        self._contexts.apply(record)
        self._folded_to = run.position = record.position
        made = mirrored(record, self._contexts.of(record.event), mirror)
        *l0, own = made.messages
        if ts < now_ms - L0_DAYS * DAY_MS:
            run.notes += ["l0_old"] if l0 else []
        elif l0 and self._known_l0:
            run.l0 += [each for each in l0 if h.read_message_id(each.headers)[:2] not in self._known_l0]
        else:
            run.l0 += l0
        if made.commands and record.position > self._commands_to:
            if ts < now_ms - COMMAND_DAYS * DAY_MS:
                run.notes.append(f"{UNSENT}:old")
            else:
                run.commands += made.commands
        run.own.append(own)
        run.notes += made.notes
        run.size += sum([len(message.body) for message in made.messages])

    async def _news(self, head: int) -> None:
        """Wake the task whenever the log has grown beyond ``head``; ends when the log is closed."""
        async for _ in self._store.subscribe(after=head, wanted=lambda event: False):
            self._wake.set()

    async def _quiet(self, seconds: float, *tasks: asyncio.Task[Any]) -> None:
        """Return after some seconds, or when the log has grown, the task has something to do, or a task has ended."""
        woken = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait((woken, *tasks), timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
