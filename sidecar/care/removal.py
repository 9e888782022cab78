"""Prune and forget with capture's state, which shows the unfinished sessions and what capture must also forget.

Works on the running sidecar's own log and state, or, if no sidecar is running, on a log and state that the caller
opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final, NamedTuple

from bridge.opencode.capture.state import CaptureState
from sidecar.care.snapshots import CaptureSnapshot
from sidecar.failure import Failure
from sidecar.processes import still_runs
from streams.event import StreamEvent
from streams.hashing import canonical, is_digest
from streams.lineage import MARKS, NAMED, PINNED, STEP_STARTED, Session
from streams.log.directory import store_bytes
from streams.log.log import Log
from streams.log.prune_plan import HOUR_MS, PrunePlan, PruneRequest, make_plan
from streams.log.reader import LogReader
from streams.query import Filter
from streams.retention import Removed, StreamSize
from streams.store import Record

SYSTEM: Final = "system"
"""The stream of records that belong to no session."""

AGENTS: Final = "agent/"
"""The prefix of the streams of agents. The records of these streams are the agents' state, so none of these streams is
removed or forgotten as a whole."""

_OURS: Final = frozenset({"intents", "messages", "gardener"})
"""The agents that know how to do without what was forgotten."""

_OWNERS: Final = ("session", "parent", "root", "to", "heir", "about", "above", "node", "checkpoints")
_IDS: Final = ("intent", "message", "checkpoint")
"""The fields of our agents' payloads that say to whom the record belongs, and what it is about."""

_ENDS: Final = frozenset({"intent.completed", "intent.failed", "intent.cancelled", "intent.refused"})

STALE_MS: Final = 7 * 24 * HOUR_MS
"""A turn that began this long ago and has no later record will never end, because its OpenCode is gone."""


STILL_READING: Final = (
    "the records are still being read into the tables that say where a session's words are, so nothing was forgotten; "
    "`durable-stream doctor` shows how far that is"
)


async def plan_prune(
    log: Log | LogReader, open_turns: Collection[str], request: PruneRequest, *, now_ms: int
) -> PrunePlan:
    """Plan which streams of this log a request removes; nothing is changed.

    The age limit removes any stream. The size limit spares ``system``, which is small and concerns every session.
    Neither limit removes a stream in which a turn is in progress (``open_turns``), because capture still needs that
    stream. Streams of agents stay, too, because their records are the agents' state and the keys of what they handled.
    So do pinned streams, also if they are named.
    """
    marks = {(r.event.stream_id, r.event.type == NAMED): r.event async for r in log.query(Filter(types=MARKS))}
    marked = {stream_id for stream_id, _ in marks}
    sizes = [await _unmarked(log, size) if size.stream_id in marked else size for size in await log.sizes()]
    needed = {
        size.stream_id: "a turn is in progress"
        for size in sizes
        if size.stream_id in open_turns and now_ms - size.last_ts < STALE_MS
    }
    needed |= {size.stream_id: "it is an agent's own stream" for size in sizes if size.stream_id.startswith(AGENTS)}
    needed |= {stream_id: "it is pinned" for (stream_id, _), last in marks.items() if last.type == PINNED}
    disk = await asyncio.to_thread(store_bytes, log.store) if request.max_bytes is not None else 0
    return make_plan(sizes, needed, request, now_ms=now_ms, disk_bytes=disk, uncapped=(SYSTEM,))


async def _unmarked(log: Log | LogReader, size: StreamSize) -> StreamSize:
    """The size of a stream whose age does not count what a person says about it."""
    times = [record.event.ts async for record in log.read(size.stream_id) if record.event.type not in MARKS]
    return size._replace(last_ts=max(times, default=size.last_ts))


async def prune(
    log: Log, capture: CaptureSnapshot, plan: PrunePlan, sessions: Collection[str], *, now_ms: int
) -> Removed:
    """Carry out a plan, and forget what the agents' own streams say of its ``sessions``. Records that were written
    after the plan was made stay.

    Raises:
        StreamError: the disk failed; the next start finishes what was begun.
    """
    done = await log.prune(plan.offsets, at_ms=now_ms, change=await capture.drop(plan.offsets))
    beside = await words_beside(log, sessions)
    if beside.positions and not beside.unfinished:
        await log.forget((), at_ms=now_ms, positions=beside.positions)
    return done


