"""Calls of tools that other processes run: the messages of a call, its report, and what a report is worth. Pure.

A *card* is a message of ``MESHFORGE_EVENTS`` that another message points at, as ``MESHFORGE_EVENTS:{sequence}``. The
card of a call is the mirrored record of its request; the card of a result is a message that the worker publishes, an
object with the field ``result``.

========================== ==========================================================
a report about             is
========================== ==========================================================
a call that waits          accepted; it ends the call, unless its status is `partial`
a call that has ended      refused: ``late``; the same report again is a duplicate
no call of this agent      refused: ``unknown-call``
a call of an earlier epoch refused: ``old-epoch``
another depth, or none     refused: ``protocol_violation``
a card that is not there   refused: ``no-card``; the call waits on
========================== ==========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from bridge.nats.l0.payloads import ToolResult
from bridge.nats.l0.recursion import VIOLATION, judge
from bridge.nats.subjects import CHANNEL, EVENTS, PROTOCOL_VERSION, L0Subject, escape
from streams.bus.subjects import SubjectError

REPORT: Final = "inbox.tool_result"
STOP: Final = "inbox.stop"
"""The types of commands that are messages of an agent's inbox (5.2 and 5.3)."""

Worth = Literal["accepted", "late", "unknown-call", "old-epoch", "protocol_violation", "no-card"]


class Call(NamedTuple):
    """What the owner knows of a call: the epoch and depth with which it was sent, and whether it has ended."""

    epoch: int
    depth: int
    has_ended: bool


def judge_report(report: ToolResult, headers: Mapping[str, str], call: Call | None) -> Worth:
    """What a report with these headers is worth; ``call`` is ``None`` if the agent has no such call."""
    if call is None:
        return "unknown-call"
    if report.turn_epoch != call.epoch:
        return "old-epoch"
    if call.has_ended:
        return "late"
    decision = judge("report", headers, recorded=call.depth)
    return "protocol_violation" if decision.verdict == VIOLATION else "accepted"


def card_id(sequence: int) -> str:
    return f"{EVENTS}:{sequence}"


def card_sequence(card: str) -> int | None:
    """The sequence of a card's message; ``None`` if ``card`` has another form."""
    stream, _, number = card.partition(":")
    return int(number) if stream == EVENTS and number.isascii() and number.isdecimal() and len(number) < 19 else None


def tool_subject(target_subject: str, project: str) -> str:
    """The full subject of a tool whose short one is ``cmd.tool.{provider}.{tool}`` or ``cmd.sys.pmo.internal.{tool}``.

    Raises:
        SubjectError: the short subject is neither.
    """
    full = f"cg.{escape(PROTOCOL_VERSION)}.{escape(project)}.{escape(CHANNEL)}.{target_subject}"
    found = L0Subject.parse(full)
    is_internal = (found.component, found.target) == ("sys", "pmo") and found.suffix.startswith("internal.")
    if found.category != "cmd" or not (found.component == "tool" or is_internal):
        raise SubjectError(target_subject, "must be `cmd.tool.PROVIDER.TOOL` or `cmd.sys.pmo.internal.TOOL`")
    return full


def tool_pattern(target_subject: str) -> str:
    """The pattern of a tool's subject in every project and channel; the subject may end in ``.>``. Raises the same
    ``SubjectError``."""
    tool_subject(target_subject.removesuffix(">") + "_" * target_subject.endswith(".>"), "_")
    return f"cg.{escape(PROTOCOL_VERSION)}.*.*.{target_subject}"


def result_of(content: Any) -> Any:
    """The result in a card: its field ``result``, also of a whole event's payload; else all of it."""
    if isinstance(content, dict) and isinstance(content.get("payload"), dict):
        content = content["payload"]
    return content["result"] if isinstance(content, dict) and "result" in content else content
