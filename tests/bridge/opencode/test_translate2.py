"""What the recordings of a real OpenCode 2 become: live, rebuilt from the service's messages, and across crashes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.opencode.capture.emitter import Asked, Token
from bridge.opencode.capture.v2.event_fields import origin_of, session_info
from bridge.opencode.link.frames import HookItem
from streams.lineage import CREATED
from tests.bridge.opencode.playing2 import KEPT, Player2, Recording, names, play2

Content = dict[str, tuple[str, dict[str, Any]]]

ONLY_LIVE = ("workflow.checkpoint:", "opencode.", "lifecycle.session.resumed:")
"""What the messages do not have: asks, titles, retries, inputs that were taken back, other processes."""

STARTED = "execution.step.started:"
"""What is not rebuilt, because the step of a call that has ended says more."""

INEXACT = ("title", "version", "delivery", "started_ms", "ended_ms", "duration_ms", "turn")
"""Fields that the messages lack or have less exactly."""


def content(player: Player2) -> Content:
    """The events by key, without what the messages do not have exactly."""
    found = {key: (event.type, dict(event.payload)) for key, event in player.log.events.items()}
    for _, payload in found.values():
        for name in INEXACT:
            payload.pop(name, None)
        if payload.get("name") in ("unknown", "provider.no-route"):  # the messages have no error of a turn without one
            payload.pop("name"), payload.pop("reason", None)
        if payload.get("error") in ("unknown", "provider.no-route"):
            payload.pop("error")
    return {key: value for key, value in found.items() if not key.startswith(ONLY_LIVE)}


def taken_back(player: Player2) -> set[str]:
    """The inputs that were cancelled or reverted: the messages have neither them nor their turns."""
    types = ("opencode.session.inbox.cancelled", "opencode.message.removed")
    return {event.correlation_id or "" for type_ in types for event in player.of(type_)}


def without(player: Player2, inputs: set[str]) -> Content:
    gone = {key for key, event in player.log.events.items() if event.correlation_id in inputs}
    return {key: value for key, value in content(player).items() if key not in gone and not key.startswith(STARTED)}


def test_a_fork_names_its_origin_whatever_describes_it() -> None:
    described = {"id": "ses_b", "fork": {"sessionID": "ses_a", "boundary": {"type": "through", "messageID": "msg_9"}}}
    forked = {"sessionID": "ses_b", "parentID": "ses_a", "boundary": {"type": "through", "messageID": "msg_9"}}
    for info in (described, forked):
        for told in (session_info(info), session_info(session_info(info))):
            assert origin_of(told) == {"session": "ses_a", "message": "msg_9"} and told["parentID"] is None
    assert origin_of(session_info({"id": "ses_a"})) is None


@pytest.mark.parametrize("name", KEPT)
def test_the_messages_give_what_the_live_events_gave(name: str) -> None:
    live, later, recording = play2(name), Player2(Recording(name).told), Recording(name)
    waiting = {each["id"] for told in recording.told.values() for each in told["inbox"]}
    for session in recording.told:
        later.compare(session, recording.items[0][0].origin, is_import=True)
    assert without(later, waiting) == without(live, taken_back(live) | waiting)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_recorded_is_not_rebuilt_again(name: str) -> None:
    player, recording = play2(name), Recording(name)
    before = list(player.log.events)
    player.crash()
    for session in recording.told:
        if not recording.told[session]["inbox"]:
            assert player.compare(session, recording.items[-1][0].origin, is_import=True) == 0
    player.feed(recording.items)
    player.settle()
    assert list(player.log.events) == before


@pytest.mark.parametrize("name", [name for name in KEPT if name != "shell"])  # it has no messages of what was undone
def test_a_sidecar_that_crashes_at_any_event_goes_on_with_each_event_once(name: str) -> None:
    """What the sidecar acknowledged does not come again: what it remembered comes from the messages."""
    recording = Recording(name)
    whole = play2(name)
    for cut in range(1, len(recording.items), 3):
        player = Player2(recording.told)
        player.feed(recording.items[:cut])
        held = [
            token for gate in player.translator._gates.values() for entry, _ in gate.entries for token in [entry.token]
        ]
        player.crash()
        player.feed([item for item in recording.items if item[0] in held])  # these were not acknowledged
        player.feed(recording.items[cut:])
        player.settle()
        assert content(player) == content(whole), f"cut before {recording.items[cut][1].input.get('type')}"


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("name", [name for name in KEPT if name != "shell"])
def test_events_that_come_again_to_the_next_sidecar_end_nothing(name: str, asks: bool) -> None:
    """The sidecar recorded them, and was killed before its acknowledgement arrived. If no service can be asked, an
    input that was delivered before may get a turn of its own."""
    recording, whole = Recording(name), play2(name)
    for cut, again in product(range(1, len(recording.items), 7), (1, 3, 8, 20)):
        player = Player2(recording.told if asks else None)
        player.feed(recording.items[:cut])
        player.crash()
        player.feed(recording.items[max(cut - again, 0) :])
        player.settle()
        where = f"{again} events before {recording.items[cut][1].input.get('type')}"
        ends = {key for key, event in player.log.events.items() if event.type == "turn.ended"}
        assert not asks or ends <= set(whole.log.events), where
        began = {event.payload["message"]: event.metadata.get("host_seq") for event in player.of("turn.started")}
        for event in player.of("turn.ended"):
            start, end = began[event.payload["message"]], event.metadata.get("host_seq")
            assert start is None or end is None or start < end, where


@pytest.mark.parametrize("name", [name for name in KEPT if name not in ("cancelled", "shell", "busy")])
def test_events_that_were_lost_anywhere_are_rebuilt(name: str) -> None:
    """A process that loses three events in a row, then tells of a gap."""
    recording, whole = Recording(name), play2(name)
    for cut in range(2, len(recording.items) - 4, 5):
        player = Player2(recording.told)
        player.feed(recording.items[:cut])
        player.translator.lose_track(recording.items[cut][0].origin.boot_id)
        player.crash()
        player.feed(recording.items[cut + 3 :])
        player.settle()
        for session in recording.told:
            player.compare(session, recording.items[-1][0].origin, is_import=True)
        lacking = {key for key in content(whole) if not key.startswith(STARTED)} - set(content(player))
        assert lacking == set(), f"lost {[item.input.get('type') for _, item in recording.items[cut : cut + 3]]}"


SEVERAL = ["chat", "errors", "tools"]
"""Recordings of sessions with several turns."""


def in_turns(recording: Recording) -> list[list[tuple[Token, HookItem]]]:
    """The items of each turn, as if two processes ran them by turns."""
    turns: list[list[tuple[Token, HookItem]]] = [[]]
    for token, item in recording.items:
        if item.input.get("type") == "session.inbox.enqueued":
            turns.append([])
        boot = str((len(turns) - 1) % 2) * 32 if len(turns) > 1 else token.origin.boot_id
        turns[-1].append((token._replace(origin=replace(token.origin, boot_id=boot)), item))
    return turns


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("late", range(0, 60, 9))
def test_two_processes_that_run_a_session_in_turns_record_what_one_would(name: str, late: int) -> None:
    """Each question is answered ``late`` items later, and meanwhile the other process goes on."""
    recording, whole = Recording(name), play2(name)
    player, asks = Player2(recording.told), []
    for at, (token, item) in enumerate(chain(*in_turns(recording))):
        player.translator.feed(token, item, player.now)
        asks += [(at, *ask) for ask in player.drain()]
        while asks and asks[0][0] + late <= at:
            player.answer(*asks.pop(0)[1:])
            asks += [(at, *ask) for ask in player.drain()]
    while asks:
        player.answer(*asks.pop(0)[1:])
        asks += [(0, *ask) for ask in player.drain()]
    player.settle()
    assert content(player) == content(whole)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("late", [1, 2, 3])
def test_the_last_events_of_a_process_may_come_after_the_first_ones_of_the_next(name: str, late: int) -> None:
    recording, whole = Recording(name), play2(name)
    for number, ahead in product(range(1, len(in_turns(recording)) - 1), (1, 4, 9)):
        turns = in_turns(recording)
        mine, following = turns[number : number + 2]
        turns[number : number + 2] = [mine[:-late], following[:ahead], mine[-late:], following[ahead:]]
        player = Player2(recording.told)
        player.feed(chain(*turns))
        player.settle()
        assert content(player) == content(whole), f"turn {number}, after {ahead} events of the next one"


@pytest.mark.parametrize("name", ["crash", "sigterm"])
@pytest.mark.parametrize("late", [1, 3, 5, 8, 12])
def test_what_a_dead_process_left_may_come_after_what_the_next_one_did(name: str, late: int) -> None:
    recording, whole = Recording(name), play2(name)
    first = recording.items[0][0].origin.boot_id
    mine = [item for item in recording.items if item[0].origin.boot_id == first]
    following = recording.items[len(mine) :]
    for ahead in (1, 5, len(following)):
        player = Player2(recording.told)
        player.feed([*mine[:-late], *following[:ahead], *mine[-late:], *following[ahead:]])
        player.settle()
        assert content(player) == content(whole), f"after {ahead} events of the next one"


@pytest.mark.parametrize("name", ["crash", "sigterm"])
def test_the_process_after_a_dead_one_goes_on_also_if_no_service_can_be_asked_in_time(name: str) -> None:
    asked, alone = content(play2(name)), content(play2(name, asks=False))
    calls = [key for key in alone if ":tool:" in key]
    assert calls and [alone[key] for key in calls] == [asked[key] for key in calls]


@pytest.mark.parametrize("name", ["chat", "errors", "subagent", "tools"])
def test_events_that_come_after_they_were_rebuilt_add_nothing(name: str) -> None:
    """A session is compared in the midst of a turn whose events are still on their way."""
    recording, whole = Recording(name), play2(name)
    session, told = next(iter(recording.told.items()))
    for count in range(1, len(told["messages"])):
        player = Player2({**recording.told, session: {**told, "messages": told["messages"][:count]}})
        player.compare(session, recording.items[0][0].origin, is_import=True, is_active=True)
        player.told = recording.told
        player.feed(recording.items)
        player.settle()
        assert content(player) == content(whole), f"compared after {count} messages"


def test_events_wait_for_the_comparison_and_then_at_most_a_while_for_a_description() -> None:
    recording = Recording("chat")
    player, origin = Player2(), recording.items[0][0].origin
    session = next(iter(recording.told))
    for token, item in [recording.items[0], *recording.items[2:4]]:  # without the description
        player.translator.feed(token, item, 0.0)
    assert player.translator.next_deadline() is None
    player.translator.tick(1000.0)
    assert player.translator.drain().events == []
    player.translator.open(session, origin, 1000.0)
    player.settle()
    assert player.types()[:2] == ["lifecycle.session.created", "agent.input"], "whose input it is nobody said"


def test_without_a_service_to_ask_everything_comes_from_the_plugin() -> None:
    for name in names():
        alone, asked = play2(name, asks=False), play2(name)
        only = {key for key in content(asked) if not asked.log.events[key].metadata.get("history")}
        assert only <= set(content(alone)), name
        assert alone.translator.counts["lineage_unknown"] == 0, name


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("user", "aborted"), ("shutdown", "interrupted"), ("superseded", "aborted"), ("inactivity", "interrupted")],
)
def test_each_reason_of_an_interruption_ends_the_turn(reason: str, outcome: str) -> None:
    """OpenCode 2.0.15's schema has all four; the recording has the first."""
    player, recording = Player2(), Recording("abort")
    for row in recording.rows:
        if row["type"] == "session.execution.interrupted":
            row["data"]["reason"] = reason
    player.feed(recording.items)
    assert [event.payload["outcome"] for event in player.of("turn.ended")] == [outcome] * 2


