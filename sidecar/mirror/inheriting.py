"""Takes over what another home's log holds of an agent, from the mirror of that log.

The records get other ids here, but keep their idempotency keys. So commands that the former owner handled are
duplicates, its effects are known to the ledger, and the agent's state goes on from its state there. What the former
owner recorded but did not mirror before it stopped is not known here. What this home has recorded itself stays as it
is.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NotFound
from bridge.nats.jetstream.stream_plan import EVENTS
from bridge.nats.jetstream.streams import StreamMessage, read_back
from bridge.nats.subjects import log_pattern
from sidecar.agents.inputs import APPLIED, INSTALLED, OWNED, RECEIVED, agent_stream, effects_stream, scoped
from streams.errors import InvalidEvent
from streams.event import ULID_TEXT, StreamEvent
from streams.identity import Identity, derived_ulid
from streams.store import StreamStore

BATCH: Final = 256
"""How many records are written at a time."""

_HOME: Final = frozenset({INSTALLED, OWNED})
"""Types that say something about a home, not about the agent's work."""

_FOLLOWS: Final = APPLIED | {"refused"}
"""The roles of records that follow from the input before them. If this home handled that input, too, what it decided
stays, and the other decision is left out."""


class Heir(NamedTuple):
    """The home that takes over: its log, and where new records come from."""

    store: StreamStore
    log_id: str
    identity: Identity


async def inherit(session: JetStream, heir: Heir, agent: str, log_id: str) -> bool:
    """Record what the mirror of the log ``log_id`` has of an agent; return whether it has all of it.

    May be called again after an error: what is recorded already stays as it is.

    Raises:
        NatsError: the mirror cannot be read.
        StreamError: the log cannot be written.
    """
    streams = (agent_stream(agent), effects_stream(agent))
    known: dict[str, str] = {}
    is_whole = True
    try:
        for stream in streams:
            expected = 0
            async for message in read_back(session, EVENTS, subject=log_pattern(log_id, stream)):
                is_whole &= message.headers.get(h.OFFSET) == str(expected)
                expected += 1
                fields = _fields(message)
                if (here := await _known(fields, heir)) is not None:
                    known[fields["id"]] = here
            is_whole &= expected > 0 or stream != streams[0]
        for stream in streams:
            batch: list[StreamEvent] = []
            is_repeated = False
            async for message in read_back(session, EVENTS, subject=log_pattern(log_id, stream)):
                fields = _fields(message)
                event = _taken(fields, known, heir, agent, log_id)
                is_whole &= event is not None
                if event is None or event.type in _HOME:
                    continue
                if event.metadata.get("role") == "input":
                    found = await heir.store.find(event.idempotency_key)
                    is_repeated = found is not None and _origin(found.event.metadata).get("log") != log_id
                if fields["id"] in known or (is_repeated and event.metadata.get("role") in _FOLLOWS):
                    continue
                batch.append(event)
                if len(batch) == BATCH:
                    await heir.store.append(batch, on_known="keep_first")
                    batch = []
            if batch:
                await heir.store.append(batch, on_known="keep_first")
    except NotFound:
        return False
    return is_whole


async def _known(fields: dict[str, Any], heir: Heir) -> str | None:
    """The id of the heir's own record that this one repeats, if it has one: the record came back from there, or both
    homes did the same. The other log's records point at it by another id."""
    origin = _origin(fields.get("metadata", {}))
    if origin.get("log") == heir.log_id:
        return str(origin["id"])
    record = await heir.store.find(str(fields.get("idempotency_key")))
    return record.event.id if record is not None else None


def _origin(metadata: dict[str, Any]) -> dict[str, Any]:
    """Where a record that was taken over comes from: ``log`` and ``id``; empty for any other record."""
    found = metadata.get("origin")
    return found if isinstance(found, dict) else {}


def _fields(message: StreamMessage) -> dict[str, Any]:
    try:
        found = orjson.loads(message.body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _taken(fields: dict[str, Any], known: dict[str, str], heir: Heir, agent: str, log_id: str) -> StreamEvent | None:
    """A record as the heir records it; ``None`` if the mirror does not hold the whole of it."""

    def here(identity: Any) -> Any:
        """The id that a record of the other log has here; the same each time it is taken over."""
        if not isinstance(identity, str) or ULID_TEXT.fullmatch(identity) is None:
            return identity
        return known.get(identity) or derived_ulid(identity, f"{heir.log_id}:{identity}")

    try:
        payload, key = {**fields["payload"]}, fields["idempotency_key"]
        if fields["type"] == RECEIVED:
            payload.pop("position", None)  # a place in the other log
            if key == scoped("inbox", agent, str(payload.get("event"))):
                key = scoped("inbox", agent, str(here(payload.get("event"))))
        for name in ("request", "event"):
            if name in payload:
                payload[name] = here(payload[name])
        taken = {
            **fields,
            "id": here(fields["id"]),
            "causation_id": here(fields.get("causation_id")),
            "idempotency_key": key,
            "payload": payload,
            "metadata": {**fields.get("metadata", {}), "origin": {"log": log_id, "id": fields["id"]}},
        }
        return heir.identity.stamp(taken)
    except (KeyError, TypeError, InvalidEvent):
        return None
