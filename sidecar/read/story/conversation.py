"""The conversation at a moment: the model of ``transcript/model``, made of rows and of the records that they name.

Reads the tables, so it blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import orjson

from sidecar.read.changes.approvals import Ask, add_answer, ask_of
from sidecar.read.changes.edits import short_path
from sidecar.read.fields import as_text
from sidecar.read.rendering.describe import describe
from sidecar.read.story.changes import approval
from sidecar.read.story.moment import Moment
from sidecar.read.story.tables import ALIVE
from sidecar.read.transcript.items import background, called, other, prompt, said
from sidecar.read.transcript.model import Branch, Call, Item, Notice, Session, Turn
from streams.store import Record

_SAID: Final = {"resumed": "OpenCode was started again", "compacted": "older messages were summed up"}
"""The texts of notices that are always the same."""

_BEGUN: Final = "session = :session AND born = first AND born <= :n"
"""The first version of each turn that a session had begun."""

_ALLOWED: Final = """
    SELECT below, ask, id FROM allowed WHERE n <= :n
        AND below IN (SELECT key FROM item WHERE turn = :turn AND key >= :first) ORDER BY id"""
"""What the calls of a turn asked for, from an item on."""


class Telling:
    """The sessions of a moment, and their turns with their items."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._allowed: dict[int, list[int]] = {}
        """The spans of the asks of calls that are about to be shown."""
        self._counts: dict[str, int] = {}

    # --- the sessions that are below no call ---

    @cached_property
    def roots(self) -> list[Session]:
        """These sessions without their turns, in the order in which they appeared."""
        moment, found = self._moment, []
        for key, row in moment.all.items():
            if not self._branches(key):
                seen = moment.last(key)
                about = row.title, row.role, row.directory, seen.first, seen.last, row.ended or "", row.label
                found.append(Session(row.name, moment.stream(row), *about))
        return found

    def whole(self) -> list[Session]:
        """These sessions with all their turns."""
        return [replace(root, turns=self._below(self._key(root))) for root in self.roots]

    def count(self, root: Session) -> int:
        """How many turns a root has."""
        if root.id not in self._counts:
            story, n = self._moment.story, self._moment.n
            self._counts[root.id] = story.count("turn", _BEGUN, n=n, session=self._key(root))
        return self._counts[root.id]

    def sizes(self, begin: int, count: int) -> list[int]:
        """How many items at most ``count`` turns of all roots have, from turn ``begin`` on, which counts from 0."""
        story, where = self._moment.story, f"turn = :turn AND {ALIVE}"
        return [story.count("item", where, n=self._moment.n, turn=row.key) for _, row in self._some(begin, count)]

    def turns(self, begin: int, count: int, most: int | None = None) -> list[tuple[Session, Turn]]:
        """At most ``count`` turns of all roots, from turn ``begin`` on; the first with its last ``most`` items only."""
        some = enumerate(self._some(begin, count))
        return [(root, self._turn(row, None if number else most)) for number, (root, row) in some]

    def last(self, root: Session, count: int) -> list[Turn]:
        """The last turns of a root, at most so many."""
        return [self._turn(row) for row in self._rows(root, max(self.count(root) - count, 0), count)]

    def turn_of(self, position: int) -> int | None:
        """The number of the turn that had begun last at a position, in the order of ``turns``; ``None`` before the
        first."""
        before, found = 0, (-1, -1)
        begun = f"SELECT max(born), count(*) FROM turn WHERE {_BEGUN} AND born <= :position"  # noqa: S608
        for root in self.roots:
            [(born, count)] = self._sql(begun, session=self._key(root), position=position)
            found = max(found, (born, before + count - 1)) if count else found
            before += self.count(root)
        return None if found[1] < 0 else found[1]

    def _key(self, root: Session) -> int:
        return next(key for key, row in self._moment.all.items() if row.name == root.id)

    def _some(self, begin: int, count: int) -> list[tuple[Session, Any]]:
        found: list[tuple[Session, Any]] = []
        for root in self.roots:
            found += [(root, row) for row in self._rows(root, max(begin, 0), count - len(found))]
            begin -= self.count(root)
        return found

    def _rows(self, root: Session, begin: int, count: int) -> list[Any]:
        after = self.count(root) - begin - count
        # Count from the nearer end: what is skipped is read, too. SQLite sorts all turns unless it selects ``born``.
        order, skipped = ("", begin) if begin <= after else ("DESC", max(after, 0))
        begun = f"SELECT key, born FROM turn WHERE {_BEGUN} ORDER BY born {order} LIMIT :count OFFSET :skipped"  # noqa: S608
        found = self._sql(begun, session=self._key(root), skipped=skipped, count=max(min(count, count + after), 0))
        keys = orjson.dumps([key for key, _ in found]).decode()
        where = f"key IN (SELECT value FROM json_each(:keys)) AND {ALIVE} ORDER BY key"  # noqa: S608
        return [*self._moment.rows("turn", where, keys=keys)]

    def _sql(self, text: str, **given: Any) -> list[tuple[Any, ...]]:
        return [*self._moment.story.sql(text, n=self._moment.n, **given)]

    # --- what is below a call ---

    def _branches(self, session: int) -> list[Any]:
        """The places at which a session was started and continued, oldest first."""
        rows = self._moment.rows("branch", "session = :s AND born <= :n ORDER BY id", s=session)
        return [row for row in rows if row.above in self._moment.all]

    def _below(self, session: int, branch: int | None = None) -> list[Turn]:
        """The turns of a branch, or of a root. Those before the first call that started a session are below it, too."""
        if session not in self._moment.all:
            return []  # background work, whose stream is not of this family
        branches = self._branches(session)
        wanted = (branch, None) if branches and branch == branches[0].id else (branch,)
        rows = self._moment.rows("turn", f"session = :s AND {ALIVE} ORDER BY key", s=session)
        return [self._turn(row) for row in rows if not branches or row.branch in wanted]

    # --- turns and items ---

    def _turn(self, row: Any, most: int | None = None) -> Turn:
        newest = f"turn = :t AND {ALIVE} ORDER BY key DESC LIMIT :most"
        items = self._moment.rows("item", newest, t=row.key, most=-1 if most is None else most)
        self._moment.read([n for item in items for n in (item.at, item.till) if self._moment.has(n)])
        turn = self._moment.turn(row)
        for call, ask, _ in self._sql(_ALLOWED, turn=row.key, first=items[-1].key if items else 0):
            self._allowed.setdefault(call, []).append(ask)
        turn.items = _joined(self._item(each, row) for each in reversed(items))
        return turn

    def _item(self, row: Any, turn: Any) -> Item:
        if row.kind == "ask" and row.ref is not None:
            return self._ask(row.ref)
        record = self._moment.record(row.at)
        match row.kind:
            case "prompt":
                is_undone = turn.key in self._moment.undone
                return replace(prompt(record), command=row.text, undone=is_undone)
            case "said" | "summary":
                return said(record) if row.kind == "said" else replace(said(record), kind="summary")
            case "call" | "adopted":
                return self._call(row, turn.session, record)
            case "ask":
                ask = ask_of(record)  # the answer to an ask that is not known
                add_answer(ask, record)
                return ask
            case "background" | "other":
                return background(record) if row.kind == "background" else other(record)
        text = row.text or _SAID.get(row.kind) or ("" if row.kind == "forgotten" else describe(record.event).text)
        return Notice(record.event.id, record.event.ts, row.kind, text)

    def _call(self, row: Any, session: int, record: Record) -> Call:
        event, call = record.event, None
        if row.kind == "adopted":
            call = Call(event.id, event.ts, event.actor, "task", "", status="unknown")
        elif event.type == "agent.spawned":
            name, title = (as_text(event.payload.get(each)) for each in ("call", "description"))
            call = Call(event.id, event.ts, event.actor, "task", name, title=title)
        if row.kind == "call" and self._moment.has(row.till):
            ended = record if row.till == row.at else self._moment.record(row.till)
            call = called(ended, call)
            if call.diffs:
                where = self._directory(session, row.till)
                call.diffs = [replace(diff, file=short_path(diff.file, where)) for diff in call.diffs]
            call.asks = [self._ask(span) for span in self._allowed.pop(row.key, ())]
        assert call is not None
        started = "call = :key AND born <= :n ORDER BY id DESC"
        if row.ref is not None and (found := self._moment.one("branch", started, key=row.key)) is not None:
            child = self._sql("SELECT name FROM session WHERE key = :key", key=found.session)[0][0]
            call.child = Branch(child, found.title, found.agent, self._below(found.session, found.id))
        return call

    def _ask(self, span: int) -> Ask:
        return approval(self._moment, self._moment.one("span", f"key = :key AND {ALIVE}", key=span)).ask

    def _directory(self, session: int, at: int) -> str:
        """The directory in which a session ran at a record."""
        then = self._moment.one("session", "key = :key AND born <= :at ORDER BY born DESC", key=session, at=at)
        return str(then.directory)


def _joined(items: Iterable[Item]) -> list[Item]:
    """The items, with one notice for neighbours whose content was forgotten."""
    found: list[Item] = []
    for item in items:
        last = found[-1] if found else None
        if isinstance(item, Notice) and isinstance(last, Notice) and item.what == last.what == "forgotten":
            last.count += 1
        else:
            found.append(item)
    return found
