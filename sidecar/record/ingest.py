"""Feed items from links and spools to the translator, append its events to the log, then finish the items.

The route of a hook: ``server`` → ``hooks`` → translator → ``append`` → durable →
``link.finish`` → ack. Appends run concurrently and share syncs; items are
finished strictly in the order they were fed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol

from bridge.opencode.capture.translate import Drained, Origin, Token, Translator
from bridge.opencode.capture.v2.translate import HostTranslator, is_of_service
from bridge.opencode.link.frames import HookItem
from bridge.opencode.link.protocol import CallError
from sidecar.components import Tasks
from sidecar.processes import still_runs
from sidecar.record.exclusion import Exclusion
from streams.errors import BadStore, StoreUnavailable, StreamError
from streams.event import StreamEvent
from streams.store import MAX_BATCH, Record, StreamStore

log = logging.getLogger("sidecar.record.ingest")

ASK_SECONDS: Final = 1.5
"""How long OpenCode may take to describe a session. A hook waits no longer than the translator holds it."""

MAX_MISSING_CHECKS: Final = 200
"""Maximum number of sessions to look up, one by one, when the first link of a directory delivers its first hook."""


class Link(Protocol):
    """The part of a ``ShimConnection`` that ingest needs."""

    boot_id: str
    instance: str
    directory: str

    @property
    def is_open(self) -> bool: ...

    async def call(self, method: str, args: dict[str, Any], timeout: float = ...) -> Any: ...  # noqa: ASYNC109

    def finish(self, seqs: Iterable[int]) -> None: ...


class Ingest:
    """Each sidecar has one ``Ingest``. Call all methods from its event loop.

    ``failed`` is set when the log can no longer be written. After that nothing is acknowledged, and the owner
    must stop. ``committed`` gets the duration of each append in seconds and its number of events, and ``recorded`` its
    records, including duplicates. ``compare`` compares a session of OpenCode 2 with its service, before its waiting
    events are translated.
    """

    def __init__(
        self,
        store: StreamStore,
        translator: Translator,
        now_ms: Callable[[], int],
        *,
        exclude: Iterable[Path] = (),
        committed: Callable[[float, int], None] = lambda seconds, events: None,
        recorded: Callable[[Sequence[Record]], None] = lambda records: None,
        compare: Callable[[str, Origin], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.failed: asyncio.Future[StreamError] = asyncio.get_running_loop().create_future()
        self.excluded = 0
        self.appended = 0
        self.duplicates = 0
        self._store, self._translator, self._now_ms = store, translator, now_ms
        self._exclusion, self._committed = Exclusion(exclude), committed
        self._recorded, self._compare_with = recorded, compare
        self.host = HostTranslator(translator.identity, translator.state, translator.means, self.excludes)
        """Translates what comes from OpenCode 2."""
        self._links: dict[Origin, Link] = {}
        self._delivering: set[Origin] = set()
        self._lost: dict[str, int] = {}  # the time at which each boot's last link ended
        self._unfinished: dict[Origin, dict[int, list[Link]]] = {}
        """The accepted items that are not finished, by instance and seq, each with the links that wait for it. An
        instance without such items has no entry."""
        self._accepted: dict[Origin, int] = {}
        """The highest seq that each linked instance has delivered."""
        self._order: asyncio.Queue[tuple[asyncio.Future[None], Drained] | None] = asyncio.Queue()
        self._appends = 0
        self._appending: set[asyncio.Task[None]] = set()
        self._tasks = Tasks()
        self._progress = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._finisher = asyncio.create_task(self._finish_in_order())

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self.close)

    def owes(self) -> bool:
        """True while an accepted item is not durable."""
        return bool(self._unfinished)

    # --- links ---

    def opened(self, link: Link) -> None:
        self._links[Origin(link.boot_id, link.instance)] = link

    def closed(self, link: Link) -> None:
        """Note the end of a link; items that it has already delivered will still be written."""
        origin = Origin(link.boot_id, link.instance)
        if self._links.get(origin) is link:
            del self._links[origin]
            self._delivering.discard(origin)
            self._accepted.pop(origin, None)
            self._progress.set()
            self._lost[link.boot_id] = self._now_ms()

    def is_linked(self, origin: Origin) -> bool:
        return origin in self._links

    def link_of(self, boot_id: str, directory: str | None) -> Link | None:
        """A link of this OpenCode process, if possible the link for this project directory."""
        links = [link for origin, link in self._links.items() if origin.boot_id == boot_id and link.is_open]
        return next((link for link in links if link.directory == directory), links[0] if links else None)

    def delivers(self, link: Link) -> bool:
        """True if this instance has ever delivered a hook; only such instances get requests."""
        return Origin(link.boot_id, link.instance) in self._delivering

    @property
    def is_quiet(self) -> bool:
        """True if the translator is in sync with the log: no item waits and no event is unwritten."""
        return not self._unfinished and not self._appends and not self.failed.done()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._unfinished.values()))

    # --- items ---

    def take(self, origin: Origin, first_seq: int, items: Iterable[HookItem], link: Link | None) -> None:
        """Feed consecutive items; each item is finished on ``link`` once its events are durable.

        ``link`` is ``None`` for the items of a spool; ``at_most`` waits for such items.
        """
        now = self._loop.time()
        if link is not None and self.excludes(link.directory):
            count = len(list(items))
            self.excluded += count
            link.finish(range(first_seq, first_seq + count))
            return
        unfinished = self._unfinished.setdefault(origin, {})
        try:
            for seq, item in enumerate(items, first_seq):
                waiting = unfinished.get(seq)
                if waiting is not None:
                    # The item was resent over a new link while its first copy is still being written.
                    if link is not None:
                        waiting.append(link)
                    continue
                # Feed the item first: if that fails, a resent copy must not pass for one that is still being written.
                (self.host if is_of_service(item) else self._translator).feed(Token(origin, seq), item, now)
                if item.hook == "capture.gap" and origin.service:
                    self.host.lose_track(origin.boot_id)
                unfinished[seq] = [link] if link is not None else []
        except (BadStore, StoreUnavailable) as error:
            self._fail(error)  # the row of a session is damaged; the next sidecar makes all rows anew
            return
        finally:
            if unfinished:
                self._accepted[origin] = max(*unfinished, self._accepted.get(origin, 0))
            else:
                del self._unfinished[origin]
        if link is not None and origin not in self._delivering:
            self._delivering.add(origin)
            if not origin.service:
                self._tasks.spawn(self._find_missing(link))
        self.pump()

    def excludes(self, directory: str) -> bool:
        return self._exclusion.covers(directory)

    async def at_most(self, count: int, origin: Origin) -> bool:
        """Wait until at most ``count`` items of ``origin`` are not durable; return false if the log fails first."""
        while len(self._unfinished.get(origin, ())) > count:
            if self.failed.done():
                return False
            self._progress.clear()
            await self._progress.wait()
        return not self.failed.done()

    async def caught_up(self, origin: Origin, seq: int) -> None:
        """Wait until everything up to ``seq`` of a linked instance is durable, or its link ends."""
        while origin in self._links and not self.failed.done():
            if self._accepted.get(origin, 0) >= seq and not self._unfinished.get(origin):
                return
            self._progress.clear()
            await self._progress.wait()

    async def flushed(self) -> None:
        """Wait until the log has everything that was translated so far."""
        self.pump()
        if self._appending:
            await asyncio.wait(set(self._appending))

    def pump(self) -> asyncio.Task[None] | None:
        """Append the events that the translators have ready, and schedule the translators' next deadline; return the
        last append's task, if there is one."""
        appended = None
        for translator, ask in ((self._translator, self._ask), (self.host, self._compare)):
            drained = translator.drain()
            for session_id, origin in drained.asks:
                self._tasks.spawn(ask(session_id, origin))
            appended = self.write(drained) or appended
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadlines = (self._translator.next_deadline(), self.host.next_deadline())
        deadline = min((each for each in deadlines if each is not None), default=None)
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._tick)
        return appended

    def write(self, drained: Drained) -> asyncio.Task[None] | None:
        """Append what a translator that shares this state has drained.

        Return the append's task, or ``None`` if there was nothing to append.
        """
        if not (drained.events or drained.done):
            return None
        self._appends += 1
        appended = self._tasks.spawn(self._append(drained.events))
        self._appending.add(appended)
        appended.add_done_callback(self._appending.discard)
        appended.add_done_callback(_seen)
        self._order.put_nowait((appended, drained))
        return appended

    async def add(self, events: list[StreamEvent]) -> int:
        """Append events that were captured in another log, at most ``MAX_BATCH``; return how many were new to this log.

        Raises:
            StreamError: the log cannot be written, or an event is not valid.
        """
        self._appends += 1
        try:
            records = await self._store.append(events, on_known="keep_first")
            for record in records:
                self._translator.state.apply(record.event)
        finally:
            self._appends -= 1
        return sum(not record.duplicate for record in records)

    def _tick(self) -> None:
        self._timer = None
        self._translator.tick(self._loop.time())
        self.host.tick(self._loop.time())
        self.pump()

    async def _append(self, events: list[StreamEvent]) -> None:
        if self.failed.done():
            raise self.failed.result()
        for begin in range(0, len(events), MAX_BATCH):
            started = self._loop.time()
            records = await self._store.append(events[begin : begin + MAX_BATCH], on_known="keep_first")
            self._committed(self._loop.time() - started, len(records))
            for record in records:
                if record.duplicate:
                    self.duplicates += 1
                    # Later events must name the first record's id as their cause, so replace the new id that the
                    # translator made.
                    self._translator.state.apply(record.event)
                else:
                    self.appended += 1
            self._recorded(records)

    async def _finish_in_order(self) -> None:
        while (ready := await self._order.get()) is not None:
            appended, drained = ready
            try:
                await appended
            except StreamError as error:
                self._fail(error)
                return
            self._finish(drained.done)
            self._appends -= 1
            self._progress.set()

    def _finish(self, done: Iterable[Token]) -> None:
        """Finish items on all links that are waiting for them."""
        for origin, tokens in groupby(done, attrgetter("origin")):
            unfinished = self._unfinished.get(origin, {})
            finished: dict[Link, list[int]] = {}
            for token in tokens:
                for link in unfinished.pop(token.seq, ()):
                    finished.setdefault(link, []).append(token.seq)
            if not unfinished:
                self._unfinished.pop(origin, None)
            for link, seqs in finished.items():
                link.finish(seqs)

    def _fail(self, error: StreamError) -> None:
        if not self.failed.done():
            log.error("recording cannot go on: %s", type(error).__name__)
            self.failed.set_result(error)
        self._progress.set()

    # --- asking OpenCode ---

    async def _ask(self, session_id: str, origin: Origin) -> None:
        link = self._links.get(origin) or next((known for known in self._links.values() if known.is_open), None)
        info = await self._session(link, session_id) if link is not None else None
        self._translator.answer(session_id, info if isinstance(info, dict) else None, self._loop.time())
        self.pump()

    async def _compare(self, session_id: str, origin: Origin) -> None:
        try:
            if self._compare_with is not None:
                await self._compare_with(session_id, origin)
        except Exception:  # whatever it is, the events must not wait for ever
            log.exception("session %s could not be compared with its service", session_id)
        self.host.open(session_id, origin, self._loop.time())
        self.pump()

    async def _session(self, link: Link, session_id: str) -> Any:
        """Return OpenCode's description of a session; ``None`` without an answer, ``False`` if the session does not
        exist.
        """
        try:
            return await link.call("session.get", {"path": {"id": session_id}}, timeout=ASK_SECONDS)
        except CallError as error:
            return False if error.status == 404 else None

    async def _find_missing(self, link: Link) -> None:
        """Record the end of this directory's sessions that were deleted while no link was open."""
        sessions = self._translator.state.sessions
        open_here = sessions.having("open in", link.directory)
        if not open_here:
            return
        try:
            listed = await link.call("session.list", {"query": {"directory": link.directory}}, timeout=10.0)
        except CallError:
            return
        known = {entry.get("id") for entry in listed if isinstance(entry, dict)} if isinstance(listed, list) else set()
        for session_id in [s for s in open_here if s not in known][:MAX_MISSING_CHECKS]:
            if await self._session(link, session_id) is False:
                self._translator.end_missing(session_id, self._loop.time())
        self.pump()

    # --- turns of dead processes ---

    def dead(self) -> dict[str, bool]:
        """Return the boots of open turns that have no link, each with whether its OpenCode process is gone.

        Without the turns of OpenCode 2, whose service goes on with them when it is back.
        """
        linked = {origin.boot_id for origin in self._links}
        return {
            turn.boot: not still_runs(turn.pid, turn.started_ms)
            for session, turn in self._translator.state.open_turns()
            if turn.pid is not None and turn.boot not in linked and not session.host
        }

    async def end_turns(self, boots: Collection[str]) -> None:
        """End the open turns of these boots, whose processes are gone; return when that is durable."""
        for session, turn in self._translator.state.open_turns():
            if turn.boot in boots:
                log.info("process %d of boot %s is gone: ending its turn", turn.pid or 0, turn.boot)
                self._translator.end_dead(session.id, self._loop.time(), at_ms=self._lost.get(turn.boot))
        appended = self.pump()
        if appended is not None:
            await asyncio.wait({appended})

    def holds(self, boot_id: str) -> bool:
        return any(origin.boot_id == boot_id for origin in self._unfinished)

    # --- ending ---

    async def close(self) -> None:
        """Write what is ready and stop. Waiting items stay unacknowledged; their shims resend them."""
        if self._timer is not None:
            self._timer.cancel()
        self.pump()
        if self._timer is not None:
            self._timer.cancel()
        self._order.put_nowait(None)
        await self._finisher
        await self._tasks.cancel()


def _seen(appended: asyncio.Task[Any]) -> None:
    """Mark the error of an append as seen: the first failed append already ends the sidecar, and later ones fail for
    the same reason."""
    if not appended.cancelled():
        appended.exception()
