"""The lineage of sessions: session → root stream, trace id, span id. Pure.

A root session is a stream and a trace; a child session is a span in its
root's stream. The ids are derived, so they are the same on every machine and
after every restart::

    trace_id = sha256("trace:" + root)[:16 bytes]      span_id = sha256("span:" + session)[:8 bytes]

A session whose parent is not yet known is *unknown*, never *root*: it gets a separate stream, and a later
``lineage.linked`` record joins that stream to the parent's. Records never move; readers follow the link.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar

import msgspec

from streams.store import Record

CREATED = "lifecycle.session.created"
RESUMED = "lifecycle.session.resumed"
ENDED = "lifecycle.session.ended"
LINKED = "lineage.linked"
FORKED = "lineage.forked"
MARKS = PINNED, UNPINNED, NAMED = "stream.pinned", "stream.unpinned", "stream.named"
"""A person pins a stream (`prune` spares it), unpins it, or gives it a name. They do not make its session newer."""
MAX_NAME = 200
"""Maximum length of the name that a person gives to a session."""
TURN_STARTED = "turn.started"
RETRIED = "opencode.session.retry.scheduled"
"""A call of a model failed, and OpenCode will repeat it at ``at_ms``."""
MOVED = "opencode.session.moved"
STEP_STARTED = "execution.step.started"
"""A tool call began to run. Whatever it did is in its ``execution.step``, so this event counts as no step."""

_TYPES: Final = frozenset({CREATED, RESUMED, ENDED, LINKED, FORKED, MOVED, TURN_STARTED})


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


def in_turn(session: str, message: str) -> str:
    """The ``traceparent`` of a turn, the answer to ``message``: its own span in the trace of its ``session``, whose
    ``traceparent`` is given."""
    return f"{session[:36]}{span_id(f'{session[36:52]}:{message}')}{session[52:]}"


class Session(msgspec.Struct):
    """One session as the log knows it.

    ``parent`` is ``None`` for a root; ``known`` is false while the parent is unknown. ``stream`` is the id of the
    stream that holds the session's records. ``ended`` is the reason, or ``None`` while the session goes on.
    ``fork`` is the session that this one was forked from.
    """

    id: str
    stream: str
    parent: str | None = None
    known: bool = True
    is_announced: bool = False
    """Whether the log says where the session belongs; if not, its first records were removed."""
    ended: str | None = None
    title: str = ""
    project: str = ""
    """OpenCode's id of the project that was named first, or to which the session was moved; empty if unknown."""
    turns: int = 0
    fork: str | None = None


S = TypeVar("S", bound=Session)


