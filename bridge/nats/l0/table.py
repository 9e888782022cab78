"""The table of the L0 protocol's messages: which subject carries which payload. Each row is called a family.

Publishers and consumers look payloads up in this table, and ``docs/subjects.md`` is generated from it, so code and
documentation cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bridge.nats.l0.payloads import (
    Chunk,
    L0Payload,
    State,
    Step,
    Stop,
    Task,
    ToolCommand,
    ToolResult,
    UiAction,
    UiActionAck,
    Wakeup,
)
from bridge.nats.subjects import Component, L0Subject
from streams.bus.subjects import ONE, SubjectError, matches

Carried = Literal["cmd", "evt", "str", "inbox"]
"""A category, or ``inbox``: a message in an agent's inbox, which has no subject and is announced by a wakeup."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table: the messages with the same kind of subject and the same payload model. ``target`` and
    ``suffix`` are literal texts, or ``*`` for any; a suffix may also end in ``*``.
    """

    section: str
    category: Carried
    component: Component
    target: str
    suffix: str
    model: type[L0Payload]
    route: str
    note: str = ""
    target_word: str = ""

    @property
    def short(self) -> str:
        """The short form, such as ``evt.agent.{agent}.step``; for an inbox message, only its kind."""
        if self.category == "inbox":
            return f"inbox {self.suffix}"
        suffix = self.suffix.replace(ONE, "{tool}")
        target = f"{{{self.target_word}}}" if self.target == ONE else self.target
        return f"{self.category}.{self.component}.{target}.{suffix}"


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        "5.1",
        "cmd",
        "agent",
        ONE,
        "wakeup",
        Wakeup,
        "the runtime → an agent",
        "Only a notification: the request is in the inbox, so a lost or repeated wakeup does no harm.",
        "target",
    ),
    Family(
        "5.2",
        "inbox",
        "agent",
        ONE,
        "tool_result",
        ToolResult,
        "a tool → an agent's inbox",
        "Reports with the same `(agent_turn_id, tool_call_id)` count as one; after a `partial` one, the call still "
        "waits for its result. `__cg_control.after_execution` in a result counts only for tools on an allow-list.",
        "agent",
    ),
    Family(
        "5.3",
        "inbox",
        "agent",
        ONE,
        "stop",
        Stop,
        "the process that cancels → an agent's inbox",
        "",
        "agent",
    ),
    Family(
        "5.4",
        "cmd",
        "tool",
        ONE,
        ONE,
        ToolCommand,
        "an agent → a tool service",
        "",
        "provider",
    ),
    Family(
        "5.5",
        "cmd",
        "sys",
        "pmo",
        "internal.*",
        ToolCommand,
        "an agent → a built-in tool",
        "Like 5.4, but the runtime itself runs the tool.",
    ),
    Family(
        "5.6",
        "evt",
        "agent",
        ONE,
        "step",
        Step,
        "an agent → everyone",
        "A captured step has the `phase` `completed` or `failed`, because a step is recorded when it ends.",
        "agent",
    ),
    Family(
        "5.7",
        "evt",
        "agent",
        ONE,
        "task",
        Task,
        "an agent → everyone",
        "",
        "agent",
    ),
    Family(
        "5.8",
        "str",
        "agent",
        ONE,
        "chunk",
        Chunk,
        "an agent → whoever listens now",
        "Sent on core NATS, without headers. A chunk may be lost, so nothing may depend on it.",
        "agent",
    ),
    Family(
        "5.9",
        "evt",
        "agent",
        ONE,
        "state",
        State,
        "an agent → everyone",
        "Only a notification; the log is authoritative.",
        "agent",
    ),
    Family(
        "5.10",
        "cmd",
        "sys",
        "ui",
        "action",
        UiAction,
        "a user interface → its worker",
        "`action_id` makes the action idempotent. Only a tool that explicitly allows such actions takes them; by "
        "default, none does.",
    ),
    Family("5.11", "evt", "sys", "ui", "action_ack", UiActionAck, "the worker → user interfaces"),
)


def family_of(subject: L0Subject) -> Family | None:
    """The table's row for a subject, or ``None`` if the protocol has no payload for the subject."""
    for family in FAMILIES:
        if (
            family.category == subject.category
            and family.component == subject.component
            and family.target in (ONE, subject.target)
            and matches(family.suffix, subject.suffix)
        ):
            return family
    return None


def decode(subject: str, body: bytes) -> tuple[L0Subject, L0Payload]:
    """Decode a message of the L0 protocol.

    Raises:
        SubjectError: the subject does not belong to the protocol, or the table has no row for it.
        PayloadError: the body does not match the subject.
    """
    parsed = L0Subject.parse(subject)
    family = family_of(parsed)
    if family is None:
        raise SubjectError(
            subject, "the L0 protocol defines no payload for this category, component, target and suffix"
        )
    return parsed, family.model.decode(body)