def test_background_work_and_its_children_are_in_the_trace_of_what_asked_for_it() -> None:
    player = play2("errors")
    above = player.of(CREATED)[0]
    parent, trace = above.payload["session"], f"00-{'5' * 32}-{'6' * 16}-01"
    recording = Recording("subagent")
    asking = Asked("01E", trace, parent, "msg_1", "call_1")
    player.knows(asked=lambda session, mark: asking if session == recording.rows[0]["data"]["sessionID"] else None)
    before = len(player.log.events)
    player.told |= recording.told
    player.feed(recording.items)
    player.settle()
    spawned, root, *rest = list(player.log.events.values())[before:]
    assert (spawned.type, spawned.causation_id, spawned.stream_id) == ("agent.spawned", "01E", above.stream_id)
    assert spawned.payload["turn"] == "msg_1" and spawned.payload["child"] == root.payload["session"]
    assert (root.type, root.causation_id) == (CREATED, spawned.id)
    assert {event.traceparent[3:35] for event in (root, *rest) if event.traceparent} == {"5" * 32}
    assert player.log.state().sessions[root.payload["session"]].root == root.payload["session"], "it has its own stream"


@pytest.mark.parametrize("live", [True, False])
def test_children_of_like_calls_are_told_apart(live: bool) -> None:
    recording = Recording("subagents")
    player = Player2(recording.told)
    if live:
        player.feed(recording.items)
    else:
        player.compare(next(iter(recording.told)), recording.items[0][0].origin, is_import=True)
    steps = {event.payload["child"]: event.payload for event in player.of("execution.step") if "child" in event.payload}
    spawned = {event.payload["child"]: event.payload["call"] for event in player.of("agent.spawned")}
    assert spawned == {child: step["call"] for child, step in steps.items()}
    assert len(spawned) == 2
    for child, step in steps.items():
        (said,) = [e.payload["parts"][0]["text"] for e in player.of("agent.input") if e.payload["session"] == child]
        assert step["input"]["prompt"] in said


