"""What the palette finds: the sessions that fit some words and operators, the best first, with the events that do."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from sidecar.read.fields import has_failed
from sidecar.read.find_by_id import newest
from sidecar.read.kinds import repeats
from sidecar.read.rendering.describe import describe
from sidecar.read.story.reading import Snapshot
from sidecar.read.story.reading import ask as ask_story
from sidecar.read.story.tables import ALIVE
from sidecar.read.wording import one_line
from streams.log.reader import LogReader
from streams.query import Filter, holds_text, parse_moment
from streams.store import Record

LOOKED: Final = 400
"""How many of the newest events with a text are looked at."""

MOST_SESSIONS: Final = 20
MOST_HITS: Final = 4
"""How many events of one session are shown."""

RECENT: Final = 8
"""How many sessions are offered before anybody typed something."""

ONLY_TEAM: Final = "'machine:' counts on the page of a team only"

LATEST: Final = 2**62
"""A time after every other."""

AROUND: Final = 60
"""How many characters around a hit a snippet has, on each side."""

_TOKEN: Final = re.compile(r'(?:([a-z]+):)?(?:"([^"]*)"?|(\S+))')
_TIMES: Final = ("since", "until")
_OF_SESSIONS: Final = ("project", "agent", "model")
_WEIGHTS: Final = {"human.input": 3, "execution.output": 2, "agent.input": 2, "execution.step": 1}
"""What people and agents said tells more than what a tool returned. All else often has only the title."""


_PLACES: Final = f"SELECT key, stream, directory FROM place WHERE {ALIVE}"  # noqa: S608
_SESSIONS: Final = f"""SELECT name, key, parent, place, agent, model, title || ' ' || label FROM session
    WHERE named = 1 AND {ALIVE}"""  # noqa: S608
_AGENTS: Final = f"SELECT DISTINCT session, agent, model FROM turn WHERE {ALIVE} AND agent <> ''"  # noqa: S608
_TURNS: Final = f"""SELECT first, session, agent, model, started_ms, ended_ms FROM turn WHERE {ALIVE} AND agent <> ''
    AND session IN (SELECT value FROM json_each(:keys))"""  # noqa: S608
_SAID: Final = f"""SELECT session, message, agent, model FROM turn WHERE {ALIVE} AND agent <> ''
    AND session IN (SELECT value FROM json_each(:keys)) AND message IN (SELECT value FROM json_each(:names))"""  # noqa: S608
_FAILED: Final = "SELECT n, session FROM mark WHERE kind = 'error' AND n <= :n"
_FAILED_THEN: Final = """SELECT mark.n, mark.session FROM mark JOIN moment ON moment.n = mark.n
    WHERE mark.kind = 'error' AND mark.n <= :n AND moment.ts >= :since AND moment.ts <= :until"""


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody typed. All ``words`` must be there; what stands in quotes is one. Times are in ms since 1970.

    ``filters`` has the operators that count, by name; ``faults`` says which ones do not, and why.
    """

    words: tuple[str, ...] = ()
    filters: dict[str, str] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    faults: tuple[str, ...] = ()

    @property
    def phrase(self) -> str:
        return " ".join(self.words)

    @property
    def is_of_sessions(self) -> bool:
        """Whether what is asked for is known of each session, so that no event is looked for."""
        is_of_turns = not self.filters.keys().isdisjoint(("agent", "model"))
        return not (self.words or "tool" in self.filters or ("failed" in self.filters and is_of_turns))

    def overlaps(self, first: int | None, last: int | None) -> bool:
        """Whether some of the time from ``first`` to ``last`` is asked for; ``None``: it has no such end."""
        begins = self.until is None or first is None or first <= self.until
        return begins and (self.since is None or last is None or last >= self.since)

    def is_of(self, project: str | None, agent: str, model: str) -> bool:
        """Whether a turn fits; ``None``: its project is known to fit."""
        values = {"project": project, "agent": agent, "model": model}
        found = ((values[name], self.filters[name]) for name in _OF_SESSIONS if name in self.filters)
        return all(value is None or text in value.casefold() for value, text in found)

    def fits(self, record: Record) -> bool:
        """Whether an event fits, apart from the session that it is of."""
        event, tool = record.event, self.filters.get("tool")
        if repeats(event) or not Filter(since_ms=self.since, until_ms=self.until).in_time(event):
            return False
        if tool is not None and str(event.payload.get("tool") or "").casefold() != tool:
            return False
        return all(holds_text(event, word) for word in self.words)


