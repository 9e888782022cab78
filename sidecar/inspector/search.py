"""What the palette finds: the sessions that fit some words and operators, the best first, with the events that do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from sidecar.inspector.around import shown_status
from sidecar.read.fields import has_failed
from sidecar.read.find_by_id import ask_catalog, newest
from sidecar.read.kinds import is_agents, repeats
from sidecar.read.projects import short_directory
from sidecar.read.rendering.describe import describe
from sidecar.read.story.catalog import Catalog
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

AROUND: Final = 60
"""How many characters around a hit a snippet has, on each side."""

_TOKEN: Final = re.compile(r'(?:([a-z]+):)?(?:"([^"]*)"?|(\S+))')
_TIMES: Final = ("since", "until")
_OF_SESSIONS: Final = ("project", "agent", "model")
_WEIGHTS: Final = {"human.input": 3, "execution.output": 2, "agent.input": 2, "execution.step": 1}
"""What people and agents said tells more than what a tool returned. All else often has only the title."""


_PLACES: Final = f"SELECT key, stream, directory FROM place WHERE {ALIVE}"  # noqa: S608
_SESSIONS: Final = f"SELECT name, key, parent, place, agent, model FROM session WHERE named = 1 AND {ALIVE}"  # noqa: S608
_KEYS: Final = f"SELECT key, name FROM session WHERE name IN (SELECT value FROM json_each(:names)) AND {ALIVE}"  # noqa: S608
_AGENTS: Final = f"SELECT DISTINCT session, agent, model FROM turn WHERE {ALIVE} AND agent <> ''"  # noqa: S608
_TURNS: Final = f"""SELECT session, message, agent, model FROM turn WHERE {ALIVE} AND agent <> ''
    AND session IN (SELECT value FROM json_each(:keys)) AND message IN (SELECT value FROM json_each(:names))"""  # noqa: S608


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
    def is_of_events(self) -> bool:
        """Whether events are asked for, and not sessions alone."""
        return bool(self.words) or not self.filters.keys().isdisjoint(("tool", "failed", "agent", "model"))

    @property
    def is_of_turns(self) -> bool:
        """Whether turns are asked for, and nothing in them."""
        return self.is_of_events and not self.words and self.filters.keys().isdisjoint(("tool", "failed"))

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
        elif name in (*_OF_SESSIONS, "tool") and value:
            filters[name] = value.casefold()
        elif plain == "failed" and not name:
            filters["failed"] = ""
        elif value:
            words.append(f"{name}:{value}" if name else value)
    return Asked(tuple(words), filters, times.get("since"), times.get("until"), tuple(faults))


async def search(reader: LogReader, text: str, now_ms: int) -> dict[str, Any]:
    """What a text finds: ``groups``, each a session with its ``hits``, the best first; the ``words`` and ``filters``
    that were understood, and ``faults``. Without a text, the newest sessions."""
    wanted = asked(text, now_ms)
    if wanted.is_of_turns:
        records = await ask_story(reader, lambda story: _begun(story, wanted))
    else:
        records = await _failures(reader, wanted) if "failed" in wanted.filters else await _with_words(reader, wanted)

    def question(story: Snapshot) -> tuple[list[Record], dict[str, str] | None, dict[str, str]]:
        fitting = _fitting(story, wanted)
        hits = _in_turns(story, wanted, [record for record in records if wanted.fits(record)], fitting)
        return hits, fitting, _titled(story, wanted, fitting)

    hits, fitting, titled = await ask_story(reader, question)
    streams = None if fitting is None else {*fitting.values()}
    groups = await ask_catalog(reader, lambda catalog: _groups(catalog, wanted, hits, streams, titled))
    about = {"words": wanted.words, "filters": [*wanted.filters.items()], "faults": wanted.faults}
    return about | {"groups": groups, "is_all": len(records) < LOOKED}


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
        names = _fitting(story, wanted)
        keys = "SELECT key FROM session WHERE name IN (SELECT value FROM json_each(:names))"
        some = f"AND session IN ({keys})" * (names is not None)
        newest_ones = f"SELECT n FROM mark WHERE kind = 'error' AND n <= :n {some} ORDER BY n DESC LIMIT :most"  # noqa: S608
        given = {"n": story.head, "most": LOOKED, "names": orjson.dumps([*(names or ())]).decode()}
        found = story.records(n for (n,) in story.sql(newest_ones, **given))
        return [found[n] for n in sorted(found)]

    return await ask_story(reader, question)


def _begun(story: Snapshot, wanted: Asked) -> list[Record]:
    """The first events of the newest turns of an agent or a model."""
    some = " AND ".join(
        f"lower({name}) LIKE '%' || :{name} || '%'" for name in ("agent", "model") if name in wanted.filters
    )
    newest_ones = f"SELECT first FROM turn WHERE {ALIVE} AND agent <> '' AND {some} ORDER BY first DESC LIMIT :most"  # noqa: S608
    found = story.records(n for (n,) in story.sql(newest_ones, n=story.head, most=LOOKED, **wanted.filters))
    return [found[n] for n in sorted(found)]


def _fitting(story: Snapshot, wanted: Asked) -> dict[str, str] | None:
    """The sessions that an operator names, each with its stream; ``None`` if none of them is about sessions. Each agent
    and each model that had a turn in a session counts."""
    of = {name: wanted.filters[name] for name in _OF_SESSIONS if name in wanted.filters}
    if not of:
        return None
    places = {key: at for key, *at in story.sql(_PLACES, n=story.head)}
    rows = {name: row for name, *row in story.sql(_SESSIONS, n=story.head)}
    had: dict[int, set[tuple[str, str]]] = {}
    for key, agent, model in story.sql(_AGENTS, n=story.head) if of.keys() != {"project"} else ():
        had.setdefault(key, set()).add((agent, model))

    def directory(name: str) -> str:
        """That of the session, or of the one that started it."""
        seen = set[str]()
        while name in rows and name not in seen:
            seen.add(name)
            _, parent, place, _, _ = rows[name]
            if places[place][1]:
                return str(places[place][1])
            name = parent or ""
        return ""

    def is_of(name: str, key: int, agent: str, model: str) -> bool:
        project = directory(name) if "project" in of else ""
        return any(wanted.is_of(project, *each) for each in ((agent, model), *had.get(key, ())))

    return {name: places[place][0] for name, (key, _, place, *own) in rows.items() if is_of(name, key, *own)}


def _in_turns(story: Snapshot, wanted: Asked, hits: list[Record], fitting: dict[str, str] | None) -> list[Record]:
    """Those of the events that are in a session that fits, and in a turn of the agent and the model."""
    if fitting is None:
        return hits
    about = [(record, str(record.event.payload.get("session") or record.event.stream_id)) for record in hits]
    about = [(record, session) for record, session in about if session in fitting]
    names = orjson.dumps([*{session for _, session in about}]).decode()
    keys = {name: key for key, name in story.sql(_KEYS, n=story.head, names=names)}
    turns = {}
    for record, session in about:
        message = record.event.payload.get("turn") or record.event.payload.get("message")
        if isinstance(message, str):
            turns[record.position] = (keys[session], message)
    given = {"keys": orjson.dumps([*keys.values()]).decode()}
    given["names"] = orjson.dumps([*{message for _, message in turns.values()}]).decode()
    known = {(session, message): own for session, message, *own in story.sql(_TURNS, n=story.head, **given)}

    def is_of(record: Record) -> bool:
        agent, model = known.get(turns.get(record.position, (0, "")), ("", ""))
        return not agent or wanted.is_of(None, agent, model)

    return [record for record, _ in about if is_of(record)]


def _titled(story: Snapshot, wanted: Asked, fitting: dict[str, str] | None) -> dict[str, str]:
    """The sessions that fit and have every word in their title, each with its stream."""
    if not wanted.words or not {"tool", "failed"}.isdisjoint(wanted.filters):
        return {}
    words = [word.casefold() for word in wanted.words]
    titles = story.sql(
        f"SELECT name, place, title || ' ' || label FROM session WHERE named = 1 AND {ALIVE}",  # noqa: S608
        n=story.head,
    )
    some = ((name, place, title.casefold()) for name, place, title in titles if fitting is None or name in fitting)
    found = {name: place for name, place, title in some if all(word in title for word in words)}
    newest_ones = dict([*found.items()][-4 * MOST_SESSIONS :])
    named = "SELECT key, stream FROM place WHERE key IN (SELECT value FROM json_each(:keys))"
    streams = dict(story.sql(named, keys=orjson.dumps([*newest_ones.values()]).decode()))
    return {name: streams[place] for name, place in newest_ones.items()}


def _groups(
    catalog: Catalog, wanted: Asked, hits: Iterable[Record], streams: set[str] | None, titled: dict[str, str]
) -> list[dict[str, Any]]:
    """The sessions that are shown, each with its events, the best first. Without words, those of ``streams``."""
    by_stream: dict[str, list[Record]] = {}
    for record in hits:
        by_stream.setdefault(record.event.stream_id, []).append(record)
    names = [*{**by_stream, **dict.fromkeys(titled.values())}]
    if not wanted.is_of_events:
        some = (name for name in catalog.newest_first() if not is_agents(name))
        names = [*islice((name for name in some if streams is None or name in streams), RECENT)]
    catalog.read(names)
    groups: dict[str, dict[str, Any]] = {}
    for name in names:
        root = catalog.root_stream(name)
        own, stream = catalog.own_session(root), catalog.streams.get(root)
        if own is None or stream is None:
            continue
        if not wanted.is_of_events and wanted.since is not None and stream.last_ts < wanted.since:
            continue
        if root not in groups:
            place = short_directory(catalog.directory(root), str(Path.home()))
            about = {
                "stream_id": root,
                "title": own.title or catalog.first_prompt(own.id),
                "status": shown_status(catalog.status(root), own),
            }
            points = 4 * (own.id in titled)
            groups[root] = about | {
                "place": place,
                "first_ts": stream.first_ts,
                "last_ts": stream.last_ts,
                "hits": [],
                "points": points,
            }
        groups[root]["hits"] += by_stream.get(name, [])
    shown = [_ranked(group, wanted) for group in groups.values()]
    return sorted(shown, key=lambda each: (each["points"], each["last_ts"]), reverse=True)[:MOST_SESSIONS]


def _ranked(group: dict[str, Any], wanted: Asked) -> dict[str, Any]:
    """The session with its best events only, and what all of them are worth."""

    def worth(record: Record) -> int:
        exact = 3 * (len(wanted.words) > 1 and holds_text(record.event, wanted.phrase))
        return _WEIGHTS.get(record.event.type, 0) + exact

    best = sorted(((worth(each), each.position, each) for each in group["hits"]), key=lambda each: each[:2])[::-1]
    points = group["points"] + (best[0][0] + min(len(best), 10) / 10 if best else 0)
    shown = [_shown(record, wanted) for _, _, record in best[:MOST_HITS]]
    return group | {"hits": shown, "count": len(best), "points": points}


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