async def forget(
    log: Log,
    capture: CaptureSnapshot,
    streams: Collection[str],
    sessions: Collection[str],
    elsewhere: Collection[str],
    *,
    now_ms: int,
) -> Removed:
    """Replace payloads with their digests: in all records of ``streams``, and in the records of ``sessions`` in the
    streams ``elsewhere``.

    Raises:
        Failure: ``agents-memory``: one of the streams is that of an agent, which needs it to restore its state.
            ``still-needed``: a turn is in progress in one of the streams or in a session's stream, or its work.
        StreamError: see ``prune``.
    """
    if agents := streams_of_agents(streams):
        text = f"`forget` cannot erase an agent's own stream, so nothing was erased: {', '.join(agents)}"
        raise Failure("agents-memory", text)
    busy = await busy_streams(log, open_turns(capture.state), {*streams, *elsewhere}, now_ms=now_ms)
    if busy:
        raise Failure(
            "still-needed",
            f"a turn is in progress in {', '.join(busy)}, so nothing was forgotten; try again when the turn has ended",
        )
    beside = await words_beside(log, sessions)
    if beside.unfinished:
        raise Failure(
            "still-needed",
            f"background work of the session has not ended ({', '.join(beside.unfinished)}), so nothing was forgotten; "
            "wait for it, or cancel it with `durable-stream intents ID --cancel`",
        )
    found = records_to_forget(log, (), sessions, elsewhere, beside.ids)
    positions = [*beside.positions, *[record.position async for record in found]]
    dropped = await capture.drop(streams, sessions)
    return await log.forget(streams, at_ms=now_ms, positions=positions, change=dropped)


def streams_of_agents(among: Collection[str]) -> list[str]:
    """The streams that hold agents' states, in order. Nothing in these streams is forgotten."""
    return sorted(name for name in among if name.startswith(AGENTS))


def streams_beside(known: Mapping[str, Session], streams: Collection[str], sessions: Collection[str]) -> set[str]:
    """Streams other than ``streams`` that may hold records of these sessions: ``system``, a child session's own stream,
    and that of the session above, which has the steps that ran the child, and its results.

    ``system`` contains the hooks whose session could not be read.
    """
    above = {parent for name in sessions if name in known and (parent := known[name].parent) is not None}
    return ({SYSTEM} | {known[name].stream for name in {*sessions, *above} if name in known}) - set(streams)


class Beside(NamedTuple):
    """What our agents' own streams say of some sessions."""

    positions: list[int]
    """The positions of the records that still have a payload."""
    ids: frozenset[str]
    """The ids of the background work, questions and messages of the sessions."""
    unfinished: list[str]
    """The background work that has not ended."""


async def words_beside(log: Log | LogReader, sessions: Collection[str]) -> Beside:
    """Find what was said in sessions, or about them, in the streams of our agents: prompts and results of background
    work, questions, answers and messages, and the effects that carried them out.

    A record belongs to a session if one of its fields names the session, or something that belongs to the session.
    """
    names = [size.stream_id for size in await log.sizes() if _is_ours(size.stream_id)]
    found = Beside([], frozenset(), [])
    # Background work is registered before it has its session, so what it begins with is found in a second look.
    for _ in range(2 if names and sessions else 0):
        found = await _words_of(log, names, {*sessions, *found.ids})
    return found


async def _words_of(log: Log | LogReader, names: Collection[str], known: set[str]) -> Beside:
    ids, open_, positions = set[str](), set[str](), list[int]()
    async for record in log.query(Filter(streams=tuple(names))):
        event = record.event
        # An effect may carry several messages, and a dead letter any.
        carries = event.type in ("effect.requested", "effect.in_doubt") or event.stream_id.endswith("/dead")
        is_theirs = _named(event.payload) & known or (carries and _mentions(event, known))
        if is_digest(event.payload) or not is_theirs:
            continue
        own = {each for name in _IDS if isinstance(each := event.payload.get(name), str)}
        known, ids = known | own, ids | own
        open_ = open_ | own if event.type == "intent.created" else open_ - own if event.type in _ENDS else open_
        positions.append(record.position)
    return Beside(positions, frozenset(ids), sorted(each for each in open_ if each.startswith("int_")))


_HISTORY_TYPES: Final = frozenset(
    {
        *("intent.created", "intent.refused", "intent.interrupted", "intent.completed", "intent.failed"),
        *("intent.cancelled", "message.queued", "message.seen"),
        *("message.answered", "message.expired", "message.withdrawn", "message.sent", "message.failed"),
    }
)
"""What a person wants to know of background work, questions and messages. The other records are bookkeeping."""

_WORDS: Final = frozenset(
    {
        *_IDS,
        *("title", "prompt", "agent", "result", "reason", "code", "text", "questions", "answer", "by"),
        *("channel", "error", "why", "kind"),
    }
)
"""The fields of these records that tell what happened. The others, such as rights and copies, are of use only to the
sidecar that did the work."""


