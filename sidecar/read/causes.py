"""What led to an event: its cause, the cause of that, and so on, and what its step asked a person for."""

from __future__ import annotations

from sidecar.read.asked import CHECKPOINT
from sidecar.read.changes.approvals import Approvals
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record


async def causes(reader: LogReader, record: Record) -> list[Record]:
    """``record`` and what led to it, oldest first; ends where a cause is unknown or not in this log.

    Works on a log without an index, too. Most causes are in the stream of their effect, so this function reads that
    stream twice (for the links, then for the records) instead of reading the log once for each cause.
    """
    chain = [record]
    seen = {record.event.id}
    while True:
        if reader.is_indexed:
            cause = chain[-1].event.causation_id
            above = await reader.find_event(cause) if cause is not None and cause not in seen else None
            if above is None:
                return chain[::-1]
            seen.add(above.event.id)
            chain.append(above)
            continue
        stream = chain[-1].event.stream_id
        links = {r.event.id: r.event.causation_id async for r in reader.read(stream)}
        wanted: list[str] = []
        cause = chain[-1].event.causation_id
        while cause in links and cause not in seen:
            wanted.append(cause)
            seen.add(cause)
            cause = links[cause]
        found = {r.event.id: r async for r in reader.read(stream) if r.event.id in seen} if wanted else {}
        chain += [found[identifier] for identifier in wanted]
        elsewhere = await reader.find_event(cause) if cause is not None and cause not in seen else None
        if elsewhere is None:
            return chain[::-1]
        seen.add(elsewhere.event.id)
        chain.append(elsewhere)


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
