"""Decides whether a service knows more about a session than the log has. Pure.

A service that keeps no log of its sessions reports only the highest event number of a session. Some numbers stand for
events that are never recorded, such as a person looking at the session. But the service keeps the messages, the waiting
inputs and the title.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bridge.opencode.capture.shapes import mapping, number, text
from bridge.opencode.capture.state import SessionState


@dataclass(frozen=True, slots=True)
class Told:
    """What the service's API says about a session now: the session's description, newest messages and waiting
    inputs."""

    info: dict[str, Any] = field(default_factory=dict)
    messages: tuple[dict[str, Any], ...] = ()
    waiting: tuple[dict[str, Any], ...] = ()


def tells_more(session: SessionState, told: Told, before_ms: int | None = None) -> bool:
    """True if the service has something from before ``before_ms`` (ms UTC) that the log does not have.

    While a turn is open, anything may be missing.
    """
    if session.turn is not None:
        return True
    title = text(told.info.get("title"))
    if None not in (title, session.title) and title != session.title:
        return True
    since_ms = session.last_turn.last_ms if session.last_turn is not None else 0
    new = [at for message in told.messages for at in _times(message) if at > since_ms]
    for each in told.waiting:
        if text(each.get("id")) not in session.inputs:
            new.extend(_times(each))
    return any(before_ms is None or at < before_ms for at in new)


def _times(told: dict[str, Any]) -> Iterable[int]:
    times = [told.get("timeCreated"), *mapping(told.get("time")).values()]
    return [at for value in times if (at := number(value)) is not None]