async def background_history(
    log: Log | LogReader, sessions: Mapping[str, str], log_id: str | None
) -> list[tuple[int, StreamEvent]]:
    """What ``words_beside`` finds, as history of the sessions themselves: the positions of the records, in order, and
    for each an event in the stream of the session that it belongs to. ``sessions`` maps the sessions to their streams.

    These events belong to no agent, so nothing is continued, sent or asked because of them. Their keys are not those of
    the records, because an agent of another log may use the same key for its own work. ``log`` in the metadata is
    ``log_id``, so that the log that has the records does not take the events, too.
    """
    positions = frozenset((await words_beside(log, sessions)).positions)
    if not positions:
        return []
    owners, found = dict[str, str](), list[tuple[int, StreamEvent]]()
    names = [size.stream_id for size in await log.sizes() if _is_ours(size.stream_id)]
    async for record in log.query(Filter(streams=tuple(names))):
        event = record.event
        if record.position not in positions or event.type not in _HISTORY_TYPES:
            continue
        ids = [each for name in _IDS if isinstance(each := event.payload.get(name), str)]
        named = [each for name in ("parent", *_OWNERS) if isinstance(each := event.payload.get(name), str)]
        owner = next((owners[each] for each in ids if each in owners), next(filter(sessions.get, named), None))
        if owner is None:
            continue
        owners |= dict.fromkeys(ids, owner)
        payload = {name: value for name, value in event.payload.items() if name in _WORDS}
        changes = {
            "stream_id": sessions[owner],
            "idempotency_key": f"history:{event.id}",
            "payload": {**payload, "session": owner},
            "metadata": {"history": True, "log": log_id},
        }
        found.append((record.position, StreamEvent.trusted({**event.fields(), **changes})))
    return found


def _is_ours(stream: str) -> bool:
    return stream.startswith(AGENTS) and stream.split("/")[1] in _OURS


def _named(payload: Mapping[str, Any]) -> set[str]:
    """The ids that a record of an agent, or the effect that it asks for, belongs to."""
    found = set[str]()
    for fields in (payload, payload.get("args"), payload.get("ask")):
        for name in (*_OWNERS, *_IDS):
            value = fields.get(name) if isinstance(fields, dict) else None
            found |= {each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)}
    return found


async def records_to_forget(
    log: Log | LogReader,
    streams: Collection[str],
    sessions: Collection[str],
    elsewhere: Collection[str],
    ids: Collection[str] = (),
) -> AsyncIterator[Record]:
    """The records to forget that still have a payload: all records in ``streams``, and in the streams ``elsewhere`` the
    records of ``sessions``, and those that name one of ``ids``, as the message with a result does. With a step goes the
    record that it started, which has the same input but no id.
    """
    starts: dict[str, Record] = {}
    async for record in log.query(Filter(streams=tuple(sorted({*streams, *elsewhere})))):
        event = record.event
        if is_digest(event.payload):
            continue
        call = f"{event.payload.get('session')}:{event.payload.get('part')}"
        start = starts.pop(call, None) if event.type in ("agent.spawned", "execution.step") else None
        if event.stream_id in streams or _is_of(event, sessions, ids):
            if start is not None:
                yield start
            yield record
        elif event.type == STEP_STARTED:
            starts[call] = record


def _is_of(event: StreamEvent, sessions: Collection[str], ids: Collection[str]) -> bool:
    """True if an event is of one of these sessions, or is the step of a session above that ran one of them. For an
    event without ``session``: true if the payload contains the id of one of these sessions.
    """
    session = event.payload.get("session")
    if isinstance(session, str):
        return session in sessions or event.payload.get("child") in sessions or bool(ids and _mentions(event, ids))
    return _mentions(event, sessions)


def _mentions(event: StreamEvent, ids: Collection[str]) -> bool:
    text = canonical(event.payload).decode()
    return any(each in text for each in ids)


def open_turns(state: CaptureState) -> set[str]:
    """The streams with an open turn whose OpenCode may still be running."""
    return {
        session.stream
        for session, turn in state.open_turns()
        if turn.pid is None or still_runs(turn.pid, turn.started_ms)
    }


async def busy_streams(
    log: Log | LogReader, open_turns: Collection[str], among: Collection[str], *, now_ms: int
) -> list[str]:
    """The streams in which a turn is in progress, in order. Nothing in these streams is forgotten."""
    unfinished = set(open_turns) & set(among)
    if not unfinished:
        return []
    last = {size.stream_id: size.last_ts for size in await log.sizes()}
    return [name for name in sorted(unfinished) if name in last and now_ms - last[name] < STALE_MS]
