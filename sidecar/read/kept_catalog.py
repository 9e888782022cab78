"""The catalog as the sidecar keeps it: what changed since the last save, and what was in use lately. Pure."""

from __future__ import annotations

import gc
from typing import Final

import msgspec

from sidecar.read.catalog import CATALOG, CATALOG_VERSION, Catalog, SessionView, StreamView
from sidecar.read.losses import Loss
from streams.log.directory import WholeRows
from streams.log.reader import LogReader
from streams.rows import Changes, LazyMap, Rows


class KeptCatalog(Catalog):
    """A catalog whose streams and sessions rest in rows, which the caller fills with ``changes``."""

    def __init__(self, rows: Rows | None = None) -> None:
        super().__init__()
        self._own_streams = LazyMap(_ENCODER.encode, _STREAM.decode, _marks, rows, _STREAMS)
        self._own_sessions = LazyMap(_ENCODER.encode, _SESSION.decode, lambda session: (), rows, _SESSIONS)
        self.streams, self.sessions = self._own_streams, self._own_sessions

    @classmethod
    def resumed(cls, state: bytes, rows: Rows) -> KeptCatalog:
        """The catalog from what ``changes`` returned. Raises ``ValueError`` if ``state`` is invalid."""
        catalog = cls(rows)
        _fill(catalog, state)
        return catalog

    def changes(self) -> tuple[bytes, Changes]:
        """What a snapshot of version ``CATALOG_VERSION`` must store: the catalog without streams and sessions, and the
        rows of those that may have changed since ``saved``."""
        rest = _Rest(self.losses, sorted(self.launched), self.records, self.cut, self.position)
        return _ENCODER.encode(rest), self._own_streams.changes() | self._own_sessions.changes()

    def saved(self, rows: Rows, most: int) -> None:
        """See ``LazyMap.saved``."""
        self._own_streams.saved(rows, most)
        self._own_sessions.saved(rows, most)

    def _recorded_by(self, boot: str) -> list[str]:
        return sorted(self._own_streams.having(f"boot:{boot}")) if boot else []


async def last_catalog(reader: LogReader) -> Catalog:
    """The whole catalog as it was last saved; an empty one if there is none."""
    found = await reader.rows(CATALOG, CATALOG_VERSION)
    try:
        return whole(found) if found is not None else Catalog()
    except ValueError:
        return Catalog()  # a snapshot is only a hint


def whole(found: WholeRows) -> Catalog:
    """The whole catalog from rows. Raises ``ValueError`` if one is invalid."""
    catalog = Catalog()
    _fill(catalog, found.snapshot.state)
    was_enabled = gc.isenabled()
    gc.disable()  # nothing here is garbage, and to look for some would take as long as to read
    try:
        catalog.streams = {each.id: each for each in _ALL_STREAMS.decode(_list(found.bodies(_STREAMS)))}
        catalog.sessions = {each.id: each for each in _ALL_SESSIONS.decode(_list(found.bodies(_SESSIONS)))}
    finally:
        if was_enabled:
            gc.enable()
    return catalog


def _list(bodies: list[bytes]) -> bytes:
    """One JSON list, which is read in half the time that its items take one by one."""
    return b"[%s]" % b",".join(bodies)


def _marks(stream: StreamView) -> tuple[str, ...]:
    return (f"boot:{stream.boot}",) if stream.boot else ()


def _fill(catalog: Catalog, state: bytes) -> None:
    rest = _REST.decode(state)
    catalog.losses, catalog.launched, catalog.records = rest.losses, set(rest.launched), rest.records
    catalog.cut, catalog.position = rest.cut, rest.position


class _Rest(msgspec.Struct):
    losses: list[Loss]
    launched: list[str]
    records: int
    cut: int
    position: int


_STREAMS: Final = "stream/"
_SESSIONS: Final = "session/"
_ENCODER: Final = msgspec.json.Encoder()
_STREAM: Final = msgspec.json.Decoder(StreamView)
_SESSION: Final = msgspec.json.Decoder(SessionView)
_ALL_STREAMS: Final = msgspec.json.Decoder(list[StreamView])
_ALL_SESSIONS: Final = msgspec.json.Decoder(list[SessionView])
_REST: Final = msgspec.json.Decoder(_Rest)
