"""The items of a conversation that one record makes. Pure.

Any field of a payload may be missing or of another type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from sidecar.read.changes.edits import Diff, file_changes, hunks_of
from sidecar.read.fields import (
    as_int,
    as_list,
    as_mapping,
    as_text,
    exit_of,
    given_to,
    has_failed,
    is_said,
    with_cuts_shown,
)
from sidecar.read.rendering.describe import describe, short_type
from sidecar.read.rendering.markup import unwrapped
from sidecar.read.transcript.attached import attached
from sidecar.read.transcript.model import Call, Notice, Prompt, Said
from streams.store import Record


def prompt(record: Record) -> Prompt:
    """What a person, or the parent of a child session, wrote; ``files`` and ``images`` are what came with it."""
    event, payload = record.event, record.event.payload
    parts = as_list(payload.get("parts"))
    said = [unwrapped(as_text(part.get("text"))) for part in map(as_mapping, parts) if is_said(part)]
    files, images = attached(parts)
    text, shell = "\n\n".join(filter(None, said)), as_text(payload.get("shell"))
    return Prompt(event.id, event.ts, event.actor, text, files, images, shell=shell)


def said(record: Record) -> Said:
    """What a model said in an ``execution.output``."""
    event, payload = record.event, record.event.payload
    kind: Literal["answer", "reasoning"] = "reasoning" if payload.get("kind") == "reasoning" else "answer"
    return Said(event.id, event.ts, event.actor, as_text(payload.get("text")), kind)


def called(record: Record, call: Call | None = None) -> Call:
    """A call, perhaps one that ran, with what the ``execution.step`` of its end says."""
    event, payload = record.event, record.event.payload
    call = call or Call(event.id, event.ts, event.actor, "", "")
    given, tool = with_cuts_shown(given_to(payload)), as_text(payload.get("tool")) or "tool"
    call.event, call.tool = event.id, _TOOLS_2.get(tool, tool) if event.metadata.get("host") else tool
    call.call = as_text(payload.get("call"))
    call.status = as_text(payload.get("status")) or "completed"
    call.title = as_text(payload.get("title")) or call.title
    call.input = given if isinstance(given, dict) else {} if given is None else {"input": given}
    call.output, call.error = as_text(payload.get("output")), as_text(payload.get("error"))
    call.exit, call.failed = exit_of(payload), has_failed(payload)
    call.duration_ms = as_int(payload.get("duration_ms"))
    call.files, call.images = attached(as_list(payload.get("attachments")))
    call.diffs = diffs_of(payload)
    return call


def background(record: Record) -> Notice:
    """What background work, a question or a message of an imported session did."""
    return Notice(record.event.id, record.event.ts, "background", str(describe(record.event)))


def other(record: Record) -> Notice:
    """A record that has no item of its own."""
    text = f"{short_type(record.event.type)} {describe(record.event).text}".strip()
    return Notice(record.event.id, record.event.ts, "other", text)


def diffs_of(payload: dict[str, Any]) -> list[Diff]:
    """The diffs of a tool step for a transcript: without file headers."""
    found = []
    for diff in file_changes(payload):
        hunks = hunks_of(diff.patch)
        if diff.how != "edit":
            hunks = hunks.removesuffix("\n\\ No newline at end of file")
        if hunks or diff.how == "new":
            found.append(replace(diff, patch=hunks))
    return found


_TOOLS_2 = {"shell": "bash", "subagent": "task"}
"""Maps OpenCode 2's names of tools to OpenCode 1's names, which readers know."""
