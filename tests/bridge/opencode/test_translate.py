"""The translator over recordings of real runs: what each hook becomes, whatever crashes in between."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.opencode.capture.emitter import Asked
from bridge.opencode.capture.shapes import beginning
from bridge.opencode.capture.state import CaptureState, SessionState
from bridge.opencode.capture.translate import Origin, Token
from bridge.opencode.link.frames import HookItem
from streams.event import StreamEvent
from streams.lineage import RETRIED, STEP_STARTED, trace_id
from tests.bridge.opencode.playing import Item, Log, Player, names, play, recording
from tests.bridge.opencode.rows import MemoryRows

# Every one of these is cut at each of its hooks; the others at every seventh.
CUT_EVERYWHERE = {
    "abort_tool",
    "chat",
    "compaction_auto_overflow",
    "http_400",
    "permission_child",
    "repeated_ids_parallel",
    "shell",
    "shell_abort",
    "shell_fork",
    "task_child",
    "task_parallel",
    "two_queued",
}


def shape(events: list[StreamEvent]) -> list[tuple[Any, ...]]:
    """Everything that must not depend on crashes: all but ids, times and the title, whose updates are not final."""
    keys = {event.id: event.idempotency_key for event in events}
    return sorted(
        (
            event.idempotency_key,
            event.stream_id,
            event.actor,
            event.correlation_id,
            event.traceparent,
            keys.get(event.causation_id or ""),
            json.dumps({k: v for k, v in event.payload.items() if k != "title"}, sort_keys=True),
        )
        for event in events
    )


def cut_off(item: Item) -> Item:
    """The item, but the answer that the fork copied has no end."""
    token, hook = item
    if hook.t != 1795310484402:
        return item
    given = json.dumps(hook.input).replace(', "completed": 1795310484338', "")
    return token, HookItem(hook.hook, hook.t, json.loads(given))


class TestWhatBecomesOfARun:
    def test_a_call_that_starts_tells_the_redacted_beginning_of_its_input(self) -> None:
        player, secret = Player(), "s" * 20
        player.knows(cleaned=lambda value: (json.loads(json.dumps(value).replace(secret, "[hidden]")), b""))
        command = "x" * 195 + secret
        items = recording("run_tool")
        for _, item in items:
            part = (item.input or {}).get("event", {}).get("properties", {}).get("part", {})
            if part.get("state", {}).get("input"):
                part["state"]["input"] = {"command": command, "timeout": 5}
        player.feed(items)
        (start,) = player.of(STEP_STARTED)
        assert start.payload["input"] == {"command": "x" * 195 + "[hidd"}

    def test_of_a_long_chain_of_retries_the_first_and_each_doubling_is_recorded(self) -> None:
        items = recording("abort_retry")
        at = next(n for n, (_, item) in enumerate(items) if '"retry"' in json.dumps(item.input))
        player, (token, retry) = Player(), items[at]
        player.feed(items[:at])
        told = json.dumps(retry.input)
        for attempt in range(1, 5001):
            given = json.loads(
                told.replace('"attempt": 1', f'"attempt": {attempt}').replace('"evt_', f'"evt_{attempt}')
            )
            player.feed([(token._replace(seq=10_000 + attempt), HookItem(retry.hook, retry.t, given))] * 2)
        (turn,) = player.of("turn.started")
        found = player.of(RETRIED)
        assert [event.payload["attempt"] - 1 for event in found] == [2**n for n in range(13)]
        assert {event.causation_id for event in found} == {turn.id}
        assert not player.translator.state.sessions[turn.payload["session"]].misread

    def test_background_work_hangs_on_what_asked_for_it(self) -> None:
        items = recording("task_child")
        spawning = next(n for n, (_, item) in enumerate(items) if _is_created(item) and _info(item).get("parentID"))
        player = Player()
        player.feed(items[:spawning])
        (root,) = player.translator.state.sessions
        asked = Asked("01E", player.events()[0].traceparent or "", root, "msg_1")
        player.knows(asked=lambda session, mark: asked if mark in ("int_a", "key_a") else None)
        info = {"id": "ses_work", "parentID": root, "title": "work", "metadata": {"intent": "int_a"}}
        event = {"id": "evt_work", "type": "session.created", "properties": {"sessionID": "ses_work", "info": info}}
        mark = {"durable_stream": {"key": "key_a"}}
        message = {"id": "msg_work", "sessionID": "ses_work", "role": "user"}
        part = {"id": "prt_work", "type": "text", "text": "do it", "metadata": mark}
        given = {"message": message, "parts": [part]}
        hooks = [HookItem("event", 5, {"event": event}), HookItem("chat.message", 6, {"sessionID": "ses_work"}, given)]
        player.feed([(Token(Origin("e" * 32, "1" * 16), seq), hook) for seq, hook in enumerate(hooks, 1)])
        spawned, created, prompted = player.events()[-3:]
        assert (spawned.type, spawned.causation_id, spawned.correlation_id) == ("agent.spawned", "01E", "msg_1")
        assert spawned.payload["session"] == root and spawned.payload["child"] == "ses_work"
        assert (created.type, created.causation_id) == ("lifecycle.session.created", spawned.id)
        assert (prompted.type, prompted.causation_id) == ("agent.input", "01E")
        assert {e.traceparent[3:35] for e in player.events() if e.traceparent} == {trace_id(root)}

    def test_the_first_words_of_a_prompt_are_few_and_on_one_line(self) -> None:
        part = {"type": "text", "text": "fix\n\tit " + "x" * 500}
        made_up = {"type": "text", "text": "made up", "synthetic": True}
        assert beginning({"parts": [made_up, 5, part]}, 12) == "fix it xxxxx"
        assert beginning({"shell": "make  test"}, 80) == "!make test"
        for parts in (None, 5, "text", [None], [{"type": "text", "text": 7}]):
            assert beginning({"parts": parts}, 80) == ""

    def test_a_fork_does_not_tell_an_answer_again_that_was_cut_off_before_it(self) -> None:
        player = Player()
        player.feed(cut_off(item) for item in recording("fork"))
        player.wait()
        assert [e.payload["trigger"] for e in player.of("turn.started")] == ["prompt", "prompt"]
        assert [e.payload["outcome"] for e in player.of("turn.ended")] == ["completed", "completed"]

    def test_a_fork_of_a_fork_keeps_the_origin_that_a_person_named(self) -> None:
        """The messages that it copied were first those of its origin's own origin."""
        player = Player()
        for item in recording("fork"):
            player.feed([item])
            if len(player.of("lifecycle.session.created")) == 2 and "ses_mid" not in player.translator.state.sessions:
                origin, fork = (e.payload["session"] for e in player.of("lifecycle.session.created"))
                known = player.translator.state.sessions
                known["ses_mid"] = SessionState("ses_mid", "ses_mid", "ses_mid", None, True, "e", fork=origin)
                known[fork].fork = "ses_mid"
        assert player.of("lineage.forked") == []

    def test_a_resumed_session_keeps_the_title_that_it_had_last(self) -> None:
        player = Player()
        player.feed(recording("title_by_model"))
        last = player.of("turn.ended")[-1].payload["title"]
        assert last != player.of("lifecycle.session.created")[0].payload["title"]
        player.crash()
        session = player.of("turn.ended")[-1].payload["session"]
        told = [
            {"info": {"id": "msg_z1", "role": "assistant", "parentID": "msg_z0", "time": {}}, "sessionID": session},
            {"sessionID": session},
        ]
        hooks = [
            HookItem("event", 2**41, {"event": {"id": f"evt_z{n}", "type": type_, "properties": properties}})
            for n, (type_, properties) in enumerate(zip(("message.updated", "session.idle"), told, strict=True))
        ]
        player.feed([(Token(Origin("e" * 32, "1" * 16), seq), hook) for seq, hook in enumerate(hooks, 1)])
        assert [e.payload["title"] for e in player.of("lifecycle.session.resumed")] == [last]
        assert player.of("turn.ended")[-1].payload["title"] == last

    def test_a_crash_of_opencode_interrupts_its_turn(self) -> None:
        player = Player()
        player.feed(recording("kill9_in_tool_then_resumed"))
        player.feed(recording("kill9_resumed_after"))
        player.wait()
        assert [e.payload["outcome"] for e in player.of("turn.ended")] == ["interrupted", "completed"]

    def test_nothing_is_left_unread(self) -> None:
        for name in names():
            player = play(name)
            assert player.of("opencode.unreadable") == [], name
            assert player.translator.next_deadline() is None, name
            assert {token for token, _ in recording(name)} == player.finished, name


