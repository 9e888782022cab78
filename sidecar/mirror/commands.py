"""Takes commands from the bus, through one subscription for each agent of this home.

A command is done once its results are durable in the log. A command that can never be handled becomes a dead letter: it
is recorded in the log, and then the bus stores a copy and removes the command. Each step has a key, so nothing is
repeated if the process is killed between two steps.

An agent's failure counts as an attempt; after the last attempt, the command becomes a dead letter. While the log cannot
be written, a command waits, because an outage must not turn commands into dead letters.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from bridge.nats.l0.arriving import Undecodable, known_headers, read_command
from bridge.nats.l0.calls import REPORT, STOP
from bridge.nats.l0.payloads import PayloadError, Wakeup
from bridge.nats.l0.payloads import Stop as StopTurn
from bridge.nats.subjects import PROTOCOL_VERSION, WAKEUP, agent_pattern, consumer_name, escape
from sidecar.agents.deciding import AgentFailed, Handled
from sidecar.agents.engine import Engine
from sidecar.agents.inputs import InputRefused, digest
from sidecar.agents.owner import NotOwner
from sidecar.agents.runtime import Runtime
from sidecar.mirror.calling import RemoteCalls
from sidecar.mirror.owning import Owning
from streams.bus.command import Command
from streams.bus.contract import Again, Delivery, Done, EventBus, Outcome, Poison
from streams.bus.headers import MAX_HEADERS
from streams.errors import StreamError
from streams.store import Record
from streams.trace import Chain

log = logging.getLogger("sidecar.mirror")

GIVE_UP_DELIVERIES: Final = 100
"""A message delivered this many times without any answer probably kills the process each time, so it becomes a dead
letter."""

PAUSE_SECONDS: Final = 1.0
"""How long a command waits before writing to the log is retried."""

CLOSE_SECONDS: Final = 5.0
"""How long ``close`` waits for commands that are being handled."""

LONGEST_BODY: Final = 64 * 1024
"""How much of an undecodable message the log keeps, in bytes."""


UNDECODABLE: Final = "command.undecodable"
"""The type of a dead letter that is not a command."""

INBOX: Final = "inbox."

DEAD_LETTER: Final = "DS-Dead-Letter"
"""The header of a dead letter's copy that holds the id of the dead letter's record in the log."""


class Commanded(Protocol):
    """What handles commands: a runtime, or what stands for one that may be away."""

    max_depth: int

    @property
    def problem(self) -> str: ...
    @property
    def engines(self) -> Mapping[str, Engine]: ...
    @property
    def is_known(self) -> bool: ...
    async def until_known(self) -> None: ...
    async def command(self, agent: str, command: Command) -> Handled: ...
    async def stop(self, agent: str, turn: str, epoch: int, command: Command) -> bool: ...
    async def bury(self, agent: str, command: Command, reason: str, about: dict[str, Any], *, key: str) -> Record: ...
    def chain(self, correlation_id: str) -> Chain | None: ...


class CommandConsumers:
    """The subscriptions of a runtime's agents. Start them after the runtime, and close them before it. Bound to one
    event loop.

    Only ``agents`` get commands; ``None`` means all of them. While this home does not own an agent (``owning``), no
    commands are taken for it.
    """

    def __init__(
        self,
        runtime: Runtime,
        bus: EventBus,
        *,
        agents: Sequence[str] | None = None,
        owning: Owning | None = None,
        calls: RemoteCalls | None = None,
    ) -> None:
        names = list(runtime.engines) if agents is None else agents
        self._consumers = [_AgentConsumer(runtime, bus, name, owning, calls) for name in names]

    def add(self, team: Commanded, bus: EventBus, agents: Sequence[str]) -> None:
        """Take commands for agents of the team, too, which every home does: whichever gets one handles it."""
        self._consumers += [_AgentConsumer(team, bus, name, None, None, is_shared=True) for name in agents]

    def start(self) -> None:
        """Start in the background."""
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
        """For each agent: ``agent``, ``consumer``, ``subjects``, ``ready`` (the consumer exists on the server),
        ``waiting`` (messages that the queue had at its last delivery, and those that arrived before the log was
        read), ``in_flight``, ``counts`` and ``problem`` (why no commands arrive; empty while they can).

        ``counts``: those of the subscription, ``handled``, ``duplicate``, ``refused``, ``dead``, ``undecodable``, and
        the notes of ``arriving.read_command``.
        """
        return [consumer.status() for consumer in self._consumers]


class _AgentConsumer:
    def __init__(
        self,
        runtime: Commanded,
        bus: EventBus,
        agent: str,
        owning: Owning | None,
        calls: RemoteCalls | None,
        *,
        is_shared: bool = False,
    ) -> None:
        self._runtime, self._agent, self._owning, self._calls = runtime, agent, owning, calls
        self._retry = bus.retry
        self._counts: Counter[str] = Counter()
        self._early = 0
        """How many messages wait until the runtime knows every chain of the log."""
        self._task: asyncio.Task[None] | None = None
        self._name, name = consumer_name(agent), escape(agent)
        self._pattern = agent_pattern(agent)
        # The bus must not give up by itself: while the agent is broken, its commands wait.
        retry = replace(bus.retry, attempts=None)
        self._commands = bus.subscribe(self._name, [self._pattern], self._handle, retry, exclusive=not is_shared)
        # The subscription for commands is always open, so a wakeup has nothing to wake, and is only taken away. One
        # that is lost, late or doubled changes nothing.
        wakeups = f"cg.{escape(PROTOCOL_VERSION)}.*.*.cmd.agent.{name}.{WAKEUP}"
        self._doorbell = bus.subscribe(f"{name}_doorbell", [wakeups], self._heard)

    def start(self) -> None:
        """Take commands whenever this home owns the agent. What is being handled when it loses the agent is delivered
        again, to the next owner.
        """
        take = self._take if self._owning is None else partial(self._owning.while_owned, self._agent, self._take)
        self._task = asyncio.create_task(take())

    async def _take(self) -> None:
        doorbell = asyncio.create_task(self._doorbell.run())
        try:
            await self._commands.run()
        finally:
            doorbell.cancel()
            await asyncio.gather(doorbell, return_exceptions=True)

    async def close(self) -> None:
        if self._task is None:
            return
        self._commands.finish()
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
            "subjects": [self._pattern],
            "ready": self._commands.is_ready,
            "waiting": self._commands.pending + self._early,
            "in_flight": self._commands.working - self._early,
            "counts": dict(sorted((self._commands.counts + self._counts).items())),
            "problem": refusal or self._commands.problem or self._runtime.problem,
        }

    @property
    def is_busy(self) -> bool:
        return self._commands.working > 0

    # --- one message ---

    async def _handle(self, delivery: Delivery) -> Outcome:
        if not self._runtime.is_known:
            self._early += 1
            try:
                await self._runtime.until_known()
            finally:
                self._early -= 1
        try:
            command, notes = read_command(
                delivery.subject,
                delivery.headers,
                delivery.body,
                stream=delivery.stream,
                sequence=delivery.sequence,
                recorded=self._runtime.chain,
                limit=self._runtime.max_depth,
            )
        except Undecodable as error:
            self._counts["undecodable"] += 1
            return await self._bury(delivery, None, error.reason)
        if delivery.attempt == 1:
            self._counts.update(notes)
        if delivery.attempt > GIVE_UP_DELIVERIES:
            return await self._bury(delivery, command, f"delivered {delivery.attempt} times without an answer")
        if command.type.startswith(INBOX):
            return await self._inbox(delivery, command)
        while True:
            try:
                handled = await self._runtime.command(self._agent, command)
            except InputRefused as error:
                return await self._bury(delivery, command, error.reason, error.code)
            except StreamError:
                await asyncio.sleep(PAUSE_SECONDS)  # the log cannot be used now; try again
            except NotOwner:
                return Again(PAUSE_SECONDS)
            except AgentFailed as error:
                return await self._failed(delivery, command, error.reason)
            except Exception as error:
                log.exception("a command for %s could not be handled", self._agent)
                return await self._failed(delivery, command, type(error).__name__)
            else:
                self._counts["handled" if handled.outcome == "done" else handled.outcome] += 1
                return Done()

    async def _inbox(self, delivery: Delivery, command: Command) -> Outcome:
        """Take a message of the agent's inbox, which the runtime handles and the agent never sees."""
        while True:
            if self._owning is not None and not self._owning.holds(self._agent):
                return Again(PAUSE_SECONDS)
            try:
                if command.type == STOP:
                    worth = await self._end_turn(command)
                elif command.type == REPORT and self._calls is not None:
                    worth = await self._calls.take(self._agent, command, known_headers(delivery.headers))
                else:
                    return await self._bury(delivery, command, "the inbox takes no messages of this type", "no-inbox")
            except PayloadError as error:
                return await self._bury(delivery, command, str(error), error.code)
            except NotOwner:
                return Again(PAUSE_SECONDS)
            except StreamError:
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._counts["inbox" if worth == "accepted" else worth] += 1
                return Done()

    async def _end_turn(self, command: Command) -> str:
        asked = StopTurn.parse(command.payload)
        is_ours = asked.agent_id == self._agent and await self._runtime.stop(
            self._agent, asked.agent_turn_id, asked.turn_epoch, command
        )
        return "accepted" if is_ours else "unknown-turn"

    async def _failed(self, delivery: Delivery, command: Command, reason: str) -> Outcome:
        engine = self._runtime.engines.get(self._agent)
        if engine is None or engine.is_broken:
            # The agent is broken, not the command, so let its commands wait until the agent works again.
            return Again(self._retry.longest_s)
        if not self._retry.is_last(delivery.attempt):
            return Again()
        return await self._bury(delivery, command, reason, "agent-failed")

    # --- dead letters ---

    async def _bury(
        self, delivery: Delivery, command: Command | None, reason: str, code: str = Undecodable.code
    ) -> Outcome:
        poison = await recorded(self._runtime, self._agent, delivery, reason, command, code)
        if not poison.is_known:
            self._counts["dead"] += 1
        return poison

    async def _heard(self, delivery: Delivery) -> Outcome:
        try:
            Wakeup.decode(delivery.body)
        except PayloadError as error:
            return await self._bury(delivery, None, str(error))
        return Done()


