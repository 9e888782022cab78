"""The newest part of a long session, to be shown while all of it is still being read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.read.catalog import Catalog
from sidecar.read.past.records import Past
from sidecar.read.select import catalog_of, newest
from sidecar.read.transcript.model import Session
from streams.lineage import TURN_STARTED
from streams.log.reader import LogReader
from streams.store import Record

RECORDS: Final = 500
"""How many records the part has."""

INPUTS: Final = ("human.input", "agent.input")


@dataclass(slots=True)
class Part(Past):
    """A ``Past`` of the last records, as of now: its counts are those of the catalog, and its conversation is that of
    the session itself, from the first turn on that begins in the part. Spans and marks before it are not known."""

    def catalog(self, at: int | None = None) -> Catalog:
        return self.family.own_catalog()

    def roots(self, at: int | None = None) -> list[Session]:
        return [root for root in self.conversation(at).roots if root.id == self.session]


async def newest_part(reader: LogReader, whole: Past) -> Part | None:
    """The end of a session that is being read; ``None`` if the log is damaged there."""
    family, catalog = whole.family, whole.family.catalog
    await catalog_of(reader)  # it is the family's, and now knows the newest records
    records, fault = await newest(reader, family.filter(), RECORDS, lambda record: record in family)
    known = catalog.sessions.get(whole.session)
    if fault is not None or known is None or not records:
        return None
    part = Part(whole.stream, whole.session, family, before=max(family.count - len(records), 0))
    for record in records:
        part.add(record)
    own = {record.event.type: number for number, record in reversed([*enumerate(records)]) if _is_of(record, known.id)}
    begin = min((own[name] for name in INPUTS if name in own), default=own.get(TURN_STARTED, 0))
    session = Session(known.id, known.stream, known.title, known.agent, catalog.ran_in(known.stream))
    session.first_ms = session.last_ms = records[0].event.ts
    part.begin_at(begin, session)
    return part


def _is_of(record: Record, session: str) -> bool:
    return record.event.payload.get("session") == session
