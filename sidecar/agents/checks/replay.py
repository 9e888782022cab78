"""Replays an agent: gives its recorded inputs to a new agent, and compares the results with the log.

Nothing is written and no effect is run. A replay works with any reader, so it can also read the log of a stopped
sidecar.

For each input, the replay compares what ``receive`` returns (type and payload of each event, command and effect) and
the hash of the state after the input. The replay also compares the stored snapshot with the state at the snapshot's
offset. A replay ends at the first difference, because everything later depends on what differs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Literal, NamedTuple, Protocol

from sidecar.agents.agent import Agent, Output, decisions
from sidecar.agents.history import SNAPSHOT_VERSION
from sidecar.agents.inputs import APPLIED, RECEIVED, agent_stream, begins_group, state_hash
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.projection import KeepsSnapshots
from streams.store import Record, StreamReader

What = Literal["outputs", "state", "snapshot", "raised", "removed"]
"""What differs. ``removed``: a record that the replay needs was pruned or forgotten."""

SnapshotCheck = Literal["none", "equal", "differs"]

_SHOWN: Final = 300


class Reader(StreamReader, KeepsSnapshots, Protocol):
    """A log with its snapshots: a store, or a reader next to a running sidecar."""


class Difference(NamedTuple):
    """The first place where the replay and the log differ; ``offset`` is in the agent's stream."""

    offset: int
    what: What
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"offset {self.offset}: {self.what} differ: recorded {self.recorded}, replayed {self.replayed}"


class ReplayResult(NamedTuple):
    """How far a replay got, and what it found; ``difference`` is ``None`` if everything was equal."""

    agent: str
    inputs: int
    outputs: int
    offset: int
    """The last offset that was replayed; -1 if none was."""
    state: str
    """The hash of the state after that offset."""
    snapshot: SnapshotCheck
    difference: Difference | None

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "difference": self.difference and self.difference._asdict()}


class _Group(NamedTuple):
    """An input and the records that it led to. A group without an input does not change the state."""

    input: Record | None
    rest: list[Record]

    @property
    def last(self) -> Record:
        return self.rest[-1] if self.rest else self.input  # type: ignore[return-value]


async def replay(reader: Reader, agent: Agent, *, clean: Callable[[Any], Any] = lambda value: value) -> ReplayResult:
    """Replay an agent's stream from its beginning. ``clean`` must redact in the same way as the runtime.

    Raises:
        StreamError: the log cannot be read.
    """
    run = _Replay(reader, agent, clean)
    async for group in _groups(reader.read(agent_stream(agent.name))):
        if (difference := await run.group(group)) is not None:
            return run.result(difference)
        if (difference := await run.snapshot_at(group)) is not None:
            return run.result(difference)
    return run.result(None)


async def _groups(records: AsyncIterator[Record]) -> AsyncIterator[_Group]:
    group: _Group | None = None
    async for record in records:
        role, begins = record.event.metadata.get("role"), begins_group(record.event)
        if group is not None and not begins and role not in ("dead", "installed", "owned", "stopped"):
            group.rest.append(record)
            continue
        if group is not None:
            yield group
        group = _Group(record if begins else None, [] if role == "input" else [record])
    if group is not None:
        yield group


