"""Which agents this home owns. The server decides: it lets one durable consumer take an agent's commands.

The durable is named by log and agent, and its stream is a work queue, so the server refuses a second home's durable for
the same commands (error 10100). The home that made its durable first owns the agent, also while that home is stopped or
away: the agent's history is in that home's log alone. Only a person gives the agent to another home (``claim``): the
other durable is deleted, and this home's is made. Then the command in hand may be done twice, because the former owner
learns of it only at its next look.

A copy of this home has the same log and so the same durable; the mirror tells such a copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsError, NotFound, StreamRefused
from bridge.nats.jetstream.pulling import ensure_consumer
from bridge.nats.jetstream.streams import listed
from bridge.nats.subjects import agent_pattern, consumer_name, unescape
from sidecar.agents.owner import Owner
from streams.bus.subjects import SubjectError, overlap
from streams.errors import StreamError

log = logging.getLogger("sidecar.mirror")

LOOK_SECONDS: Final = 5.0
"""How often a home looks at the durables of its agents."""

TAKEN: Final = 10100
"""The server's error number: another consumer of the work queue takes these messages."""

Own = Callable[[str, int], Awaitable[None]]


@dataclass(slots=True)
class _Name:
    """What this process knows of one agent; its messages are those of ``pattern``."""

    durable: str
    pattern: str
    is_owned: bool = False
    epoch: int | None = None
    """When the server made this home's durable, in ms since 1970: it grows with each home that takes the agent."""
    others: str = ""
    """The log whose home has the agent; empty if this process has seen none."""
    is_claimed: bool = False
    problem: str = "this home has not reached the NATS server yet"
    """Why the last look failed; empty if it did not."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    owned: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class Owning(Owner):
    """The agents of a home that other homes may have, too: an ``Owner``. Bound to one event loop.

    ``more``: durable and pattern of what takes messages like an agent, by name.
    """

    def __init__(
        self,
        agents: Collection[str],
        more: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        names = {agent: (consumer_name(agent), agent_pattern(agent)) for agent in agents} | dict(more)
        self._names, self._look_seconds = {name: _Name(*each) for name, each in names.items()}, look_seconds
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, bus: JetStreamEventBus, own: Own, resumed: Callable[[], Awaitable[None]]) -> None:
        """Begin to take the agents, in the background; their runtime must have started.

        ``own`` records that this home took an agent, with the epoch. ``resumed`` is called after it, and may be called
        more than once.
        """
        self._bus, self._own, self._resumed = bus, own, resumed
        self._tasks = [asyncio.create_task(self._run(*each)) for each in self._names.items()]

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
                await name.owned.wait()
        name.is_claimed = False
        return name.is_owned

    # --- what others ask ---

    def holds(self, agent: str) -> bool:
        name = self._names.get(agent)
        return name is None or name.is_owned

    async def until_owned(self, agent: str) -> None:
        if agent in self._names:
            await self._names[agent].owned.wait()

    async def until_known(self, agent: str) -> None:
        if agent in self._names:
            await self._names[agent].looked.wait()

    async def while_owned(self, agent: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``run`` whenever this home owns an agent, and cancel it when it does not any more.

        Returns when ``run`` does.
        """
        while True:
            await self.until_owned(agent)
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

    def is_taken(self, agent: str) -> bool:
        """Whether another home is known to own an agent."""
        return not self.holds(agent) and bool(self._names[agent].others)

    def refusal(self, agent: str) -> str:
        if self.holds(agent):
            return ""
        name = self._names[agent]
        if name.problem:
            return f"it is unknown whether this home owns the agent {agent}: {name.problem}"
        if not name.others:
            return f"this home is about to own the agent {agent}"
        if agent == "machine":
            named = f"another home, whose log is {name.others}, has the name of this machine"
            return f"{named}; set `machine` in [team], or take the name with `durable-stream agents --claim machine`"
        whose = f"the agent {agent} belongs to another home, whose log is {name.others}"
        return f"{whose}; give it another name here, or take it with `durable-stream agents --claim {agent}`"

    def status(self) -> list[dict[str, Any]]:
        """For each agent: ``agent``, ``owned``, ``epoch`` (in which this home took it), ``owner`` (a log's id),
        ``problem``."""
        rows = []
        for agent, name in self._names.items():
            about = {"epoch": name.epoch, "owner": self._bus.log_id if name.is_owned else name.others or None}
            rows.append({"agent": agent, "owned": self.holds(agent), **about, "problem": self.refusal(agent)})
        return rows

    # --- the durables ---

    async def _run(self, agent: str, name: _Name) -> None:
        while True:
            name.news.clear()
            try:
                await self._look(await self._bus.prepared(name.pattern), agent, name)
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
        stream, wanted = self._bus.exclusive(name.durable, name.pattern)
        if not name.is_owned:
            others = {
                each["name"]: _filters(each["config"])
                for each in await listed(session, f"CONSUMER.LIST.{stream}", "consumers")
                if each["name"] != wanted["name"]
                and any(overlap(one, name.pattern) for one in _filters(each["config"]))
            }
            # A claim takes nothing from a consumer of other messages.
            taken = [each for each, filters in others.items() if filters == [name.pattern]] if name.is_claimed else []
            for each in taken:
                log.warning("taking agent %s from the durable %s", agent, each)
                with suppress(NotFound):
                    await session.api(f"CONSUMER.DELETE.{stream}.{each}")
                del others[each]
            if others or (name.others and not name.is_claimed):
                name.others = _log_of(next(iter(others)), name.durable) if others else name.others
                return
            try:
                await ensure_consumer(session, stream, wanted)
            except StreamRefused as error:
                if error.server_code != TAKEN:
                    raise
                name.news.set()  # another home was faster
                return
        try:
            # After its restart, the server answers the making of a durable that is there with the present time.
            found = await session.api(f"CONSUMER.INFO.{stream}.{wanted['name']}")
        except NotFound:
            # Perhaps another home is taking the agent, so let it: this home tries again at its next look.
            log.warning("the durable of agent %s is gone", agent)
            self._set_owned(name, False)
            return
        epoch = int(datetime.fromisoformat(found["created"]).timestamp() * 1000)
        if name.epoch != epoch:
            await self._own(agent, epoch)
        name.epoch, name.others, name.is_claimed = epoch, "", False
        if not name.is_owned:
            log.info("this home owns agent %s, in epoch %d", agent, epoch)
            self._set_owned(name, True)
            await self._resumed()

    def _set_owned(self, name: _Name, owned: bool) -> None:
        name.is_owned = owned
        now, then = (name.owned, name.lost) if owned else (name.lost, name.owned)
        now.set()
        then.clear()


def _filters(config: Mapping[str, Any]) -> list[str]:
    return list(config.get("filter_subjects") or [config.get("filter_subject") or ">"])


def _log_of(consumer: str, durable: str) -> str:
    """The log whose home made a durable, or the durable's name if no home made it."""
    try:
        return unescape(consumer.removesuffix(f"_{durable}"))
    except SubjectError:
        return consumer
