"""All agents of a home: one reader of the log hands each event to the engines that want it.

Commands from agents of this home are also read from the log, so agents work together
without a NATS server. Effects are handed to the effect runner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from sidecar.agents.agent import Agent
from sidecar.agents.deciding import Handled
from sidecar.agents.effects.claims import Claims
from sidecar.agents.effects.ledger import request_of
from sidecar.agents.effects.policy import DEFAULT_POLICY, EffectPolicy
from sidecar.agents.effects.runner import EffectKind, EffectRunner, Resolution
from sidecar.agents.engine import Engine
from sidecar.agents.history import hinted
from sidecar.agents.inputs import MAX_DEPTH, Outbox, agent_stream
from sidecar.agents.loading import UserAgent
from sidecar.agents.metrics import Count, uncounted
from sidecar.agents.owner import ALONE, Owner
from sidecar.agents.receivers import RESULTS, concerns_agents, lists, wants
from sidecar.agents.redriving import open_letter, record_in, redrive, settled
from sidecar.agents.stops import Stop, never
from sidecar.agents.view import (
    DROPPED,
    REDRIVEN,
    REQUESTED,
    VIEW,
    VIEW_VERSION,
    DeadLetter,
    RuntimeView,
)
from streams.bus.command import Command
from streams.errors import CodedError, StoreUnavailable, StreamError
from streams.event import StreamEvent
from streams.identity import Identity
from streams.projection import resume
from streams.store import NOTHING, Record, Snapshot, StreamStore
from streams.trace import Chain, made_trace, parse_traceparent

log = logging.getLogger("sidecar.agents")

KEEP_EVERY: Final = 20_000
"""Hints are saved each time this many records of the log have passed."""

MAX_TYPES: Final = 4096
"""Maximum number of event types for which the agents that list the type are remembered."""

PAUSE_SECONDS: Final = 1.0
"""How long to wait before a log that is away is read again."""

LOOK_SECONDS: Final = 0.01
LEVEL_SECONDS: Final = 5.0


class UnknownAgent(CodedError):
    """No agent of this name is configured."""

    code = "unknown-agent"

    def __init__(self, name: str) -> None:
        super().__init__(f"no agent is named {name[:80]!a}; `durable-stream agents` lists all agents")


class Runtime:
    """The agents over one store. Call ``start`` before anything else. Bound to one event loop."""

    def __init__(
        self,
        store: StreamStore,
        identity: Identity,
        agents: Sequence[Agent],
        *,
        kinds: Mapping[str, EffectKind] | None = None,
        clean: Callable[[Any], Any] = lambda value: value,
        policy: EffectPolicy = DEFAULT_POLICY,
        max_depth: int = MAX_DEPTH,
        count: Count = uncounted,
        owner: Owner = ALONE,
        stop: Stop = never,
        claims: Claims | None = None,
    ) -> None:
        """``claims`` says who carries out an effect; ``None``: this process alone. If they are shared, other processes
        run the same agents over the same log."""
        self._store, self._identity, self._clean, self.max_depth = store, identity, clean, max_depth
        self._count, self._is_shared = count, claims is not None and claims.is_shared
        names = {agent.name for agent in agents}
        self.engines = {
            agent.name: Engine(
                agent,
                store,
                identity,
                clean=clean,
                policy=policy,
                # Another process may have an agent of the same log that this one does not have.
                is_local=names.__contains__ if not self._is_shared else lambda name: True,
                # The limit must end the loops of the user's agents, not the steps of background work, nor a question
                # to a person at the end of a chain.
                max_depth=max_depth if isinstance(agent, UserAgent) else max_depth + MAX_DEPTH,
                count=count,
                owner=owner,
                stop=stop,
                others_write=self._is_shared,
            )
            for agent in agents
        }
        self._listing = lru_cache(maxsize=MAX_TYPES)(
            lambda type_: tuple(engine for engine in self.engines.values() if lists(engine.agent, type_))
        )
        self.view = RuntimeView()
        self.effects = EffectRunner(
            store, identity, kinds or {}, clean=clean, policy=policy, count=count, owner=owner, stop=stop, claims=claims
        )
        self.effects.is_cut = lambda agent, request: agent in names and self.engines[agent].turns.has_cut(request)
        self._reading: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._kept = NOTHING
        self._unwanted: StreamEvent | None = None
        """The last event that ``_wants`` rejected, so that the record which ends a batch is not looked at twice."""
        self.problem = ""
        """Why the log is not read any more; empty while it is."""
        self._level = asyncio.Event()
        """Whether the view covers everything that was in the log at the start."""
        self._coming: dict[str, list[Chain]] = {}
        """The chains of the commands that are being handled."""

    async def start(self) -> None:
        """Restore every agent from the log, then begin to hand out events.

        Commands are accepted once this method has returned. The runtime's view is folded in the background, because
        without a snapshot the whole log must be read; ``until_known`` waits for it.

        Raises:
            StreamError: the log cannot be read or written.
        """
        self.view, _ = await resume(self._store, VIEW, VIEW_VERSION, RuntimeView.load, RuntimeView)
        self._kept = self.view.position
        self.effects.began = self._store.head
        for engine in self.engines.values():
            await engine.start()
        self._reading = asyncio.create_task(self._read())

    async def stop(self, agent: str, turn: str, epoch: int, command: Command) -> bool:
        """End a turn of an agent: no attempt of its effects begins any more, and its calls of other processes end.
        False if no such turn is open or was stopped.

        The end has the depth and the trace of the turn, whatever ``command`` has. After an error, stop the turn again:
        what was left undone is done then.

        Raises:
            UnknownAgent: no agent has this name.
            NotOwner: another home owns the agent, or may own it.
            StreamError: the log cannot be written.
        """
        engine = self._engine(agent)
        if (known := self.chain(turn)) is not None:
            trace = parse_traceparent(known.traceparent) or made_trace(turn)
            command = replace(command, depth=known.depth, traceparent=str(trace.child(command.key)))
        if not await engine.stop(turn, epoch, command):
            return False
        await self.effects.end_turn(agent, turn)
        return True

    def epoch(self, agent: str) -> int:
        """The epoch in which this home took an agent; 0 if it never did, because no other home can own it."""
        return self.engines[agent].turns.epoch

    async def own(self, agent: str, epoch: int) -> None:
        """Record that this home took an agent.

        Raises:
            StreamError: the log cannot be written.
        """
        if agent in self.engines:  # else it is a part of the sidecar that takes commands like an agent
            await self.engines[agent].own(epoch)

    def _engine(self, agent: str) -> Engine:
        if agent not in self.engines:
            raise UnknownAgent(agent)
        return self.engines[agent]

    async def resume(self) -> None:
        """Hand the agents that this home has just come to own what the log holds for them. Nothing cuts this off."""
        before = self._reading
        if before is not None and not before.done():
            before.cancel()
            self._reading = asyncio.create_task(self._read(before))

    async def close(self) -> None:
        """Stop handing out events, finish the inputs that the engines hold, and store snapshots. Idempotent; also after
        a start that failed."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await self.effects.close()
        for engine in self.engines.values():
            await engine.close()
        if self._keeping is not None:
            await self._keeping
        if reading is not None:
            await self._keep()

    async def command(self, agent: str, command: Command) -> Handled:
        """Hand a command to an agent; returns when its results are durable.

        Raises:
            UnknownAgent: no agent has this name.
            InputRefused, AgentFailed, StreamError: see ``Engine.command``.
        """
        engine = self._engine(agent)
        if command.correlation_id is None or command.refusal is not None:
            return await engine.command(command)
        # The next command of the chain may be judged before this one is in the log, or in the view.
        coming = self._coming.setdefault(command.correlation_id, [])
        coming.append(Chain(command.depth, command.traceparent or ""))
        try:
            handled = await engine.command(command)
            if handled.records:
                self.view.learn(handled.records[0].event)
            return handled
        finally:
            coming.pop()
            if not coming:
                del self._coming[command.correlation_id]

    def chain(self, correlation_id: str) -> Chain | None:
        """What is known of a chain; ``None`` if nothing is. Complete only after ``until_known``."""
        coming = self._coming.get(correlation_id)
        return coming[0] if coming else self.view.chains.get(correlation_id)

    async def bury(self, agent: str, command: Command, reason: str, about: dict[str, Any], *, key: str) -> Record:
        """Record a command as a dead letter of an agent, or of anything else that takes messages.

        ``key`` identifies the message, which makes only one letter. ``about`` is redacted and recorded with the letter;
        if it has a ``body``, the letter cannot be redriven.

        Raises:
            InputRefused: the command does not match the envelope; bury its body instead.
            StreamError: the log cannot be written.
        """
        outbox = Outbox(agent, self._identity, self._clean, DEFAULT_POLICY, self.engines.__contains__)
        event = outbox.unhandled(command, reason, about, key)
        if (engine := self.engines.get(agent)) is None:
            return (await self._store.append([event], on_known="keep_first"))[0]
        record = await engine.add(event)
        if not record.duplicate:
            self._count("dead", agent, 1)
        return record

    def owes(self) -> bool:
        """Whether there is unfinished work that only this process will do."""
        if not self.is_known and self._reading is not None and not self._reading.done():
            return True
        return self.effects.is_busy or any(not engine.is_idle for engine in self.engines.values() if engine.is_owned)

    def status(self) -> list[dict[str, Any]]:
        """Every agent: ``name``, ``health``, ``reasons``, ``events``, ``handled``, ``waiting``, ``position``, ``lag``
        (records of the log that the agent has not seen), ``last_error`` (or why the newest dead letter is one),
        ``dead`` (letters), ``effects`` (open), ``in_doubt``.
        """
        head = self._store.head
        rows = []
        for name, engine in self.engines.items():
            health = engine.health()
            dead = [letter for letter in self.view.dead.values() if letter.agent == name]
            open_effects = [effect for effect in self.view.effects.values() if effect.agent == name]
            rows.append(
                {
                    "name": name,
                    "health": health.status,
                    "reasons": list(health.reasons),
                    "events": list(engine.agent.events),
                    "handled": engine.handled,
                    "waiting": engine.waiting,
                    "position": engine.position,
                    "lag": max(head - engine.position, 0),
                    "last_error": engine.last_error or (dead[-1].reason if dead else ""),
                    "dead": len(dead),
                    "effects": len(open_effects),
                    "in_doubt": sum(effect.in_doubt for effect in open_effects),
                }
            )
        return rows

    @property
    def is_known(self) -> bool:
        return self._level.is_set()

    async def until_known(self) -> None:
        """Wait until every chain that was in the log at the start is known."""
        await self._level.wait()

    async def until_ended(self) -> None:
        """Wait until the log is not read any more; ``problem`` then says why."""
        if self._reading is not None:
            await asyncio.wait((self._reading,))

    async def until_level(self) -> None:
        """Wait until the view covers everything that is in the log now, but wait at most ``LEVEL_SECONDS``."""
        head, loop = self._store.head, asyncio.get_running_loop()
        end = loop.time() + LEVEL_SECONDS
        while True:
            is_reading = self._reading is not None and not self._reading.done()
            # The view may never reach the head, because the record at the head may have been pruned, so stop waiting
            # after a while.
            if self.view.position >= head or not is_reading or loop.time() > end:
                return
            await asyncio.sleep(LOOK_SECONDS)

    # --- effects in doubt ---

    async def resolve(self, given: Mapping[str, Any], how: Resolution, *, by: str, mark: str) -> bool:
        """Settle an effect in doubt; see ``EffectRunner.resolve``. ``given`` says which: ``request``, ``attempt``,
        ``run`` and ``key`` of its ``effect.in_doubt``."""
        attempt, open_ = given["attempt"], self.view.effects.get(given["request"])
        record = None if open_ is None else await self._in(open_.stream, open_.offset)
        if record is None:  # the effect has ended, perhaps just by this decision
            return await self.effects.ledger.is_resolved(given["run"], given["key"], attempt, mark)
        return await self.effects.resolve(record, how, attempt=attempt, by=by, mark=mark)

    async def doubts(self) -> list[StreamEvent]:
        """The ``effect.in_doubt`` of each effect that is in doubt, as far as the view knows.

        Raises:
            StreamError: the log cannot be read.
        """
        found: dict[str, StreamEvent] = {}
        for place in [each for each in self.view.effects.values() if each.in_doubt]:
            if (record := await self._in(place.stream, place.offset)) is not None:
                asked = request_of(record)
                event = await self.effects.ledger.doubt(asked.effect.run, asked.key)
                found |= {event.id: event} if event is not None else {}
        return [*found.values()]

    # --- dead letters ---

    async def redrive(self, letter_id: str) -> str:
        """See ``redrive``.

        Raises:
            CodedError: the input stays a dead letter.
        """
        letter = open_letter(self.view, letter_id)
        outcome = await redrive(self._store, self._engine, letter)
        await self._settle(REDRIVEN, letter)
        return outcome

    async def drop(self, letter_id: str) -> None:
        """Mark a dead letter as dropped; its record stays. Raises ``InputRefused`` if it is not open."""
        await self._settle(DROPPED, open_letter(self.view, letter_id))

    async def _settle(self, type_: str, letter: DeadLetter) -> None:
        await self._store.append([settled(type_, letter, self._identity)], on_known="keep_first")
        self.view.dead.pop(letter.id, None)
        if (engine := self.engines.get(letter.agent)) is not None:
            engine.settled(letter.reason)

    def reload(self) -> None:
        for engine in self.engines.values():
            engine.reload()

    async def _in(self, stream: str, offset: int) -> Record | None:
        return await record_in(self._store, stream, offset)

    async def _patiently_in(self, stream: str, offset: int) -> Record | None:
        while True:
            try:
                return await self._in(stream, offset)
            except StoreUnavailable:
                await asyncio.sleep(PAUSE_SECONDS)

    # --- the log ---

    async def _read(self, before: asyncio.Task[None] | None = None) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        try:
            async for record in self._store.read_all(after=self.view.position):
                self.view.apply(record)
            for request in list(self.view.effects.values()):
                if (asked := await self._in(request.stream, request.offset)) is not None:
                    self.effects.offer(asked)
            self._level.set()
            places = [each.position for each in self.engines.values() if each.is_owned and not each.is_broken]
            async for record in self._store.subscribe(after=min([self.view.position, *places]), wanted=self._wants):
                await self._hand_out(record)
        except StreamError as error:
            self.problem = str(error)
            log.error("the runtime stopped reading the log: %s", error)

    async def _hand_out(self, record: Record) -> None:
        event = record.event
        is_new = record.position > self.view.position
        self.view.apply(record)
        if is_new and event.type == REQUESTED and event.metadata.get("role") == "effect":
            self.effects.offer(record)
        elif is_new and "cut" in event.metadata.get("turn", ()):
            await self.effects.end_turn(event.source.agent, str(event.correlation_id))
        if self._is_shared:
            await self._hear(record)
        receivers: Sequence[Engine] = () if event is self._unwanted else self._receivers(event)
        for engine in self.engines.values():
            if record.position <= engine.position or not engine.is_owned:
                continue
            if engine not in receivers:
                engine.passed(record.position)
            elif engine.ignores(event):
                engine.count_ignored()
                engine.passed(record.position)
            else:
                await engine.offer(record)
        if record.position - self._kept >= KEEP_EVERY and (self._keeping is None or self._keeping.done()):
            # Do not wait for the disk here, because the next records would have to be read from the log meanwhile.
            self._keeping = asyncio.create_task(self._keep())

    async def _hear(self, record: Record) -> None:
        """Take note of what another process may have recorded for the same agents."""
        event, payload = record.event, record.event.payload
        for engine in self.engines.values():
            if event.stream_id == agent_stream(engine.name):
                engine.saw(record)
        if event.type in RESULTS and event.stream_id.endswith("/effects"):
            if payload.get("final") is True:
                self.effects.ended(str(payload.get("request")))
            elif "resolved_by" in payload and (asked := self.view.effects.get(str(payload.get("request")))) is not None:
                # A person wants another attempt, and the home that recorded this may be gone.
                request = await self._patiently_in(asked.stream, asked.offset)
                if request is not None:
                    self.effects.offer(request)

    def _wants(self, event: StreamEvent) -> bool:
        if concerns_agents(event):
            return True
        engines = self._listing(event.type)
        if not all(engine.ignores(event) for engine in engines):
            return True
        for engine in engines:
            engine.count_ignored()
        self._unwanted = event
        return False

    def _receivers(self, event: StreamEvent) -> Sequence[Engine]:
        if concerns_agents(event):
            return [engine for engine in self.engines.values() if wants(engine.agent, event)]
        return self._listing(event.type)

    async def _keep(self) -> None:
        self._kept = self.view.position
        if self.view.position > NOTHING:
            with hinted("the runtime's snapshot"):
                await self._store.put_snapshot(VIEW, Snapshot(VIEW_VERSION, self.view.position, self.view.dump()))
        for engine in self.engines.values():
            await engine.keep_place()
