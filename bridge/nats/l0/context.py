"""Projection of the log onto sessions: the project, depth and turn number that the mirror adds to a record. Pure.

The project of a captured event is in the record that announced its session, because not every version wrote it into
each event. An event of an agent names the project of its chain. Folding the log up to a record gives that record's
context, and folding the log again gives the same context.

Apply a record before you ask for its context.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import msgspec

from bridge.nats.subjects import NO_PROJECT
from streams.event import StreamEvent
from streams.lineage import CREATED, RESUMED, Lineage, Session
from streams.store import Record

CONTEXT_VERSION: Final = 2
"""Version of the dumped projection; increasing it invalidates older snapshots."""


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


class ContextProjection(Lineage[Session]):
    """Sessions by id, and the project of each stream."""

    def __init__(self) -> None:
        super().__init__(Session)
        self._projects: dict[str, str] = {}

    def apply(self, record: Record) -> None:
        """Apply one record. Call it once per record, in position order."""
        super().apply(record)
        event = record.event
        if event.type in (CREATED, RESUMED) and (project := self.project_of(_session_of(event))) != NO_PROJECT:
            self._projects.setdefault(event.stream_id, project)

    def of(self, event: StreamEvent) -> RecordContext:
        """The context of an event whose record has been applied."""
        name = _session_of(event)
        session = self.sessions.get(name or "")
        project = _own_project(event) or (session.project if session is not None else "")
        project = project or self._projects.get(event.stream_id, NO_PROJECT)
        if session is None:
            return RecordContext(project, name, _own_depth(event))
        return RecordContext(project, name, self.depth(session.id), session.turns)

    def project_of(self, session_id: str | None) -> str:
        """A session's project; ``NO_PROJECT`` while it is unknown."""
        session = self.sessions.get(session_id or "")
        return (session.project if session is not None else "") or NO_PROJECT

    def dump(self) -> bytes:
        """The whole projection, for a snapshot of version ``CONTEXT_VERSION``."""
        return msgspec.json.encode(_Dump(list(self.sessions.values()), self._projects))

    @classmethod
    def load(cls, dumped: bytes) -> Self:
        """Restore a projection from ``dump``. Raises ``ValueError`` if the bytes did not come from ``dump``."""
        found, projection = msgspec.json.decode(dumped, type=_Dump), cls()
        projection.sessions = {session.id: session for session in found.sessions}
        projection._projects = found.projects
        return projection


class _Dump(msgspec.Struct):
    sessions: list[Session]
    projects: dict[str, str]


def _own_project(event: StreamEvent) -> str:
    """The project of the chain that an event of one of the runtime's agents belongs to."""
    project = event.metadata.get("project") if event.stream_id.startswith("agent/") else None
    return project if isinstance(project, str) else ""


def _own_depth(event: StreamEvent) -> int | None:
    """The depth that an event of one of the runtime's agents carries."""
    depth = event.metadata.get("depth") if event.stream_id.startswith("agent/") else None
    return depth if isinstance(depth, int) and not isinstance(depth, bool) and 0 <= depth < 10**6 else None


def _session_of(event: StreamEvent) -> str | None:
    session = event.payload.get("session")
    return session if isinstance(session, str) and session else None