class TestOnceOnly:
    @pytest.mark.parametrize("name", ["task_parallel", "abort_tool", "two_queued", "permission_child"])
    @pytest.mark.parametrize("behind", [1, 5, 40])
    def test_a_second_plugin_copy_changes_nothing(self, name: str, behind: int) -> None:
        items = recording(name)
        second = [(Token(Origin(t.origin.boot_id, "1" * 16), t.seq), item) for t, item in items]
        player = Player()
        for place in range(len(items) + behind):
            player.feed(items[place : place + 1])
            player.feed(second[max(place - behind, 0) : place - behind + 1] if place >= behind else [])
        player.wait()
        assert shape(list(player.log.events.values())) == shape(list(play(name).log.events.values()))
        assert player.finished == {t for t, _ in items} | {t for t, _ in second}


class TestCrashes:
    @pytest.mark.parametrize("name", names())
    def test_a_sidecar_that_dies_anywhere_records_the_same(self, name: str) -> None:
        """Also if acks were lost, so that some that were durable are sent again."""
        items = recording(name)
        whole = shape(list(play(name).log.events.values()))
        for cut in range(0, len(items) + 1, 1 if name in CUT_EVERYWHERE else 7):
            player = Player()
            player.feed(items[:cut])
            player.crash()
            back = (0, 1, 3, 0, 8, 30)[cut % 6]
            unfinished = next((n for n, item in enumerate(items) if item[0] not in player.finished), len(items))
            again = items[max(unfinished - back, 0) :] if back else items
            player.feed([item for item in again if back or item[0] not in player.finished])
            player.wait()
            assert shape(list(player.log.events.values())) == whole, f"killed after hook {cut}, {back} sent again"


