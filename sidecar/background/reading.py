"""Reads intents, checkpoints, notices and costs from the log, for what only reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.inputs import agent_stream, is_applied
from sidecar.agents.letters import letters_of
from sidecar.background.intents.intents import NAME
from sidecar.background.intents.lifecycle import after
from sidecar.background.intents.state import Intent, State
from sidecar.background.messages import agent as messages
from sidecar.background.messages.message import MESSAGE, Message, queued
from sidecar.background.messages.message import State as Messages
from sidecar.background.own_ids import of_person
from sidecar.background.people.consent import answer_of, asked
from sidecar.background.people.effects_in_doubt import whole_text
from sidecar.processes import still_runs
from sidecar.read.ask_text import CHECKPOINT, OpenAsk, checkpoint_id
from sidecar.read.changes.approvals import Approval
from sidecar.read.find_by_id import ask_catalog, newest
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.changes import approvals
from sidecar.read.story.costs import By, Costs, When, cells, costs
from sidecar.read.story.moment import Moment
from sidecar.read.story.reading import Snapshot
from sidecar.read.story.reading import ask as ask_story
from streams.event import StreamEvent
from streams.hashing import is_digest
from streams.lineage import Tree
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import StreamReader


async def read_intents(reader: StreamReader, up_to: int | None = None) -> State:
    """Fold the stream of the agent ``intents``, up to a position; the state is empty if there is no such stream yet."""
    state = State()
    async for event in _outputs(reader, NAME, up_to):
        state.fold(event.type, event.payload)
    return state


async def newest_of_intents(reader: LogReader) -> Any:
    """What differs once ``read_intents`` may return something else: its last record, and what the log lost."""
    last, _ = await newest(reader, Filter(streams=(agent_stream(NAME),)), 1)
    return [record.position for record in last], await reader.removal()


async def read_messages(reader: StreamReader) -> Messages:
    """Fold the stream of the agent ``messages``."""
    state = Messages()
    async for event in _outputs(reader, messages.NAME):
        state.fold(event)
    return state


def background_of(state: State, session: str, now: int) -> dict[str, Intent]:
    """The sessions of the background work that a session had started by then, oldest first, each with its newest
    intent."""
    own = (each for each in state.intents.values() if session in (each.root, each.parent))
    return {each.session: each for each in own if each.session is not None and (each.started or now) < now}


async def running_at(reader: StreamReader, root: str, position: int) -> list[dict[str, Any]]:
    """The background work that a root session had not got back at a position: ``id, title, session, state``."""
    state = await read_intents(reader, position)
    names = ("id", "title", "session", "state")
    found = (each for each in state.unfinished() if each.root == root)
    return [{name: getattr(each, name) for name in names} for each in found]


async def diff_of(intent: Intent, home: Path) -> str:
    """The whole diff of an intent's changes. The log has only its beginning, so the result in the home is read.

    Raises:
        RequestError: there is no result.
    """
    from sidecar.background.copies.copies import Copies

    if not intent.changes.get("saved"):
        why = "they were discarded" if intent.discarded else "it made none, or has not ended"
        raise RequestError("no-changes", f"{intent.id} has no changes to show: {why}")
    return await Copies(home / "copies").diff(intent.id)


async def read_intent(reader: StreamReader, intent: str) -> Intent | None:
    """One intent, even if the agent's state has dropped it because many others have ended since."""
    state = State()
    async for event in _outputs(reader, NAME):
        if intent in (event.payload.get("intent"), event.payload.get("node")):
            state.fold(event.type, event.payload)
    return state.intents.get(intent)


async def read_checkpoints(reader: LogReader, *, with_closed: bool = False) -> list[Message]:
    """Every checkpoint, oldest first: the checkpoints that the agent ``messages`` knows, and the open asks of all
    other sessions; ``with_closed`` adds their asks that have ended."""
    # Read the agent's stream last, or an ask that it takes meanwhile would look like an ask of the user's own session.
    asks, all_ = await ask_story(reader, lambda story: _asks(story, with_closed=with_closed))
    found = {each.id: each for each in (await read_messages(reader)).questions()}
    for ask, directory in asks:
        identifier = checkpoint_id(ask.session, ask.request)
        record = await reader.find_event(ask.event) if identifier not in found else None
        if record is not None:
            found[identifier] = of_ask(directory, ask, record.event.payload)
    ended = [_ended(directory, one) for one, directory in all_]
    found = {each.id: each for each in ended} | found
    return sorted(found.values(), key=lambda each: each.queued)


