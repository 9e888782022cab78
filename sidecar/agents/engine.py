"""The engine of one agent: handles each input exactly once, and records its results in one batch.

For each input, the engine looks up the key, calls ``receive``, calls ``apply`` for the outputs, and appends one batch
with the input, the outputs and the hash of the new state. When the batch is durable, the engine answers. Inputs that
are waiting together share one batch.

``apply`` runs before the commit, so that the next input of the same batch sees the new state, and so that an agent that
cannot apply its own output fails before anything is recorded. Nothing leaves the engine before the commit. If the
commit fails, the engine re-reads the agent's state from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sidecar.agents.agent import RESERVED, Agent, HealthStatus, health_of
from sidecar.agents.chains import depth_of
from sidecar.agents.deciding import AgentFailed, Decider, Handled
from sidecar.agents.effects.policy import DEFAULT_POLICY, EffectPolicy
from sidecar.agents.history import History, HistoryBroken, hinted
from sidecar.agents.inputs import (
    MAX_DEPTH,
    Input,
    InputRefused,
    Outbox,
    agent_stream,
    command_input,
    installed,
    log_input,
    owned,
    stopped,
)
from sidecar.agents.metrics import Count, uncounted
from sidecar.agents.owner import ALONE, NotOwner, Owner
from sidecar.agents.stops import Stop, never
from streams.bus.command import Command
from streams.errors import Conflict, OffsetConflict, StreamError
from streams.event import StreamEvent
from streams.identity import Identity
from streams.store import NOTHING, Record, StreamStore

log = logging.getLogger("sidecar.agents")

MAX_GROUP: Final = 64
"""Maximum number of inputs in one batch."""

MAX_EVENTS: Final = 300
"""A batch with this many events accepts no more inputs; one input adds at most 201, and a batch holds 512."""

MAX_WAITING: Final = 1024
"""Maximum number of waiting inputs; ``submit`` and ``offer`` wait for room."""

SNAPSHOT_RECORDS: Final = 1000

PAUSE_SECONDS: Final = 1.0
"""How many seconds inputs from the log wait before a failed write to the log is retried."""


class _Waiting(NamedTuple):
    input: Input
    future: asyncio.Future[Handled]
    since: float
    """When the engine got the input, on the clock of the event loop."""


class Engine:
    """Runs one agent over a store. Call ``start`` first. Bound to one event loop.

    Two engines may run the same agent over one store: the engine whose commit comes second reads what the first engine
    recorded, and decides again. With ``others_write``, engines of other processes do; ``saw`` then keeps this one's
    state level with what they record.
    """

    def __init__(
        self,
        agent: Agent,
        store: StreamStore,
        identity: Identity,
        *,
        clean: Callable[[Any], Any] = lambda value: value,
        policy: EffectPolicy = DEFAULT_POLICY,
        is_local: Callable[[str], bool] = lambda name: False,
        max_depth: int = MAX_DEPTH,
        count: Count = uncounted,
        owner: Owner = ALONE,
        stop: Stop = never,
        others_write: bool = False,
    ) -> None:
        self.agent, self.name = agent, agent.name
        self._owner = owner
        self.position = NOTHING
        """The position in the log of the last event that this agent has finished."""
        self.last_error = ""
        self._log_error = ""
        """What was last wrong with the log itself."""
        self.is_broken = False
        """True if the agent can no longer apply its own history."""
        self._from_log = 0
        self._passed = NOTHING
        self._ignored = 0
        self._store, self._identity, self._clean = store, identity, clean
        self._count, self._stop = count, stop
        self._outbox = Outbox(agent.name, identity, clean, policy, is_local, max_depth)
        self._others_write = others_write
        self._history = History(agent, store, others_write)
        self.turns = self._history.turns
        self._decider = Decider(
            agent, store, self._outbox, self._restore_with, self.turns, max_depth=max_depth, stop=stop
        )
        self.max_depth = max_depth
        self._is_stale = False
        self._waiting: deque[_Waiting] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._deciding = asyncio.Lock()
        """Held by whoever reads or changes the agent's state, which may have to be restored from the log first."""
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._is_at_rest = False
        """Whether every input has been answered, so that the agent's state equals the state in the log."""

    # --- start and stop ---

    async def start(self) -> None:
        """Restore the state from the log and begin to handle inputs. A new agent sees only later events.

        Raises:
            StreamError: the log cannot be read or written.
        """
        await self._restore()
        if self._history.next == 0 and not self.agent.begins_anywhere:
            # Record where the agent begins, so that a crash before its first input does not move that point.
            await self.add(installed(self.name, self._store.head, self._identity))
            await self._restore()
        self.position = max(self.position, await self._store.cursor(self._history.cursor))
        if self._history.next == 0 and not self._history.has_begun:
            # A crash before a new agent's first record must not move the position at which the agent begins. A snapshot
            # can say that this is before the first record of the log; a cursor cannot.
            self.position = self._store.head if self.position == NOTHING else self.position
            with hinted(f"the beginning of agent {self.name}"):
                await self._history.put_snapshot(self.position, self.position)
                await self._store.write_hints()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Handle the waiting inputs, keep a snapshot, and stop. Idempotent."""
        if self._task is None:
            return
        self._closing = True
        self._news.set()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        for waiting in self._waiting:
            waiting.future.cancel()
        await self._keep_snapshot()
        await self.keep_place()

    def health(self) -> HealthStatus:
        """The agent's health; ``FAILED`` if its own history cannot be applied, ``DEGRADED`` after an error."""
        if self.is_broken:
            return HealthStatus("FAILED", (self.last_error,))
        return health_of(self.agent, self._owner.refusal(self.name) or self.last_error)

    @property
    def handled(self) -> int:
        """How many inputs this agent has handled in its life, as far as they are in the log."""
        return self._history.handled

    def settled(self, reason: str) -> None:
        """Forget the last error, if it is the one that made a dead letter which a person has settled."""
        if self.last_error in (reason, str(AgentFailed(self.name, reason))[:300]):
            self.last_error = ""

    @property
    def is_owned(self) -> bool:
        """Whether this home owns the agent. While it does not, the agent takes no input."""
        return self._owner.holds(self.name)

    async def stop(self, turn: str, epoch: int, command: Command) -> bool:
        """End an open turn; what it still leads to is refused. True also if it was stopped before, false if no turn of
        this epoch is open.

        Raises:
            NotOwner: another home owns the agent, or may own it.
            StreamError: the log cannot be written.
        """
        async with self._deciding:
            self._check_owner()
            if self._history.next < 0 or self._others_write:
                await self._restore()
            turns = self.turns
            if epoch != turns.epoch or not turns.is_open(turn):
                return epoch == turns.epoch and turns.was_stopped(turn)
            event = stopped(self.name, turn, command, self._history.next, self._identity)
            turns.apply((await self.add(event)).event)
            return True

    async def own(self, epoch: int) -> None:
        """Record once an epoch that this home took the agent. What was decided before is decided again, because the
        record takes its place in the agent's stream.

        Raises:
            StreamError: the log cannot be written.
        """
        try:
            record = await self.add(owned(self.name, epoch, self._identity))
        finally:
            self.reload()
        self.turns.apply(record.event)

    async def add(self, event: StreamEvent) -> Record:
        """Record an event in the agent's stream beside its inputs. Raises ``StreamError``."""
        try:
            return (await self._store.append([event], on_known="keep_first"))[0]
        finally:
            self._history.next = -1  # the engine must read the stream again

    @property
    def is_whole(self) -> bool:
        """Whether the agent's state is that of some moment, and not one that is being read."""
        return self._history.is_whole

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._from_log

    def passed(self, position: int) -> None:
        """Remember that no event up to ``position`` is for this agent, except events that are being handled."""
        self._passed = position
        if self._ignored:
            self._count("received", self.name, self._ignored)
            self._ignored = 0
        if not self._from_log and not self.is_broken:
            self.position = max(self.position, position)

    async def keep_place(self) -> None:
        """Store a hint of the agent's position in the log, so that a restart need not read the records before it."""
        if self.position > NOTHING:
            with hinted(f"the position of agent {self.name}"):
                await self._store.advance(self._history.cursor, self.position)

    # --- inputs ---

    async def command(self, command: Command) -> Handled:
        """Handle a command; returns when its results are durable. Cancelling ends only the wait.

        Types with a reserved prefix are refused, because a command must not pass for a record of the runtime.

        Raises:
            InputRefused: the input can never be handled.
            NotOwner: another home owns the agent, or may own it.
            AgentFailed: the agent could not handle the command now.
            StreamError: the log cannot be written; nothing was recorded.
        """
        self._check_owner()
        if command.type.startswith(RESERVED):
            raise InputRefused(
                "reserved-type", f"the type prefix of {command.type[:80]} is reserved; use another prefix"
            )
        given = command_input(self.name, command, self._identity, self._clean)
        return await (await self._enqueue(given))

    def ignores(self, event: StreamEvent) -> bool:
        """Whether the agent has nothing to do for an event of the log. Also false if only the queue can decide, for
        example while earlier inputs are waiting.

        Most events that an agent lists concern sessions that it does not know, and ``receive`` costs much less than
        the queue.
        """
        if self.turns.awaits(event) or self.turns.refuses(event):
            return False
        if self._waiting or not self._is_at_rest or self.is_broken or self._history.next < 0 or self._history.is_behind:
            return False
        if depth_of(event) >= self.max_depth:
            return False  # the queue records the refusal
        try:
            outputs = self.agent.receive(event)
        except Exception:  # noqa: BLE001 - the queue handles the event again, and records the failure
            return False
        return not outputs

    def count_ignored(self) -> None:
        self._ignored += 1

    async def offer(self, record: Record) -> asyncio.Future[Handled]:
        """Hand in an event of the log, in log order. Waits for room. The returned future yields the outcome of the
        event."""
        self._from_log += 1
        has_record = self.agent.has_turns
        given = log_input(self.name, record.event, record.position, self._identity, has_record=has_record)
        return await self._enqueue(given)

    async def again(self, record: Record, key: str) -> Handled:
        """Handle an event of the log once more, under another key; returns when the results are durable.

        Raises:
            AgentFailed: the agent failed again.
            StreamError: the log cannot be written.
        """
        given = log_input(self.name, record.event, record.position, self._identity, key=key)
        return await (await self._enqueue(replace(given, position=None)))

    def _check_owner(self) -> None:
        if not self.is_owned:
            raise NotOwner(self.name, self._owner.refusal(self.name))

    async def _enqueue(self, given: Input) -> asyncio.Future[Handled]:
        while len(self._waiting) >= MAX_WAITING and not self._closing:
            self._room.clear()
            await self._room.wait()
        future: asyncio.Future[Handled] = asyncio.get_running_loop().create_future()
        # Retrieve the error even if nobody awaits the future any more. It is also in ``last_error``.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append(_Waiting(given, future, asyncio.get_running_loop().time()))
        self._news.set()
        return future

    def saw(self, record: Record) -> None:
        """Note a record of the agent's stream, in the order of the log. No later event is decided without it."""
        self._history.saw(record.offset)
        if self._history.is_behind:
            self._news.set()

    def reload(self) -> None:
        """Read the state again before the next input, because payloads were forgotten. Until then there is no
        snapshot, which would keep them."""
        self._is_stale = True
        self._history.forget_before()
        self._news.set()

    # --- the loop ---

    async def _run(self) -> None:
        while True:
            if self._is_stale or self._history.is_behind:
                is_stale, self._is_stale = self._is_stale, False
                async with self._deciding:
                    await (self._restore_or_break() if is_stale else self._catch_up())
            if not self._waiting:
                if self._closing:
                    return
                self._news.clear()
                self._is_at_rest = True
                await self._news.wait()
                self._is_at_rest = False
                continue
            group = [self._waiting.popleft() for _ in range(min(MAX_GROUP, len(self._waiting)))]
            self._room.set()
            async with self._deciding:
                await self._decide(group)

    async def _decide(self, group: list[_Waiting]) -> None:
        try:
            left = await self._handle(group)
            self._waiting.extendleft(reversed(left))
        except NotOwner as error:
            self._let_go(group, error)
            await self._restore_or_break()
        except Conflict as error:
            # Another engine recorded something for this agent, so read those records and decide again.
            self._waiting.extendleft(reversed(group))
            if isinstance(error, OffsetConflict) and error.actual < error.expected:
                self._history.forget_before()  # the log lost records, so the state is of records that are gone
            await self._restore_or_break()
            try:
                await self._decider.note_removed(error)
            except StreamError as failed:
                self.last_error = str(failed)[:300]
        except StreamError as error:
            await self._wait_for_the_log(group, error)
        except Exception as error:
            log.exception("the engine of agent %s failed", self.name)
            self._fail(group, AgentFailed(self.name, f"{type(error).__name__} in the engine; see sidecar.log"))
            self.is_broken = True

    async def _wait_for_the_log(self, group: list[_Waiting], error: StreamError) -> None:
        self._log_error = str(error)[:300]
        self._fail([waiting for waiting in group if waiting.input.position is None], error)
        self._waiting.extendleft(reversed([waiting for waiting in group if waiting.input.position is not None]))
        if self._closing:
            self._waiting.clear()
            return
        await asyncio.sleep(PAUSE_SECONDS)
        await self._restore_or_break()

    def _let_go(self, group: list[_Waiting], error: NotOwner) -> None:
        """Drop every input. The log's events are handed in again when this home owns the agent."""
        left = [*group, *self._waiting]
        self._waiting.clear()
        self._fail([waiting for waiting in left if waiting.input.position is None], error)
        for waiting in left:
            waiting.future.cancel()
        self._from_log, self._passed, self.last_error = 0, self.position, ""
        self._room.set()

    def _fail(self, group: list[_Waiting], error: Exception) -> None:
        self.last_error = str(error)[:300]
        for waiting in group:
            self._from_log -= waiting.input.position is not None
            if not waiting.future.done():
                waiting.future.set_exception(error)

    async def _handle(self, group: list[_Waiting]) -> list[_Waiting]:
        if self.is_broken:
            self._fail(group, AgentFailed(self.name, self.last_error))
            return []
        self._check_owner()
        if self._history.next < 0:
            await self._restore()
        elif self._history.is_behind:
            await self._catch_up()
        self._history.remember(self.position)
        batch: list[StreamEvent] = []
        answers: list[tuple[_Waiting, Handled | Exception, int, int]] = []
        in_batch: dict[str, StreamEvent] = {}
        left: list[_Waiting] = []
        stored = await self._store.find_each([waiting.input.key for waiting in group])
        for at, waiting in enumerate(group):
            if len(batch) >= MAX_EVENTS:
                left = group[at:]
                break
            self._count("received", self.name, 1)
            first = len(batch)
            result: Handled | Exception
            try:
                outcome, events = await self._decider.decide(waiting.input, stored[at], in_batch, batch, self.position)
                batch += events
                in_batch |= {event.idempotency_key: event for event in events}
                result = Handled(outcome)
            except InputRefused as error:
                result = error
            except AgentFailed as error:
                result = error
                if waiting.input.position is not None:
                    letter = self._outbox.dead(waiting.input, error.reason, {})
                    is_known = await self._decider.is_known(letter.idempotency_key)
                    batch += [] if is_known else self.turns.mark(waiting.input, [letter])
                    self.last_error = str(error)[:300]
                    result = Handled("duplicate" if is_known else "dead")
            answers.append((waiting, result, first, len(batch)))
        records: list[Record] = []
        if batch:
            self._stop("before-commit")
            self._check_owner()
            started = asyncio.get_running_loop().time()
            records = await self._store.append(batch, expected={agent_stream(self.name): self._history.next})
            self._count("commit_seconds", self.name, asyncio.get_running_loop().time() - started)
            self._count("commit_events", self.name, len(batch))
            self._stop("after-commit")
            if records[-1].duplicate:
                # Another engine recorded the same input a moment ago, and perhaps earlier ones, so restore the state.
                answers = [
                    (waiting, Handled("duplicate") if isinstance(result, Handled) else result, 0, 0)
                    for waiting, result, _, _ in answers
                ]
                await self._restore_or_break()
            else:
                self._history.appended(records)
        self._answer(answers, records)
        if self._history.since_snapshot >= SNAPSHOT_RECORDS:
            await self._keep_snapshot()
        return left

    def _answer(self, answers: list[tuple[_Waiting, Handled | Exception, int, int]], records: list[Record]) -> None:
        for waiting, result, first, end in answers:
            if isinstance(result, Exception):
                self.last_error = str(result)[:300]
                self._count("failed", self.name, 1)
                if not waiting.future.done():
                    waiting.future.set_exception(result)
                continue
            if waiting.input.position is not None:
                self._from_log -= 1
                self.position = max(self.position, waiting.input.position, NOTHING if self._from_log else self._passed)
            if result.outcome == "dead":
                self._count("failed", self.name, 1)
                self._count("dead", self.name, 1)
            elif result.outcome == "duplicate":
                self._count("duplicate", self.name, 1)
                log.info("agent %s: %s is a duplicate and was not handled again", self.name, waiting.input.key[:80])
            elif result.outcome != "nothing":
                self._history.handled += 1
                self.last_error = ""
                self._count("processed", self.name, asyncio.get_running_loop().time() - waiting.since)
                self._count("emitted", self.name, max(end - first - waiting.input.has_record, 0))
            if not waiting.future.done():
                waiting.future.set_result(result._replace(records=tuple(records[first:end])))

    # --- state ---

    async def _restore_or_break(self) -> None:
        try:
            await self._restore()
            if self.last_error == self._log_error:
                self.last_error = ""
        except StreamError as error:
            self._history.next = -1
            self.last_error = self._log_error = str(error)[:300]
            if self._others_write:  # a log that is elsewhere comes back by itself
                asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._look_again)

    async def _catch_up(self) -> None:
        """Apply what other processes recorded. The state has nothing yet that is not in the log."""
        try:
            self.position = max(self.position, await self._history.catch_up())
        except (HistoryBroken, StreamError):
            await self._restore_or_break()

    def _look_again(self) -> None:
        self._is_stale = True
        self._news.set()

    async def _restore_with(self, batch: list[StreamEvent]) -> None:
        await self._restore()
        self._history.apply(batch)

    async def _restore(self) -> None:
        try:
            self.position = max(self.position, await self._history.restore())
        except HistoryBroken as error:
            self.is_broken, self.last_error = True, str(error)
        else:
            self.is_broken = False

    async def _keep_snapshot(self) -> None:
        if not (self.is_broken or self._is_stale):
            await self._history.keep_snapshot(self.position)
