"""What is running, what is waiting for a person, and what has not been seen yet: the content of ``top``, folded from
the log.

Pass every record to the board, in order. The board keeps only what is shown: the states of two agents, and the last
step of each session.
"""

from __future__ import annotations

from typing import Any, Final

from sidecar.agents.inputs import agent_stream, is_applied
from sidecar.background.intents.intents import NAME
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.rows import spent_by
from sidecar.background.intents.state import Intent, State
from sidecar.background.messages import agent as messages
from sidecar.background.messages.message import State as Messages
from sidecar.background.people import sentences
from sidecar.background.reading import of_ask
from sidecar.read.ask_text import CHECKPOINT, OpenAsk
from sidecar.read.find_by_id import ask_catalog, newest
from sidecar.read.rendering.describe import describe
from sidecar.read.story.catalog import Catalog
from sidecar.read.views import SessionView
from streams.lineage import STEP_STARTED, TURN_STARTED
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import NOTHING, Record

RECENT_MS: Final = 3_600_000
"""How long an agent that has ended is shown."""

MOST_ENDED: Final = 8
LOOK_BACK: Final = 200
"""How many of a stream's records are read when ``top`` starts, to find out what a session is doing."""

_QUIET: Final = ("capture.", "lifecycle.", STEP_STARTED)


class Board:
    """The content of ``top``, as of the catalog that it took last."""

    def __init__(self) -> None:
        self.position = NOTHING
        self._sessions: dict[str, SessionView] = {}
        self._asks: list[tuple[OpenAsk, str]] = []
        """What is asked, and the directory of the session that asks."""
        self._intents, self._messages = State(), Messages()
        self._doing: dict[str, tuple[int, str]] = {}
        self._asked: dict[str, dict[str, Any]] = {}
        """The payloads of what was asked, by event."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The agents' streams. Pass all records of these streams to ``remember``."""
        return agent_stream(NAME), agent_stream(messages.NAME)

    @property
    def asked(self) -> list[str]:
        """The events of what is asked."""
        return [ask.event for ask, _ in self._asks]

    def take(self, catalog: Catalog) -> None:
        """Take what the log says of sessions now."""
        self.position, self._sessions = catalog.position, {each.id: each for each in catalog.at_work()}
        self._asks = [(ask, catalog.directory(catalog.sessions[ask.session].stream)) for ask in catalog.asks()]

    def remember(self, record: Record) -> None:
        """Take the next record of an agent's stream, or of a stream whose session is working."""
        event = record.event
        if event.stream_id in self.streams:
            if not is_applied(event):
                return
            if event.stream_id == self.streams[0]:
                self._intents.fold(event.type, event.payload)
            else:
                self._messages.fold(event)
            return
        if event.type == CHECKPOINT and event.payload.get("state") == "asked":
            self._asked[event.id] = event.payload
        session = event.payload.get("session")
        if isinstance(session, str) and not event.type.startswith(_QUIET):
            line = describe(event)
            text = f"waits for {line.text or 'the model'}" if event.type == TURN_STARTED else str(line)
            self._doing[session] = (event.ts, text)

    def state(self, now_ms: int) -> dict[str, Any]:
        """Everything that is shown, as JSON values. Times are in ms UTC, and durations in ms.

        ``agents``: background work that has not ended, and what ended in the last hour, oldest first; ``asks`` is how
        many answers of a person it is waiting for, and ``shown`` and ``what`` are its state and its work in words.
        ``roots``: what each session that started several agents has used. ``waiting``: what is waiting for a person's
        answer, ``what`` in words. ``sessions``: the other sessions with an open turn; ``host`` is true if OpenCode
        started it in the background by itself, and ``asks`` is as above. ``doing`` is the call that a session runs
        since ``began``, or what it did last, at ``done``; both are ``None`` if unknown. ``unseen``: how many messages
        to sessions have not been seen there yet.
        """
        data = self._intents
        ended = [i for i in data.intents.values() if i.state in ENDED and now_ms - (i.ended or 0) < RECENT_MS]
        shown = [*ended[-MOST_ENDED:], *data.unfinished()]
        roots = dict.fromkeys(intent.root for intent in shown)
        working = {intent.session for intent in shown} | set(data.children)
        sessions = [
            {
                "session": s.id,
                "title": s.title,
                "agent": s.agent,
                "since": s.turn_ms,
                **self._last(s.id),
                "host": s.is_background,
                "asks": len(s.asks),
            }
            for s in self._sessions.values()
            if s.is_active and s.id not in working
        ]
        return {
            "at": now_ms,
            "agents": [self._row(intent, now_ms) for intent in shown],
            "waiting": self._waiting(),
            "roots": [spent for root in roots if (spent := spent_by(data, root))["sessions"] > 1],
            "sessions": sessions,
            "unseen": self._messages.unheard(),
        }

    def _row(self, intent: Intent, now_ms: int) -> dict[str, Any]:
        ran = intent.ran(now_ms) if intent.started is not None else None
        names = ("id", "state", "title", "session", "parent", "tokens", "cost", "reason", "code", "resumes", "ended")
        row = {name: getattr(intent, name) for name in names}
        doing = self._last(intent.session if intent.session and intent.state not in ENDED else "")
        words = {"shown": sentences.state_of(intent), "what": sentences.work(intent)}
        return {**row, "model": intent.runs_on, "ran": ran, "asks": len(intent.asks), **words, **doing}

    def _waiting(self) -> list[dict[str, Any]]:
        known = self._messages.questions()
        known_requests = {each.request for each in known}
        open_ = [each for each in known if each.is_open]
        open_ += [
            of_ask(directory, ask, self._asked[ask.event])
            for ask, directory in self._asks
            if ask.request not in known_requests and ask.event in self._asked
        ]
        names = ("id", "kind", "session", "text", "options")
        rows = [{name: getattr(each, name) for name in names} | {"since": each.queued} for each in open_]
        for row, each in zip(rows, open_, strict=True):
            row["what"] = sentences.asks(each)
        return sorted(rows, key=lambda row: row["since"])

    def _last(self, session: str) -> dict[str, Any]:
        known = self._sessions.get(session)
        if known is not None and (calls := known.running):
            more = f" (and {len(calls) - 1} more)" if len(calls) > 1 else ""
            return {"doing": calls[0].text + more, "began": calls[0].since_ms, "done": None}
        at, doing = self._doing.get(session, (None, ""))
        return {"doing": doing, "began": None, "done": at}


async def open_board(reader: LogReader) -> Board:
    """The board of a log in its present state, which goes on with the records after its position."""
    board = Board()
    await ask_catalog(reader, board.take)

    def is_known(record: Record) -> bool:
        return record.position <= board.position

    for stream in board.streams:
        async for record in reader.read(stream):
            if is_known(record):
                board.remember(record)
    for event in board.asked:
        if (asked := await reader.find_event(event)) is not None:
            board.remember(asked)
    state = board.state(0)
    names = {row["session"] for row in (*state["agents"], *state["sessions"])}

    def streams_of(catalog: Catalog) -> set[str]:
        return {catalog.sessions[name].stream for name in names if name in catalog.sessions}

    for stream in await ask_catalog(reader, streams_of):
        for record in (await newest(reader, Filter(streams=(stream,)), LOOK_BACK, is_known))[0]:
            board.remember(record)
    return board
