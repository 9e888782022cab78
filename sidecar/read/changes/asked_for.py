"""Finds in the log what a step asked a person for."""

from __future__ import annotations

from sidecar.read.asked import CHECKPOINT
from sidecar.read.changes.approvals import Approvals
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record


async def asked_for(reader: LogReader, step: Record) -> list[Record]:
    """The records that ask a person about ``step``, each followed by its answer if there is one."""
    event = step.event
    if event.type != "execution.step" or not event.payload.get("call"):
        return []
    approvals = Approvals()
    async for record in reader.query(Filter(types=(CHECKPOINT,), streams=(event.stream_id,))):
        approvals.apply(record)
    asks = approvals.of_step(event.payload)
    return [record for ask in asks for record in (ask.asked, ask.answer) if record is not None]
