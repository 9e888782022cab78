"""What a person does with a dead letter: hand its input to the agent again, or drop it."""

from __future__ import annotations

from collections.abc import Callable

from sidecar.agents.chains import inherited
from sidecar.agents.engine import Engine
from sidecar.agents.inputs import ADAPTER, InputRefused, agent_stream
from sidecar.agents.view import DeadLetter, RuntimeView
from streams.bus.command import Command
from streams.event import StreamEvent
from streams.identity import Identity
from streams.store import Record, StreamStore


def open_letter(view: RuntimeView, letter_id: str) -> DeadLetter:
    """Raises ``InputRefused`` if no letter of this id is open."""
    if (letter := view.dead.get(letter_id)) is None:
        raise _no_letter(letter_id)
    return letter


async def redrive(store: StreamStore, engine_of: Callable[[str], Engine], letter: DeadLetter) -> str:
    """Hand a dead letter to its agent again; returns the outcome. ``engine_of`` finds the agent's engine.

    Raises:
        CodedError: the input stays a dead letter.
    """
    kept = await record_in(store, letter.stream, letter.offset)
    if kept is None:
        raise _no_letter(letter.id)
    event, payload = kept.event, kept.event.payload
    if not letter.can_redrive:
        raise InputRefused("undecodable", "this message could not be read as a command; run `durable-stream dlq drop`")
    engine = engine_of(letter.agent)
    if "position" in payload:
        found = await _record_at(store, payload["position"])
        if found is None:
            raise InputRefused(
                "gone", "the event of this dead letter was removed from the log; run `durable-stream dlq drop`"
            )
        return (await engine.again(found, f"redrive:{letter.id}")).outcome
    handled = await engine.command(
        Command(
            f"redrive:{letter.id}",
            letter.type,
            payload["payload"],
            sender="dlq",
            depth=payload.get("depth", 0),
            correlation_id=event.correlation_id,
            causation_id=letter.id,
            traceparent=event.traceparent,
            metadata=inherited(event.metadata),
        )
    )
    return handled.outcome


def settled(type_: str, letter: DeadLetter, identity: Identity) -> StreamEvent:
    """The event after which a letter is not open any more: ``dlq.redriven`` or ``dlq.dropped``."""
    return identity.stamp(
        {
            "type": type_,
            "stream_id": f"{agent_stream(letter.agent)}/dead",
            "idempotency_key": f"{type_}:{letter.id}",
            "causation_id": letter.id,
            "actor": "user",
            "source": {"agent": letter.agent, "adapter": ADAPTER},
            "payload": {"letter": letter.id},
        }
    )


async def record_in(store: StreamStore, stream: str, offset: int) -> Record | None:
    """The record at an offset of a stream; ``None`` if it was removed. Raises ``StreamError``."""
    async for record in store.read(stream, from_offset=offset):
        return record if record.offset == offset else None
    return None


async def _record_at(store: StreamStore, position: int) -> Record | None:
    async for record in store.read_all(after=position - 1):
        return record if record.position == position else None
    return None


def _no_letter(letter: str) -> InputRefused:
    text = f"{letter!a} is not an open dead letter; `durable-stream dlq list` lists the open dead letters"
    return InputRefused("no-dead-letter", text)
