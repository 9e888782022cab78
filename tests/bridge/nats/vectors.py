"""The pinned messages, and ``python -m tests.bridge.nats.vectors`` to write ``vectors.json`` again.

The file is the promise that subjects, headers and bodies stay as they are, so that two versions of a mirror
and all consumers agree. Rewrite it only to add cases, never to make a failing test pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bridge.nats.jetstream.wire import Message
from bridge.nats.mirror.chunks import Chunks, Delta
from bridge.nats.mirror.messages import Mirror, chunk_message
from streams.event import StreamEvent
from tests.bridge.nats.records import LOG, MIRROR, PROJECT, chained, event, mirror_all

FILE = Path(__file__).with_name("vectors.json")

EVENTS = Path(__file__).with_name("vector_events.json")
"""The events by name, in log order: type, payload, and the fields in which an event differs from others."""


def events() -> dict[str, StreamEvent]:
    rows = json.loads(EVENTS.read_text())
    return {name: event(number, *row[:2], **row[2]) for number, (name, row) in enumerate(rows.items())}


def shown(message: Message) -> dict[str, Any]:
    return {"subject": message.subject, "headers": message.headers, "body": message.body.decode()}


def computed() -> list[dict[str, Any]]:
    made = events()
    rows: list[dict[str, Any]] = [
        {"name": name, "messages": [shown(m) for m in each.messages], "notes": list(each.notes)}
        for name, each in zip(made, mirror_all(chained(made.values())), strict=True)
    ]
    small = mirror_all(chained([*list(made.values())[:4], made["tool step"]]), Mirror(LOG, max_payload=1406))
    rows.append({"name": "pointer", "messages": [shown(m) for m in small[-1].messages], "notes": list(small[-1].notes)})
    tiny = mirror_all(chained([*list(made.values())[:4], made["tool step"]]), Mirror(LOG, max_payload=1256))
    rows.append({"name": "stub", "messages": [shown(m) for m in tiny[-1].messages], "notes": list(tiny[-1].notes)})
    again = mirror_all(chained([*list(made.values())[:4], made["turn ended"]]), Mirror(LOG, rebuild=2))
    rows.append({"name": "rebuilt", "messages": [shown(m) for m in again[-1].messages], "notes": list(again[-1].notes)})
    chunks = Chunks(str)
    for text in ("He", "llo ", "wörld"):
        chunks.add(Delta("ses_a", "msg_1", "prt_6", "text", text), 0)
    rows.append(
        {
            "name": "chunk",
            "messages": [shown(chunk_message(s, c, PROJECT, MIRROR)) for s, c in chunks.due(99)],
            "notes": [],
        }
    )
    return rows


if __name__ == "__main__":
    FILE.write_text(json.dumps(computed(), indent=1, ensure_ascii=True) + "\n")
