"""Where a fork ends: the message to which an event belongs. Pure.

OpenCode forks between messages. An answer is in the fork whole. A prompt is not in it, as in OpenCode's own fork,
because whoever forks there wants to ask something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bridge.opencode.capture.state import answers
from sidecar.read.fields import as_mapping, as_text
from streams.lineage import TURN_STARTED
from streams.store import Record

_INPUTS: Final = frozenset({"human.input", "agent.input"})
_ANSWERS: Final = frozenset(
    {"execution.step.started", "execution.step", "execution.output", "agent.spawned", "agent.error"}
)


class Cut(NamedTuple):
    """The fork ends after the answer ``message``, or before the prompt ``message``.

    ``position``: that of the last record that counts, for a fork that is made from the log.
    """

    message: str
    is_prompt: bool
    position: int


def cut_at(records: Iterable[Record], session: str) -> Cut | None:
    """Where a fork of a session ends, given records up to the named event, newest first; ``None`` if these records
    hold no message of the session. An event that belongs to no message counts for the one before it.
    """
    at: int | None = None
    begun: Cut | None = None
    for record in records:
        event = record.event
        at = record.position if at is None else at
        message = as_text(event.payload.get("message"))
        if event.payload.get("session") != session or not message:
            continue
        if event.type in _INPUTS and (begun is None or message == begun.message):
            return Cut(message, True, record.position - 1)
        if event.type in _ANSWERS:
            return begun or Cut(message, False, at)
        if event.type == TURN_STARTED:
            begun = begun or Cut(message, True, record.position - 1)  # its prompt comes before it, if there is one
    return begun


Ran = tuple[str | None, str | None]
"""An OpenCode agent, and a model as ``provider/model``; ``None``: not known."""


def ran_at(records: Iterable[Record], cut: Cut) -> Ran:
    """What answered last before a cut, given the same records as ``cut_at``."""
    for record in records:
        payload = record.event.payload
        agent = as_text(payload.get("agent"))
        is_turn = record.event.type == TURN_STARTED and record.position <= cut.position
        if is_turn and answers(agent, as_text(payload.get("trigger"))):
            model = as_mapping(payload.get("model"))
            names = [as_text(model.get(each)) for each in ("provider", "model")]
            return agent, "/".join(names) if all(names) else None
    return None, None


def copied(messages: Sequence[str], cut: Cut) -> int | None:
    """How many of a session's ``messages``, oldest first, are in the fork; ``None`` if the cut is at none of them."""
    if cut.message not in messages:
        return None
    return messages.index(cut.message) + (not cut.is_prompt)
