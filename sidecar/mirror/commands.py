"""Takes commands from NATS, through one durable pull consumer for each agent of this home.

A command is acknowledged once its results are durable in the log. A command that can never be handled becomes a dead
letter: it is recorded in the log, then copied to ``MESHFORGE_DLQ``, and then the message is ended with ``term``. Each
step has a key, so nothing is repeated if the process is killed between two steps.

An agent's failure counts as an attempt; after the last attempt, the command becomes a dead letter. While the log cannot
be written, a command waits and its deadline is extended, because an outage must not turn commands into dead letters.
For the same reason the server has no delivery limit. With a limit, a message would stay on the server forever, without
another delivery, if the writing of its dead letter was interrupted.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Final

from bridge.nats.jetstream.errors import NatsError, NotFound
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.pulling import (
    Again,
    ConsumerDefinition,
    Done,
    Outcome,
    Poison,
    PulledMessage,
    PullLoop,
    burying,
    copy_of_dead,
)
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS, DEAD, L0_COMMANDS, wanted
from bridge.nats.jetstream.streams import read_back
from bridge.nats.l0.arriving import ArrivedCommand, Undecodable, known_headers, read_command
from bridge.nats.l0.calls import REPORT, STOP
from bridge.nats.l0.payloads import PayloadError, Wakeup
from bridge.nats.l0.payloads import Stop as StopTurn
from bridge.nats.subjects import PROTOCOL_VERSION, WAKEUP, consumer_name, escape
from sidecar.agents.deciding import AgentFailed, InputRefused
from sidecar.agents.inputs import Command, Refusal, digest
from sidecar.agents.owner import NotOwner
from sidecar.agents.runtime import Runtime
from sidecar.agents.stops import Stop, never
from sidecar.mirror.calling import RemoteCalls
from sidecar.mirror.owning import Owning
from streams.bus.headers import MAX_HEADERS
from streams.bus.subjects import overlap
from streams.errors import StreamError

log = logging.getLogger("sidecar.mirror")

GIVE_UP_DELIVERIES: Final = 100
"""A message delivered this many times without any answer probably kills the process each time, so it becomes a dead
letter."""

PAUSE_SECONDS: Final = 1.0
"""How long a command waits before writing to the log is retried."""

CLOSE_SECONDS: Final = 5.0
"""How long ``close`` waits for commands that are being handled."""

KEPT_BODY: Final = 64 * 1024
"""How much of an undecodable message the log keeps, in bytes."""

UNDECODABLE: Final = "command.undecodable"
"""The type of a dead letter that is not a command."""

INBOX: Final = "inbox."

DEAD_LETTER: Final = "DS-Dead-Letter"
"""The header of a dead letter's copy that holds the id of the dead letter's record in the log."""

_UNLIMITED: Final = 2**31


class InterestsOverlap(ValueError):
    """Two agents subscribe to the same commands, but a work queue gives each command to only one agent."""

    code: ClassVar[str] = "interests-overlap"

    def __init__(self, one: str, other: str, pattern: str) -> None:
        super().__init__(one, other, pattern)
        self.one, self.other, self.pattern = one, other, pattern

    def __str__(self) -> str:
        return (
            f"the agents {self.one} and {self.other} both subscribe to commands on {self.pattern}; give each agent "
            "its own subjects"
        )


def interests_of(agents: Sequence[str], interests: Mapping[str, Sequence[str]] | None = None) -> dict[str, list[str]]:
    """The patterns of each agent's commands: the given patterns, or, if none are given, ``cmd.*.*.{agent}.>``.

    Raises:
        InterestsOverlap: two agents subscribe to the same commands.
    """
    found = {name: list((interests or {}).get(name) or [f"cmd.*.*.{escape(name)}.>"]) for name in agents}
    for (one, mine), (other, theirs) in combinations(found.items(), 2):
        for pattern in mine:
            if any(overlap(pattern, each) for each in theirs):
                raise InterestsOverlap(one, other, pattern)
    return found


class CommandConsumers:
    """The consumers of a runtime's agents. Start the consumers after the runtime, and close them before it. Bound to
    one event loop.

    Only ``agents`` get commands from NATS; ``None`` means all of them. ``interests`` replaces an agent's patterns.
    While this home does not own an agent (``owning``), no commands are taken for it. ``stop`` is for tests.

    Raises:
        InterestsOverlap: two agents subscribe to the same commands.
    """

    def __init__(
        self,
        runtime: Runtime,
        sessions: Sessions,
        settings: PullSettings | None = None,
        *,
        agents: Sequence[str] | None = None,
        interests: Mapping[str, Sequence[str]] | None = None,
        owning: Owning | None = None,
        calls: RemoteCalls | None = None,
        stop: Stop = never,
    ) -> None:
        self._consumers = [
            _AgentConsumer(runtime, sessions, name, patterns, settings or PullSettings(), owning, calls, stop)
            for name, patterns in interests_of(list(runtime.engines) if agents is None else agents, interests).items()
        ]

    def start(self) -> None:
        """Start in the background. Consumers and streams are created once the server is reachable."""
        for consumer in self._consumers:
            consumer.start()

    async def close(self) -> None:
        """Accept no more commands, and finish the commands that are being handled. Idempotent.

        Commands that are not done after ``CLOSE_SECONDS`` will be delivered again.
        """
        await asyncio.gather(*(consumer.close() for consumer in self._consumers))

    @property
    def is_busy(self) -> bool:
        return any(consumer.is_busy for consumer in self._consumers)

    def status(self) -> list[dict[str, Any]]:
        """For each consumer: ``agent``, ``consumer``, ``subjects``, ``ready`` (the consumer exists on the server),
        ``waiting`` (messages that the server had at its last delivery, and those that arrived before the log was
        read), ``in_flight``, ``counts`` and ``problem`` (why no commands arrive; empty while they can).

        ``counts``: ``delivered``, ``done``, ``again``, ``poison``, ``handled``, ``duplicate``, ``refused``, ``dead``,
        ``undecodable``, and the notes of ``arriving.ArrivedCommand``.
        """
        return [consumer.status() for consumer in self._consumers]


class _AgentConsumer:
    def __init__(
        self,
        runtime: Runtime,
        sessions: Sessions,
        agent: str,
        patterns: Sequence[str],
        settings: PullSettings,
        owning: Owning | None,
        calls: RemoteCalls | None,
        stop: Stop,
    ) -> None:
        self._calls = calls
        self._runtime, self._sessions, self._agent, self._owning = runtime, sessions, agent, owning
        self._patterns, self._settings, self._stop = tuple(patterns), settings, stop
        self._name = consumer_name(agent)
        self._counts: Counter[str] = Counter()
        self._early = 0
        """How many messages wait until the runtime knows every chain of the log."""
        self._task: asyncio.Task[None] | None = None
        self._loop = self._new_loop()

    def _new_loop(self) -> PullLoop:
        settings = self._settings
        definition = ConsumerDefinition(
            self._name,
            self._patterns,
            ack_wait_s=settings.ack_wait_s,
            max_ack_pending=max(1024, settings.max_inflight),
        )
        streams = [each for each in wanted() if each.name in (COMMANDS, DEAD)]
        answered: Callable[[PulledMessage], None] = lambda pulled: self._stop("after-ack")  # noqa: E731
        # Switch off the loop's own limit, because this class decides when to give up: while the agent is broken, a
        # redelivery must not make the command a dead letter.
        unlimited = replace(settings, attempts=_UNLIMITED)
        return PullLoop(
            self._sessions, COMMANDS, definition, self._handle, unlimited, definitions=streams, answered=answered
        )

    def start(self) -> None:
        """Take commands whenever this home owns the agent. What is being handled when it loses the agent is delivered
        again, to the next owner.
        """
        take = self._take if self._owning is None else partial(self._owning.while_held, self._agent, self._take)
        self._task = asyncio.create_task(take())

    async def _take(self) -> None:
        self._counts += self._loop.counts
        self._loop = self._new_loop()
        doorbell = asyncio.create_task(self._doorbell().run())
        try:
            await self._loop.run()
        finally:
            doorbell.cancel()
            await asyncio.gather(doorbell, return_exceptions=True)

    def _doorbell(self) -> PullLoop:
        """Takes the wakeups away. A pull for commands is always open, so a wakeup has nothing to wake, and one that is
        lost, late or doubled changes nothing.
        """
        pattern = f"cg.{escape(PROTOCOL_VERSION)}.*.*.cmd.agent.{escape(self._agent)}.{WAKEUP}"
        name = f"{escape(self._agent)}_doorbell"
        return PullLoop(
            self._sessions,
            L0_COMMANDS,
            ConsumerDefinition(name, (pattern,)),
            _heard,
            bury=burying(self._sessions, name),
            definitions=[each for each in wanted() if each.name in (L0_COMMANDS, DEAD)],
        )

    async def close(self) -> None:
        if self._task is None:
            return
        self._loop.finish()
        if self._owning is not None and not self._owning.holds(self._agent):
            self._task.cancel()
        await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def status(self) -> dict[str, Any]:
        refusal = self._owning.refusal(self._agent) if self._owning is not None else ""
        return {
            "agent": self._agent,
            "consumer": self._name,
            "subjects": list(self._patterns),
            "ready": self._loop.is_ready,
            "waiting": self._loop.pending + self._early,
            "in_flight": self._loop.working - self._early,
            "counts": dict(sorted((self._loop.counts + self._counts).items())),
            "problem": refusal or self._loop.problem or self._runtime.problem,
        }

    @property
    def is_busy(self) -> bool:
        return self._loop.working > 0

    # --- one message ---

    async def _handle(self, pulled: PulledMessage) -> Outcome:
        self._stop("pulled")
        outcome = await self._outcome(pulled)
        self._stop("before-ack")
        return outcome

    async def _outcome(self, pulled: PulledMessage) -> Outcome:
        if not self._runtime.is_known:
            self._early += 1
            try:
                await self._runtime.until_known()
            finally:
                self._early -= 1
        try:
            arrived = read_command(
                pulled.subject,
                pulled.headers,
                pulled.body,
                stream=pulled.stream,
                sequence=pulled.sequence,
                recorded=self._runtime.chain,
                limit=self._runtime.max_depth,
            )
        except Undecodable as error:
            self._counts["undecodable"] += 1
            return await self._bury(pulled, None, error.reason)
        if pulled.count == 1:
            self._counts.update(arrived.notes)
        if pulled.count > GIVE_UP_DELIVERIES:
            return await self._bury(pulled, arrived, f"delivered {pulled.count} times without an answer")
        if arrived.type.startswith(INBOX):
            return await self._inbox(pulled, arrived)
        while True:
            try:
                handled = await self._runtime.command(self._agent, _command_of(arrived))
            except InputRefused as error:
                return await self._bury(pulled, arrived, error.reason, error.code)
            except StreamError:
                await asyncio.sleep(PAUSE_SECONDS)  # the log cannot be used now; try again
            except NotOwner:
                return Again(PAUSE_SECONDS)
            except AgentFailed as error:
                return await self._failed(pulled, arrived, error.reason)
            except Exception as error:
                log.exception("a command for %s could not be handled", self._agent)
                return await self._failed(pulled, arrived, type(error).__name__)
            else:
                self._counts["handled" if handled.outcome == "done" else handled.outcome] += 1
                return Done()

    async def _inbox(self, pulled: PulledMessage, arrived: ArrivedCommand) -> Outcome:
        """Take a message of the agent's inbox, which the runtime handles and the agent never sees."""
        while True:
            if self._owning is not None and not self._owning.holds(self._agent):
                return Again(PAUSE_SECONDS)
            try:
                if arrived.type == STOP:
                    worth = await self._end_turn(arrived)
                elif arrived.type == REPORT and self._calls is not None:
                    session = await self._sessions.get()
                    worth = await self._calls.take(self._agent, arrived, known_headers(pulled.headers), session)
                else:
                    return await self._bury(pulled, arrived, "the inbox takes no messages of this type", "no-inbox")
            except PayloadError as error:
                return await self._bury(pulled, arrived, str(error), error.code)
            except NotOwner:
                return Again(PAUSE_SECONDS)
            except StreamError:
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._counts["inbox" if worth == "accepted" else worth] += 1
                return Done()

    async def _end_turn(self, arrived: ArrivedCommand) -> str:
        asked = StopTurn.parse(arrived.payload)
        turn = asked.agent_turn_id
        if asked.agent_id != self._agent or not await self._runtime.stop(
            self._agent, turn, asked.turn_epoch, _command_of(arrived)
        ):
            return "unknown-turn"
        if self._calls is not None:
            await self._calls.cancel(self._agent, turn)
        return "accepted"

    async def _failed(self, pulled: PulledMessage, arrived: ArrivedCommand, reason: str) -> Outcome:
        if self._runtime.engines[self._agent].is_broken:
            # The agent is broken, not the command, so let its commands wait until the agent works again.
            return Again(self._settings.longest_backoff_s)
        if pulled.count < self._settings.attempts:
            return Again(self._settings.backoff(pulled.count))
        return await self._bury(pulled, arrived, reason, "agent-failed")

    # --- dead letters ---

    async def _bury(
        self, pulled: PulledMessage, arrived: ArrivedCommand | None, reason: str, code: str = Undecodable.code
    ) -> Outcome:
        key = f"{pulled.stream}:{pulled.sequence}:{digest(pulled.body)}"
        about: dict[str, Any] = {
            "code": code,
            "subject": pulled.subject,
            "attempts": pulled.count,
            "headers": dict(list(pulled.headers.items())[:MAX_HEADERS]),
        }
        while True:
            try:
                if arrived is not None:
                    try:
                        record = await self._runtime.bury(self._agent, _command_of(arrived), reason, about, key=key)
                        break
                    except InputRefused:
                        pass  # the command does not match the envelope, so only its text can be kept
                as_text = about | _kept_body(pulled.body)
                command = Command(f"message:{key}", UNDECODABLE, {})
                record = await self._runtime.bury(self._agent, command, reason, as_text, key=key)
                break
            except StreamError:
                await asyncio.sleep(PAUSE_SECONDS)
        self._stop("before-publish")
        try:
            await self._copy(pulled, reason, record.event.id, is_known=record.duplicate)
        except NatsError as error:
            log.warning("the dead letter of %s is in the log, but not on the server yet: %s", pulled.subject, error)
            return Again(self._settings.backoff(pulled.count))
        self._stop("after-publish")
        if not record.duplicate:
            self._counts["dead"] += 1
        return Poison(reason)

    async def _copy(self, pulled: PulledMessage, reason: str, letter: str, *, is_known: bool) -> None:
        session = await self._sessions.get()
        copy = copy_of_dead(session, pulled, self._name, reason, **{DEAD_LETTER: letter})
        if is_known:
            # Look for an earlier copy, because the server forgets message ids after a while.
            try:
                async for found in read_back(session, DEAD, subject=copy.subject):
                    if found.headers.get(DEAD_LETTER) == letter:
                        return
            except NotFound:
                pass
        await publish(session, copy)


async def _heard(pulled: PulledMessage) -> Outcome:
    try:
        Wakeup.decode(pulled.body)
    except PayloadError as error:
        return Poison(str(error))
    return Done()


def _command_of(arrived: ArrivedCommand) -> Command:
    decision = arrived.decision
    refusal = Refusal(decision.verdict, decision.reason, arrived.depth) if arrived.is_violation else None
    return Command(
        arrived.key,
        arrived.type,
        arrived.payload,
        actor=arrived.actor,
        sender=arrived.sender,
        depth=arrived.depth or 0,
        correlation_id=arrived.correlation_id,
        causation_id=arrived.causation_id,
        traceparent=arrived.traceparent,
        ts=arrived.ts,
        metadata=arrived.metadata,
        refusal=refusal,
    )


def _kept_body(body: bytes) -> dict[str, Any]:
    kept = body[:KEPT_BODY]
    try:
        text = {"body": kept.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError as error:
        if error.end == len(kept) < len(body) and error.start >= len(kept) - 3:
            text = {"body": kept[: error.start].decode(), "encoding": "utf-8"}  # the limit cut a character in half
        else:
            text = {"body": base64.b64encode(kept).decode(), "encoding": "base64"}
    return {**text, "size": len(body)}
