"""Where sessions belong: in which stream and directory, and below which call of which other session.

The rules of the events that say so. Payloads come from other programs, so any field may be missing or of another type.
"""

from __future__ import annotations

from typing import Any, Final

from sidecar.read.fields import as_directory, as_text
from sidecar.read.story import tables
from sidecar.read.story.session_fold import Live, Story, encoded
from streams.lineage import NAMED, PINNED, RESUMED
from streams.store import Record

MOST_DEPTH: Final = 8
"""Maximum nesting depth of sessions; deeper sessions become roots."""


class Belonging(Story):
    """The rules about sessions."""

    def appeared(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        place, directory = self.place_at(record), as_directory(p.get("directory"))
        about = {"directory": place.directory or directory, "project": place.project or as_text(p.get("project"))}
        self.places.change(place, n, **about)
        if not s.row.announced:
            known = int(p.get("lineage", "root") in ("root", "child"))
            parent = as_text(p.get("parent")) or None
            self.change(s, n, p, announced=1, place=place.key, parent=parent, known=known)
            self.places.change(place, n, used=1)
        agent, own = as_text(p.get("agent")), s.row.directory or as_text(p.get("directory"))
        agents = {"agent": s.row.agent or agent, "role": s.row.role or agent}
        self.change(s, n, p, ended=None, rests=0, directory=own, **agents)
        if place.directory and (given := self.works.get(s.row.name)):
            self.work(s.row.name, given, n)
        if record.event.type == RESUMED:
            self.over(s, n, record.event.ts)
            if s.current is not None:
                self.item(s.current, n, "resumed")
        self._adopt(s, record, p, n)

    def work(self, session: str, directory: str, n: int) -> None:
        """A session is background work for a directory. It may run in another one, and may not be recorded yet."""
        s = self.known(session)
        place = self.place_of(s) if s is not None and s.row.named else None
        if place is None or not place.directory:
            self.works[session] = directory
        elif self.works.pop(session, directory) and place.stream == session:
            self.places.change(place, n, ran_in=place.ran_in or place.directory, directory=directory)
        self.states.put(0, tables.Live(0, encoded(self.works)))

    def moved(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        directory = as_text(p.get("directory"))
        self.change(s, n, p, directory=directory or s.row.directory)
        if s.row.parent is None:
            place, project = self.place_at(record), as_text(p.get("project"))
            new = {"directory": as_directory(directory) or place.directory, "project": project or place.project}
            self.places.change(place, n, moved=place.moved + 1, **new)

    def linked(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        self.change(s, n, p, parent=as_text(p.get("parent")) or None, known=1)
        self._adopt(s, record, p, n)

    def titled(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        self.change(s, n, p)

    def ended(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        self.close(s, n, record.event.ts, "completed")
        self.change(s, n, p, ended=as_text(p.get("reason")) or "ended", rests=1)
        self.item(self.turn(s, "", n), n, "ended", text=f"session {s.row.ended}")

    def marked(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        """A person pinned or named the stream, which has the name of its own session."""
        row = s.row
        if not row.named:
            found = self.sessions.find("place = ? AND named = 1 AND died IS NULL ORDER BY key", row.place)
            row = self.live_of(found.key).row if found is not None else row
        is_name = record.event.type == NAMED
        new = {"label": as_text(p.get("name"))} if is_name else {"pinned": int(record.event.type == PINNED)}
        self.sessions.change(row, n, **new)

    def _adopt(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        """Put a session without a known call into its parent's open turn; if none is open, no turn started the session,
        so it gets a place of its own after the last turn."""
        above = self.known(as_text(p.get("parent")))
        if above is not None and s.branch is None and self._fits(above, s):
            is_open = above.current is not None and not above.current.outcome
            item = self.item(self.turn(above, "" if is_open else record.event.id, n), n, "adopted")
            self.put_below(above, s, item, n)

    def put_below(self, above: Live, s: Live, item: tables.Item, n: int) -> None:
        """Put the session's later turns below a call, and also its earlier turns if the session was a root."""
        is_again = s.branch is not None and s.branch.above == above.key
        if is_again or (s.branch is None and self._fits(above, s)):
            self.sessions.change(s.row, n, directory=s.row.directory or above.row.directory)
            title = item.text or s.row.title
            row = tables.Branch(session=s.key, above=above.key, call=item.key, title=title, agent=s.row.role, born=n)
            s.branch = self.branches.add(row)
            self.items.set(item, ref=s.branch.id)

    def _fits(self, above: Live, s: Live) -> bool:
        """False if the session contains its parent, or would be nested too deep."""
        chain, below, height = [above.key], {s.key}, 0
        while (branch := self.branches.find("session = ?", chain[-1])) is not None:
            chain.append(branch.above)
        while below := {each.session for key in below for each in self.branches.all("above = ?", key)}:
            height += 1
        return s.key not in chain and len(chain) + height < MOST_DEPTH

    def spawned(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        turn, name, call = self.turn_of(s, p, n), as_text(p.get("child")), as_text(p.get("call"))
        started = self._started(s, p)
        ended = self.spans.find("key = ? AND died IS NULL", started.span) if started is not None else None
        item = self.items.find("key = ? AND died IS NULL", started.item) if started is not None else None
        span = s.calling(call)
        if span is None and call and ended is None and s.run is not None:
            span = self.began(s, record, p, n)
        if span is not None:
            self.spans.change(span, n, about=n)
        span = span or ended
        self.spawns.add(tables.Spawn(n=n, turn=turn.key, child=name, span=span.key if span is not None else None))
        child = self.live(name, record, self.place_at(record).key, is_own=False) if name else None
        of = self.branches.find("id = ?", item.ref) if item is not None and item.ref is not None else None
        if item is None or (of is not None and (child is None or of.session != child.key)):
            item = self.item(turn, n, "call", call=call, text=as_text(p.get("description")))
            s.state.running += 1
        if child is not None:
            self.sessions.change(child.row, n, role=as_text(p.get("agent")) or child.row.role)
            self.put_below(s, child, item, n)

    def _started(self, s: Live, p: dict[str, Any]) -> tables.Started | None:
        """The call that an ``agent.spawned`` names, whose turn may be a later one, and whose call may be unknown."""
        turn, name, child = (as_text(p.get(each)) for each in ("turn", "call", "child"))
        where = "session = ? AND {} ORDER BY id DESC"
        found = self.started.find(where.format("turn = ? AND call = ?"), s.key, turn, name)
        if (found is None or found.child not in ("", child)) and child:
            found = self.started.find(where.format("child = ? AND ? IN (call, '')"), s.key, child, name)
        return found if found is not None and found.child in ("", child) else None

    def began(self, s: Live, record: Record, p: dict[str, Any], n: int) -> tables.Span:
        span = self.begin(s, n, "tool", record.event.ts, call=as_text(p.get("call")), state="running")
        s.open[span.key] = span
        return span