class TestLineage:
    def _child_only(self, name: str = "task_child") -> tuple[list[Item], str]:
        """A recording without its root's creation, so that the parent never appears."""
        items = recording(name)
        root = items[0][1].input["event"]["properties"]["sessionID"]
        child_items = [i for i in items if json.dumps([i[1].input, i[1].output]).find(root) < 0]
        created = [i for i in items if _is_created(i[1]) and _info(i[1]).get("parentID") == root]
        return sorted(created + child_items, key=lambda i: i[0].seq), root

    def test_a_parent_that_never_appears_does_not_hold_the_log(self) -> None:
        items, root = self._child_only()
        player = Player()
        player.feed(items)
        assert player.asked == [root]
        assert player.types() == [], "unknown is not root: it waits"
        player.wait(2.0)
        created = player.of("lifecycle.session.created")[0]
        assert created.payload["lineage"] == "unknown" and created.payload["parent"] == root
        assert created.stream_id == created.payload["session"]
        assert player.of("human.input") == []
        assert {t for t, _ in items} == player.finished

    def test_a_parent_that_opencode_knows_is_taken_from_there(self) -> None:
        items, root = self._child_only()
        player = Player()
        player.feed(items, known={root: {"id": root, "title": "old"}})
        player.wait()
        assert player.types()[0] == "lifecycle.session.resumed"
        assert {e.stream_id for e in player.log.events.values()} == {root}

    def test_an_orphan_is_linked_when_its_parent_appears(self) -> None:
        items, root = self._child_only()
        player = Player()
        player.feed(items)
        player.wait()
        player.feed([recording("task_child")[0]])
        player.wait()
        linked = player.of("lineage.linked")[0]
        orphan = player.of("lifecycle.session.created")[0]
        assert linked.stream_id == orphan.stream_id, "records never move"
        assert linked.payload["parent"] == root == linked.payload["root"]
        assert linked.causation_id == orphan.id

    def test_other_sessions_go_on_while_one_waits(self) -> None:
        items, _ = self._child_only()
        player = Player()
        player.feed(items[:2])
        player.feed(recording("chat"))
        assert "turn.ended" in player.types()
        assert not {t for t, _ in items[:2]} & player.finished

    def test_hooks_of_one_session_keep_their_order_while_held(self) -> None:
        items, _ = self._child_only()
        player = Player()
        player.feed(items)
        player.wait()
        positions = [e.metadata["seq"] for e in player.log.events.values()]
        assert positions == sorted(positions)


