"""The messages of the L0 protocol: which subject carries which payload, for ``docs/subjects.md`` and for tests."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bridge.nats.l0 import payloads as p
from bridge.nats.subjects import L0Subject
from streams.bus.subjects import SubjectError, matches


class Family(NamedTuple):
    """The messages with one kind of subject and one payload. ``short`` is the subject without version, project and
    channel. A message of an inbox has no subject."""

    section: str
    short: str
    model: type[p.L0Payload]
    route: str
    note: str = ""


FAMILIES: Final = (
    Family(
        "5.1",
        "cmd.agent.{target}.wakeup",
        p.Wakeup,
        "the runtime → an agent",
        "only a notification; the request is in the inbox.",
    ),
    Family(
        "5.2",
        "inbox tool_result",
        p.ToolResult,
        "a tool → an agent's inbox",
        "reports with the same `(agent_turn_id, tool_call_id)` count as one; after a `partial` one, the call still "
        "waits. `__cg_control.after_execution` in a result counts only for tools on an allow-list.",
    ),
    Family("5.3", "inbox stop", p.Stop, "the process that cancels → an agent's inbox"),
    Family("5.4", "cmd.tool.{provider}.{tool}", p.ToolCommand, "an agent → a tool service"),
    Family(
        "5.5",
        "cmd.sys.pmo.internal.{tool}",
        p.ToolCommand,
        "an agent → a built-in tool",
        "the runtime itself runs the tool.",
    ),
    Family(
        "5.6",
        "evt.agent.{agent}.step",
        p.Step,
        "an agent → everyone",
        "a captured step has the `phase` `completed` or `failed`.",
    ),
    Family("5.7", "evt.agent.{agent}.task", p.Task, "an agent → everyone"),
    Family(
        "5.8",
        "str.agent.{agent}.chunk",
        p.Chunk,
        "an agent → whoever listens now",
        "on core NATS, without headers. A chunk may be lost.",
    ),
    Family(
        "5.9",
        "evt.agent.{agent}.state",
        p.State,
        "an agent → everyone",
        "only a notification; the log is authoritative.",
    ),
    Family(
        "5.10",
        "cmd.sys.ui.action",
        p.UiAction,
        "a user interface → its worker",
        "`action_id` makes the action idempotent. By default, no tool takes actions.",
    ),
    Family("5.11", "evt.sys.ui.action_ack", p.UiActionAck, "the worker → user interfaces"),
)


def decode(subject: str, body: bytes) -> tuple[L0Subject, p.L0Payload]:
    """Decode a message of the L0 protocol.

    Raises:
        SubjectError: the subject does not belong to the protocol, or the table has no row for it.
        PayloadError: the body does not match the subject.
    """
    parsed = L0Subject.parse(subject)
    for family in FAMILIES:
        if matches(re.sub(r"\{\w+\}", "*", family.short), parsed.short):
            return parsed, family.model.decode(body)
    raise SubjectError(subject, "the L0 protocol defines no payload for this subject")
