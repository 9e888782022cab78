"""The lineage of sessions: session → root stream, trace id, span id. Pure.

A root session is a stream and a trace; a child session is a span in its
root's stream. The ids are derived, so they are the same on every machine and
after every restart::

    trace_id = sha256("trace:" + root)[:16 bytes]      span_id = sha256("span:" + session)[:8 bytes]

A session whose parent is not yet known is *unknown*, never *root*: it gets a separate stream, and a later
``lineage.linked`` record joins that stream to the parent's. Records never move; readers follow the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import msgspec

from streams.store import Record

CREATED = "lifecycle.session.created"
RESUMED = "lifecycle.session.resumed"
ENDED = "lifecycle.session.ended"
LINKED = "lineage.linked"
FORKED = "lineage.forked"

LINEAGE_VERSION: Final = 2
"""Version of the dumped family tree and of the fold. Increasing it invalidates older snapshots."""


def trace_id(root: str) -> str:
    """The W3C trace id of a root session, 32 hex digits, never all zeros."""
    return sha256(f"trace:{root}".encode("utf-8", "surrogatepass")).digest()[:16].hex()


def span_id(session: str) -> str:
    """The W3C span id of a session, 16 hex digits."""
    return sha256(f"span:{session}".encode("utf-8", "surrogatepass")).digest()[:8].hex()


@lru_cache(maxsize=4096)
def traceparent(root: str, session: str) -> str:
    """The W3C ``traceparent`` of a session: version 00, sampled."""
    return f"00-{trace_id(root)}-{span_id(session)}-01"


@dataclass(slots=True)
class Session:
    """One session as the log knows it.

    ``parent`` is ``None`` for a root; ``known`` is false while the parent is unknown. ``stream`` is the id of the
    stream that holds the session's records. ``fork`` is the session that this one was forked from.
    """

    id: str
    stream: str
    parent: str | None
    known: bool
    ended: bool = False
    title: str | None = None
    first_position: int = 0
    fork: str | None = None


class Lineage:
    """The family tree of all sessions in a log, a projection over its ``lifecycle`` and ``lineage`` records."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self._below: dict[str, list[Session]] | None = None

    def dump(self) -> bytes:
        """The whole tree as JSON that ``load`` reads, for a snapshot of version ``LINEAGE_VERSION``."""
        return msgspec.json.encode(list(self.sessions.values()))

    @classmethod
    def load(cls, dumped: bytes) -> Lineage:
        """Load the family tree that ``dump`` returned. Raises ``ValueError`` if the bytes did not come from
        ``dump``."""
        lineage = cls()
        lineage.sessions = {session.id: session for session in _DECODER.decode(dumped)}
        return lineage

    def apply(self, record: Record) -> None:
        """Apply one record; only records of the lifecycle and lineage types change anything."""
        event = record.event
        if event.type in (CREATED, RESUMED):
            payload = event.payload
            session_id = payload.get("session", event.stream_id)
            session = self.sessions.get(session_id)
            if session is None:
                self._below = None
                self.sessions[session_id] = Session(
                    id=session_id,
                    stream=event.stream_id,
                    parent=_text(payload.get("parent")),
                    known=payload.get("lineage") != "unknown",
                    title=_text(payload.get("title")),
                    first_position=record.position,
                )
            else:
                session.ended = False
                session.title = _text(payload.get("title")) or session.title
        if event.type in (CREATED, FORKED):
            session = self.sessions.get(event.payload.get("session", event.stream_id))
            fork = event.payload.get("fork")
            if session is not None and isinstance(fork, dict):
                session.fork = _text(fork.get("session"))
        elif event.type == ENDED:
            session = self.sessions.get(event.payload.get("session", event.stream_id))
            if session is not None:
                session.ended = True
                session.title = _text(event.payload.get("title")) or session.title
        elif event.type == LINKED:
            session = self.sessions.get(event.payload.get("session", event.stream_id))
            if session is not None:
                self._below = None
                session.parent, session.known = _text(event.payload.get("parent")), True

    def root(self, session_id: str) -> str:
        """The root session above ``session_id``, following links; the session itself if none is known above it.

        Sessions that wrongly descend from each other still have one root: the first of them in the log.
        """
        above = [session_id]
        while True:
            session = self.sessions.get(above[-1])
            parent = session.parent if session is not None else None
            if parent is None or parent not in self.sessions:
                return above[-1]
            if parent in above:
                circle = above[above.index(parent) :]
                return min(circle, key=lambda each: self.sessions[each].first_position)
            above.append(parent)

    def children(self, session_id: str) -> list[Session]:
        """Direct children in the order they first appeared; empty for a leaf or an unknown session."""
        if self._below is None:
            self._below = {}
            for session in self.sessions.values():
                if session.parent is not None:
                    self._below.setdefault(session.parent, []).append(session)
        return list(self._below.get(session_id, ()))

    def roots(self) -> list[Session]:
        """Sessions without a known parent in this log, in order of appearance; every session is one of these roots or
        below one.
        """
        return [s for s in self.sessions.values() if self.root(s.id) == s.id]

    def streams_of(self, session_id: str) -> list[str]:
        """Every stream that holds records of this session, its root session or any of the root's descendants; the
        root's stream comes first.
        """
        streams: dict[str, None] = {}
        family = [self.root(session_id)]
        seen = set(family)
        for current in family:  # the loop also visits the children that it appends
            session = self.sessions.get(current)
            streams[session.stream if session is not None else current] = None
            children = [child.id for child in self.children(current) if child.id not in seen]
            seen.update(children)
            family.extend(children)
        return list(streams)

    def state(self) -> dict[str, Any]:
        """The tree as JSON: the sessions by id."""
        return {
            "sessions": {
                s.id: {
                    "stream": s.stream,
                    "parent": s.parent,
                    "known": s.known,
                    "ended": s.ended,
                    "title": s.title,
                    **({"fork": s.fork} if s.fork is not None else {}),
                }
                for s in self.sessions.values()
            }
        }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_DECODER: Final = msgspec.json.Decoder(list[Session])
