"""What the page shows, as JSON: the values of the command line's ``--json`` where a command shows the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sidecar.background.intents.state import State
from sidecar.background.own_ids import of_person
from sidecar.background.reading import background_of, diff_of, newest_of_intents, read_intents
from sidecar.inspector.around import changed_by, relatives, roots_of, shown_status
from sidecar.inspector.beside import beside
from sidecar.inspector.drawn import MOST_CHOSEN, MOST_SPANS, drawn
from sidecar.inspector.listed import Cached, listed
from sidecar.inspector.once import Once
from sidecar.inspector.search import search
from sidecar.inspector.spending import RANGES, Spending
from sidecar.inspector.working import running_in, working
from sidecar.read.find_by_id import SelectError, ask_catalog, find_event, is_there
from sidecar.read.kinds import is_agents
from sidecar.read.past.lanes import with_background
from sidecar.read.past.moment import head
from sidecar.read.past.spans import Span
from sidecar.read.projects import short_directory
from sidecar.read.rendering.describe import row_of
from sidecar.read.rendering.detail import detail
from sidecar.read.story.changes import Changes
from sidecar.read.story.conversation import Telling
from sidecar.read.story.past import Past, asked
from sidecar.read.story.reading import behind_text
from sidecar.read.story.timeline import Timeline
from sidecar.read.transcript.html import call_html, turn_html
from sidecar.read.transcript.items import called
from sidecar.read.transcript.model import Reading, Turn
from sidecar.read.wording import one_line, printable
from streams.errors import StreamError
from streams.log.reader import LogReader
from streams.store import Record

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
Question = Callable[["Data"], Awaitable[Any]]

MOST_TURNS: Final = 40
"""How many turns one answer has; the page asks for more as the reader scrolls."""

BEFORE: Final = 3
"""How many turns are shown before that of an event."""

MOST_ITEMS: Final = 120
"""The last turns are shown that have no more items together; the last one always, but no more items of it."""

OFFERED: Final = 100
"""How many turns of a timeline can be chosen."""

COLUMNS: Final = 160
"""How many columns the map of a timeline has at most."""

MOST_CHANGED: Final = 20
"""How many turns with changed files are shown."""

MOST_ROWS: Final = 500
MOST_COMPARED: Final = 8
"""How many comparisons are cached."""

_WAITING: Final = repr("waiting")
_BINARY: Final = re.compile(r"^GIT binary patch\n.*?(?=^diff --git |\Z)", re.MULTILINE | re.DOTALL)
LATEST: Final = 2**62
"""A time after every other."""

ACTIONS: Final = {
    "answer": "checkpoint_answer",
    "cancel": "intent_cancel",
    "apply": "intent_apply",
    "fork": "fork",
}
"""What the page's buttons ask of the sidecar. The sidecar judges the request as it judges one of the command line."""