class TestBadInput:
    def _feed(self, *items: HookItem) -> Player:
        player = Player()
        origin = Origin("b" * 32, "c" * 16)
        player.feed([(Token(origin, seq), item) for seq, item in enumerate(items, 1)])
        player.wait()
        assert {token.seq for token in player.finished} == set(range(1, len(items) + 1))
        return player

    def test_an_unknown_bus_event_is_kept_whole(self) -> None:
        properties = {"sessionID": "ses_x", "anything": [1, {"deep": True}]}
        event = {"id": "evt_1", "type": "agent.dreamed", "properties": properties}
        player = self._feed(HookItem("event", 5, {"event": event}, None))
        kept = player.of("opencode.agent.dreamed")[0]
        assert kept.payload["properties"] == properties and kept.ts == 5

    def test_a_broken_rule_keeps_the_item(self, monkeypatch: pytest.MonkeyPatch) -> None:
        player = Player()

        def broken(*_: Any) -> bool:
            raise KeyError("shape")

        monkeypatch.setattr(player.translator, "unknown_event", broken)
        player.feed([(Token(Origin("b" * 32, "c" * 16), 1), HookItem("brand.new", 1, {"a": 1}, None))])
        assert player.of("opencode.unreadable")[0].payload["item"]["input"] == {"a": 1}
        assert len(player.finished) == 1

    def test_a_gap_is_recorded_with_its_counts(self) -> None:
        gap = {"lost": 7, "bytes": 900, "reason": "memory_full", "first_seq": 3, "last_seq": 9}
        player = self._feed(HookItem("capture.gap", 5, gap, None))
        assert player.of("capture.gap")[0].payload == gap


def test_redaction_comes_before_the_log() -> None:
    player = Player(Log())
    player.knows(cleaned=lambda value: ({"clean": True}, b""))
    player.feed(recording("chat"))
    assert all(event.payload == {"clean": True} for event in player.of("execution.output"))


def _is_created(item: HookItem) -> bool:
    return item.hook == "event" and item.input["event"]["type"] == "session.created"


def _info(item: HookItem) -> dict[str, Any]:
    info: dict[str, Any] = item.input["event"]["properties"]["info"]
    return info


@pytest.mark.parametrize("name", names())
def test_what_is_sent_again_from_anywhere_after_a_crash_adds_nothing(name: str) -> None:
    """All was durable but the acks were lost, also those of hooks that are remembered without an event."""
    player, items = play(name), recording(name)
    before = list(player.log.events)
    player.feed(items)
    player.wait()
    assert list(player.log.events) == before, "nor without a crash"
    step = 1 if name in CUT_EVERYWHERE | {"fork"} else 1 + len(items) // 12
    for start in range(0, len(items), step):
        player.crash()
        player.feed(items[start:])
        player.wait()
        assert list(player.log.events) == before, start


@pytest.mark.parametrize("dumped", [b"", b"[]", b"{}", b'{"told":{},"spawns":{},"busy":1}', b"\xff"])
def test_what_is_no_dump_is_refused(dumped: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        CaptureState.load(dumped, MemoryRows())
