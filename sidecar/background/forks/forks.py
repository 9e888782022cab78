"""Makes a new session from a moment of another one: with OpenCode's own fork, or else from the log.

Only a person may ask for it. Nothing runs in the new session unless the person gives a prompt, and files stay as they
are. The log says which event the person named.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field

from bridge.opencode.capture.state import CaptureState
from bridge.opencode.link.protocol import RequestError
from sidecar.background.effects import is_saved
from sidecar.background.forks.cut import Cut, Ran, copied, cut_at, ran_at
from sidecar.background.hosts.host import HostAbsent, HostError, Part
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.intents.works import Works
from sidecar.background.people.answerers import Answerers
from sidecar.components import until
from sidecar.home import Home
from sidecar.read.fields import as_text, is_forgotten
from sidecar.read.find_by_id import SelectError, ask_catalog, family_of, find_event, find_session, open_reader
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.conversation import Telling
from sidecar.read.story.moment import Moment
from sidecar.read.story.reading import Snapshot, ask
from sidecar.read.transcript.markdown import markdown_lines
from sidecar.read.transcript.model import Reading, Session
from sidecar.read.wording import cut_middle
from sidecar.record.ingest import Ingest
from sidecar.registry import Args, Requests
from streams.event import StreamEvent
from streams.identity import Identity
from streams.lineage import FORKED
from streams.log.reader import LogReader
from streams.store import Record

MOST: Final = 100_000
"""How many characters of a conversation a session gets that is made from the log."""

RECORDED_SECONDS: Final = 10.0
"""How long the creation of a fork may take to reach the log."""

_LOOKED: Final = 500
"""How many records of a session are searched for a message, from the named event back."""

_BEGINNING: Final = (
    "This session goes on from an earlier one, which OpenCode cannot fork here. What was said there until then "
    "follows. Nothing of it runs again, and files are as they are now.\n\n"
)


class ForkArgs(Args):
    stream: str = Field(min_length=1, max_length=200, description="the stream or session, or a unique part of its id")
    event: str = Field(min_length=1, max_length=100, description="the event, or a unique part of its id")
    prompt: str | None = Field(
        default=None, min_length=1, max_length=100_000, description="the first prompt in the fork"
    )
    preview: bool = Field(default=False, description="only tell")


class _Plan(NamedTuple):
    """What a fork will be. An OpenCode must be open in ``directory``; the fork will be in ``place``. ``messages``: how
    many OpenCode copies, those ``before`` one of them; ``None`` if OpenCode cannot, so that the log must do.
    """

    record: Record
    session: str
    cut: Cut
    ran: Ran
    title: str
    directory: str
    place: str
    messages: int | None
    before: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "title": self.title,
            "directory": self.place,
            "event": self.record.event.id,
            "message": self.cut.message,
            "ends": "before" if self.cut.is_prompt else "after",
            "messages": self.messages,
            "text": self._text(),
        }

    def _text(self) -> str:
        event = self.record.event.id
        where = f"before the prompt of event {event}" if self.cut.is_prompt else f"after the answer of event {event}"
        if self.messages is None:
            how = "OpenCode cannot fork this session there, so a new one gets the recorded conversation as a text"
        else:
            how = f"A new session gets the first {self.messages} messages of {self.session}"
        return f"{how}; it ends {where}. Files stay as they are now."


class Forks:
    """The request ``fork``."""

    def __init__(
        self,
        home: Home,
        hosts: Hosts,
        state: CaptureState,
        ingest: Ingest,
        identity: Identity,
        answerers: Answerers,
        works: Works,
    ) -> None:
        self._home, self._hosts, self._state, self._ingest = home, hosts, state, ingest
        self._identity, self._answerers, self._works = identity, answerers, works

    def register(self, requests: Requests) -> None:
        description = (
            "`session`, `title`, `directory`; `event`; `message` and `ends`: `before` it or `after` it; `messages`: "
            "how many OpenCode copies, or null; `text`: this in words; `fork`: the new session, unless it is a preview"
        )
        requests.register("fork", ForkArgs, self._answerers.only("fork", self.fork), description)

    async def fork(self, args: ForkArgs) -> dict[str, Any]:
        """Make a fork, or, for a preview, only describe it.

        Raises:
            RequestError: nothing was made, unless the text says so.
        """
        reader = open_reader(self._home.store_path)
        try:
            plan = await self._plan(reader, args)
            if args.preview:
                return plan.as_json()
            return await self._make(reader, plan, args.prompt)
        except SelectError as error:
            raise RequestError(error.code, str(error)) from None
        except HostAbsent as error:
            raise RequestError("no-opencode", f"{error}; open OpenCode in that project, then try again") from None
        except HostError as error:
            raise RequestError("opencode-failed", f"nothing was forked: {error}") from None
        finally:
            await reader.close()

    async def _plan(self, reader: LogReader, args: ForkArgs) -> _Plan:
        record = await _named(reader, args)
        event, session = record.event, as_text(record.event.payload.get("session"))
        records, finished = await _around(reader, record, session)
        cut = cut_at(records, session)
        about, known = await ask_catalog(reader, partial(_about, session)), self._state.sessions.get(session)
        if cut is None or about is None:
            raise _nothing_before(event)
        title, place = about
        place = (known.directory if known is not None else None) or place
        # Background work has a copy of its own; its fork belongs in the project.
        directory = self._works.asker(session).directory or place
        messages = await self._hosts.of(session).message_ids(session, directory=directory) or []
        # OpenCode's own fork stays in the directory of its origin, which may be a copy that is gone.
        count = copied(messages, cut) if await asyncio.to_thread(Path(place).is_dir) else None
        is_at_work = known is not None and known.turn is not None and not cut.is_prompt
        if is_at_work and (count == len(messages) or cut.message not in finished):
            text = f"{session} still works on the message of the event {event.id}"
            raise RequestError("still-running", f"{text}; wait for the end of the turn, or name an earlier event")
        if count == 0:
            raise _nothing_before(event)
        before = messages[count] if count is not None and count < len(messages) else None
        ran, place = ran_at(records, cut), place if count is not None else directory
        return _Plan(record, session, cut, ran, title, directory, place, count, before)

    async def _make(self, reader: LogReader, plan: _Plan, prompt: str | None) -> dict[str, Any]:
        host, text, fork = self._hosts.of(plan.session), "", ""
        if plan.messages is not None:
            try:
                fork = await host.fork(plan.session, plan.before, directory=plan.directory)
            except HostError as error:
                if not error.permanent:
                    raise
                plan = plan._replace(messages=None, place=plan.directory)  # this OpenCode has no such request
        if not fork:
            text = await _conversation(reader, plan)
            fork = await host.begin(plan.session, f"{plan.title or plan.session} (fork)", directory=plan.directory)
        await self._record(plan, fork)
        try:
            await self._say(plan, fork, text, prompt)
        except HostError as error:
            raise RequestError("opencode-failed", f"{fork} was made, but not every message was sent: {error}") from None
        return {**plan.as_json(), "fork": fork}

    async def _say(self, plan: _Plan, fork: str, text: str, prompt: str | None) -> None:
        """Give the fork the recorded conversation, if it has no messages, and then the person's prompt."""
        host, where, (agent, model) = self._hosts.of(fork), plan.directory, plan.ran
        if text:
            part = Part(text, f"fork:{fork}", is_shown=True)
            await host.prompt(fork, [part], directory=where, agent=agent, model=model, reply=False)
            if not await is_saved(host, fork, [part.key], where):
                raise HostError("it does not keep the conversation")
        if prompt is not None:
            await host.prompt(fork, [Part(prompt, "")], directory=where, agent=agent, model=model)

    async def _record(self, plan: _Plan, fork: str) -> None:
        """Record which event a person named, once the log has the fork itself."""
        if not await until(lambda: fork in self._state.sessions, RECORDED_SECONDS):
            text = f"OpenCode made the fork {fork}, but did not report it, so it got no prompt"
            raise RequestError("not-recorded", f"{text}; `durable-stream doctor` shows why")
        await self._ingest.flushed()
        session, named = self._state.sessions[fork], plan.record.event
        ends = "before" if plan.cut.is_prompt else "after"
        origin = {"session": plan.session, "message": plan.cut.message, "ends": ends}
        event: StreamEvent = self._identity.stamp(
            {
                "type": FORKED,
                "stream_id": session.stream,
                "idempotency_key": f"{FORKED}:{fork}:asked",
                "causation_id": named.id,
                "actor": "user",
                "source": {"agent": "user", "adapter": "durable-stream"},
                "traceparent": session.traceparent(),
                "payload": {"session": fork, "fork": {**origin, "event": named.id}},
            }
        )
        await self._ingest.add([event])


