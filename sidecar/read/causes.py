"""What led to an event: its cause, the cause of that, and so on, and what its step asked a person for."""

from __future__ import annotations

from sidecar.read.asked import CHECKPOINT
from sidecar.read.changes.approvals import Approvals
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record


async def causes(reader: LogReader, record: Record) -> list[Record]:
    """``record`` and what led to it, oldest first; ends where a cause is unknown or not in this log."""
    chain = [record]
    seen = {record.event.id}
    while (cause := chain[-1].event.causation_id) is not None and cause not in seen:
        above = await reader.find_event(cause)
        if above is None:
            break
        seen.add(above.event.id)
        chain.append(above)
    return chain[::-1]


async def with_approvals(reader: LogReader, chain: list[Record]) -> list[Record]:
    """``chain`` with more records: before each step, what the step asked a person for, and the answers."""
    known = {record.event.id for record in chain}
    whole: list[Record] = []
    for record in chain:
        whole += [each for each in await asked_for(reader, record) if each.event.id not in known]
        whole.append(record)
    return whole


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
