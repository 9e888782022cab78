"""What a permission or a question is about, in words. Pure.

Payloads come from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from sidecar.read.fields import as_list, as_mapping, as_text, first_text
from sidecar.read.wording import one_line, visible

CHECKPOINT = "workflow.checkpoint"


def checkpoint_id(session: str, request: str) -> str:
    """The id of a checkpoint. The same request of the same session always has the same id."""
    return f"chk_{sha256(f'{session}:{request}'.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def answered_with(payload: dict[str, Any]) -> str:
    """The checkpoint whose answer answered this one, too; empty if this one has an answer of its own."""
    first = as_text(payload.get("with"))
    return checkpoint_id(as_text(payload.get("session")), first) if first else ""


def withdrawn_text(first: str) -> str:
    return f"withdrawn: rejected with {first}"


def what_is_asked(payload: dict[str, Any]) -> str:
    """What an ask is about, on one line: the command, or else the patterns; for a question, its text.

    The patterns of a command are its parts, so only the command itself shows how these parts are joined.
    """
    if questions := as_list(payload.get("questions")):
        return on_one_line("; ".join(as_text(each.get("question")) for each in questions if isinstance(each, dict)))
    command = as_text(as_mapping(payload.get("metadata")).get("command"))
    return on_one_line(command or " ; ".join(map(as_text, as_list(payload.get("patterns")))))


def asked_text(payload: dict[str, Any]) -> str:
    """An ask on one line: ``bash rm -rf build``, or the question. Every command and screen shows this same text."""
    what = what_is_asked(payload)
    return what if payload.get("questions") else on_one_line(f"{first_text(payload, 'permission', 'kind')} {what}")


def on_one_line(text: str) -> str:
    """``text`` on one line, on which nothing is hidden: a line break may begin a second command, so it is shown."""
    return one_line(" ⏎ ".join(visible(text).strip().split("\n")))


class OpenAsk(msgspec.Struct):
    """A permission or a question that nobody has answered yet. ``since_ms`` is in ms since 1970."""

    request: str
    session: str
    event: str
    since_ms: int
    text: str


class OpenCall(msgspec.Struct):
    """A tool call that began to run and has not ended. ``since_ms`` is in ms since 1970."""

    since_ms: int
    text: str