def test_an_agent_that_reports_again_after_later_work_has_each_report_after_its_own_turn() -> None:
    """From OpenCode 2.3 on a subagent reports whenever it goes idle, and a report may say that work goes on.

    Not run: no program of 2.3 could be had. Source: anomalyco/opencode v2.3.0, ``packages/core/src/session``,
    ``subagent-job.ts`` and ``subagent-completion.ts``; the fields are those of 2.0.15's own reports.
    """
    player, recording = play2("background"), Recording("background")
    report = next(event for event in player.of("agent.input") if event.payload.get("metadata", {}).get("childID"))
    child = report.payload["metadata"]["childID"]
    rows = [row for row in recording.rows if row["data"].get("sessionID") == child]
    again = [row for row in rows if row["type"] not in ("session.created", "session.renamed")]
    parent = next(row for row in recording.rows if row["data"].get("inboxID") == report.payload["message"])
    late = {
        **parent["data"]["item"]["payload"],
        "text": "<subagent>later</subagent>\n\nBackground work still running:\n",
    }
    more = {**parent, "data": {**parent["data"], "item": {**parent["data"]["item"], "payload": late}}}
    seqs = {child: 100, report.payload["session"]: 200}
    for number, row in enumerate([*again, more]):
        told = json.dumps({**row, "id": f"evt_later{number}"}).replace("msg_", "msg_later")
        row = json.loads(told)
        session = row["data"]["sessionID"]
        if "durable" in row:
            seqs[session] += 1
            row["durable"]["seq"] = seqs[session]
        player.feed([(Token(recording.items[-1][0].origin, 2000 + number), HookItem("service", 1, row))])
    player.settle()
    reports = [event for event in player.of("agent.input") if event.payload.get("metadata", {}).get("childID") == child]
    ends = [event.id for event in player.of("turn.ended") if event.payload["session"] == child]
    assert [event.causation_id for event in reports] == ends and len(ends) == 2
    assert not any(event.payload["message"] == reports[1].payload["message"] for event in player.of("human.input"))


