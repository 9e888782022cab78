"""Which agents this home owns, by entries in a JetStream key-value bucket.

The bucket holds one entry for each agent: ``{log_id, boot, epoch}``. ``epoch`` is the revision at which its home took
the agent, and grows each time another home takes it. An agent belongs to the home that took it first, also while that
home is stopped or away: its history is in that home's log alone. Only a person gives it to another home (``claim``).

================================== ==========================================================
the entry is                       then
================================== ==========================================================
missing                            this home takes the agent, unless it has seen another's entry
this home's                        this home owns it; the lock shows that its earlier process is dead
another home's                     this home waits
any, and a person has claimed it   this home takes the agent
================================== ==========================================================

Each home looks at the entries every few seconds. So after a claim, the former owner may handle the command in hand once
more before it stands still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

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

LOOK_SECONDS: Final = 5.0
"""How often a home looks at the entries of its agents."""

Own = Callable[[str, int], Awaitable[None]]


class Entry(NamedTuple):
    """An agent's entry. ``revision`` is its place in the bucket. ``log_id`` is empty if there is none."""

    log_id: str
    boot: str
    epoch: int
    revision: int


@dataclass(slots=True)
class _Name:
    """What this process knows of one agent."""

    entry: Entry | None = None
    """The entry as last seen; ``None`` before the first look."""
    recorded: int | None = None
    """The epoch of which the log says that this home took the agent."""
    is_held: bool = False
    is_anothers: bool = False
    """Whether this process has seen that another one has the agent."""
    is_claimed: bool = False
    problem: str = "this home has not reached the NATS server yet"
    """Why the last look failed; empty if it did not."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class Owning(Owner):
    """The agents of a home that other homes may have, too: an ``Owner``. Bound to one event loop."""

    def __init__(self, agents: Sequence[str], log_id: str, boot: str, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._log_id, self._boot, self._look_seconds = log_id, boot, look_seconds
        self._names = {agent: _Name() for agent in agents}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, sessions: Sessions, own: Own, resumed: Callable[[], Awaitable[None]]) -> None:
        """Begin to take the agents, in the background; their runtime must have started.

        ``own`` records that this home took an agent, with the epoch. ``resumed`` is called after it, and may be called
        more than once.
        """
        self._own, self._resumed = own, resumed
        self._tasks = [asyncio.create_task(self._run(sessions, *each)) for each in self._names.items()]

    async def close(self) -> None:
        """Stop looking. Idempotent. The agents stay this home's."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def claim(self, agent: str, seconds: float) -> bool:
        """Take an agent, whoever owns it; false if the server did not answer within ``seconds``."""
        if (name := self._names.get(agent)) is None:
            return True
        name.is_claimed = True
        name.news.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await name.held.wait()
        name.is_claimed = False
        return name.is_held

    # --- what others ask ---

    def holds(self, agent: str) -> bool:
        name = self._names.get(agent)
        return name is None or name.is_held

    async def until_held(self, agent: str) -> None:
        if agent in self._names:
            await self._names[agent].held.wait()

    async def until_known(self, agent: str) -> None:
        if agent in self._names:
            await self._names[agent].looked.wait()

    async def while_held(self, agent: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``run`` whenever this home owns an agent, and cancel it when it does not any more.

        Returns when ``run`` does.
        """
        while True:
            await self.until_held(agent)
            running = asyncio.create_task(run())
            lost = asyncio.create_task(self._names[agent].lost.wait())
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
        name = self._names[agent]
        if name.problem:
            return f"it is unknown whether this home owns the agent {agent}: {name.problem}"
        if name.entry is None or not name.is_anothers:
            return f"this home is about to own the agent {agent}"
        if name.entry.log_id == self._log_id:
            return f"a copy of this home runs the agent {agent}; stop one of the two"
        whose = f"the agent {agent} belongs to another home, whose log is {name.entry.log_id or 'unknown'}"
        return f"{whose}; give it another name here, or take it with `durable-stream agents --claim {agent}`"

    def status(self) -> list[dict[str, Any]]:
        """For each agent: ``agent``, ``held``, ``epoch``, ``owner`` (a log's id), ``problem``."""
        rows = []
        for agent, name in self._names.items():
            about = {"epoch": name.entry and name.entry.epoch, "owner": name.entry and name.entry.log_id}
            rows.append({"agent": agent, "held": self.holds(agent), **about, "problem": self.refusal(agent)})
        return rows

    # --- the entries ---

    async def _run(self, sessions: Sessions, agent: str, name: _Name) -> None:
        """Look after one entry."""
        ready: JetStream | None = None
        while True:
            name.news.clear()
            try:
                session = await sessions.get()
                if session is not ready:
                    await ensure_streams(session, [each for each in wanted() if each.name == OWNERS])
                    ready = session
                await self._look(session, agent, name)
                name.problem = ""
            except (NatsError, StreamError) as error:
                name.problem = str(error)
            except Exception as error:
                log.exception("the owner of agent %s could not be looked up", agent)
                name.problem = f"{type(error).__name__}; see sidecar.log"
            name.looked.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_seconds):
                    await name.news.wait()

    async def _look(self, session: JetStream, agent: str, name: _Name) -> None:
        entry = await self._read(session, agent)
        is_home, is_mine = entry.log_id == self._log_id, (entry.log_id, entry.boot) == (self._log_id, self._boot)
        if name.is_held and not is_mine:
            log.warning("agent %s was taken by the log %s", agent, entry.log_id or "-")
            self._set_held(name, False)
            name.is_anothers = bool(entry.log_id)
        name.entry = entry
        if is_mine or name.is_claimed or (not name.is_anothers and (is_home or not entry.log_id)):
            try:
                await self._take(session, agent, name, entry)
            except WrongExpectation:
                name.news.set()  # another home was faster, or the answer to an earlier attempt was lost
        else:
            name.is_anothers = not name.is_held

    async def _take(self, session: JetStream, agent: str, name: _Name, entry: Entry) -> None:
        if name.is_held:
            return
        is_mine = entry.log_id == self._log_id
        if not is_mine or entry.boot != self._boot:
            entry = await self._write(session, agent, entry, entry.epoch if is_mine else 0)
        name.entry, name.is_anothers, name.is_claimed = entry, False, False
        if name.recorded != entry.epoch:
            await self._own(agent, entry.epoch)
            name.recorded = entry.epoch
        log.info("this home owns agent %s, in epoch %d", agent, entry.epoch)
        self._set_held(name, True)
        await self._resumed()

    def _set_held(self, name: _Name, held: bool) -> None:
        name.is_held = held
        now, then = (name.held, name.lost) if held else (name.lost, name.held)
        now.set()
        then.clear()

    async def _write(self, session: JetStream, agent: str, entry: Entry, epoch: int) -> Entry:
        """Replace an entry by this process's, whose revision an epoch of 0 stands for.

        Raises:
            WrongExpectation: the entry has changed.
            NatsError: the server did not answer; the entry may be written.
        """
        value = {"log_id": self._log_id, "boot": self._boot, "epoch": epoch}
        expected = {EXPECTED_REVISION: str(entry.revision)}
        message = Message(f"{OWNER_KEYS}.{escape(agent)}", expected, orjson.dumps(value))
        revision = (await publish(session, message)).sequence
        return Entry(self._log_id, self._boot, epoch or revision, revision)

    async def _read(self, session: JetStream, agent: str) -> Entry:
        found = await last_message(session, OWNERS, f"{OWNER_KEYS}.{escape(agent)}")
        if found is None or not found.body:  # none, or one that a person deleted
            return Entry("", "", 0, 0 if found is None else found.sequence)
        try:
            value = orjson.loads(found.body)
            epoch = int(value["epoch"]) or found.sequence
            return Entry(str(value["log_id"]), str(value["boot"]), epoch, found.sequence)
        except (ValueError, KeyError, TypeError):
            return Entry("?", "", found.sequence, found.sequence)  # nobody of ours wrote it
