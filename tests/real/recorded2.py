"""What the log must hold of a session of OpenCode 2, according to the service's own API."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from tests.real.durable import DurableStream
from tests.real.model_server import HANG_LIMIT_S
from tests.real.opencode2 import RealOpenCode2

Json = dict[str, Any]
Facts = Counter[str]


def told(client: RealOpenCode2, session: str) -> Facts:
    """One fact for each input, answer, tool call and inference of a session, as the API's messages have them."""
    facts: Facts = Counter()
    messages = client.api("GET", f"/api/session/{session}/message?order=asc&limit=200")["data"]
    for message in messages:
        if message["type"] in ("user", "synthetic"):
            facts[_fact("input", message["id"], message["text"])] += 1
        if message["type"] != "assistant":
            continue
        for part in message["content"]:
            if part["type"] in ("text", "reasoning"):
                facts[_fact(part["type"], message["id"], part["text"])] += 1
            elif part["type"] == "tool" and part["state"]["status"] in ("completed", "error"):
                state = part["state"]
                facts[_fact("tool", message["id"], part["id"], part["name"], state["status"], state["input"])] += 1
        if message.get("finish") not in (None, "error", "aborted"):
            facts[_fact("inference", message["id"], message["finish"], message["tokens"]["output"])] += 1
    return facts


def recorded(records: list[Json], session: str) -> Facts:
    """The same facts, from the records of a stream."""
    facts: Facts = Counter()
    for event in (record["event"] for record in records):
        payload = event["payload"]
        if payload.get("session") != session:
            continue
        if event["type"] in ("human.input", "agent.input"):
            facts[_fact("input", payload["message"], payload["parts"][0]["text"])] += 1
        elif event["type"] == "execution.output":
            facts[_fact(payload["kind"], payload["message"], payload["text"])] += 1
        elif event["type"] == "execution.step" and payload["kind"] == "tool":
            call = (payload["call"], payload["tool"], payload["status"], payload["input"])
            facts[_fact("tool", payload["message"], *call)] += 1
        elif event["type"] == "execution.step" and payload["finish"] not in ("error", "aborted"):
            facts[_fact("inference", payload["message"], payload["finish"], payload["tokens"]["output"])] += 1
    return facts


def assert_recorded(durable: DurableStream, client: RealOpenCode2, root: str, *children: str) -> list[Json]:
    """Wait until the log has what the service tells of these sessions, assert exactly that, and return the records."""
    expected = {session: told(client, session) for session in (root, *children)}
    deadline = time.monotonic() + HANG_LIMIT_S
    while True:
        records = durable.log(root)
        found = {session: recorded(records, session) for session in expected}
        if (found == expected and not _has_open_turn(records)) or time.monotonic() > deadline:
            break
    for session, facts in expected.items():
        assert found[session] - facts == Counter(), f"in the log and not in {session}"
        assert facts - found[session] == Counter(), f"in {session} and not in the log"
    keys = [record["event"]["idempotency_key"] for record in records]
    assert len(keys) == len(set(keys))
    assert [record["event"]["payload"] for record in records if record["event"]["type"] == "capture.gap"] == []
    return records


def _has_open_turn(records: list[Json]) -> bool:
    """Whether the end of a turn, which no fact tells of, is still to come."""
    types = [record["event"]["type"] for record in records]
    return types.count("turn.started") > types.count("turn.ended")


_MADE = {
    "session.input.admitted": "input",
    "session.text.ended": "execution.output",
    "session.reasoning.ended": "execution.output",
    "session.tool.success": "execution.step",
    "session.tool.failed": "execution.step",
    "session.step.ended": "execution.step",
    "session.compaction.ended": "lifecycle.session.compacted",
    "session.execution.succeeded": "turn.ended",
    "session.execution.failed": "turn.ended",
    "session.execution.interrupted": "turn.ended",
}
"""What each event of a session's durable log must have become, whatever came before it."""


def assert_event_for_event(durable: DurableStream, client: RealOpenCode2, root: str, *children: str) -> list[Json]:
    """As ``assert_recorded``, and each final event of the service's own log has one record of its kind, with its id."""
    assert_recorded(durable, client, root, *children)
    wanted = _final(client, root, *children)
    deadline = time.monotonic() + HANG_LIMIT_S
    while True:
        records = durable.log(root)
        found = _made(records, root, *children)
        if found == wanted or time.monotonic() > deadline:
            break
    assert found - wanted == Counter(), "in the log and not in the service's"
    assert wanted - found == Counter(), "in the service's log and not in ours"
    return records


def _final(client: RealOpenCode2, *sessions: str) -> Facts:
    rows = [(session, row) for session in sessions for row in client.log_of(session) if row["type"] in _MADE]
    return Counter(_fact(session, row["durable"]["seq"], row["id"], _MADE[row["type"]]) for session, row in rows)


def _made(records: list[Json], *sessions: str) -> Facts:
    facts: Facts = Counter()
    for event in (record["event"] for record in records):
        type_ = "input" if event["type"] in ("human.input", "agent.input") else event["type"]
        session, metadata = event["payload"].get("session"), event["metadata"]
        if type_ in _MADE.values() and session in sessions:
            facts[_fact(session, metadata.get("host_seq"), metadata.get("event"), type_)] += 1
    return facts


def outcomes(records: list[Json], session: str) -> list[str]:
    """How the turns of a session ended."""
    ended = [record["event"] for record in records if record["event"]["type"] == "turn.ended"]
    return [event["payload"]["outcome"] for event in ended if event["payload"]["session"] == session]


def _fact(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True)
