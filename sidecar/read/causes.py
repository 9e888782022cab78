"""What led to an event: its cause, the cause of that, and so on, and what its step asked a person for."""

from __future__ import annotations

from sidecar.read.changes.approvals import Approval
from sidecar.read.story.changes import approvals_of
from sidecar.read.story.moment import Moment
from sidecar.read.story.reading import Snapshot, ask
from streams.log.reader import LogReader
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
    for record, approvals in zip(chain, await asked_for(reader, chain), strict=True):
        asks = [each for approval in approvals for each in (approval.asked, approval.answer) if each is not None]
        whole += [each for each in asks if each.event.id not in known]
        whole.append(record)
    return whole


async def asked_for(reader: LogReader, records: list[Record]) -> list[list[Approval]]:
    """What the call of each record asked a person for, oldest first; nothing if the record is not a call's result."""

    def asked(story: Snapshot) -> list[list[Approval]]:
        moment = Moment(story, (), story.head)
        return [approvals_of(moment, each.position) if _is_call(each) else [] for each in records]

    return await ask(reader, asked) if any(map(_is_call, records)) else [[] for _ in records]


def _is_call(record: Record) -> bool:
    return record.event.type == "execution.step" and bool(record.event.payload.get("call"))