def asked(text: str, now_ms: int) -> Asked:
    """Take ``tool:bash failed project:shop since:7d some "exact words"`` apart. ``failed`` in quotes is a word."""
    words, filters, times, faults = list[str](), dict[str, str](), dict[str, int](), list[str]()
    for name, quoted, plain in _TOKEN.findall(text):
        value = quoted or plain
        if name in _TIMES and value:
            try:
                times[name] = parse_moment(value, now_ms)
                filters[name] = value
            except ValueError as error:
                faults.append(str(error))
        elif name in (*_OF_SESSIONS, "tool", "machine") and value:
            filters[name] = value.casefold()
        elif plain == "failed" and not name:
            filters["failed"] = ""
        elif value:
            words.append(f"{name}:{value}" if name else value)
    return Asked(tuple(words), filters, times.get("since"), times.get("until"), tuple(faults))


class _Sessions:
    """All sessions of the story, by their names."""

    def __init__(self, story: Snapshot) -> None:
        self._story = story
        self._places = {key: at for key, *at in story.sql(_PLACES, n=story.head)}
        self.rows = {name: row for name, *row in story.sql(_SESSIONS, n=story.head)}
        self.names = {row[0]: name for name, row in self.rows.items()}
        self._roots: dict[str, str] = {}
        self._of: dict[str, str] | None = None

    def stream(self, name: str) -> str:
        return str(self._places[self.rows[name][2]][0])

    def _above(self, name: str) -> Iterable[str]:
        """The session, the one that started it, and so on."""
        seen = set[str]()
        while name in self.rows and name not in seen:
            yield name
            seen.add(name)
            name = self.rows[name][1] or ""

    def root(self, name: str) -> str:
        """The stream of the session that a person started."""
        if name not in self._roots:
            *_, top = self._above(name)
            self._roots[name] = self.stream(top)
        return self._roots[name]

    def session(self, record: Record) -> str | None:
        """The session that an event is of; ``None`` if it is of none."""
        name = str(record.event.payload.get("session") or record.event.stream_id)
        if name in self.rows:
            return name
        if self._of is None:
            self._of = {}
            for each in self.rows:
                self._of.setdefault(self.stream(each), each)
        return self._of.get(record.event.stream_id)

    def _directory(self, name: str) -> str:
        """That of the session, or of the one that started it."""
        return next(filter(None, (str(self._places[self.rows[each][2]][1]) for each in self._above(name))), "")

    def fitting(self, wanted: Asked) -> Collection[str] | None:
        """The sessions that an operator names; ``None`` if none of them is about sessions. Each agent and each model
        that had a turn in a session counts."""
        of = {name for name in _OF_SESSIONS if name in wanted.filters}
        if not of:
            return None
        had: dict[int, set[tuple[str, str]]] = {}
        for key, agent, model in self._story.sql(_AGENTS, n=self._story.head) if of != {"project"} else ():
            had.setdefault(key, set()).add((agent, model))

        def is_of(name: str, key: int, agent: str, model: str) -> bool:
            project = self._directory(name) if "project" in of else ""
            return any(wanted.is_of(project, *each) for each in ((agent, model), *had.get(key, ())))

        return {name for name, (key, _, _, agent, model, _) in self.rows.items() if is_of(name, key, agent, model)}


async def search(
    reader: LogReader, rows: list[dict[str, Any]], text: str, now_ms: int, machine: str | None = None
) -> dict[str, Any]:
    """What a text finds in the sessions of the list's ``rows``: ``groups``, each a session with its ``hits``, the best
    first, or without words the newest first; how many sessions fit in ``total``; the ``words`` and ``filters`` that
    were understood, and ``faults``. If not ``is_all``, older events were not looked at. Without a text, the newest
    sessions. A team's home is on a ``machine``."""
    wanted = asked(text, now_ms)
    faults, there = [*wanted.faults], wanted.filters.get("machine")
    if there is not None and machine is None:
        faults.append(ONLY_TEAM)
    elif there is not None and there not in (machine or "").casefold():
        rows = []
    records: list[Record] = []
    if wanted.is_of_sessions:
        total, groups = await ask_story(reader, lambda story: _by_filters(story, wanted, rows))
    else:
        if rows:
            records = await (_failures if "failed" in wanted.filters else _with_words)(reader, wanted)
        total, groups = await ask_story(reader, lambda story: _by_events(story, wanted, rows, records))
    about = {"words": wanted.words, "filters": [*wanted.filters.items()], "faults": faults}
    return about | {"groups": groups, "total": total, "is_all": len(records) < LOOKED}


