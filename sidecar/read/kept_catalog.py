"""The catalog as the sidecar keeps it, and as commands read it: what changed since the last save, what was in use
lately, and whatever was asked for. All else rests in rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping
from typing import Any, Final

import msgspec

from sidecar.read.catalog import CATALOG, CATALOG_VERSION, Catalog, Rest
from sidecar.read.views import Place, SessionView, StreamView, place_of
from streams.log.directory import ReadRows
from streams.log.reader import LogReader
from streams.rows import Changes, LazyMap, Rows


class KeptCatalog(Catalog):
    """A catalog whose streams and sessions rest in rows, which the caller fills with ``changes``."""

    def __init__(self, rows: Rows | None = None) -> None:
        super().__init__()
        self._own_streams = LazyMap(_ENCODER.encode, _STREAM.decode, _stream_marks, rows, _STREAMS)
        self._own_sessions = LazyMap(_ENCODER.encode, _SESSION.decode, _session_marks, rows, _SESSIONS)
        self.streams, self.sessions = self._own_streams, self._own_sessions

    @classmethod
    def resumed(cls, state: bytes, rows: Rows) -> KeptCatalog:
        """The catalog from what ``changes`` returned. Raises ``ValueError`` if ``state`` is invalid."""
        catalog = cls(rows)
        catalog.fill(_REST.decode(state))
        return catalog

    def changes(self) -> tuple[bytes, Changes]:
        """What a snapshot of version ``CATALOG_VERSION`` must store: the catalog without streams and sessions, and the
        rows of those that may have changed since ``saved``."""
        return _ENCODER.encode(self.rest()), self._own_streams.changes() | self._own_sessions.changes()

    def saved(self, rows: Rows, most: int) -> None:
        """See ``LazyMap.saved``."""
        self._own_streams.saved(rows, most)
        self._own_sessions.saved(rows, most)

    def whole(self) -> Catalog:
        catalog = Catalog()
        catalog.fill(self.rest())
        catalog.streams, catalog.sessions = dict(self.streams.items()), dict(self.sessions.items())
        return catalog

    # --- queries, by the marks of the rows ---

    def _recorded_by(self, boot: str) -> list[str]:
        return sorted(self._own_streams.having(f"boot:{boot}")) if boot else []

    def newest_first(self) -> Iterator[StreamView]:
        return self._own_streams.descending(_LAST, _LAST_END)

    def places(self) -> set[Place]:
        marks = self._own_streams.marks(_AT, _AT_END)
        return {msgspec.json.decode(mark.removeprefix(_AT), type=Place) for mark in marks}

    def streams_at(self, place: Place) -> list[str]:
        return self._own_streams.having(_at(place))

    def children(self, session_id: str) -> list[SessionView]:
        below, numbers = self._known_tree = self._known_tree or ({}, {})
        if session_id not in below:
            names = self._own_sessions.in_order(self._own_sessions.having(f"parent:{session_id}"))
            below[session_id] = [self.sessions[name] for name in names if self.root(name) != name]
            numbers.update({child.id: number for number, child in enumerate(below[session_id], 1)})
        return below[session_id]

    def _number(self, session_id: str) -> int:
        self.children(self.sessions[session_id].parent or "")
        return self._known_tree[1][session_id] if self._known_tree is not None else 0

    def _in_order(self, all_: MutableMapping[str, Any], wanted: Collection[str]) -> list[str]:
        return all_.in_order(wanted) if isinstance(all_, LazyMap) else super()._in_order(all_, wanted)

    def _with_open_turn(self) -> list[SessionView]:
        return [self.sessions[name] for name in self._own_sessions.in_order(self._own_sessions.having(_OPEN))]

    def _with_asks(self) -> list[str]:
        return self._own_sessions.in_order(self._own_sessions.having(_ASKS))


async def last_catalog(reader: LogReader) -> Catalog:
    """The catalog as it was last saved, with what rests in rows; an empty one if there is none."""
    return (await opened_catalog(reader))[0]


async def opened_catalog(reader: LogReader) -> tuple[Catalog, ReadRows | None]:
    """The catalog as it was last saved, and its rows, which the caller must settle; an empty one and ``None`` if there
    is none."""
    found = await reader.rows(CATALOG, CATALOG_VERSION)
    if found is not None:
        try:
            return KeptCatalog.resumed(found.snapshot.state, found), found
        except ValueError:
            pass  # a snapshot is only a hint
    return Catalog(), None


def _stream_marks(stream: StreamView) -> list[str]:
    """By which streams are found: the process that recorded last, the newest record, and where the session ran."""
    marks = [f"{_LAST}{stream.last_position:016}"]
    marks += [f"boot:{stream.boot}"] if stream.boot else []
    return marks + [_at(place_of(stream))] * bool(stream.sessions)


def _at(place: Place) -> str:
    return _AT + _ENCODER.encode(place).decode()


def _session_marks(session: SessionView) -> list[str]:
    """By which sessions are found: the parent, and whether something is open."""
    marks = [_OPEN] * session.is_turn_open + [_ASKS] * bool(session.asks)
    return marks + ([f"parent:{session.parent}"] if session.parent is not None else [])


_STREAMS: Final = "stream/"
_SESSIONS: Final = "session/"
_AT: Final = "at:"
_AT_END: Final = "at;"
_LAST: Final = "last:"
_LAST_END: Final = "last;"
_OPEN: Final = "turn"
_ASKS: Final = "asks"
_ENCODER: Final = msgspec.json.Encoder()
_STREAM: Final = msgspec.json.Decoder(StreamView)
_SESSION: Final = msgspec.json.Decoder(SessionView)
_REST: Final = msgspec.json.Decoder(Rest)
