"""Some sessions and the streams that hold their records, as they were after one record. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sidecar.read.ask_text import OpenAsk
from sidecar.read.views import SessionView, StreamView
from streams.lineage import Tree
from streams.store import Record


class Sessions(Tree[SessionView]):
    """What is known of some sessions and streams, each in the order in which they first appeared."""

    def __init__(self, streams: Mapping[str, StreamView], sessions: Mapping[str, SessionView]) -> None:
        super().__init__(sessions)
        self.streams = streams

    def asks(self, streams: Collection[str] | None = None) -> list[OpenAsk]:
        """What is waiting for a person, oldest first; if ``streams`` are given, only in these streams."""
        names = self._with_asks() if streams is None else self.sessions_of(streams)
        found = [ask for name in names for ask in self.sessions[name].asks.values()]
        return sorted(found, key=lambda ask: ask.since_ms)

    def _with_asks(self) -> list[str]:
        return [*self.sessions]

    def sessions_of(self, streams: Iterable[str]) -> list[str]:
        """The sessions of some streams."""
        return [name for stream in streams if stream in self.streams for name in self.streams[stream].sessions]

    def directory(self, stream_id: str) -> str:
        """The directory that the stream's session works for. For a joined stream without a directory, the directory of
        its root session."""
        stream = self._at_home(stream_id)
        return stream.directory if stream is not None else ""

    def _at_home(self, stream_id: str) -> StreamView | None:
        """The stream whose directory counts for a stream."""
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.directory:
            return self.streams.get(self.root_stream(stream_id))
        return stream

    def ran_in(self, stream_id: str) -> str:
        """The directory to which the paths in a stream are relative: where its session ran, also in a worktree."""
        stream = self.streams.get(stream_id)
        return (stream.ran_in if stream is not None else "") or self.directory(stream_id)

    def own_session(self, stream_id: str) -> SessionView | None:
        """The session after which the stream is named; ``None`` for ``system`` and similar streams."""
        stream = self.streams.get(stream_id)
        if stream is None or not stream.sessions:
            return None
        return self.sessions.get(stream_id) or self.sessions[stream.sessions[0]]

    def place_of(self, record: Record) -> str:
        """The place of a record's session in its family; empty for a record without a session."""
        session = record.event.payload.get("session")
        return self.place(session) if isinstance(session, str) else ""

    def root_stream(self, stream_id: str) -> str:
        """The stream of the root session to which a stream belongs; the stream itself if no parent is known."""
        session = self.own_session(stream_id)
        return stream_id if session is None else self.sessions[self.root(session.id)].stream

    def status(self, stream_id: str) -> str:
        """The status of the stream's own session, but ``waiting`` or ``active`` if one of its sessions is."""
        found = {self.sessions[session].status for session in self.streams[stream_id].sessions}
        own = self.own_session(stream_id)
        return next(
            (each for each in ("waiting", "active") if each in found), own.status if own is not None else "idle"
        )

    def figures(self, sessions: Iterable[str]) -> dict[str, Any]:
        """What some sessions used together: ``turns, cost, tokens``."""
        found = [self.sessions[name] for name in sessions]
        tokens: dict[str, int | float] = {}
        for session in found:
            for kind, count in session.tokens.items():
                tokens[kind] = tokens.get(kind, 0) + count
        cost = round(sum(session.cost for session in found), 9)
        return {"turns": sum(session.turns for session in found), "cost": cost, "tokens": tokens}