def _about(session: str, catalog: Catalog) -> tuple[str, str] | None:
    """A session's title and directory."""
    view = catalog.sessions.get(session)
    return (view.title, catalog.directory(view.stream)) if view is not None else None


async def _named(reader: LogReader, args: ForkArgs) -> Record:
    """The event that a person named in a stream."""
    stream, child = await find_session(reader, args.stream)
    family = await family_of(reader, stream, session=child)
    record = await find_event(reader, args.event)
    name = record.event.id
    if record not in family:
        raise RequestError("not-found", f"{name} is not in {child or stream}; `durable-stream show {name}` shows where")
    if is_forgotten(record.event.payload):
        raise RequestError("forgotten", f"the content of the event {name} was forgotten; name another event")
    return record


def _nothing_before(event: StreamEvent) -> RequestError:
    return RequestError("no-message", f"nothing was said before the event {event.id}; name a later one")


async def _around(reader: LogReader, record: Record, session: str) -> tuple[list[Record], set[str]]:
    """The records of a session up to a record of it, newest first, and the answers that are finished."""
    found: deque[Record] = deque(maxlen=_LOOKED)
    finished: set[str] = set()
    async for each in reader.read(record.event.stream_id):
        payload = each.event.payload
        if payload.get("session") != session:
            continue
        if each.position <= record.position:
            found.append(each)
        if payload.get("kind") == "inference" or each.event.type == "agent.error":
            finished.add(as_text(payload.get("message")))
    return list(reversed(found)), finished


async def _conversation(reader: LogReader, plan: _Plan) -> str:
    family = await family_of(reader, plan.record.event.stream_id, session=plan.session)
    cut = plan.cut.position

    def question(story: Snapshot) -> tuple[list[Session], str | None]:
        roots = Telling(Moment(story, family.streams, cut, plan.session)).whole()
        return roots, Catalog(story).sessions[plan.session].fork

    roots, origin = await ask(reader, question)
    own = [root for root in roots if root.id == plan.session and root.turns]
    if not own:
        raise _nothing_before(plan.record.event)
    notes = (f"It was a fork of {origin}, which holds what was said before.",) if origin else ()
    text = "\n".join(markdown_lines(own, Reading(now_ms=plan.record.event.ts, notes=notes)))
    return _BEGINNING + cut_middle(text, MOST)[0]
