"""Turns, calls and asks end by one rule, so that every view of a moment says the same."""

from __future__ import annotations

from typing import Any

from sidecar.read.story.moment import Moment
from sidecar.read.story.timeline import Timeline
from streams.identity import seeded_identity
from streams.store import Record
from tests.sidecar.read.story.playing import recorded, records_of, snapshot

ASK = {"kind": "permission", "permission": "bash", "patterns": ["make"], "state": "asked"}


def log(*events: tuple[str, dict[str, Any]]) -> list[Record]:
    """Records of the session ``ses_1``, a second apart."""
    identity = seeded_identity(1)
    about: dict[str, Any] = {
        "stream_id": "ses_1",
        "actor": "build",
        "source": {"agent": "build", "adapter": "opencode"},
    }
    made = [
        {**about, "type": type_, "ts": 1000 * number, "payload": {"session": "ses_1", **payload}, "metadata": {}}
        for number, (type_, payload) in enumerate(events, 1)
    ]
    return records_of(map(identity.stamp, made))


def states(records: list[Record]) -> dict[str, list[str]]:
    """The states of all spans at the end, in order, by kind."""
    found: dict[str, list[str]] = {}
    streams = {record.event.stream_id for record in records}
    for span in Timeline(Moment(snapshot(records), streams, len(records) - 1)).spans():
        found.setdefault(span.kind, []).append(span.state)
    return found


def status(records: list[Record], session: str = "ses_1") -> tuple[str, int]:
    """The status of a session at the end, and how long it had worked an hour later."""
    view = Moment(snapshot(records), {"ses_1"}, len(records) - 1).catalog.sessions[session]
    return view.status, view.worked_ms(records[-1].event.ts + 3_600_000)


BEGIN: list[tuple[str, dict[str, Any]]] = [
    ("lifecycle.session.created", {"title": "Mine"}),
    ("human.input", {"message": "msg_1", "parts": [{"type": "text", "text": "do it"}]}),
    ("turn.started", {"message": "msg_1"}),
    ("execution.step.started", {"turn": "msg_1", "call": "call_1", "tool": "bash"}),
    ("workflow.checkpoint", {**ASK, "request": "per_1", "turn": "msg_1", "call": "call_1"}),
]


def test_what_is_open_ends_with_the_turn_the_process_and_the_session() -> None:
    assert states(log(*BEGIN)) == {
        "session": ["running"],
        "turn": ["running"],
        "tool": ["running"],
        "wait": ["waiting"],
    }
    assert status(log(*BEGIN))[0] == "waiting"
    for type_, payload, turn in (
        ("turn.ended", {"message": "msg_1", "outcome": "completed"}, ["completed"]),
        ("turn.started", {"message": "msg_2"}, ["over", "running"]),
        ("lifecycle.session.resumed", {}, ["running"]),
        ("lifecycle.session.ended", {"reason": "deleted"}, ["completed"]),
    ):
        found = states(log(*BEGIN, (type_, payload)))
        assert (found["turn"], found["tool"], found["wait"]) == (turn, ["over"], ["over"]), type_
        assert status(log(*BEGIN, (type_, payload)))[0] != "waiting", type_


def test_a_killed_process_runs_no_tool_once_its_session_goes_on() -> None:
    records = recorded("2/crash")
    resumed = next(n for n, record in enumerate(records) if record.event.type == "lifecycle.session.resumed")
    assert "running" in states(records[:resumed])["tool"]
    assert "running" not in states(records[: resumed + 1])["tool"]


def test_a_busy_session_that_is_deleted_works_no_longer() -> None:
    ended = log(*BEGIN, ("lifecycle.session.ended", {"reason": "deleted"}))
    assert status(ended) == ("ended", 3000)


def test_the_end_of_another_turn_ends_only_its_asks() -> None:
    other = ("workflow.checkpoint", {**ASK, "request": "per_0", "turn": "msg_0", "call": "call_0"})
    ended = ("turn.ended", {"message": "msg_0", "outcome": "completed"})
    found = states(log(*BEGIN, other, ended))
    assert found["turn"] == ["running"] and found["tool"] == ["running"] and found["wait"] == ["waiting", "over"]
    assert found["session"] == ["running"]


def test_the_title_of_an_ask_is_none_of_its_session() -> None:
    asked = ("workflow.checkpoint", {**ASK, "request": "per_2", "title": "May I?"})
    records = log(*BEGIN, asked)
    found = Timeline(Moment(snapshot(records), {"ses_1"}, len(records) - 1)).spans()
    assert [span.name for span in found if span.kind == "session"] == ["Mine"]


def test_every_input_says_what_was_asked() -> None:
    again = ("human.input", {"message": "msg_1", "parts": [{"type": "file", "filename": "a.py"}]})
    synthetic = {"type": "text", "text": "by OpenCode", "synthetic": True}
    last = ("human.input", {"message": "msg_3", "parts": [synthetic]}), ("turn.started", {"message": "msg_3"})
    story = snapshot(log(*BEGIN, again, *last))
    found = {row.message: row.asked for row in story.rows("turn", "died IS NULL")}
    assert found == {"msg_1": "[a.py]", "msg_3": "(no text of its own)"}


def test_a_result_that_comes_after_the_death_is_that_of_the_same_call() -> None:
    resumed: tuple[str, dict[str, Any]] = "lifecycle.session.resumed", {}
    about = {"kind": "tool", "turn": "msg_1", "call": "call_1", "tool": "bash", "status": "error"}
    late = ("execution.step", about)
    assert states(log(*BEGIN, resumed, late))["tool"] == ["error"]
    assert states(log(*BEGIN, resumed, late, late))["tool"] == ["error", "error"]
    assert states(log(*BEGIN, resumed, ("execution.step", {**about, "turn": "msg_2"})))["tool"] == ["over", "error"]
    story = snapshot(log(*BEGIN, resumed, late))
    [then] = story.rows("span", "kind = 'tool' AND born <= 5 AND (died IS NULL OR died > 5)")
    assert (then.state, then.result) == ("over", None)
