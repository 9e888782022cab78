"""Which agents this home owns, by leases in a JetStream key-value bucket.

The bucket holds one entry for each agent: ``{log_id, boot, epoch, previous, until, lease_ms}``. ``epoch`` is the
revision at which its owner took the agent, and grows each time another home takes it; ``previous`` is the log of the
owner before. The owner renews the entry three times a lease.

No clock of another machine is compared. The owner stops when its last renewal is a lease old, counted from before it
was sent. Another home considers the lease to have ended when it has seen the entry unchanged for as long; ``until``
only tells people when. So the owner has always stopped before another home begins.

=============================== ==========================================================
the entry is                    then
=============================== ==========================================================
missing                         this home takes the agent
this home's                     this home renews it; the home's lock shows that its earlier process is dead
another home's, and renewed     this home waits
another home's, and not renewed this home waits; with ``[worker] take_over`` it takes the agent
=============================== ==========================================================
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import orjson

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError, WrongExpectation
from bridge.nats.jetstream.publishing import EXPECTED_REVISION, publish
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import OWNER_KEYS, OWNERS, wanted
from bridge.nats.jetstream.streams import ensure_streams, last_message
from bridge.nats.jetstream.wire import Message
from bridge.nats.subjects import escape
from sidecar.agents.owner import Owner
from streams.errors import StreamError

log = logging.getLogger("sidecar.mirror")

RENEWALS: Final = 3
"""How often an owner renews its entry within one lease."""

CLOSE_SECONDS: Final = 2.0
"""How long ``close`` tries to release the agents. Unreleased agents become free when their leases end."""

Own = Callable[[str, int, str | None], Awaitable[None]]
State = Literal["missing", "ours", "running", "lapsed"]
Step = Literal["take", "renew", "wait"]
STEPS: Final[dict[tuple[State, bool], Step]] = {
    ("missing", False): "take",
    ("missing", True): "take",
    ("ours", False): "renew",
    ("ours", True): "renew",
    ("running", False): "wait",
    ("running", True): "wait",
    ("lapsed", False): "wait",
    ("lapsed", True): "take",
}
"""What to do about an entry, by its state and by whether this home may take over."""


class Entry(NamedTuple):
    """An agent's entry. ``revision`` is its place in the bucket; ``until`` is in ms UTC, 0 if it was released.

    ``log_id`` is empty if a person deleted the entry.
    """

    log_id: str
    boot: str
    epoch: int
    previous: str | None
    until: int
    lease_ms: int
    revision: int


def monotonic() -> float:
    """Seconds that also pass while the machine is suspended, where the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(slots=True)
