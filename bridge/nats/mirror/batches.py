"""Publishes runs of consecutive records, each as one atomic batch behind the last message of the log.

A run's L0 messages are stored first, then its commands with their wakeups, then the records. So a consumer that sees a
record finds its L0 messages, and a stored record means that its command was sent. The message that commits the batch
names the sequence that the last message under the log's subjects must have. So the server stores nothing twice, in
another order, or behind a message of somebody else: it refuses, and the mirror looks for its place again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import BatchRefused
from bridge.nats.jetstream.publishing import (
    EXPECTED_REVISION,
    EXPECTED_SUBJECT,
    MAX_BATCH,
    publish_all,
    publish_batch,
)
from bridge.nats.jetstream.wire import Message
from bridge.nats.subjects import log_pattern

MAX_RUN_BYTES: Final = 4 * 1024 * 1024
"""A run of this size takes no more records. This bounds the memory of sidecar and server."""


@dataclass(slots=True)
class Run:
    """The messages of consecutive records; ``position`` is that of the last one."""

    position: int
    l0: list[Message] = field(default_factory=list)
    commands: list[Message] = field(default_factory=list)
    own: list[Message] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size: int = 0
    """Total size of the bodies, in bytes."""

    @property
    def is_full(self) -> bool:
        return len(self.own) >= MAX_BATCH or self.size >= MAX_RUN_BYTES


async def publish_run(session: JetStream, run: Run, log_id: str, *, behind: int) -> int:
    """Store a run; return the sequence of its last record. No other run of the log may be in flight.

    ``behind``: the sequence of the log's last message, or 0 if it has none.

    Raises:
        WrongExpectation: the log's last message is another one.
        BatchRefused: the batch was not stored; the server knows an id of it, or dropped it.
        NatsError: the run may be stored, or not.
    """
    for first in range(0, len(run.l0), MAX_BATCH):
        part = run.l0[first : first + MAX_BATCH]
        try:
            await publish_batch(session, part)
        except BatchRefused:
            # The server knows an id of these. One by one, it takes what it does not have.
            await publish_all(session, part)
    # A work queue takes no atomic batches. The server knows a command that is sent again by its id.
    await publish_all(session, run.commands)
    guard = {EXPECTED_REVISION: str(behind), EXPECTED_SUBJECT: log_pattern(log_id)}
    return (await publish_batch(session, run.own, guard)).sequence