def test_a_refused_turn_that_the_service_goes_on_with_after_a_restart_is_another_turn() -> None:
    recording = Recording("permission")
    session, told = next(iter(recording.told.items()))
    messages = told["messages"]
    refused = next(n for n, each in enumerate(messages) if "declined" in str(each))
    restarted, last = (
        dict(Recording("sigterm").told.popitem()[1]["messages"][2]),
        messages[refused]["time"]["completed"],
    )
    answer = {**messages[-2], "id": "msg_answer", "time": {"created": last + 2, "completed": last + 3}}
    goes_on = [{**restarted, "time": {"created": last + 1}}, answer, {**messages[-1], "id": "msg_end"}]
    player = Player2({session: {**told, "messages": [*messages[: refused + 1], *goes_on]}})
    player.compare(session, recording.items[0][0].origin, is_import=True)
    assert [event.payload["outcome"] for event in player.of("turn.ended")] == ["completed", "stopped", "completed"]
    assert player.of("turn.started")[-1].payload["message"] == restarted["id"]


def test_a_session_is_where_it_was_moved_to_last_whoever_tells_it() -> None:
    recording = Recording("chat")
    session, told = next(iter(recording.told.items()))
    moves = [{"location": {"directory": f"/home/ada/{name}"}, "projectID": name} for name in ("one", "two")]
    rows = [_row(session, "session.moved", {"sessionID": session, **each}, 29 + n, n) for n, each in enumerate(moves)]
    asks = {"item": {"type": "move", "payload": moves[0]}, "inboxID": "msg_move", "sessionID": session}
    rows.insert(0, _row(session, "session.inbox.enqueued", asks, 28, 9))
    switched = [
        {"id": f"msg_new{number}", "type": "location-switched", "time": {"created": 5}, **each}
        for number, each in enumerate(moves)
    ]
    recording.told = {session: {**told, "messages": [*told["messages"], *switched]}}
    live, later = Player2(recording.told), Player2(recording.told)
    live.feed([*recording.items, *rows])
    assert live.compare(session, rows[0][0].origin, is_import=True) == 0
    later.compare(session, rows[0][0].origin, is_import=True)
    for player in (live, later):
        moved = [event.payload for event in player.of("opencode.session.moved")]
        assert [(each["directory"], each["project"]) for each in moved] == [
            ("/home/ada/one", "one"),
            ("/home/ada/two", "two"),
        ]
        for state in (player.translator.state, player.log.state()):
            assert (state.sessions[session].directory, state.sessions[session].project) == ("/home/ada/two", "two")
    assert live.of("opencode.session.inbox.enqueued") == []


