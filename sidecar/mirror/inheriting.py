"""Takes over what another home's log holds of an agent, from the mirror of that log.

The records get other ids here, but keep their idempotency keys. So commands that the former owner handled are
duplicates, its effects are known to the ledger, and the agent's state goes on from its state there. What the former
owner recorded but did not mirror before it stopped is not known here. What this home recorded itself, and what came
back in the other home's log, is left as it is.
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
from sidecar.agents.inputs import INSTALLED, OWNED, RECEIVED, agent_stream, effects_stream, scoped
from streams.errors import InvalidEvent
from streams.event import ULID_TEXT, StreamEvent
from streams.identity import Identity, derived_ulid
from streams.store import StreamStore

BATCH: Final = 256
"""How many records are written at a time."""

_HOME: Final = frozenset({INSTALLED, OWNED})
"""Types that say something about a home, not about the agent's work."""


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
    own: dict[str, str] = {}
    is_whole = True
    try:
        for stream in streams:
            expected = 0
            async for message in read_back(session, EVENTS, subject=log_pattern(log_id, stream)):
                is_whole &= message.headers.get(h.OFFSET) == str(expected)
                expected += 1
                origin = _fields(message).get("metadata", {}).get("origin", {})
                if origin.get("log") == heir.log_id:  # this home's own record, which came back
                    own[_fields(message)["id"]] = origin["id"]
            is_whole &= expected > 0 or stream != streams[0]
        for stream in streams:
            batch: list[StreamEvent] = []
            async for message in read_back(session, EVENTS, subject=log_pattern(log_id, stream)):
                fields = _fields(message)
                if fields.get("id") in own:
                    continue  # recorded again, it would have the id of the record that is here
                event = _taken(fields, own, heir, agent, log_id)
                is_whole &= event is not None
                if event is not None and event.type not in _HOME:
                    batch.append(event)
                if len(batch) == BATCH:
                    await heir.store.append(batch, on_known="keep_first")
                    batch = []
            if batch:
                await heir.store.append(batch, on_known="keep_first")
    except NotFound:
        return False
    return is_whole


def _fields(message: StreamMessage) -> dict[str, Any]:
    try:
        found = orjson.loads(message.body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _taken(fields: dict[str, Any], own: dict[str, str], heir: Heir, agent: str, log_id: str) -> StreamEvent | None:
    """A record as the heir records it; ``None`` if the mirror does not hold the whole of it."""

    def here(identity: Any) -> Any:
        """The id that a record of the other log has here; the same each time it is taken over."""
        if not isinstance(identity, str) or ULID_TEXT.fullmatch(identity) is None:
            return identity
        return own.get(identity) or derived_ulid(identity, f"{heir.log_id}:{identity}")

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