def _asks(story: Snapshot, *, with_closed: bool) -> tuple[list[tuple[OpenAsk, str]], list[tuple[Approval, str]]]:
    """The open asks of all sessions; ``with_closed``, also all that there ever were. Each with the directory of its
    session."""
    catalog = Catalog(story, still_runs=still_runs)

    def directory(session: str) -> str:
        return catalog.directory(catalog.sessions[session].stream)

    ever = approvals(Moment(story, [*catalog.streams], story.head)) if with_closed else []
    known = [(one, directory(one.session)) for one in ever if one.session in catalog.sessions]
    return [(ask, directory(ask.session)) for ask in catalog.asks()], known


async def find_checkpoint(reader: LogReader, given: str) -> Message:
    """The checkpoint that a person names, also if it has ended.

    Raises:
        RequestError: none has such an id, or several have.
    """
    with suppress(RequestError):
        return of_person(await read_checkpoints(reader), given, "checkpoint")
    return of_person(await read_checkpoints(reader, with_closed=True), given, "checkpoint")


def _ended(directory: str, one: Approval) -> Message:
    """The checkpoint of an ask that was answered in OpenCode, or whose turn ended first."""
    ask, asked_by = one.ask, one.asked.event
    known = of_ask(directory, OpenAsk(ask.request, one.session, asked_by.id, asked_by.ts, ""), asked_by.payload)
    if one.answer is None or ask.state == "withdrawn":
        known.state, known.why = "withdrawn", f"rejected with {ask.joined}" if ask.joined else "its turn ended"
    else:
        known.state, known.answer, known.by = "answered", answer_of(one.answer.event.payload), one.answer.event.actor
        known.via, known.closed = {"channel": "opencode"}, one.answer.event.ts
    return known


def of_ask(directory: str, ask: OpenAsk, payload: dict[str, Any]) -> Message:
    """The checkpoint of an open ask that only OpenCode shows, of a session in a directory; ``payload`` is that of the
    event that asked."""
    about = asked(payload)
    names = ("kind", "session", "text", "request", "questions", "options", "fixed", "always", "left_out")
    given = {name: about[name] for name in names}
    identifier = checkpoint_id(ask.session, ask.request)
    return Message(id=identifier, queued=ask.since_ms, to=ask.session, directory=directory, **given)


async def waiting(reader: LogReader, streams: Collection[str] | None = None) -> list[Message]:
    """What is waiting for a person, oldest first; if ``streams`` are given, only in these streams' sessions, and in
    the background work that they started."""
    open_ = [each for each in await read_checkpoints(reader) if each.is_open]
    if streams is None:
        return open_
    names = set(await ask_catalog(reader, lambda catalog: catalog.sessions_of(streams)))
    return [each for each in open_ if not names.isdisjoint((each.session, each.to))]


async def whole(reader: LogReader, known: Message) -> Message:
    if not known.left_out:
        return known
    if known.effect:
        requested = await reader.find_event(known.request)
        if requested is None or is_digest(requested.event.payload):
            return known
        return replace(known, text=whole_text(known.effect, requested.event.payload["args"]), left_out=0)
    found: dict[str, Any] = {}
    async for record in reader.query(Filter(types=(CHECKPOINT,))):
        given = record.event.payload
        if (given.get("session"), given.get("request")) == (known.session, known.request):
            found = given if given.get("state") == "asked" else found
    if not found:
        return known  # its record was pruned
    about = asked(found, whole=True)
    return replace(known, **{name: about[name] for name in ("text", "always", "left_out")})


