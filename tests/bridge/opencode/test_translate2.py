"""What the recordings of a real OpenCode 2 become, live, back-filled, and across crashes of the sidecar."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.opencode.capture.v2.shapes import HostEvent, read_event
from bridge.opencode.capture.v2.translate import HostTranslator, Service
from sidecar.views.catalog import Catalog
from sidecar.views.conversation import Conversation
from sidecar.views.edits import file_changes
from sidecar.views.transcript import Call
from sidecar.views.transcript_wording import call_output, call_text
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.lineage import CREATED, ENDED, RESUMED
from streams.store import Record
from tests.bridge.opencode.playing import Log
from tests.bridge.opencode.playing2 import RECORDINGS, SERVICE, Player2, Recording, as_released, names, play2, summary

KEPT = [name for name in names() if Recording(name).logs]
"""The recordings whose sessions were not deleted, so that the service's own log of them is known."""


def content(player: Player2) -> dict[str, tuple[str, dict[str, Any]]]:
    """The events by key, without titles: a session that is read later has its last title from the beginning."""
    told = {key: (event.type, dict(event.payload)) for key, event in player.log.events.items()}
    for type_, payload in told.values():
        if type_ in (CREATED, "turn.ended"):
            payload.pop("title", None)
    return told


def without_asks(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if not key.startswith("workflow.checkpoint:")}


@pytest.mark.parametrize("name", names())
def test_a_recording_becomes_these_events(name: str) -> None:
    assert summary(play2(name)) == (RECORDINGS / f"{name}.events").read_text().splitlines()


@pytest.mark.parametrize("name", names())
def test_every_event_has_a_cause_but_what_begins_a_chain(name: str) -> None:
    events = play2(name).log.events.values()
    known = {event.id for event in events}
    for event in events:
        assert event.causation_id is None or event.causation_id in known
        if event.type not in (CREATED, "human.input", "agent.input"):
            assert event.causation_id is not None, event.type


@pytest.mark.parametrize("name", names())
def test_read_again_it_adds_nothing(name: str) -> None:
    player, recording = play2(name), Recording(name)
    before = list(player.log.events)
    player.crash()
    for session in recording.logs:
        player.back_fill(recording, session)
    player.feed([event for event in recording.events() if event.seq is None], recording.sessions)  # the asks
    assert list(player.log.events) == before


@pytest.mark.parametrize("name", KEPT)
def test_the_services_own_log_gives_what_the_live_events_gave_but_the_asks(name: str) -> None:
    live, later, recording = play2(name), Player2(), Recording(name)
    for session in recording.logs:
        later.back_fill(recording, session)
    assert content(later) == without_asks(content(live))


@pytest.mark.parametrize("name", KEPT)
def test_after_a_crash_at_any_event_the_rest_is_read_from_the_log_exactly_once(name: str) -> None:
    whole, recording = play2(name), Recording(name)
    events = recording.events()
    for cut in range(1, len(events), 3):
        player = Player2()
        player.feed(events[:cut], recording.sessions)
        player.crash()
        for session in recording.logs:
            player.back_fill(recording, session)
        assert without_asks(content(player)) == without_asks(content(whole)), f"cut before {events[cut].type}"


@pytest.mark.parametrize("name", names())
def test_the_names_of_the_release_give_the_same_events(name: str) -> None:
    preview, released, recording = Recording(name), Player2(), Recording(name)
    recording.live = [as_released(row) for row in preview.live]
    recording.logs = {s: [as_released(row) if "data" in row else row for row in log] for s, log in preview.logs.items()}
    released.feed(recording.events(), recording.sessions)
    untitled = [line for line in summary(released) if "session.renamed" not in line]
    assert untitled == [line for line in summary(play2(name)) if "session.renamed" not in line]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("user", "aborted"), ("shutdown", "interrupted"), ("superseded", "interrupted"), ("inactivity", "interrupted")],
)
def test_each_reason_of_an_interruption_ends_the_turn(reason: str, outcome: str) -> None:
    """Source: packages/schema/src/session-event.ts of anomalyco/opencode; the release has all four, not run."""
    player, recording = Player2(), Recording("abort")
    for row in recording.live:
        if row["type"] == "session.execution.interrupted":
            row["data"]["reason"] = reason
    player.feed(recording.events(), recording.sessions)
    assert [event.payload["outcome"] for event in player.of("turn.ended")] == [outcome] * 2