class _Lease:
    entry: Entry | None = None
    """The entry as last seen; ``None`` before the first look, and while the bucket has none."""
    seen: float = 0.0
    """When this home first saw that revision."""
    valid_until: float = 0.0
    is_held: bool = False
    recorded: int | None = None
    """The epoch of which the log says that this home took the agent."""
    was_lost: bool = False
    """Whether another process took the agent during the life of this one."""
    problem: str = "this home has not reached the NATS server yet"
    """Why nothing is known of the entry; empty while something is."""
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class Owning(Owner):
    """The leases of a home's agents: an ``Owner``. Bound to one event loop."""

    def __init__(
        self,
        agents: Sequence[str],
        log_id: str,
        boot: str,
        now_ms: Callable[[], int],
        *,
        lease_seconds: float,
        take_over: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._log_id, self._boot, self._now_ms, self._clock = log_id, boot, now_ms, clock
        self._lease_s, self._take_over = lease_seconds, take_over
        self._leases = {agent: _Lease() for agent in agents}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, sessions: Sessions, own: Own, resumed: Callable[[], Awaitable[None]]) -> None:
        """Begin to take the agents, in the background; their runtime must have started.

        ``own`` records that this home took an agent, with the epoch and the log that owned it before (``None`` if none
        did). ``resumed`` is called after it, and may be called more than once.
        """
        self._sessions, self._own, self._resumed = sessions, own, resumed
        self._tasks = [asyncio.create_task(self._run(sessions, *each)) for each in self._leases.items()]

    async def close(self) -> None:
        """Release the agents, so that another home need not wait for the end of the leases. Idempotent.

        Nothing may work on them any more.
        """
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if (session := self._sessions.current) is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for agent, lease in self._leases.items():
                    if self.holds(agent) and lease.entry is not None:
                        self._set_held(lease, False)
                        await self._write(session, agent, lease.entry, until=0)
        except (NatsError, TimeoutError) as error:
            log.info("the agents' leases were not released and end by themselves: %s", error)

    # --- what others ask ---

    def holds(self, agent: str) -> bool:
        lease = self._leases.get(agent)
        return lease is None or (lease.is_held and self._clock() < lease.valid_until)

    async def until_held(self, agent: str) -> None:
        while not self.holds(agent):
            lease = self._leases[agent]
            if lease.is_held:  # its time is over, but the loop has not noticed yet
                self._set_held(lease, False)
            await lease.held.wait()

    async def until_known(self, agent: str) -> None:
        if agent in self._leases:
            await self._leases[agent].looked.wait()

    async def until_lost(self, agent: str) -> None:
        """Return when this home does not own the agent any more. Cancelling is safe."""
        lease = self._leases[agent]
        while (left := lease.valid_until - self._clock()) > 0 and lease.is_held:
            try:
                async with asyncio.timeout(left):
                    await lease.lost.wait()
            except TimeoutError:
                continue

    async def while_held(self, agent: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``run`` whenever this home owns an agent, and cancel it when it does not any more.

        Returns when ``run`` does.
        """
        while True:
            await self.until_held(agent)
            running = asyncio.create_task(run())
            lost = asyncio.create_task(self.until_lost(agent))
            try:
                await asyncio.wait((running, lost), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
            finally:
                for task in (running, lost):
                    task.cancel()
                await asyncio.gather(running, lost, return_exceptions=True)

    def refusal(self, agent: str) -> str:
        if self.holds(agent):
            return ""
        entry = self._leases[agent].entry
        if problem := self._leases[agent].problem:
            return f"it is unknown whether this home owns the agent {agent}: {problem}"
        if entry is None or not entry.log_id or (entry.log_id, entry.boot) == (self._log_id, self._boot):
            return f"this home is about to own the agent {agent}"
        if entry.log_id == self._log_id:
            return f"a copy of this home runs the agent {agent}; stop one of the two"
        whose = f"the agent {agent} belongs to another home, whose log is {entry.log_id}"
        if self._state(self._leases[agent], entry) == "running":
            return f"{whose}; give one of the two agents another name"
        if self._take_over:
            return f"{whose} and which has stopped; this home is about to take it"
        return f"{whose} and which has stopped; to run the agent here, set `take_over = true` in [worker]"

    def status(self) -> list[dict[str, Any]]:
        """For each agent: ``agent``, ``held``, ``epoch``, ``owner`` (a log's id), ``until`` (ms UTC), ``problem``."""
        rows = []
        for agent, lease in self._leases.items():
            entry = lease.entry
            about = {"epoch": entry and entry.epoch, "owner": entry and entry.log_id, "until": entry and entry.until}
            rows.append({"agent": agent, "held": self.holds(agent), **about, "problem": self.refusal(agent)})
        return rows

    # --- the leases ---

    async def _run(self, sessions: Sessions, agent: str, lease: _Lease) -> None:
        """Look after one lease. Each has a task of its own, because to take one agent over may take long."""
        ready: JetStream | None = None
        while True:
            try:
                session = await sessions.get()
                if session is not ready:
                    await ensure_streams(session, [each for each in wanted() if each.name == OWNERS])
                    ready = session
                await self._look_after(session, agent, lease)
                lease.problem = ""
            except (NatsError, StreamError) as error:
                lease.problem = str(error)
            except Exception as error:
                log.exception("the lease of agent %s could not be looked after", agent)
                lease.problem = f"{type(error).__name__}; see sidecar.log"
            if lease.is_held and not self.holds(agent):
                log.warning("agent %s stands still: %s", agent, lease.problem)
                self._set_held(lease, False)
            lease.looked.set()
            await asyncio.sleep(self._lease_s / RENEWALS)

    async def _look_after(self, session: JetStream, agent: str, lease: _Lease) -> None:
        if lease.is_held and lease.entry is not None:
            try:
                await self._renew(session, agent, lease, lease.entry)
                return
            except WrongExpectation:
                # Either another process took the agent, or the answer to an earlier renewal was lost.
                pass
        entry = await self._read(session, agent)
        if entry is None or lease.entry is None or entry.revision != lease.entry.revision:
            lease.seen = self._clock()
        lease.entry = entry
        state = self._state(lease, entry)
        if lease.is_held and state != "ours":
            log.warning("agent %s was taken by the log %s", agent, entry.log_id if entry is not None else "-")
            lease.was_lost = True
            self._set_held(lease, False)
        try:
            match STEPS[state, self._take_over]:
                case "renew" if entry is not None:
                    await self._renew(session, agent, lease, entry)
                case "take":
                    await self._take(session, agent, lease, entry)
        except WrongExpectation:
            return  # another home was faster; the next look sees it

    def _state(self, lease: _Lease, entry: Entry | None) -> State:
        if entry is None or not entry.log_id:
            return "missing"
        if entry.log_id == self._log_id and (entry.boot == self._boot or not lease.was_lost):
            return "ours"
        ended = not entry.until or self._clock() - lease.seen >= entry.lease_ms / 1000
        return "lapsed" if ended else "running"

    async def _take(self, session: JetStream, agent: str, lease: _Lease, before: Entry | None) -> None:
        previous = before.log_id or None if before is not None and before.log_id != self._log_id else None
        at = before.revision if before is not None else 0
        await self._renew(session, agent, lease, Entry(self._log_id, self._boot, 0, previous, 1, 0, at))

    async def _renew(self, session: JetStream, agent: str, lease: _Lease, entry: Entry) -> None:
        asked = self._clock()
        revision = await self._write(session, agent, entry)
        epoch = entry.epoch or revision
        lease.entry = entry._replace(revision=revision, epoch=epoch, boot=self._boot, until=self._until())
        is_new = not self.holds(agent)
        if is_new:  # or the lease has ended unnoticed: what came since was turned away
            self._set_held(lease, False)
        lease.valid_until = asked + self._lease_s
        if is_new:
            if lease.recorded != epoch:  # what the former owner did may take longer than a lease to read
                await self._own(agent, epoch, entry.previous)
                lease.recorded = epoch
            log.info("this home owns agent %s, in epoch %d", agent, epoch)
            self._set_held(lease, True)
            await self._resumed()

    def _set_held(self, lease: _Lease, held: bool) -> None:
        lease.is_held = held
        now, then = (lease.held, lease.lost) if held else (lease.lost, lease.held)
        now.set()
        then.clear()

    def _until(self) -> int:
        return self._now_ms() + round(self._lease_s * 1000)

    async def _write(self, session: JetStream, agent: str, entry: Entry, *, until: int | None = None) -> int:
        """Replace the entry of this revision; return the new revision, which an epoch of 0 stands for.

        Raises:
            WrongExpectation: the entry has changed.
            NatsError: the server did not answer; the entry may be written.
        """
        value = {
            "log_id": self._log_id,
            "boot": self._boot,
            "epoch": entry.epoch,
            "previous": entry.previous,
            "until": self._until() if until is None else until,
            "lease_ms": round(self._lease_s * 1000),
        }
        expected = {EXPECTED_REVISION: str(entry.revision)}
        message = Message(f"{OWNER_KEYS}.{escape(agent)}", expected, orjson.dumps(value))
        return (await publish(session, message)).sequence

    async def _read(self, session: JetStream, agent: str) -> Entry | None:
        found = await last_message(session, OWNERS, f"{OWNER_KEYS}.{escape(agent)}")
        if found is None:
            return None
        if not found.body:
            return Entry("", "", 0, None, 0, 0, found.sequence)
        try:
            value = orjson.loads(found.body)
            epoch = int(value["epoch"]) or found.sequence
            until, lease_ms, previous = int(value["until"]), int(value["lease_ms"]), value["previous"]
            return Entry(str(value["log_id"]), str(value["boot"]), epoch, previous, until, lease_ms, found.sequence)
        except (ValueError, KeyError, TypeError):
            # Nobody of ours wrote it, so nobody's work is at stake: a whole lease passes before it is replaced.
            return Entry("?", "", found.sequence, None, 1, round(self._lease_s * 1000), found.sequence)