async def _with_words(reader: LogReader, wanted: Asked) -> list[Record]:
    """The newest events with the longest word, or else of a tool."""
    tool = wanted.filters.get("tool")
    text = max((*wanted.words, *([tool] if tool else ())), key=len, default=None)
    if text is None:
        return []
    types = () if tool is None else ("execution.step",)
    about = Filter(types=types, text=text, since_ms=wanted.since, until_ms=wanted.until)
    found, _ = await newest(reader, about, LOOKED, lambda record: not repeats(record.event))
    return found


async def _failures(reader: LogReader, wanted: Asked) -> list[Record]:
    """The newest events with which something failed, in the sessions that fit."""

    def question(story: Snapshot) -> list[Record]:
        names = _Sessions(story).fitting(wanted)
        keys = "SELECT key FROM session WHERE name IN (SELECT value FROM json_each(:names))"
        some = f"AND session IN ({keys})" * (names is not None)
        newest_ones = f"SELECT n FROM mark WHERE kind = 'error' AND n <= :n {some} ORDER BY n DESC LIMIT :most"  # noqa: S608
        given = {"n": story.head, "most": LOOKED, "names": orjson.dumps([*(names or ())]).decode()}
        found = story.records(n for (n,) in story.sql(newest_ones, **given))
        return [found[n] for n in sorted(found)]

    return await ask_story(reader, question)