async def recorded(
    runtime: Commanded,
    name: str,
    delivery: Delivery,
    reason: str,
    command: Command | None = None,
    code: str = Undecodable.code,
) -> Poison:
    """Record a message that ``name`` cannot handle as a dead letter, as soon as the log can be written.

    ``command`` is the message, if it could be read. Otherwise the log keeps the beginning of its body.
    """
    key = f"{delivery.stream}:{delivery.sequence}:{digest(delivery.body)}"
    about: dict[str, Any] = {
        "code": code,
        "subject": delivery.subject,
        "attempts": delivery.attempt,
        "headers": dict(list(delivery.headers.items())[:MAX_HEADERS]),
    }
    while True:
        try:
            if command is not None:
                try:
                    record = await runtime.bury(name, command, reason, about, key=key)
                    break
                except InputRefused:
                    pass  # the command does not match the envelope, so only its text can be recorded
            message = Command(f"message:{key}", UNDECODABLE, {})
            record = await runtime.bury(name, message, reason, about | _kept_body(delivery.body), key=key)
            break
        except StreamError:
            await asyncio.sleep(PAUSE_SECONDS)
    return Poison(reason, {DEAD_LETTER: record.event.id}, is_known=record.duplicate)


def _kept_body(body: bytes) -> dict[str, Any]:
    beginning = body[:LONGEST_BODY]
    try:
        text = {"body": beginning.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError as error:
        if error.end == len(beginning) < len(body) and error.start >= len(beginning) - 3:
            text = {"body": beginning[: error.start].decode(), "encoding": "utf-8"}  # the limit cut a character in half
        else:
            text = {"body": base64.b64encode(beginning).decode(), "encoding": "base64"}
    return {**text, "size": len(body)}
