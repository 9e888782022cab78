"""What the log must hold of a session of OpenCode 2, according to the service's own messages."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from typing import Any

from tests.real.durable import DurableStream, wait_until
from tests.real.opencode2 import RealOpenCode2

Json = dict[str, Any]
Facts = Counter[str]

_INHERITED = re.compile(r"msg_\w+_\d+")
_OUTCOMES = {"succeeded": "completed", "failed": "failed", "interrupted": "aborted"}
_TAKEN_BACK = ("opencode.session.inbox.cancelled", "opencode.message.removed")


def told(client: RealOpenCode2, session: str) -> Facts:
    """One fact for each input, answer, tool call, inference, command, compaction and end of a session."""
    facts: Facts = Counter()
    for message in client.messages(session):
        if not _INHERITED.fullmatch(message["id"]):
            facts.update(_facts_of(message))
    for waiting in client.api("GET", f"/api/session/{session}/inbox")["data"]:
        facts[_fact("input", waiting["id"], waiting["payload"].get("text"))] += 1
    return facts


def _facts_of(message: Json) -> list[str]:
    kind, id_ = message["type"], message["id"]
    if kind in ("user", "synthetic"):
        return [_fact("input", id_, message["text"])]
    if kind == "shell":
        return [_fact("shell", message["shellID"], message["command"], message.get("exit"))]
    if kind == "compaction":
        return [_fact("compaction", id_, message["status"])]
    if kind == "idle":
        return [_fact("end", id_, _OUTCOMES[message["outcome"]])]
    if kind != "assistant":
        return []
    facts = []
    for part in message["content"]:
        state = part.get("state", {})
        if part["type"] in ("text", "reasoning") and (part["text"] or "finish" in message):
            facts.append(_fact(part["type"], id_, part["text"]))
        elif part["type"] == "tool" and state["status"] in ("completed", "error"):
            facts.append(_fact("tool", id_, part["id"], part["name"], state["status"], state["input"]))
    if message.get("finish") not in (None, "error"):
        facts.append(_fact("inference", id_, message["finish"], message["tokens"]["output"]))
    return facts


def recorded(records: list[Json], session: str, ends: set[str]) -> Facts:
    """The same facts, from the records of a stream. ``ends`` are the messages that tell of an end."""
    events = [record["event"] for record in records if record["event"]["payload"].get("session") == session]
    gone = {event["correlation_id"] for event in events if event["type"] in _TAKEN_BACK}
    facts: Facts = Counter()
    for event in events:
        payload, type_ = event["payload"], event["type"]
        if event["correlation_id"] is not None and event["correlation_id"] in gone:
            continue
        if type_ in ("human.input", "agent.input") and "shell" not in payload:
            facts[_fact("input", payload["message"], payload["parts"][0]["text"])] += 1
        elif type_ == "execution.output":
            facts[_fact(payload["kind"], payload["message"], payload["text"])] += 1
        elif type_ == "execution.step" and payload["part"].endswith(":shell"):
            facts[_fact("shell", payload["call"], payload["input"]["command"], payload["metadata"].get("exit"))] += 1
        elif type_ == "execution.step" and payload["kind"] == "tool":
            call = (payload["call"], payload["tool"], payload["status"], payload["input"])
            facts[_fact("tool", payload["message"], *call)] += 1
        elif type_ == "execution.step" and payload["finish"] not in ("error", "aborted"):
            facts[_fact("inference", payload["message"], payload["finish"], payload["tokens"]["output"])] += 1
        elif type_ == "lifecycle.session.compacted":
            facts[_fact("compaction", payload["message"], "completed")] += 1
        elif type_ == "agent.error" and payload["name"] == "compaction.failed":
            facts[_fact("compaction", payload["message"], "failed")] += 1
        elif type_ == "turn.ended" and (end := _end_of(event)) in ends:
            facts[_fact("end", end, payload["outcome"])] += 1
    return facts


def _end_of(event: Json) -> str:
    return "msg_" + str(event["metadata"].get("event")).removeprefix("evt_")


def assert_recorded(
    durable: DurableStream, client: RealOpenCode2, root: str, *children: str, gaps: tuple[str, ...] = ()
) -> list[Json]:
    """Wait until the log has what the service tells of these sessions, assert exactly that, and return the records.

    ``gaps`` are the reasons of the only gaps that may be there.
    """
    expected: dict[str, Facts] = {}
    found: dict[str, Facts] = {}
    records: list[Json] = []

    def agrees() -> bool:
        nonlocal expected, found, records
        expected = {session: told(client, session) for session in (root, *children)}
        records = durable.log(root)
        found = {session: recorded(records, session, _ends(facts)) for session, facts in expected.items()}
        return found == expected and not _has_open_turn(records)

    with suppress(TimeoutError):
        wait_until(agrees, "what the service tells")
    for session, facts in expected.items():
        assert found[session] - facts == Counter(), f"in the log and not in {session}: {found[session] - facts}"
        assert facts - found[session] == Counter(), f"in {session} and not in the log: {facts - found[session]}"
    keys = [record["event"]["idempotency_key"] for record in records]
    assert len(keys) == len(set(keys))
    lost = [record["event"]["payload"] for record in records if record["event"]["type"] == "capture.gap"]
    assert [each for each in lost if each["reason"] not in gaps] == []
    return records


def _ends(facts: Facts) -> set[str]:
    return {row[1] for row in map(json.loads, facts) if row[0] == "end"}


def _has_open_turn(records: list[Json]) -> bool:
    """Whether the end of a turn, which no fact tells of, is still to come."""
    types = [record["event"]["type"] for record in records]
    return types.count("turn.started") > types.count("turn.ended")


def outcomes(records: list[Json], session: str) -> list[str]:
    """How the turns of a session ended."""
    ended = [record["event"] for record in records if record["event"]["type"] == "turn.ended"]
    return [event["payload"]["outcome"] for event in ended if event["payload"]["session"] == session]


def _fact(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True)