def _by_filters(story: Snapshot, wanted: Asked, rows: list[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """How many sessions fit, and the newest of them, each with the newest failures or turns that are asked for."""
    rows = [row for row in rows if wanted.overlaps(row["first_ts"], row["last_ts"])]
    most = MOST_SESSIONS if wanted.filters else RECENT
    if {"failed", *_OF_SESSIONS}.isdisjoint(wanted.filters):
        return len(rows), [_group(row, wanted, [], 0) for row in rows[:most]]
    known = _Sessions(story)
    fitting = known.fitting(wanted)
    found = _failed(story, wanted) if "failed" in wanted.filters else []
    names = fitting
    if "failed" in wanted.filters:
        failed = {known.names[key] for _, key in found if key in known.names}
        names = failed if fitting is None else failed.intersection(fitting)
    roots = {name: known.root(name) for name in names or ()}
    streams = {*roots.values()}
    rows = [row for row in rows if row["stream_id"] in streams]
    shown = {row["stream_id"] for row in rows[:most]}
    of = {known.rows[name][0]: stream for name, stream in roots.items() if stream in shown}
    at: dict[str, list[int]] = {stream: [] for stream in shown}
    for n, key in found or _turns(story, wanted, of):
        if key in of:
            at[of[key]].append(n)
    best = {stream: sorted(some)[: -MOST_HITS - 1 : -1] for stream, some in at.items()}
    records = story.records(n for some in best.values() for n in some)
    return len(rows), [
        _group(row, wanted, [records[n] for n in best[stream]], len(at[stream]))
        for row in rows[:most]
        for stream in (row["stream_id"],)
    ]


def _failed(story: Snapshot, wanted: Asked) -> list[tuple[int, int]]:
    """Each event with which something failed in the time, and the key of its session."""
    if wanted.since is None and wanted.until is None:
        return story.sql(_FAILED, n=story.head)
    times = {"since": wanted.since or 0, "until": LATEST if wanted.until is None else wanted.until}
    return story.sql(_FAILED_THEN, n=story.head, **times)


def _turns(story: Snapshot, wanted: Asked, keys: Iterable[int]) -> list[tuple[int, int]]:
    """The first event of each turn of the agent and the model in the time, and the key of its session, one of these."""
    if {"agent", "model"}.isdisjoint(wanted.filters):
        return []
    return [
        (first, key)
        for first, key, agent, model, begin, end in story.sql(_TURNS, n=story.head, keys=orjson.dumps([*keys]).decode())
        if wanted.is_of(None, agent, model) and wanted.overlaps(begin, end)
    ]


def _by_events(
    story: Snapshot, wanted: Asked, rows: list[dict[str, Any]], records: list[Record]
) -> tuple[int, list[dict[str, Any]]]:
    """How many sessions have an event that fits, or every word in their title, and the best of them."""
    known, listed = _Sessions(story), {row["stream_id"]: row for row in rows}
    fitting = known.fitting(wanted)
    hits = dict[str, list[Record]]()
    for name, record in _in_turns(story, known, wanted, [each for each in records if wanted.fits(each)], fitting):
        hits.setdefault(known.root(name), []).append(record)
    titled = {known.root(name) for name in _titled(known, wanted, fitting)}
    times = {stream: (row["first_ts"], row["last_ts"]) for stream, row in listed.items()}
    titled = {stream for stream in titled if stream in times and wanted.overlaps(*times[stream])}
    found = []
    for stream in {**hits, **dict.fromkeys(titled)}:
        if stream in listed:
            points, best = _ranked(hits.get(stream, []), wanted)
            found.append((points + 4 * (stream in titled), listed[stream], best))
    found.sort(key=lambda each: (each[0], each[1]["last_ts"]), reverse=True)
    shown = found[:MOST_SESSIONS]
    return len(found), [_group(row, wanted, best[:MOST_HITS], len(best), points) for points, row, best in shown]


def _in_turns(
    story: Snapshot, known: _Sessions, wanted: Asked, hits: list[Record], fitting: Collection[str] | None
) -> list[tuple[str, Record]]:
    """Those of the events that are in a session that fits, and in a turn of the agent and the model; each after its
    session."""
    about = [(name, record) for record in hits if (name := known.session(record)) is not None]
    if fitting is None:
        return about
    about = [(name, record) for name, record in about if name in fitting]
    keys = {name: known.rows[name][0] for name, _ in about}
    turns = {}
    for name, record in about:
        message = record.event.payload.get("turn") or record.event.payload.get("message")
        if isinstance(message, str):
            turns[record.position] = (keys[name], message)
    given = {"keys": orjson.dumps([*keys.values()]).decode()}
    given["names"] = orjson.dumps([*{message for _, message in turns.values()}]).decode()
    had = {(session, message): own for session, message, *own in story.sql(_SAID, n=story.head, **given)}

    def is_of(record: Record) -> bool:
        agent, model = had.get(turns.get(record.position, (0, "")), ("", ""))
        return not agent or wanted.is_of(None, agent, model)

    return [(name, record) for name, record in about if is_of(record)]


def _titled(known: _Sessions, wanted: Asked, fitting: Collection[str] | None) -> list[str]:
    """The sessions that fit and have every word in their title."""
    if not wanted.words or not {"tool", "failed"}.isdisjoint(wanted.filters):
        return []
    words = [word.casefold() for word in wanted.words]
    some = ((name, row[-1].casefold()) for name, row in known.rows.items() if fitting is None or name in fitting)
    return [name for name, title in some if all(word in title for word in words)]


def _ranked(hits: list[Record], wanted: Asked) -> tuple[float, list[Record]]:
    """What the events of a session are worth, and the events, the best first."""

    def worth(record: Record) -> int:
        exact = 3 * (len(wanted.words) > 1 and holds_text(record.event, wanted.phrase))
        return _WEIGHTS.get(record.event.type, 0) + exact

    best = sorted(((worth(each), each.position, each) for each in hits), key=lambda each: each[:2])[::-1]
    points = best[0][0] + min(len(best), 10) / 10 if best and wanted.words else 0
    return points, [record for _, _, record in best]


def _group(row: dict[str, Any], wanted: Asked, hits: list[Record], count: int, points: float = 0) -> dict[str, Any]:
    """A session that is shown, with some of its ``count`` events."""
    about = {name: row[name] for name in ("stream_id", "title", "status", "place", "first_ts", "last_ts")}
    return about | {"hits": [_shown(record, wanted) for record in hits], "count": count, "points": points}


def _shown(record: Record, wanted: Asked) -> dict[str, Any]:
    event, line = record.event, describe(record.event)
    texts = (snippet(event.payload, each) for each in (wanted.phrase, *wanted.words) if each)
    failed = line.tone == "bad" or (event.type == "execution.step" and has_failed(event.payload))
    shown = next(filter(None, texts), "") or one_line(line.text)[: 3 * AROUND]
    return {"event": event.id, "ts": event.ts, "label": line.label, "snippet": shown, "failed": failed}


def snippet(payload: Any, text: str) -> str:
    """The first value of a payload that has ``text``, and some of what is around it; empty if none has."""
    values = [payload]
    wanted = text.casefold()
    while values:
        value = values.pop(0)
        if isinstance(value, dict):
            values[:0] = list(value.values())
        elif isinstance(value, list):
            values[:0] = value
        elif isinstance(value, str) and (at := value.casefold().find(wanted)) >= 0:
            begin, end = max(at - AROUND, 0), at + len(text) + AROUND
            return "…" * (begin > 0) + one_line(value[begin:end]) + "…" * (end < len(value))
    return ""