# --- events of unknown types, aggregates and shapes ---


def _row(session: str, type_: str, data: dict[str, Any], seq: int | None, number: int) -> tuple[Token, HookItem]:
    durable = {} if seq is None else {"durable": {"aggregateID": session, "seq": seq}}
    row = {"id": f"evt_new{number}", "created": 5, "type": type_, "data": data, **durable}
    return Token(Recording("chat").items[0][0].origin, 1000 + number), HookItem("service", 5, row)


def test_an_unknown_numbered_event_is_kept_whole_and_an_announced_one_too() -> None:
    player = play2("chat")
    session = next(iter(Recording("chat").told))
    data = {"sessionID": session, "new": {"a": [1]}}
    player.feed([_row(session, "session.newer.thing", data, 29, 1), _row(session, "session.newer.news", data, None, 2)])
    kept = [*player.of("opencode.session.newer.thing"), *player.of("opencode.session.newer.news")]
    assert [event.payload["properties"] for event in kept] == [data, data]


def test_an_event_of_another_aggregate_is_no_session_and_ends_nothing() -> None:
    player = play2("chat")
    count = len(player.log.events)
    project = {"projectID": "8132c3", "directory": "/home/ada/repo", "previous": "global"}
    form = {"form": {"id": "frm_1", "sessionID": "global", "fields": []}}
    player.feed([_row("8132c3", "worktree.resolved", project, 0, 1), _row("global", "form.created", form, None, 2)])
    player.settle()
    kept = list(player.log.events.values())[count:]
    assert [(event.type, event.stream_id) for event in kept] == [
        ("opencode.worktree.resolved", "system"),
        ("opencode.form.created", "system"),
    ]
    assert kept[0].payload["properties"] == project


_LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
_FLAT = st.lists(_LEAF, max_size=3) | st.dictionaries(st.text(max_size=5), _LEAF, max_size=3)
_JSON = _LEAF | _FLAT | st.lists(_FLAT, max_size=2)


@given(name=st.sampled_from(sorted({row["type"] for each in names() for row in Recording(each).rows})), data=st.data())
def test_no_shape_of_an_event_ends_anything(name: str, data: Any) -> None:
    player, recording = Player2(), Recording("chat")
    session = next(iter(recording.told))
    row = next(row for each in names() for row in Recording(each).rows if row["type"] == name)
    odd = {key: data.draw(_JSON | st.just(value)) for key, value in row["data"].items()}
    player.feed(recording.items[:8])
    player.feed([_row(session, name, {**odd, "sessionID": data.draw(st.just(session) | _JSON)}, 9, 1)])
    player.feed(recording.items[8:])
    player.settle()
    assert [event.payload["text"] for event in player.of("execution.output")][-1] == "the answer"


@pytest.mark.parametrize("odd", [None, [], "x", {"type": 3}, {"type": "session.renamed"}, {"type": "x", "data": []}])
def test_an_item_that_is_no_event_is_kept_and_the_next_is_read(odd: Any) -> None:
    player, recording = Player2(), Recording("chat")
    player.feed([(Token(recording.items[0][0].origin, 1), HookItem("service", 1, odd)), *recording.items])
    assert len(player.of("opencode.unreadable")) == 1
    assert len(player.of("turn.ended")) == 2


@given(st.data())
def test_no_shape_of_a_message_stops_the_rebuilding(data: Any) -> None:
    recording = Recording("tools")
    session, told = next(iter(recording.told.items()))
    place = data.draw(st.integers(0, len(told["messages"]) - 1))
    message = told["messages"][place]

    def odd(value: Any) -> Any:
        return data.draw(_JSON | st.just(value))

    messages = [*told["messages"]]
    messages[place] = {key: odd(value) if key not in ("id", "type") else value for key, value in message.items()}
    player = Player2({session: {**told, "messages": messages}})
    player.compare(session, recording.items[0][0].origin, is_import=True)
    assert len(player.of("human.input")) >= len([m for m in messages if m["type"] == "user"]) - 1
