"""Made-up logs, in an order and with payloads that no OpenCode makes. ``TORTURE_STORY`` sets how many."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sidecar.read.story import reading, tables
from streams.identity import seeded_identity
from streams.store import Record
from tests.sidecar.read.story.playing import content, records_at, records_of, tables_of
from tests.streams.sizes import size

ROOT, CHILDREN = "ses_root", ("ses_a", "ses_b", "ses_c")
JUNK: tuple[Any, ...] = (
    *(None, "", "\0", "x" * 5000, True, -1, 0, 1.5, 2**63 - 1, 1e300, [], [1], {}, {"$sha256": "0"}),
    *({"a": {"b": [None]}}, [{"type": "text", "text": 1}], "ses_root", "msg_1"),
)


def event(random: Random, ts: int) -> dict[str, Any]:
    session, turn = random.choice((ROOT, ROOT, *CHILDREN)), f"msg_{random.randrange(4)}"
    call, tool = f"call_{random.randrange(3)}", random.choice(("bash", "edit", "task"))
    about: dict[str, Any] = {"turn": turn, "call": call, "part": call, "tool": tool, "message": f"{turn}_answer"}
    model, child = {"provider": "p", "model": random.choice("xy")}, random.choice(CHILDREN)
    given = {"filePath": "f.py", "oldString": "a", "newString": "b", "command": random.choice(("make", "ls"))}
    step = {"kind": "tool", "status": random.choice(("completed", "error")), "input": given, "title": "t", **about}
    used = {"kind": "inference", "cost": 0.1, "tokens": {"input": 3, "cache": {"read": 2}}, "model": model, **about}
    ask = {"kind": "permission", "permission": "bash", "request": f"per_{random.randrange(3)}"}
    ended = {"message": turn, "outcome": random.choice(("completed", "failed", "aborted"))}
    begun = {"message": turn, "assistant_message": f"{turn}_answer", "agent": "build", "model": model}
    at = {"directory": "/d", "parent": None if session == ROOT else ROOT, "lineage": random.choice(("root", "unknown"))}
    events: list[tuple[str, dict[str, Any]]] = [
        ("human.input", {"message": turn, "parts": [{"type": "text", "text": f"do {turn}"}]}),
        ("turn.started", {**begun, "trigger": random.choice(("prompt", "compaction"))}),
        *[("turn.ended", ended)] * 2,
        ("execution.step.started", about),
        *[("execution.step", step)] * 2,
        ("execution.step", used),
        ("execution.step", {**step, "tool": "task", "child": child, "metadata": {"background": True}}),
        ("execution.output", {"kind": "text", "text": "said", **about}),
        *[("agent.spawned", {**about, "child": child, "agent": "general", "description": "d"})] * 2,
        *[("workflow.checkpoint", {**ask, "state": "asked", "patterns": ["make"], **about})] * 2,
        ("workflow.checkpoint", {**ask, "state": "replied", "reply": "once"}),
        ("agent.error", {"turn": turn, "name": "Boom", "reason": "r"}),
        ("opencode.session.retry.scheduled", {"at_ms": ts + 500, "name": "Boom"}),
        ("opencode.message.removed", {"properties": {"messageID": turn}}),
        ("opencode.session.reverted", {"message": random.choice((turn, ""))}),
        ("lifecycle.session.compacted", {}),
        ("lifecycle.session.ended", {"reason": "deleted"}),
        ("capture.gap", {"reason": "x", "lost": 1}),
        ("lifecycle.session.created", at),
        ("lifecycle.session.resumed", at),
        ("lineage.linked", {"parent": random.choice((ROOT, *CHILDREN))}),
        ("lineage.forked", {"fork": {"session": child}}),
        ("opencode.session.moved", {"directory": "/e", "project": "p"}),
        ("opencode.session.renamed", {"title": f"title {random.randrange(3)}"}),
        ("opencode.command.executed", {"properties": {"messageID": turn, "name": "init", "arguments": ""}}),
        ("stream.named", {"name": "mine"}),
        ("intent.started", {"session": child, "directory": "/w"}),
    ]
    type_, payload = random.choice(events)
    stream = random.choice((ROOT, ROOT, session))
    if type_ == "intent.started":
        stream = "agent/intents"
    elif type_ != "stream.named":
        payload = {"session": session, **payload}
    fields = {"type": type_, "stream_id": stream, "actor": "build", "ts": ts, "payload": payload}
    return {
        **fields,
        "source": {"agent": "build", "adapter": "opencode"},
        "metadata": {"boot": random.choice(JUNK), "pid": random.choice(JUNK)},
    }


def made_up(seed: int, *, junk: bool) -> list[Record]:
    random, identity, ts, found = Random(seed), seeded_identity(seed), 1_700_000_000_000, []
    for _ in range(80):
        ts += random.randrange(-5, 900)
        fields = event(random, ts)
        if junk and random.random() < 0.5:
            fields["payload"][random.choice([*fields["payload"]])] = random.choice(JUNK)
        found.append(identity.stamp(fields))
    return records_of(found)


@pytest.mark.parametrize("junk", [False, True])
def test_in_any_order_sessions_that_rest_and_records_above_the_tables_change_nothing(junk: bool) -> None:
    for seed in range(size("STORY", 12)):
        records = made_up(seed, junk=junk)
        whole = content(tables_of(records))
        assert whole["moment"][-1][0] == 79, seed
        assert content(tables_of(records, most_live=0)) == whole, seed
        split = Random(seed).randrange(80)
        db = tables_of(records[:split])
        over = reading.Over(db, split - 1, records_at(records))
        for record in records[split:]:
            over.lay([record])
        rows = {name: sorted(db.execute(f"SELECT * FROM {name}"), key=repr) for name in tables.ROWS}
        assert rows == {name: sorted(each, key=repr) for name, each in whole.items()}, (seed, split)
