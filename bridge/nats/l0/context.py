"""Projection of the log onto sessions: the project, depth and turn number that the mirror adds to a record. Pure.

An event names its session, not its project. The project is in the record that announced the session. Folding the log up
to a record gives that record's context, and folding the log again gives the same context.

Apply a record before you ask for its context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from bridge.nats.subjects import NO_PROJECT
from streams.event import StreamEvent
from streams.lineage import CREATED, LINKED, RESUMED
from streams.store import Record

CONTEXT_VERSION: Final = 1
"""Version of the dumped projection; increasing it invalidates older snapshots."""

TURN_STARTED: Final = "turn.started"


class RecordContext(NamedTuple):
    """The session context of a record.

    ``session`` is ``None`` for the sidecar's own records. ``depth`` is 0 for a
    root session and grows by 1 with each generation; it is ``None``, never guessed,
    while a parent is unknown. ``epoch`` numbers the session's turns from 1; it is 0
    before the first turn.
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


class ContextProjection:
    """Sessions by id, and the project of each stream."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._projects: dict[str, str] = {}

    def apply(self, record: Record) -> None:
        """Apply one record. Call it once per record, in position order."""
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

    def of(self, event: StreamEvent) -> RecordContext:
        """The context of an event whose record has been applied."""
        session_id = _session_of(event)
        session = self._sessions.get(session_id or "")
        project = (session.project if session is not None else None) or self._projects.get(event.stream_id)
        if session is None:
            return RecordContext(project or NO_PROJECT, session_id, _own_depth(event))
        return RecordContext(project or NO_PROJECT, session_id, self._depth(session), session.turns)

    def project_of(self, session_id: str) -> str:
        """A session's project; ``NO_PROJECT`` while it is unknown."""
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
        # Keep the first known project, so that all records of a session share one subject prefix.
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
        """The whole projection as JSON values."""
        dumped: dict[str, Any] = _ADAPTER.dump_python(_Dump(self._sessions, self._projects))
        return dumped

    def dump(self) -> bytes:
        """The whole projection, for a snapshot of version ``CONTEXT_VERSION``."""
        return _ADAPTER.dump_json(_Dump(self._sessions, self._projects))

    @classmethod
    def load(cls, dumped: bytes) -> ContextProjection:
        """Restore a projection from ``dump``. Raises ``ValueError`` if the bytes did not come from ``dump``."""
        found = _ADAPTER.validate_json(dumped)
        projection = cls()
        projection._sessions, projection._projects = found.sessions, found.projects
        return projection


@dataclass(slots=True)
class _Dump:
    sessions: dict[str, _Session]
    projects: dict[str, str]


_ADAPTER = TypeAdapter(_Dump)


def _own_depth(event: StreamEvent) -> int | None:
    """The depth that an event of one of the runtime's agents carries."""
    depth = event.metadata.get("depth") if event.stream_id.startswith("agent/") else None
    return depth if isinstance(depth, int) and not isinstance(depth, bool) and 0 <= depth < 10**6 else None


def _session_of(event: StreamEvent) -> str | None:
    session = event.payload.get("session")
    return session if isinstance(session, str) and session else None
