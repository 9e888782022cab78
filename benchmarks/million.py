"""A log of a million events, made as a sidecar would have written it: sessions, turns, steps, a child session here and there.

Encoding and chaining are the store's own; only the waiting for each commit is left out, through ``copy_in``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from streams.hashing import GENESIS, chain, encode
from streams.identity import Identity, seeded_identity
from streams.log import Log
from streams.stores.directory import Backend
from streams.stores.stored import Stored

EVENTS = 1_000_000
SESSION_TURNS = 24
"""Turns of a session: with the steps below about 500 events."""

TURN_CALLS = 6
CHUNK = 4096
TEXT = "It reads the file, changes a line and runs the tests again. " * 7


def session_events(identity: Identity, number: int) -> Iterator[dict[str, object]]:
    """What one session and its child leave in the log."""
    root, child = f"ses_{number:08d}root", f"ses_{number:08d}child"
    boot = f"boot{number // 20:06d}"

    def one(type_: str, key: str, session: str, payload: dict[str, object], turn: str | None) -> dict[str, object]:
        return {
            "type": type_,
            "stream_id": root,
            "actor": "user" if type_ == "human.input" else "build",
            "source": {"agent": "build", "adapter": "opencode"},
            "idempotency_key": f"{type_}:{session}:{key}",
            "correlation_id": turn,
            "payload": {"session": session, **payload},
            "metadata": {"boot": boot, "event": f"evt_{number}_{key}"},
        }

    yield one("lifecycle.session.created", root, root, {"title": f"Session {number}", "directory": "/bench"}, None)
    created = {"title": "A child", "parent": root, "directory": "/bench"}
    yield one("lifecycle.session.created", child, child, created, None)
    for turn in range(SESSION_TURNS):
        session = child if turn == SESSION_TURNS // 2 else root
        message, answer = f"msg_{number:08d}{turn:06d}user", f"msg_{number:08d}{turn:06d}zansw"
        asked = "agent.input" if session == child else "human.input"
        yield one(asked, message, session, {"message": message, "text": TEXT[:120]}, message)
        started = {"message": message, "assistant_message": answer, "agent": "build", "trigger": "prompt"}
        yield one("turn.started", message, session, started, message)
        for call in range(TURN_CALLS):
            part = f"prt_{number:08d}{turn:06d}{call:04d}"
            tool = {
                "kind": "tool",
                "part": part,
                "turn": message,
                "call": f"call_{number:08d}{turn:04d}{call:04d}",
                "tool": "bash",
                "input": {"command": f"make test-{call}", "description": "Runs the tests"},
                "output": TEXT,
                "status": "completed",
                "duration_ms": 1200,
            }
            yield one("execution.step", part, session, tool, message)
            tokens = {"input": 900, "output": 120, "reasoning": 0, "cache": {"read": 4000, "write": 0}}
            inference = {"kind": "inference", "turn": message, "tokens": tokens, "cost": 0.0125, "finish": "tool-calls"}
            yield one("execution.step", f"{part}i", session, inference, message)
            said = {"kind": "text", "turn": message, "part": f"{part}o", "text": TEXT}
            yield one("execution.output", f"{part}o", session, said, message)
        yield one("turn.ended", message, session, {"message": message, "outcome": "completed"}, message)
    yield one("lifecycle.session.ended", root, root, {"reason": "deleted"}, None)


def records(count: int) -> Iterator[Stored]:
    """The first ``count`` records of such a log, each a batch of its own."""
    identity = seeded_identity(1)
    position = number = 0
    while True:
        previous, cause = GENESIS, None
        for offset, fields in enumerate(session_events(identity, number)):
            if position == count:
                return
            event = identity.stamp({**fields, "causation_id": cause})
            cause = event.id
            encoded = encode(event)
            previous = chain(previous, encoded.digest_form)
            yield Stored(position, offset, previous, 0, 1, encoded.canonical)
            position += 1
        number += 1


async def build(store: Path, count: int, backend: Backend) -> None:
    """A store of ``count`` events in ``store``, which must be new. A million take some two minutes."""
    log = await Log.open(store, seeded_identity(2), backend=backend)
    waiting: list[Stored] = []
    for record in records(count):
        waiting.append(record)
        if len(waiting) == CHUNK:
            await log.source.copy_in(waiting)
            waiting = []
    if waiting:
        await log.source.copy_in(waiting)
    await log.close()