def test_an_answer_of_the_release_is_told_as_a_reply() -> None:
    player, recording = Player2(), Recording("permission")
    recording.live = [as_released(row) for row in recording.live]
    player.feed(recording.events(), recording.sessions)
    replied = [event.payload for event in player.of("workflow.checkpoint") if event.payload["state"] == "replied"]
    assert {each["reply"] for each in replied} >= {"once", "reject"}


def test_a_child_is_a_span_in_the_stream_of_its_root_and_the_call_is_its_cause() -> None:
    player = play2("subagent")
    root, child = player.of(CREATED)
    spawned = player.of("agent.spawned")[0]
    assert child.stream_id == root.stream_id == root.payload["session"]
    assert child.causation_id == spawned.id
    assert spawned.payload["call"] == "call_1_0"
    assert child.traceparent is not None and root.traceparent is not None
    assert child.traceparent.split("-")[1] == root.traceparent.split("-")[1]
    step = next(event for event in player.of("execution.step") if event.payload.get("child"))
    assert step.payload["child"] == child.payload["session"]
    assert (
        next(e for e in player.of("turn.ended") if e.payload["session"] == step.payload["child"]).id
        == step.causation_id
    )
    assert [event.payload["reason"] for event in player.of(ENDED)] == ["deleted", "deleted"]


@pytest.mark.parametrize("live", [True, False])
def test_children_of_like_calls_are_told_apart(live: bool) -> None:
    player, recording = Player2(), Recording("subagents")
    if live:
        player.feed(recording.events(), recording.sessions)
    else:
        player.back_fill(recording, next(iter(recording.sessions)))
    steps = {event.payload["child"]: event.payload for event in player.of("execution.step") if "child" in event.payload}
    spawned = {event.payload["child"]: event.payload["call"] for event in player.of("agent.spawned")}
    assert spawned == {child: step["call"] for child, step in steps.items()}
    assert len(spawned) == 2
    for child, step in steps.items():
        (said,) = [e.payload["parts"][0]["text"] for e in player.of("agent.input") if e.payload["session"] == child]
        assert step["input"]["prompt"] in said


def test_a_refused_call_is_no_shutdown() -> None:
    permission, question, abort = (play2(name).of("turn.ended") for name in ("permission", "question", "abort"))
    assert [event.payload["outcome"] for event in permission] == ["completed", "stopped", "completed"]
    assert [event.payload["outcome"] for event in question] == ["completed", "stopped"]
    assert [event.payload["outcome"] for event in abort] == ["aborted", "aborted"]


def test_a_repeated_request_is_no_error_and_tells_nothing_of_the_providers_answer() -> None:
    player = play2("retry")
    retried = [event.payload for event in player.of("opencode.session.retry.scheduled")]
    assert [(each["attempt"], each["status"]) for each in retried] == [(2, 503), (3, 503)]
    assert "scripted error" not in str(player.log.events)
    assert [event.payload["outcome"] for event in player.of("turn.ended")] == ["completed"]


def test_only_what_a_person_wrote_in_a_root_session_is_human() -> None:
    busy, child = play2("busy"), play2("subagent")
    assert len(busy.of("human.input")) == 5
    assert [event.payload["parts"][0]["text"] for event in busy.of("agent.input")] == ["SAY:a note"]
    assert len(child.of("human.input")) == len(child.of("agent.input")) == 1


def test_another_agent_that_answers_is_a_handoff() -> None:
    recording, player = Recording("busy"), Player2()
    turns = [event.payload["message"] for event in play2("busy").of("turn.started")]
    steps = [row for row in recording.live if row["type"] == "session.step.started"]
    steps[-1]["data"]["agent"] = "plan"
    player.feed(recording.events(), recording.sessions)
    (handoff,) = player.of("agent.handoff")
    assert handoff.payload == {**handoff.payload, "message": turns[-1], "from": "build", "to": "plan"}
    assert player.of("turn.started")[-1].payload["agent"] == "plan"


def test_the_readers_find_nothing_open_and_the_title() -> None:
    for name in names():
        catalog = Catalog()
        for position, event in enumerate(play2(name).log.events.values()):
            catalog.apply(_record(event, position))
        for session in catalog.sessions.values():
            assert not session.is_turn_open, name
            assert not session.asks, name
    chat = Catalog()
    for position, event in enumerate(play2("chat").log.events.values()):
        chat.apply(_record(event, position))
    assert [session.title for session in chat.sessions.values()] == ["plain answer of the scripted model"]


