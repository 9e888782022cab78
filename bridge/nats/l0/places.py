"""What the mirror must know of a session beside a record: project, depth, turn number. A pure fold.

An event names its session, not its project. The project stands in the record
that announced the session, so the fold over the log up to a record says where
that record belongs; folded again, it says the same.

Apply a record first, then ask for its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from bridge.nats.subjects import NO_PROJECT
from streams.event import StreamEvent
from streams.lineage import CREATED, LINKED, RESUMED
from streams.store import Record

PLACES_VERSION: Final = 1
"""Form of the dumped fold; a greater one makes older snapshots worthless."""

TURN_STARTED: Final = "turn.started"


class Place(NamedTuple):
    """Where a record belongs.

    ``session`` is ``None`` for the sidecar's own records. ``depth`` is 0 for a
    root session and one more for each session below; ``None`` while a parent is
    unknown: it is never guessed. ``epoch`` numbers the session's turns from 1; 0
    before the first.
    """

    project: str = NO_PROJECT
    session: str | None = None
    depth: int | None = None
    epoch: int = 0


@dataclass(slots=True)
class _Session:
    project: str | None
    parent: str | None
    known: bool
    turns: int = 0


class Places:
    """Sessions by id, and the project of each stream."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._projects: dict[str, str] = {}

    def apply(self, record: Record) -> None:
        """Take one record; each once, in position order."""
        event = record.event
        session_id = _session_of(event)
        if session_id is None:
            return
        if event.type in (CREATED, RESUMED):
            self._appeared(event, session_id)
            return
        session = self._sessions.get(session_id)
        if session is None:
            return
        if event.type == LINKED:
            parent = event.payload.get("parent")
            session.parent, session.known = (parent if isinstance(parent, str) else None), True
        elif event.type == TURN_STARTED:
            session.turns += 1

    def of(self, event: StreamEvent) -> Place:
        """Where an applied record's event belongs."""
        session_id = _session_of(event)
        session = self._sessions.get(session_id or "")
        project = (session.project if session is not None else None) or self._projects.get(event.stream_id)
        if session is None:
            return Place(project or NO_PROJECT, session_id)
        return Place(project or NO_PROJECT, session_id, self._depth(session), session.turns)

    def project_of(self, session_id: str) -> str:
        """A session's project, as its records have it."""
        session = self._sessions.get(session_id)
        return (session.project if session is not None else None) or NO_PROJECT

    def _appeared(self, event: StreamEvent, session_id: str) -> None:
        payload = event.payload
        parent, project = payload.get("parent"), payload.get("project")
        parent = parent if isinstance(parent, str) and parent else None
        session = self._sessions.get(session_id)
        if session is None:
            known = payload.get("lineage") in ("root", "child")
            session = self._sessions[session_id] = _Session(None, parent, known)
        # What is known first stays: a session's records lie under one subject.
        if session.project is None and isinstance(project, str) and project:
            session.project = project
            self._projects.setdefault(event.stream_id, project)

    def _depth(self, session: _Session) -> int | None:
        if session.parent is None:
            return 0 if session.known else None
        depth, seen = 0, {id(session)}
        while session.known and session.parent is not None:
            above = self._sessions.get(session.parent)
            if above is None or id(above) in seen:
                return None
            seen.add(id(above))
            session, depth = above, depth + 1
        return depth if session.known else None

    def state(self) -> dict[str, Any]:
        """The whole fold as JSON values."""
        dumped: dict[str, Any] = _ADAPTER.dump_python(_Dump(self._sessions, self._projects))
        return dumped

    def dump(self) -> bytes:
        """Everything, for a snapshot in the form ``PLACES_VERSION``."""
        return _ADAPTER.dump_json(_Dump(self._sessions, self._projects))

    @classmethod
    def load(cls, dumped: bytes) -> Places:
        """The fold that ``dump`` gave. Raises ``ValueError`` when it is something else."""
        found = _ADAPTER.validate_json(dumped)
        places = cls()
        places._sessions, places._projects = found.sessions, found.projects
        return places


@dataclass(slots=True)
class _Dump:
    sessions: dict[str, _Session]
    projects: dict[str, str]


_ADAPTER = TypeAdapter(_Dump)


def _session_of(event: StreamEvent) -> str | None:
    session = event.payload.get("session")
    return session if isinstance(session, str) and session else None