class Data:
    """Reads one home's log. ``ask`` sends a request to the sidecar, and ``health`` gathers what ``status`` shows. A
    team's home is on a ``machine``. ``refused`` says why the sidecar will do nothing that this page asks; empty if it
    may."""

    is_team = False
    look_seconds = 0.25
    """How often an open page looks for new records."""

    def __init__(
        self,
        home: Path,
        reader: LogReader,
        now_ms: Callable[[], int],
        ask: Ask,
        health: Callable[[], Awaitable[dict[str, Any]]],
        machine: str | None = None,
        refused: Callable[[], str] = str,
    ) -> None:
        self._home, self._machine = home, machine
        self.reader, self._now_ms, self._send, self.health = reader, now_ms, ask, health
        self._refused = refused
        self._work: tuple[int, Any, State] | None = None
        self._spending = Spending(reader)
        self._cached: Cached = {}
        self._once = Once(reader)
        self._beside: dict[Any, dict[str, Any]] = {}

    async def ask(self, question: Question, *_: Any) -> Any:
        """What a question answers of the home."""
        return await question(self)

    def head(self) -> Any:
        """Another value whenever something new can be shown. Blocks."""
        return self.reader.head

    @property
    def warnings(self) -> dict[str, str | None]:
        """Why an answer may lack something: ``log-damage`` and ``log-behind``."""
        damage = self.reader.damage
        return {"log-damage": str(damage) if damage else None, "log-behind": behind_text(self.reader)}

    async def warm(self) -> None:
        """Read what every page needs, before one asks."""
        with suppress(StreamError):  # the page says what is wrong
            await self.sessions()

    async def _intents(self) -> State:
        """The background work, read again only once something was recorded about it, or forgotten."""
        head = self.reader.head
        if self._work is None or self._work[0] != head:
            upto = await newest_of_intents(self.reader)
            if self._work is None or self._work[1] != upto:
                self._work = head, upto, await read_intents(self.reader)
            self._work = head, *self._work[1:]
        return self._work[2]

    # --- the list ---

    async def sessions(self) -> dict[str, Any]:
        """Every root session, the newest first, and the work that each of them started."""

        async def made() -> dict[str, Any]:
            state = await self._intents()
            found, self._cached = await ask_catalog(self.reader, lambda catalog: listed(catalog, state, self._cached))
            return found

        return await self._once.get("sessions", made) | {"now": self._now_ms()}

    async def search(self, text: str) -> dict[str, Any]:
        """What the palette finds: see ``search``."""
        rows = (await self.sessions())["sessions"]
        return await search(self.reader, rows, text, self._now_ms(), self._machine)

    # --- one session ---

    async def session(self, given: str, at: int | None, marks: int = 0) -> dict[str, Any]:
        """The head of a session's page after ``at`` records, and where the slider can jump to, without the first
        ``marks`` places, which the page knows."""
        found: dict[str, Any] = (await self._shown(given, lambda past: {}, at, marks))["head"]
        return found

    async def _shown(
        self, given: str, answer_of: Callable[[Past], dict[str, Any]], at: int | None, marks: int | None
    ) -> dict[str, Any]:
        """What ``answer_of`` makes of a session; with ``marks``, beside the head of the same moment."""
        work = await self._intents()

        def question(past: Past) -> dict[str, Any]:
            found = answer_of(past)
            return found if marks is None else found | {"head": self._head(past, at, marks, work)}

        return await asked(self.reader, question, given)

    def _head(self, past: Past, at: int | None, marks: int, work: State) -> dict[str, Any]:
        found, known, now = head(past, at), past.at(at).catalog.sessions, self._now(past, at)
        found["status"] = shown_status(found["status"], known.get(past.session))
        # A title that came later tells which session it is, at every moment.
        named = past.catalog.sessions
        found["title"] = named[past.session].title if past.session in named else found["title"]
        found["title"] = found["title"] or past.catalog.first_prompt(past.session)
        for each in found["sessions"]:
            each["status"] = shown_status(each["status"], known[each["id"]])
            each["title"] = named[each["id"]].title if each["id"] in named else each["title"]
        # Turns run and a person is waited for until now, although nothing is recorded meanwhile.
        since = max(now - found["ts"], 0)
        found["waiting_ms"] += past.at(at).waits * since
        is_told = past.upto(at) < past.count or not past.story.is_here
        at_work = [each for each in known.values() if is_told or is_there(each)]
        found["working_ms"] += sum(each.is_turn_open for each in at_work) * since
        own = {each["id"] for each in found["sessions"]}
        found["beside"] = [each for each in relatives(past.catalog, work, past.session, now) if each["id"] not in own]
        found["running"] = running_in(at_work)
        place = short_directory(found["directory"], str(Path.home()))
        return found | {"place": place, "marks": past.marks(marks), "behind": past.story.behind}

    async def conversation(
        self, given: str, at: int | None, first: int | None, marks: int | None = None, event: str | None = None
    ) -> dict[str, Any]:
        """Some turns of a conversation as HTML, from turn ``first`` on, or around the ``turn`` of an ``event``; without
        both, the last turns, of which the first one lacks its beginning if it is very long (``left_out`` items)."""
        wanted = await find_event(self.reader, event) if event else None

        def answer_of(past: Past) -> dict[str, Any]:
            telling, begin, cut = Telling(past.at(at)), max(first or 0, 0), 0
            count = sum(telling.count(root) for root in telling.roots)
            turn = telling.turn_of(wanted.position) if wanted is not None else None
            if turn is not None:
                begin = max(min(turn - BEFORE, count - MOST_TURNS), 0)
            elif first is None:
                sizes = telling.sizes(max(count - MOST_TURNS, 0), MOST_TURNS)
                last = _last(sizes)
                begin, cut = count - last, max(sizes[-last] - MOST_ITEMS, 0) if last else 0
            shown = telling.turns(begin, MOST_TURNS, MOST_ITEMS if cut else None)
            now = self._now(past, at)
            turns = [
                {"number": number, "html": _html(turn, root.directory, now)}
                for number, (root, turn) in enumerate(shown, begin)
            ]
            heads = [root.title for root in telling.roots]
            return {"turns": turns, "count": count, "left_out": cut, "heads": heads, "turn": turn}

        return await self._shown(given, answer_of, at, marks)

    def _now(self, past: Past, at: int | None) -> int:
        return self._now_ms() if past.upto(at) == past.count else past.last_ts(at)

    async def timeline(
        self,
        given: str,
        at: int | None,
        width: int,
        begin: int | None,
        end: int | None,
        marks: int | None = None,
    ) -> dict[str, Any]:
        """A session's timeline as ``drawn``, with its child sessions and background work; with the last ``turns``,
        which can be chosen, and whether there are ``earlier`` steps than all that are drawn without a stretch."""
        work = await self._intents()
        is_whole = begin is None and end is None
        stretch = 0 if begin is None else begin, LATEST if end is None else end

        def answer_of(past: Past) -> dict[str, Any]:
            def spans_of(timeline: Timeline) -> list[Span]:
                # Without a stretch only the newest steps are drawn.
                return timeline.spans(MOST_SPANS) if is_whole else timeline.between(*stretch, MOST_CHOSEN + 1)

            moment = past.at(at)
            status = moment.catalog.status(past.stream) if past.stream in moment.catalog.streams else ""
            now = self._now(past, at) if status in ("active", "waiting") else past.last_ts(at)
            timeline = Timeline(moment)
            own = ((name, past.of(name)) for name in background_of(work, past.session, now))
            background = ((name, spans_of(Timeline(each.at()))) for name, each in own if each is not None)  # not pruned
            spans = with_background(past.session, spans_of(timeline), background, now)
            for span in spans:
                if span.kind == "session":  # as in the head, a title that came later tells which session it is
                    span.name = past.catalog.sessions[span.session].title or span.name
            offered = {"turns": timeline.turns(past.session, now, OFFERED), "earlier": timeline.is_longer(MOST_SPANS)}
            return drawn(spans, now, width, begin, end) | offered

        return await self._shown(given, answer_of, at, marks)

    async def columns(self, given: str) -> dict[str, Any]:
        """All turns of a session as it is now, as ``Timeline.columns``, but with the number of the event with which
        each column begins."""

        def answer_of(past: Past) -> dict[str, Any]:
            columns = Timeline(past.at()).columns(past.session, self._now_ms(), COLUMNS)
            return {"columns": [[*column[:-1], past.number(column[-1])] for column in columns]}

        return await self._shown(given, answer_of, None, None)

    async def files(self, given: str, at: int | None, since: int, marks: int | None = None) -> dict[str, Any]:
        """The files that agents changed in the records after ``since``, up to ``at``, with approvals: the last turns
        with diffs, and how many earlier ones are left out; in ``work``, what the background work did that ended
        meanwhile."""
        state = await self._intents()

        def answer_of(past: Past) -> dict[str, Any]:
            changes, now = Changes(past.at(at), past.position(since)), self._now(past, at)
            turns = [turn.as_json() for turn in changes.turns(MOST_CHANGED, with_diffs=True)]
            work = changed_by(state, past.session, past.last_ts(since) if since else 0, now)
            about = {"left_out": changes.count() - len(turns), "totals": changes.totals(), "work": work}
            return {"turns": turns, **about}

        return await self._shown(given, answer_of, at, marks)

    async def events(self, given: str, at: int | None, first: int, marks: int | None = None) -> dict[str, Any]:
        """Some records of a session, numbered from 0, from number ``first`` on."""

        def answer_of(past: Past) -> dict[str, Any]:
            upto = past.upto(at)
            shown = past.records(first, min(first + MOST_ROWS, upto))
            rows = [row_of(record) | {"number": number} for number, record in enumerate(shown, first)]
            return {"rows": rows, "count": upto}

        return await self._shown(given, answer_of, at, marks)

    async def compare(self, one: str, other: str, at: int | None, to: int | None) -> dict[str, Any]:
        """Two sessions, or two moments of one, beside each other: see ``beside``."""

        def answer_of(left: Past, right: Past) -> tuple[Any, dict[str, Any]]:
            # What else was recorded meanwhile changes nothing.
            key = one, other, left.position(at), right.position(to)
            return key, self._beside[key] if key in self._beside else beside(left, right, at, to)

        key, found = await asked(self.reader, answer_of, one, other)
        self._beside = {**dict([*self._beside.items()][-MOST_COMPARED:]), key: found}
        return found

    # --- one event ---

    async def event(self, given: str) -> dict[str, Any]:
        """One record with its content in parts, what led to it, and what followed from it: see ``reasons``."""
        from sidecar.inspector.reasons import reasons
        from sidecar.read.causes import asked_for

        record = await find_event(self.reader, given)
        root, title = (await roots_of(self.reader, [record]))[record.event.stream_id]
        found, [allowed] = detail(record.event), await asked_for(self.reader, [record])
        return {
            "record": record.as_json(),
            "root": root,
            "title": title,
            "number": await self._number(root, record),
            "parts": [{"kind": part.kind, "text": printable(part.text)} for part in found.parts],
            "facts": [[name, one_line(str(value))] for name, value in found.facts]
            + [["allowed", one_line(f"{each.what}: {each.text}")] for each in allowed],
        } | await reasons(self.reader, record)

    async def call(self, given: str) -> dict[str, str]:
        """The ``html`` of a tool call in a conversation, with nothing left out; empty if the event is none."""
        record = await find_event(self.reader, given)
        is_call = record.event.type == "execution.step" and record.event.payload.get("kind") == "tool"
        return {"html": call_html(called(record)) if is_call else ""}

    async def _number(self, root: str, record: Record) -> int | None:
        if is_agents(root):
            return None
        return await asked(self.reader, lambda past: past.number(record.position), root)

    # --- background work, costs, health ---

    async def work(self) -> dict[str, Any]:
        """Background work, what waits for a person, and the messages about it."""

        async def made() -> dict[str, Any]:
            return await working(self.reader, await self._intents())

        about = {"now": self._now_ms(), "refused": await asyncio.to_thread(self._refused)}
        return await self._once.get("work", made) | about

    async def diff(self, given: str) -> dict[str, str]:
        """The whole diff of what a piece of background work changed, for whoever decides whether to apply it."""
        intent = of_person((await self._intents()).intents.values(), given, "intent")
        return {"diff": _BINARY.sub("binary, not shown\n", await diff_of(intent, self._home))}

    async def costs(self, by: str, days: int) -> dict[str, Any]:
        """What root sessions cost: see ``Spending``."""
        return await self._spending.shown(by, days if days in RANGES else 0, self._now_ms())

    async def act(self, action: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a button says. Raises ``SelectError`` for a button that does not exist, and the sidecar's errors."""
        method = ACTIONS.get(action)
        if method is None:
            raise SelectError("not-found", f"the page has no button {one_line(action)[:40]!r}")
        return await self._send(method, {**args, "channel": "page"} if action == "answer" else args)


def _html(turn: Turn, directory: str, now_ms: int) -> str:
    """A turn as HTML. A step of the slider changes one turn, so the others are made once."""
    text = repr(turn)
    if _WAITING in text:
        return turn_html(turn, directory, Reading(now_ms=now_ms))  # it says how long somebody has waited
    return _again(_Shown(text, directory, turn))


@dataclass(frozen=True, slots=True)
class _Shown:
    text: str
    directory: str
    turn: Turn = field(compare=False)


@lru_cache(maxsize=2 * MOST_TURNS)
def _again(shown: _Shown) -> str:
    """What was made a short time ago, or else now."""
    return turn_html(shown.turn, shown.directory, Reading())


def _last(sizes: list[int]) -> int:
    """How many of the last turns have no more items together than are shown; the last one in any case."""
    count = items = 0
    for size in reversed(sizes):
        items += size
        if items > MOST_ITEMS and count:
            break
        count += 1
    return count