def test_the_changes_of_files_are_found() -> None:
    steps = [event.payload for event in play2("tools").of("execution.step")]
    changes = [(change.file, change.additions, change.deletions) for each in steps for change in file_changes(each)]
    assert changes == [("a.txt", 2, 0), ("a.txt", 1, 1)]


def test_an_unknown_durable_event_is_kept_whole_and_an_announced_one_is_dropped() -> None:
    player, recording = Player2(), Recording("chat")
    player.feed(recording.events(), recording.sessions)
    session = next(iter(recording.sessions))
    data = {"sessionID": session, "new": {"a": [1]}}
    row = {"id": "evt_new", "created": 5, "type": "session.newer.thing", "data": data}
    player.feed([_event({**row, "durable": {"aggregateID": session, "seq": 99}}), _event(row)], {})
    kept = player.of("opencode.session.newer.thing")
    assert [event.payload["properties"] for event in kept] == [data]


@pytest.mark.parametrize(
    "data", [{"sessionID": "S", "text": None}, {"sessionID": "S", "ordinal": {}}, {"sessionID": "S"}]
)
def test_an_event_of_another_shape_is_kept_and_the_next_is_read(data: dict[str, Any]) -> None:
    translator = HostTranslator(seeded_identity(1), Log().state())
    translator.appear(SERVICE, {"id": "S", "directory": "/d"}, 1)
    for seq, type_ in enumerate(
        ("text.ended", "tool.success", "step.ended", "execution.failed", "permission.asked"), 1
    ):
        row = {"id": f"evt_{seq}", "created": seq, "type": f"session.{type_}", "data": data}
        translator.feed(SERVICE, _event({**row, "durable": {"aggregateID": "S", "seq": seq}}))
    assert translator.state.sessions["S"].host_seq == 5


def test_another_process_of_the_service_resumes_the_session_once() -> None:
    player, recording = Player2(), Recording("chat")
    events = recording.events()
    player.feed(events[:13], recording.sessions)
    player.feed(events[13:], recording.sessions, Service("service-2"))
    player.feed(events[13:], recording.sessions, Service("service-2"))
    assert len(player.of(RESUMED)) == 1


def test_what_a_deleted_session_took_with_it_is_a_gap() -> None:
    player, recording = play2("chat"), Recording("chat")
    session = next(iter(recording.sessions))
    player.translator.gap(SERVICE, session, 21, 30, "session_deleted")
    player.translator.end_missing(SERVICE, session)
    gap, ended = player.translator.drain().events
    assert (gap.type, gap.payload["lost"]) == ("capture.gap", 9)
    assert (ended.type, ended.payload["reason"]) == (ENDED, "gone")


def test_the_turn_of_a_dead_process_ends_once() -> None:
    player, recording = Player2(), Recording("crash")
    events = recording.events()
    session = next(iter(recording.sessions))
    begun = next(n for n, event in enumerate(events) if event.name == "tool.called")
    player.feed(events[: begun + 1], recording.sessions)
    player.translator.end_dead(SERVICE, session)
    player.log.append(player.translator.drain().events)
    player.feed(events[begun + 1 :], recording.sessions)
    ended = [event.payload["outcome"] for event in player.of("turn.ended")]
    assert ended == ["interrupted", "completed", "completed"]


def _event(row: dict[str, Any]) -> HostEvent:
    event = read_event(row)
    assert event is not None
    return event


def _record(event: StreamEvent, position: int) -> Record:
    return Record(event=event, offset=position, position=position, hash="")


def test_a_reader_sees_the_child_below_its_call_and_a_command_as_such() -> None:
    conversations = []
    for name in ("subagent", "tools"):
        conversation = Conversation()
        for position, event in enumerate(play2(name).log.events.values()):
            conversation.apply(_record(event, position))
        conversations.append([item for turn in conversation.roots[0].turns for item in turn.items])
    child, tools = ([item for item in items if isinstance(item, Call)] for items in conversations)
    assert [(call.tool, call.child is not None and len(call.child.turns)) for call in child] == [("task", 1)]
    failed = next(call for call in tools if call.exit == 3)
    assert (failed.tool, call_text(failed, "/work/project"), call_output(failed)) == ("bash", "echo out; exit 3", "out")
