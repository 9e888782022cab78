"""Events for tests: short to write, valid, and reproducible."""

from __future__ import annotations

from typing import Any

from streams.event import StreamEvent
from streams.identity import Identity, seeded_identity

IDENTITY = seeded_identity(7)


def event(
    key: str | None = None,
    *,
    stream: str = "ses_a",
    type_: str = "execution.step",
    actor: str = "build",
    identity: Identity = IDENTITY,
    **more: Any,
) -> StreamEvent:
    """An event on ``stream``; ``key`` is its idempotency key in the scope ``test``."""
    fields: dict[str, Any] = {
        "type": type_,
        "stream_id": stream,
        "actor": actor,
        "source": {"agent": "build", "adapter": "test"},
        "payload": {"n": key},
        **more,
    }
    if key is not None:
        fields["idempotency_key"] = f"test:{key}"
    return identity.stamp(fields)


def events(count: int, *, prefix: str = "k", **more: Any) -> list[StreamEvent]:
    """``count`` events with keys ``{prefix}0``, ``{prefix}1``, …"""
    return [event(f"{prefix}{n}", **more) for n in range(count)]
