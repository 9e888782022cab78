"""The pinned messages, and ``python -m tests.bridge.nats.vectors`` to write ``vectors.json`` again.

The file is the promise that subjects, headers and bodies stay as they are, so that two versions of a mirror
and all consumers agree. Rewrite it only to add cases, never to make a failing test pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bridge.nats.jetstream.wire import Message
from bridge.nats.mirror.chunks import Coalescer, Delta
from bridge.nats.mirror.messages import Mirror, chunk_message
from streams.event import StreamEvent
from tests.bridge.nats.records import LOG, MIRROR, PROJECT, chained, event, mirror_all

FILE = Path(__file__).with_name("vectors.json")

STEP = {"session": "ses_a", "message": "msg_2", "part": "prt_1", "turn": "msg_1", "kind": "tool", "tool": "bash"}


def events() -> dict[str, StreamEvent]:
    """The events by name, in log order."""
    created = {"session": "ses_a", "lineage": "root", "project": PROJECT, "title": "naïve 😀"}
    child = {"session": "ses_b", "parent": "ses_a", "lineage": "child", "project": PROJECT}
    rows: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "the sidecar's own": ("system.started", {"n": 1}, {"stream_id": "system", "traceparent": None}),
        "session created": ("lifecycle.session.created", created, {"correlation_id": None}),
        "input": ("human.input", {"session": "ses_a", "message": "msg_1", "parts": []}, {"actor": "user"}),
        "turn started": ("turn.started", {"session": "ses_a", "message": "msg_1", "trigger": "prompt"}, {}),
        "tool step": (
            "execution.step",
            {
                **STEP,
                "call": "call_1",
                "status": "completed",
                "input": {"command": "ls"},
                "output": "a\nb",
                "started_ms": 5,
                "ended_ms": 9,
                "duration_ms": 4,
            },
            {},
        ),
        "failed step": ("execution.step", {**STEP, "part": "prt_2", "status": "error", "error": "no"}, {}),
        "inference step": (
            "execution.step",
            {
                **{k: v for k, v in STEP.items() if k != "tool"},
                "part": "prt_3",
                "kind": "inference",
                "finish": "stop",
                "tokens": {"input": 12, "output": 7, "cache": {"read": 1}},
                "cost": 0.00123,
                "model": {"provider": "mock", "model": "mock-1"},
            },
            {},
        ),
        "child created": ("lifecycle.session.created", child, {}),
        "step of a child": ("execution.step", {**STEP, "session": "ses_b", "part": "prt_4"}, {}),
        "forgotten": ("execution.step", {"$sha256": "0" * 64}, {}),
        "step without a turn": (
            "execution.step",
            {"session": "ses_a", "kind": "tool", "part": "prt_5"},
            {"correlation_id": None},
        ),
        "turn ended": (
            "turn.ended",
            {"session": "ses_a", "message": "msg_1", "outcome": "completed", "steps": 3, "cost": 0.5},
            {},
        ),
        "turn failed": (
            "turn.ended",
            {"session": "ses_a", "message": "msg_2", "outcome": "failed", "error": "APIError"},
            {"correlation_id": "msg_2"},
        ),
        "turn interrupted": ("turn.ended", {"session": "ses_a", "message": "msg_3", "outcome": "interrupted"}, {}),
        "hostile names": (
            "opencode.x.y",
            {"session": "ses_a", "CG-Sender": "x"},
            {
                "source": {"agent": "a\r\nCG-Recursion-Depth: 0", "adapter": "test"},
                "traceparent": "00-0-0-00\r\nX: y",
                "metadata": {"tracestate": "a=1\r\nX: y"},
            },
        ),
        "trace state": ("agent.handoff", {"session": "ses_a"}, {"metadata": {"tracestate": "vendor=1,other=2"}}),
    }
    return {name: event(number, *row[:2], **row[2]) for number, (name, row) in enumerate(rows.items())}


def shown(message: Message) -> dict[str, Any]:
    return {"subject": message.subject, "headers": message.headers, "body": message.body.decode()}


def computed() -> list[dict[str, Any]]:
    made = events()
    rows: list[dict[str, Any]] = [
        {"name": name, "messages": [shown(m) for m in each.messages], "notes": list(each.notes)}
        for name, each in zip(made, mirror_all(chained(made.values())), strict=True)
    ]
    small = mirror_all(chained([*list(made.values())[:4], made["tool step"]]), Mirror(LOG, max_payload=1150))
    rows.append({"name": "pointer", "messages": [shown(m) for m in small[-1].messages], "notes": list(small[-1].notes)})
    tiny = mirror_all(chained([*list(made.values())[:4], made["tool step"]]), Mirror(LOG, max_payload=1000))
    rows.append({"name": "stub", "messages": [shown(m) for m in tiny[-1].messages], "notes": list(tiny[-1].notes)})
    again = mirror_all(chained([*list(made.values())[:4], made["turn ended"]]), Mirror(LOG, rebuild=2))
    rows.append({"name": "rebuilt", "messages": [shown(m) for m in again[-1].messages], "notes": list(again[-1].notes)})
    coalescer = Coalescer()
    for text in ("He", "llo ", "wörld"):
        coalescer.add(Delta("ses_a", "msg_1", "prt_6", "text", text), 0)
    rows.append(
        {
            "name": "chunk",
            "messages": [shown(chunk_message(s, c, PROJECT, MIRROR)) for s, c in coalescer.flush()],
            "notes": [],
        }
    )
    return rows


if __name__ == "__main__":
    FILE.write_text(json.dumps(computed(), indent=1, ensure_ascii=True) + "\n")
