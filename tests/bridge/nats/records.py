"""Records for tests of the mirror: chained as in a store, and those of whole recordings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bridge.nats.l0.context import ContextProjection
from bridge.nats.mirror.messages import Mirror, RecordMessages, mirrored
from streams.event import StreamEvent
from streams.hashing import GENESIS, chain, encode
from streams.store import Record
from tests.bridge.opencode.playing import play

LOG = "01HF7YAT00LOG"
MIRROR = Mirror(log=LOG)
PROJECT = "d4a1fe598a6800f7b8ad600328509f8f28bf5792"


def event(number: int, type_: str, payload: dict[str, Any], **more: Any) -> StreamEvent:
    """An event of ``ses_a``; ``number`` makes its id, time and key."""
    fields: dict[str, Any] = {
        "id": f"01HF7YAT00{number:016d}",
        "ts": 1_700_000_000_000 + number,
        "type": type_,
        "stream_id": "ses_a",
        "idempotency_key": f"test:{number}",
        "correlation_id": "msg_1",
        "actor": "build",
        "source": {"agent": "build", "adapter": "opencode"},
        "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        "payload": payload,
        **more,
    }
    return StreamEvent.parse(fields)


def chained(events: Iterable[StreamEvent]) -> list[Record]:
    """Return the events as the records that a store would keep."""
    heads: dict[str, bytes] = {}
    offsets: dict[str, int] = {}
    records = []
    for position, made in enumerate(events):
        encoded = encode(made)
        stream = made.stream_id
        heads[stream] = chain(heads.get(stream, GENESIS), encoded.digest_form)
        offsets[stream] = offsets.get(stream, -1) + 1
        records.append(Record(encoded.event, offsets[stream], position, heads[stream].hex()))
    return records


def recorded(name: str) -> list[Record]:
    """The records of a recording."""
    return chained(play(name).log.events.values())


def mirror_all(records: Iterable[Record], mirror: Mirror = MIRROR) -> list[RecordMessages]:
    """Return everything that a mirror publishes for the records, in order."""
    contexts = ContextProjection()
    made = []
    for record in records:
        contexts.apply(record)
        made.append(mirrored(record, contexts.of(record.event), mirror))
    return made