class _Replay:
    def __init__(self, reader: Reader, agent: Agent, clean: Callable[[Any], Any]) -> None:
        self._reader, self._agent, self._clean = reader, agent, clean
        self._inputs = self._outputs = 0
        self._offset = -1
        self._kept: tuple[int, bytes] | Literal["unread"] | None = "unread"
        self._snapshot: SnapshotCheck = "none"
        agent.load(None)

    def result(self, difference: Difference | None) -> ReplayResult:
        state = state_hash(self._agent.state())
        return ReplayResult(
            self._agent.name, self._inputs, self._outputs, self._offset, state, self._snapshot, difference
        )

    async def group(self, group: _Group) -> Difference | None:
        first = group.input or group.rest[0]
        if first.offset != self._offset + 1:
            return Difference(self._offset + 1, "removed", "the beginning of the stream was removed", "nothing")
        if group.input is not None and not _is_refused(group):
            if (difference := await self._input(group.input, group)) is not None:
                return difference
            self._inputs += 1
        self._offset = group.last.offset
        recorded = group.last.event.metadata.get("state")
        if isinstance(recorded, str) and recorded != (found := state_hash(self._agent.state())):
            return Difference(self._offset, "state", recorded, found)
        return None

    async def _input(self, given: Record, group: _Group) -> Difference | None:
        event = await self._given(given)
        if event is None or any(_is_forgotten(one.event) for one in group.rest):
            return Difference(given.offset, "removed", "a record that the input needs was removed", "nothing")
        done, where, first = 0, "", group.last.offset + 1 - len(group.rest)
        try:
            for outputs in decisions(self._agent, event):
                step = group.rest[done : done + len(outputs)]
                for number, output in enumerate(outputs):
                    was = _recorded(step[number].event) if number < len(step) else None
                    if not _is_same(was, now := _plain(output, self._clean)):
                        return Difference(first + done + number, "outputs", _shown(was), _shown(now))
                where = " in apply"
                for one in step:
                    if one.event.metadata.get("role") in APPLIED:
                        self._agent.apply(one.event)
                done, where = done + len(step), ""
        except Exception as error:  # noqa: BLE001 - foreign code
            return Difference(given.offset, "raised", "no error", f"{type(error).__name__}{where}")
        if done < len(group.rest):
            return Difference(first + done, "outputs", _shown(_recorded(group.rest[done].event)), _shown(None))
        self._outputs += done
        return None

    async def _given(self, record: Record) -> StreamEvent | None:
        event = record.event
        place = event.metadata if "position" in event.metadata else event.payload if event.type == RECEIVED else {}
        if (position := place.get("position")) is not None:
            async for found in self._reader.read_all(after=position - 1):
                is_it = found.position == position and not _is_forgotten(found.event)
                return found.event if is_it else None
            return None
        metadata = {key: value for key, value in event.metadata.items() if key != "state"}
        plain = StreamEvent.trusted({**event.fields(), "source": event.source.fields(), "metadata": metadata})
        return None if _is_forgotten(event) else plain

    async def snapshot_at(self, group: _Group) -> Difference | None:
        if self._kept == "unread":
            self._kept = await self._read_snapshot()
        if self._kept is None or self._kept[0] != group.last.offset + 1:
            return None
        found = canonical(self._agent.state())
        self._snapshot = "equal" if found == self._kept[1] else "differs"
        if self._snapshot == "equal":
            return None
        return Difference(self._offset, "snapshot", *(state_hash(json.loads(one)) for one in (self._kept[1], found)))

    async def _read_snapshot(self) -> tuple[int, bytes] | None:
        snapshot = await self._reader.snapshot(f"agent-{self._agent.name}", SNAPSHOT_VERSION)
        if snapshot is None:
            return None
        try:
            kept = json.loads(snapshot.state)
            return int(kept["next"]), canonical(kept["state"])
        except (ValueError, KeyError, TypeError):
            return None  # the engine also ignores such a snapshot


def _is_refused(group: _Group) -> bool:
    """Whether the input itself was refused, so that ``receive`` was not called."""
    return bool(group.rest) and (
        group.rest[0].event.metadata.get("role") == "refused" and "refused" not in group.rest[0].event.payload
    )


def _is_forgotten(event: StreamEvent) -> bool:
    return set(event.payload) == {"$sha256"}


def _plain(output: Output, clean: Callable[[Any], Any]) -> dict[str, Any]:
    payload = clean(output.payload)
    if output.effect is not None:
        return {"effect": output.effect, "node": output.node, "payload": payload}
    return {"type": output.type, "payload": payload, **({"to": output.to} if output.to is not None else {})}


def _recorded(event: StreamEvent) -> dict[str, Any]:
    match event.metadata.get("role"):
        case "effect":
            return {"effect": event.payload["kind"], "node": event.payload["node"], "payload": event.payload["args"]}
        case "refused":
            if "effect" in event.payload:
                return {"effect": event.payload["effect"], "refused": True}
            return {"type": event.payload["refused"], "to": event.payload["to"], "refused": True}
        case "command":
            return {"type": event.type, "payload": event.payload, "to": event.metadata.get("to")}
        case _:
            return {"type": event.type, "payload": event.payload}


def _is_same(was: dict[str, Any] | None, now: dict[str, Any] | None) -> bool:
    if was is None or now is None:
        return False
    if was.get("refused"):  # the payload of what was too deep is not recorded
        return all(now.get(name) == value for name, value in was.items() if name != "refused")
    return canonical(was) == canonical(now)


def _shown(output: dict[str, Any] | None) -> str:
    return "nothing" if output is None else canonical(output).decode()[:_SHOWN]