async def read_notices(reader: StreamReader) -> list[dict[str, Any]]:
    """Every message, oldest first, with the times of its states and the channels that were used.

    ``kind`` is ``wake`` for a message to a session's model, and else that of ``Message``.
    """
    rows: dict[str, dict[str, Any]] = {}
    async for event in _outputs(reader, messages.NAME):
        given = event.payload
        if event.type == "message.queued":
            known = queued(given, event.ts)
            row = {"id": known.id, "kind": known.kind if known.is_for_person else "wake", "session": known.to}
            row |= {"about": known.about or known.intent or "", "text": known.text, "state": known.state}
            rows[known.id] = row | {"queued": known.queued, "channels": []}
        elif (of := rows.get(given.get("message", ""))) is not None:
            change = event.type.removeprefix("message.")
            if "channel" in given:
                sent = {name: given[name] for name in ("channel", "attempt", "error") if given.get(name)}
                of["channels"].append({**sent, "state": change, "ts": event.ts})
            of |= {"state": after(MESSAGE, of["state"], event.type), change: event.ts}
            of |= {name: given[old] for name, old in (("why", "why"), ("session", "to")) if given.get(old)}
    return sorted(rows.values(), key=lambda row: row["queued"])


async def read_agents(reader: LogReader) -> list[dict[str, Any]]:
    """What the log says of agents, in the form of ``Runtime.status``: their dead letters and their effects in doubt."""
    rows: dict[str, dict[str, Any]] = {}
    if not await ask_catalog(reader, lambda catalog: catalog.agents):
        return []

    def row(name: str) -> dict[str, Any]:
        new = {"name": name, "health": "READY", "reasons": [], "dead": 0, "last_error": "", "in_doubt": 0}
        return rows.setdefault(name, new)

    for letter in await letters_of(reader):
        if letter.state == "open":
            row(letter.agent)["dead"] += 1
            row(letter.agent)["last_error"] = letter.reason
    for each in await read_checkpoints(reader):
        if each.effect and each.is_open:
            row(each.effect["agent"])["in_doubt"] += 1
    return list(rows.values())


async def read_failing(reader: StreamReader, since: int = 0) -> dict[str, str]:
    """The channels that did not accept the newest message sent on them since a time, each with the error."""
    newest: dict[str, str | None] = {}
    async for event in _outputs(reader, messages.NAME):
        if event.ts >= since and event.type in ("message.sent", "message.failed") and "channel" in event.payload:
            error = event.payload.get("error") or "it gave no reason"
            newest[event.payload["channel"]] = error if event.type == "message.failed" else None
    return {channel: error for channel, error in newest.items() if error is not None}


async def starters_of(reader: StreamReader) -> dict[str, str]:
    """The session that each session of background work was started for. The agent's state forgets old work, but its
    stream does not."""
    roots: dict[str, str] = {}
    starters: dict[str, str] = {}
    async for event in _outputs(reader, NAME):
        if event.type == "intent.created" and (root := event.payload.get("root") or event.payload.get("parent")):
            roots[event.payload["intent"]] = root
        elif event.type == "intent.started" and event.payload["intent"] in roots:
            starters[event.payload["session"]] = roots[event.payload["intent"]]
    return starters


def root_of(catalog: Tree[Any], starters: Mapping[str, str], session: str) -> str:
    """The session in which another one counts: its root, or the one that started it."""
    root = catalog.root(session)
    # Work that a person started has its own id as its root.
    starter = starters.get(root, "")
    return catalog.root(starter) if starter in catalog.sessions else root


async def costs_of(reader: LogReader, by: By, wanted: Filter) -> Costs:
    """The costs of the wanted records that the catalog knows, so that each counts in its root session.

    Work that ran in the background counts in the session that started it.
    """
    starters, when = await starters_of(reader), When(wanted.since_ms, wanted.until_ms)
    for name, ts in wanted.times.items():
        if (record := await reader.find_event(name)) is not None:
            when.doubt(record.position, ts)

    def question(story: Snapshot) -> Costs:
        catalog = Catalog(story)
        catalog.streams.values(), catalog.sessions.values()  # read all at once

        def moves(sessions: set[str]) -> set[int]:
            roots = {root_of(catalog, starters, session) for session in sessions}
            return {position for root in roots for position, _ in catalog.moves(root)}

        return costs(cells(story, when, moves), by, lambda name: root_of(catalog, starters, name), catalog.directory)

    return await ask_story(reader, question)


async def _outputs(reader: StreamReader, agent: str, up_to: int | None = None) -> AsyncIterator[StreamEvent]:
    """The events that an agent returned, oldest first, up to a position."""
    async for record in reader.read(agent_stream(agent)):
        if up_to is not None and record.position > up_to:
            return
        if is_applied(record.event):
            yield record.event
