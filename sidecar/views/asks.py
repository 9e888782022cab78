"""What a ``workflow.checkpoint`` asks, and how it was answered. Pure."""

from __future__ import annotations

from sidecar.views.catalog import as_text
from sidecar.views.fields import as_list, as_mapping, as_strings
from sidecar.views.transcript import Ask, Question
from streams.store import Record


def asked(record: Record) -> Ask:
    """The ask: the permission and exactly what for, or the questions."""
    event, payload = record.event, record.event.payload
    metadata = as_mapping(payload.get("metadata"))
    exact = as_text(metadata.get("command")) or as_text(metadata.get("filepath")) or as_text(metadata.get("url"))
    questions = []
    for one in map(as_mapping, as_list(payload.get("questions"))):
        labels = [as_text(as_mapping(each).get("label")) for each in as_list(one.get("options"))]
        questions.append(Question(as_text(one.get("question")), list(filter(None, labels))))
    return Ask(
        event.id,
        event.ts,
        event.actor,
        as_text(payload.get("request")),
        as_text(payload.get("call")),
        as_text(payload.get("turn")),
        as_text(payload.get("permission")) or as_text(payload.get("kind")),
        [exact] if exact else as_strings(payload.get("patterns")),
        as_strings(payload.get("always")),
        questions,
    )


def answer(ask: Ask, record: Record) -> None:
    """Take the answer into ``ask``."""
    payload = record.event.payload
    ask.reply, ask.message = as_text(payload.get("reply")), as_text(payload.get("message"))
    ask.state = "rejected" if "rejected" in (payload.get("state"), f"{ask.reply}ed") else "replied"
    ask.answers = [
        ", ".join(as_strings(one)) if isinstance(one, list) else as_text(one) for one in as_list(payload.get("answers"))
    ]
    ask.by, ask.waited_ms = record.event.actor, max(record.event.ts - ask.ts, 0)