class Tree(Generic[S]):
    """The family tree of some sessions, which are in the order in which they first appeared."""

    def __init__(self, sessions: Mapping[str, S]) -> None:
        self.sessions = sessions
        self._known_tree: tuple[dict[str, list[S]], dict[str, int]] | None = None

    def above(self, session_id: str) -> list[str]:
        """The session and its ancestors in this log, the root last; empty for a session that is not in the log.

        Sessions that wrongly descend from each other still have one root: the first of them in the log.
        """
        found: list[str] = []
        name: str | None = session_id
        while name is not None and name in self.sessions:
            if name in found:
                circle = found[found.index(name) :]
                root = next(each for each in self.sessions if each in circle)
                return found[: found.index(root) + 1]
            found.append(name)
            name = self.sessions[name].parent
        return found

    def root(self, session_id: str) -> str:
        """The root session above ``session_id``, following links; the session itself if none is known above it."""
        return next(reversed(self.above(session_id)), session_id)

    def depth(self, session_id: str) -> int | None:
        """How many ancestors a session has; ``None``, never guessed, while one of them is unknown."""
        above = [self.sessions[name] for name in self.above(session_id)]
        is_whole = bool(above) and above[-1].parent is None and all(each.known for each in above)
        return len(above) - 1 if is_whole else None

    def children(self, session_id: str) -> list[S]:
        """Direct children in the order they first appeared; empty for a leaf or an unknown session.

        A root is nobody's child, even if sessions wrongly descend from each other, so every walk down ends.
        """
        return self._tree()[0].get(session_id, [])

    def place(self, session_id: str) -> str:
        """The place of a session in its family: ``2.1`` is the first child of the root's second child; empty for the
        root. Children are numbered in the order in which they first appeared.
        """
        return ".".join(str(self._number(name)) for name in reversed(self.above(session_id)[:-1]))

    def _number(self, session_id: str) -> int:
        """Which child of its parent a session is, from 1."""
        return self._tree()[1][session_id]

    def _tree(self) -> tuple[dict[str, list[S]], dict[str, int]]:
        if self._known_tree is None:
            below, numbers = dict[str, list[S]](), dict[str, int]()
            for session in self.sessions.values():
                if session.parent is not None and self.root(session.id) != session.id:
                    siblings = below.setdefault(session.parent, [])
                    siblings.append(session)
                    numbers[session.id] = len(siblings)
            self._known_tree = below, numbers
        return self._known_tree

    def roots(self) -> list[S]:
        """Sessions without a known parent, in order of appearance; every other session is below one."""
        return [s for s in self.sessions.values() if self.root(s.id) == s.id]

    def below(self, session_id: str) -> list[str]:
        """The session and all its descendants, level by level."""
        found = [session_id]
        for name in found:  # the loop also visits the children that it appends
            found += [child.id for child in self.children(name)]
        return found

    def streams_of(self, session_id: str) -> list[str]:
        """Every stream that holds records of this session, its root session or any of the root's descendants; the
        root's stream comes first.
        """
        family = self.below(self.root(session_id))
        return list(dict.fromkeys(self.sessions[name].stream if name in self.sessions else name for name in family))


class Lineage(Tree[S]):
    """The family tree of all sessions in a log, a projection over its ``lifecycle``, ``lineage`` and ``turn`` records.

    ``session`` is the type of a session, which subclasses extend. An unannounced session is in the tree only if a
    subclass put it there.
    """

    def __init__(self, session: type[S]) -> None:
        super().__init__({})
        self._type = session
        self.sessions: MutableMapping[str, S] = {}

    def apply(self, record: Record) -> None:
        """Apply one record. Applying it again changes nothing but the number of turns."""
        event = record.event
        if event.type not in _TYPES:
            return
        payload = event.payload
        name = payload.get("session")
        if not isinstance(name, str) or not name:
            return
        session = self.sessions.get(name)
        if event.type in (CREATED, RESUMED):
            if session is None:
                session = self.sessions[name] = self._type(name, event.stream_id)
            if not session.is_announced:
                self._known_tree = None
                session.is_announced, session.stream = True, event.stream_id
                session.parent = _text(payload.get("parent")) or None
                session.known = payload.get("lineage", "root") in ("root", "child")
            session.ended = None
            session.project = session.project or _text(payload.get("project"))
        elif session is None:
            return
        elif event.type == LINKED:
            self._known_tree = None
            session.parent, session.known = _text(payload.get("parent")) or None, True
        elif event.type == ENDED:
            session.ended = _text(payload.get("reason")) or "ended"
        elif event.type == MOVED:
            session.project = _text(payload.get("project")) or session.project
        elif event.type == TURN_STARTED:
            session.turns += 1
        if isinstance(fork := payload.get("fork"), dict):
            session.fork = _text(fork.get("session")) or None
        session.title = _text(payload.get("title")) or session.title

    def state(self) -> dict[str, Any]:
        return {
            "sessions": {
                s.id: {
                    "stream": s.stream,
                    "parent": s.parent,
                    "known": s.known,
                    "ended": s.ended is not None,
                    "title": s.title or None,
                    **({"fork": s.fork} if s.fork is not None else {}),
                }
                for s in self.sessions.values()
            }
        }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
